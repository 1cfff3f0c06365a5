"""Bags named like formulas and escape codes, and links and pipes among bags, in every command."""

import csv
import json
import logging
import os
import re
from pathlib import Path

import pytest
from support import foreign
from support.foreign import slide
from support.paths import ROOT
from support.stored import write_folder

from probsa.cli import main
from probsa.cli.terminal import SafeConsole
from probsa.core import TextTable, write_csv
from probsa.datasets import open_bags
from probsa.errors import BagError

NAMES = {
    "000": "=HYPERLINK(1)",
    "001": "+cmd",
    "002": "@x",
    "003": "\x1b[31mred",
    "004": "-a\u202eb",
}
OBEYED = re.compile('[\x00-\x08\x0b-\x1f\u202e]|(?m:^|,)"?[=+@-][^,0-9.\n]')


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of bags with such names and its table of labels."""
    folder = tmp_path_factory.mktemp("hostile")
    features, labels = write_folder(folder)
    rows = TextTable.read(labels).rows
    for row in rows:
        name = NAMES.get(row["bag"], row["bag"])
        (features / f"{row['bag']}.h5").rename(features / f"{name}.h5")
        row["bag"] = name
    write_csv(labels, ["bag", "label", "fold"], rows)
    return features, labels


def safe_tables(folder: Path) -> dict[str, list[str]]:
    """Return the bags of each table below a folder, after checking that nothing is obeyed."""
    found = {}
    for path in sorted(folder.rglob("*.csv")):
        assert not OBEYED.search(path.read_text()), path
        table = TextTable.read(path)
        found[path.name] = [row["bag"] for row in table.rows if "bag" in table.columns]
    return found


def test_tables_and_the_terminal(data, tmp_path, capsys):
    features, labels = data
    given = ["--features", str(features), "--labels", str(labels)]
    run = tmp_path / "run"
    preds = tmp_path / "preds"
    other = tmp_path / "other"
    flags = ["--model", "abmil", "--model.embed", "8", "--test-fold", "0", "--epochs", "1"]
    flags += ["--device", "cpu", "--tensorboard", "false", "--maps", "none"]
    assert main(["train", *given, "--out", str(run), *flags]) == 0
    (features / "\x1b[2Jdamaged.h5").write_text("x")
    assert main(["predict", str(run), *given, "--out", str(preds)]) == 1
    assert main(["evaluate", str(preds), "--labels", str(labels)]) == 0
    assert main(f"convert {features} --from probsa --labels {labels} --out {other}".split()) == 1
    assert main(["evaluate", str(tmp_path / "\x1b[2J")]) == 2
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said and "\u202e" not in said
    assert "\\x1b[2Jdamaged" in said
    tables = {**safe_tables(run), **safe_tables(preds), **safe_tables(other)}
    assert set(NAMES.values()) < set(tables["predictions.csv"])
    assert tables["failed.csv"] == ["\x1b[2Jdamaged"]
    assert set(NAMES.values()) < set(tables["conversion.csv"])
    report = tmp_path / "e.json"
    assert main(["evaluate", str(preds), "--labels", str(labels), "--json"]) == 0
    report.write_text(capsys.readouterr().out)
    assert json.loads(report.read_text())
    (features / "\x1b[2Jdamaged.h5").unlink()


def test_tables_are_written_and_printed_in_one_place():
    """So that what `predict` and `convert` show above holds for every command."""
    writers = re.compile(r"csv\.writer|DictWriter|\.to_csv\(|\bsavetxt\b")
    printers = re.compile(r"sys\.std(out|err)\b(?!\.(isatty|flush)\(\))|= Console\(|StreamHandler")
    files = sorted((ROOT / "src" / "probsa").rglob("*.py"))
    names = [(p.name, p.read_text(encoding="utf-8")) for p in files]
    assert [n for n, text in names if writers.search(text)] == ["files.py"]
    assert [n for n, text in names if printers.search(text)] == ["command.py"]


def test_notes_of_the_library_are_printable():
    assert logging.lastResort is not None and not logging.getLogger("probsa").handlers
    record = logging.LogRecord("probsa", logging.WARNING, "", 0, "note: %s", ("\x1b[2J",), None)
    assert logging.lastResort.format(record) == "note: \\x1b[2J"


def test_a_progress_bar_shows_no_escape_codes(capsys):
    from rich.table import Table

    table = Table("a\x1b[2J")
    table.add_row("[red]\u202e")
    SafeConsole().print(table, "\x07x\x1b]0;t\x07", markup=False)
    said = capsys.readouterr().out
    assert "\\x1b[2J" in said and "\\u202e" in said and not re.search("[\x07\x1b\u202e]", said)


PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")


@PIPES
def test_links_and_pipes_among_bags_are_named(data, tmp_path):
    features, labels = data
    mixed = tmp_path / "mixed"
    gone = tmp_path / "gone"
    mixed.mkdir()
    for path in features.iterdir():
        (mixed / path.name).symlink_to(path)  # links to files are read
    os.mkfifo(mixed / "pipe.h5")
    (mixed / "broken.h5").symlink_to(gone)
    (mixed / "folder").symlink_to(features)
    os.mkfifo(mixed / "other")
    flags = ["--model", "abmil", "--test-fold", "0", "--epochs", "1", "--device", "cpu"]
    flags += ["--tensorboard", "false", "--maps", "none"]
    run = tmp_path / "run"
    assert (
        main([*f"train --features {features} --labels {labels} --out {run}".split(), *flags]) == 0
    )
    preds = tmp_path / "preds"
    assert main(["predict", str(run), "--features", str(mixed), "--out", str(preds)]) == 1
    reasons = {r["bag"]: r["reason"] for r in TextTable.read(preds / "failed.csv").rows}
    assert set(reasons) == {"pipe", "broken"} and str(gone) in reasons["broken"]
    out = tmp_path / "converted"
    assert main(["convert", str(mixed), "--from", "probsa", "--out", str(out)]) == 1
    with (out / "conversion.csv").open() as f:
        failed = {r["bag"] for r in csv.DictReader(f) if r["status"] == "failed"}
    assert {"pipe", "broken"} <= failed


@PIPES
@pytest.mark.parametrize("tool", ["clam", "trident", "stamp", "slideflow", "torchmil"])
@pytest.mark.parametrize("odd", ["pipe", "link"])
def test_a_pipe_or_a_broken_link_is_one_bag_that_fails(tmp_path, tool, odd):
    folder = getattr(foreign, tool)(tmp_path / "x", slide("a"), slide("c", seed=1))
    bags = open_bags(folder)
    path = bags._files["a"].with_name(f"b{bags._files['a'].suffix}")
    os.mkfifo(path) if odd == "pipe" else path.symlink_to(tmp_path / "gone")
    bags = open_bags(folder)
    assert bags.names == ("a", "b", "c")
    for read in (bags.stored, bags.size):
        with pytest.raises(BagError, match=str(path)):
            read("b")


@PIPES
@pytest.mark.parametrize(
    ("tool", "part"),
    [
        ("torchmil", "patch_labels"),
        ("torchmil", "patch_labels/a.npy"),
        ("torchmil", "coords"),
        ("clam", "patches"),
        ("clam", "patches/a.h5"),
    ],
)
def test_what_stands_in_the_place_of_a_bag_s_part_is_named(tmp_path, tool, part):
    """It was taken for a bag without labels, for a scan, or for one without coordinates."""
    folder = getattr(foreign, tool)(tmp_path / "x", slide("a"))
    name = open_bags(folder)._files["a"]
    path = next(p / part for p in name.parents if (p / part).exists())
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(BagError, match=f"{path} .*gone"):
        open_bags(folder).stored("a")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BagError, match=str(path)):
        open_bags(folder).stored("a")
