"""Every command line of the README and the documents: its arguments exist, and it runs.

The names that stand for a user's files are made small in a folder of the test. Lines that cannot
run there are listed with the reason; their arguments are checked all the same.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.made_slides import tissue, write_slide
from support.one_process import use_one_process

from probsa.cli import main
from probsa.cli.command import Command
from probsa.cli.entry import COMMANDS
from probsa.models import known_arguments
from probsa.training import flatten, section_keys

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```bash([^\n]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SMALL = {
    "train": shlex.split(
        "--epochs 1 --members 1 --embed 8 --device cpu --maps none --tensorboard "
        "false --test-fold 0"
    ),
    "extract": ["--encoder", "handcrafted", "--readers", "0"],
    "run": ["--readers", "0"],
    "patch": ["--workers", "1", "--patch-size", "128"],
}
"""Arguments that make a line small, where it does not give them itself."""
NOT_RUN = {
    "README.md": "tests/system/test_readme.py runs these lines in their order",
    "docs/benchmark.md": "hours of training; tests/benchmark runs grids",
    "docs/datasets.md": "published data sets, which are made small in tests/datasets/studies",
    "docs/start.md": "the demo, in tests/cli/test_demo.py, and a line of the README",
    "docs/tutorials/comparing.md": "tests/docs/test_tutorials.py runs the tutorials",
    "docs/tutorials/ct.md": "tests/docs/test_tutorials.py runs the tutorials",
    "docs/tutorials/maps.md": "tests/docs/test_tutorials.py runs the tutorials",
    "docs/tutorials/slides.md": "tests/docs/test_tutorials.py runs the tutorials",
    "probsa demo": "tests/cli/test_demo.py runs a small one",
    "probsa doctor": "tests/cli/test_doctor.py; its answer depends on the machine",
    "probsa benchmark": "grids are run in tests/benchmark",
    "probsa dataset camelyon16": "a published data set; tests/datasets/studies",
    "--device cuda": "a graphics card and weights of ResNet-50",
    "probsa view": "a server that does not end; exported pages are run in the README",
    "probsa info scans": "a CT study, which is run in docs/tutorials/ct.md",
    "windows brain": "a CT study, which is run in docs/tutorials/ct.md",
    "probsa convert trident_job": "tests/datasets/test_conversion.py converts made folders",
    "--slide-mpp missing.csv": "no slide of the test lacks a resolution",
    "resnet50 --weights FILE": "weights of ResNet-50",
    "NUMBERS": "predictions of a regression; tests/evaluation/test_guarantees.py",
    "--task": "other targets; tests/system/test_targets trains each",
    "--max-error": "more bags than a small folder has",
    "probsa sets": "more bags than a small folder has",
    "--resume": "tests/cli/commands/test_train.py resumes a run",
    "runs/fold0": "tests/evaluation/test_new_to_runs.py predicts with several runs",
}


MEANT = {"NAME": "camelyon16", "$k": "0"}
"""Words that stand for a value."""


def lines():
    """Yield the page and the arguments of each command line."""
    for page in PAGES:
        for _, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\||;", line.split(" #")[0]):
                    words = shlex.split(part)
                    if words and words[0].rpartition("/")[2] == "probsa" and words[1] in COMMANDS:
                        yield str(page.relative_to(ROOT)), tuple(MEANT.get(w, w) for w in words[1:])


LINES = list(dict.fromkeys(lines()))


def reason(page, words):
    """Return why a line is not run; an empty text for one that is."""
    text = f"{page} probsa {' '.join(words)}"
    return next((why for part, why in NOT_RUN.items() if part in text), "")


def test_all_pages_with_commands_are_found():
    assert len(LINES) > 80 and {words[0] for _, words in LINES} == set(COMMANDS)


def test_each_reason_is_used():
    texts = [f"{page} probsa {' '.join(words)}" for page, words in LINES]
    assert [part for part in NOT_RUN if not any(part in text for text in texts)] == []


@pytest.mark.parametrize(
    ("page", "words"), LINES, ids=lambda v: v if isinstance(v, str) else " ".join(v)
)
def test_the_arguments_of_each_line_exist(page, words):
    command = Command(words[0])
    if {"--help", "--help-all"} & set(words):
        return
    given, keys = command.parse(words[1:])
    for parameter in command.parameters:
        parameter.read(getattr(given, parameter.name))
    if words[0] == "train":
        own = known_arguments(keys.get("model.name", "evidence-field"))
        for key, value in flatten(keys, own).items():
            if key in section_keys():
                section_keys()[key].read(value)
            else:
                assert key == "model.name" or key.removeprefix("model.") in own


@pytest.fixture(scope="module", autouse=True)
def _in_one_process():
    with pytest.MonkeyPatch.context() as patch:
        use_one_process(patch)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make what the documents call slides, work, labels.csv, runs/a, predictions, …"""
    folder = tmp_path_factory.mktemp("documents")
    for k in range(6):
        image = tissue(1024, 512, boxes=[(100, 50, 300 + 90 * k, 400)], seed=k)
        write_slide(folder / "slides" / f"case0{k}.tiff", image)
    shutil.copy(folder / "slides" / "case01.tiff", folder / "slides" / "case01.svs")
    (folder / "slides" / "case01.tiff").unlink()
    rows = "".join(f"case0{k},{k % 2},{k // 2}\n" for k in range(6))
    for name in ("labels.csv", "cohort.csv"):
        (folder / name).write_text(f"bag,label,fold\n{rows}")
    rows = "".join(f"b{k},{k % 2},p{k // 2},h{k // 6}\n" for k in range(48))
    (folder / "cohort_labels.csv").write_text(f"bag,label,group,hospital\n{rows}")
    for line in (
        "patch slides --out work --mpp 0.5 --patch-size 128 --workers 1",
        "extract work --encoder handcrafted --readers 0",
        "train --features work --labels labels.csv --out runs/a",
        "predict runs/a --features work --out predictions --labels labels.csv",
    ):
        command = line.split()
        paths = [str(folder / w) if w.partition("/")[0] in NAMES else w for w in command]
        more = SMALL["train"] if command[0] == "train" else []
        assert main([*paths, *more]) == 0
    for name, source in LINKS.items():
        (folder / name).symlink_to(folder / source)
    return folder


NAMES = {"slides", "work", "labels.csv", "runs", "predictions"}
LINKS = {
    "RUN": "runs/a",
    "PREDICTIONS": "predictions",
    "new": "work",
    "DIR": "work",
    "SLIDES": "slides",
    "WORK": "work",
    "new_slides": "slides",
    "FILE": "slides/case00.tiff",
}
"""Names of the documents, and what stands for them."""


@pytest.mark.parametrize(
    ("page", "words"),
    [(page, words) for page, words in LINES if not reason(page, words)],
    ids=lambda v: v if isinstance(v, str) else " ".join(v),
)
def test_each_line_runs(place, tmp_path, monkeypatch, capsys, page, words):
    """What a line writes is put elsewhere, so that the order of the lines does not matter."""
    monkeypatch.chdir(place)
    given = list(words)
    for flag in ("--out", "--figures", "--mpp-table", "--export"):
        if flag in given:
            given[given.index(flag) + 1] = str(tmp_path / given[given.index(flag) + 1])
    small = SMALL.get(words[0], [])
    for flag, value in zip(small[::2], small[1::2], strict=True):
        if flag not in given and "--help-all" not in given:
            given += [flag, value]
    assert main(given) == 0, capsys.readouterr().err
