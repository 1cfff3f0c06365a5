"""The README and the docs agree with the code."""

import importlib
import re
import shlex

import pytest
from support import forks
from support.made_slides import tissue, write_slide
from support.one_process import use_one_process
from support.paths import ROOT
from support.stored import write_folder

from probsa import models
from probsa.cli import main
from probsa.cli.entry import COMMANDS

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAPER = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_is_short_and_agrees_with_the_code():
    assert len(README.split()) <= 600
    assert README[: README.index("```python")].count("\n") < 20
    shown = [line for block in blocks("bash") for line in block.splitlines()]
    used = [line.split()[1] for line in shown if line.startswith("probsa ")]
    flow = {"patch", "extract", "train", "predict", "evaluate", "view", "map", "run", "benchmark"}
    assert set(used) == flow and flow <= set(COMMANDS)
    two = [line for block in blocks("bash") for line in block.splitlines() if "-m venv" in line]
    assert [line.rpartition("&& ")[2] for line in two] == [
        ".venv/bin/probsa demo",
        ".venv/bin/pytest",
    ]
    ci = (ROOT / ".ci" / "run").read_text()
    for part in ('install --quiet -c constraints.txt -e ".[dev]"', ".venv/bin/pytest\n"):
        assert part in ci
    pinned = (ROOT / "constraints.txt").read_text().split()
    assert [line.partition("==")[0] for line in pinned] == ["torch", "filelock"]
    assert "(docs/models.md)" in README
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in models.names() if f"`{name}`" not in page] == []
    rows = re.findall(r"^\| \d+ \w+ \|.*$", README, re.MULTILINE)
    assert len(rows) == 10
    named = {n for row in rows for n in re.findall(r"`(?:probsa )?([\w-]+)`", row.split("|")[4])}
    assert len(named) > 10 and named <= set(COMMANDS)


def test_the_python_example_runs():
    (example,) = blocks("python")
    done = forks.run(example)
    assert done.returncode == 0, done.errors()
    assert "nll" in done.output() and "kl" in done.output()


def test_the_commands_run_as_they_are_shown(tmp_path, monkeypatch, capsys):
    """On six small slides; the grid is listed but not trained."""
    use_one_process(monkeypatch)
    for k in range(6):
        width = 1600 if k % 2 else 900
        image = tissue(2048, 1024, boxes=[(200, 100, width, 800)], seed=k)
        write_slide(tmp_path / "slides" / f"s{k}.tiff", image)
    image = tissue(1024, 1024, boxes=[(100, 100, 800, 800)], seed=9)
    write_slide(tmp_path / "new" / "n0.tiff", image)
    rows = "".join(f"s{k},{k % 2},{k // 2}\n" for k in range(6))
    (tmp_path / "labels.csv").write_text(f"bag,label,fold\n{rows}")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    write_folder(tmp_path / "cohort")
    monkeypatch.chdir(tmp_path)
    shown = [line for block in blocks("bash") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in shown if line.startswith("probsa ")]
    more = {
        "train": ["--epochs", "2", "--embed", "16", "--device", "cpu", "--test-fold", "0"],
        "benchmark": ["--dry-run"],
        "view": ["--export", "page"],  # in place of a server, which would not end
        "run": ["--readers", "0"],
    }
    for command in commands:
        given = ["cohort" if a == "DIR" else a for a in command[1:]]
        assert main([*given, *more.get(command[1], [])]) == 0, (command, capsys.readouterr().err)
    assert len(list((tmp_path / "maps").glob("s*.png"))) == 6
    assert (tmp_path / "found" / "maps" / "n0.png").is_file()
    assert (tmp_path / "page" / "index.html").is_file()
    assert "54 waiting" in capsys.readouterr().out


def test_links_and_names_in_the_documents_exist():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert target.startswith("https://") or (page.parent / target).exists(), (page, target)
    for script in re.findall(r"`python (\S+\.py)", PAPER):
        assert (ROOT / script).is_file(), script
    numbers = set(re.findall(r"^\| \((\d+)\) \|", PAPER, re.MULTILINE))
    used = {
        n
        for file in (ROOT / "src").rglob("*.py")
        for n in re.findall(r"eqs?\. \((\d+)\)", file.read_text(encoding="utf-8"))
    }
    assert used and used <= numbers
    for file in [*ROOT.glob("*.md"), *(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"/(work|root|home|tmp)/", file.read_text(encoding="utf-8")), file
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert "bench_step.py" in text and "recipes/standins.yaml" in text


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(probsa(?:\.\w+)+)`", PAPER))))
def test_the_code_that_docs_paper_names_exists(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return
    pytest.fail(name)
