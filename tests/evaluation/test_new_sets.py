"""The table of prediction sets of new bags, and `probsa sets`."""

import json

import pytest
from support.made_guarantees import write_cohort

from probsa.cli.entry import main
from probsa.core import TextTable
from probsa.errors import InputError, OutputExists
from probsa.evaluation import GuaranteeOptions, evaluate, write_sets
from probsa.statistics import coverage_band

NEW = (("val", 40), ("new", 30))


def read(path):
    return TextTable.read(path).rows


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("per_class", [False, True])
def test_the_sets_hold_the_classes_with_high_p_values(tmp_path, score, per_class):
    folder, table = write_cohort(tmp_path / "p", parts=NEW, classes=("benign", "tumour"))
    options = GuaranteeOptions(coverage=0.9, score=score, per_class=per_class)
    out = tmp_path / "sets.csv"
    written = write_sets(folder, options, out=out, labels=table, classes=("benign", "tumour"))
    rows = read(out)
    assert all(row["bag"].startswith("p-new") for row in rows) and len(rows) == written.bags
    for row in rows:
        inside = [c for c in ("benign", "tumour") if float(row[f"p_value_{c}"]) > 0.1 + 1e-6]
        assert row["set"] == "|".join(inside)
    assert sum(written.sizes.values()) == len(rows)
    assert set(written.bands) == ({"benign", "tumour"} if per_class else {"all"})


def test_it_agrees_with_the_evaluation_of_the_same_bags(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=NEW, skill=2.5)
    options = GuaranteeOptions(coverage=0.9, max_error=0.2)
    out = tmp_path / "sets.csv"
    written = write_sets(folder, options, out=out, labels=table)
    rows = read(out)
    report = evaluate(folder, labels=table, guarantees=options, bootstrap=0)
    (section,) = [s for s in report.sections if s.key == "guarantees"]
    assert written.alarm == section.alarm
    assert (written.rule, written.undecided) == (section.accepted.rule, section.accepted.undecided)
    assert written.accepted == sum(row["accepted"] == "yes" for row in rows) > 0
    group = {row["bag"]: row["group"] for row in read(table)}
    sizes = {}
    for row in rows:
        size = len(row["set"].split("|")) if row["set"] else 0
        sizes.setdefault(group[row["bag"]], []).append(size)
    mean = sum(sum(s) / len(s) for s in sizes.values()) / len(sizes)
    assert section.sets.metrics["set_size"].value == pytest.approx(mean)


def test_labels_of_new_bags_are_not_needed(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=NEW)
    options = GuaranteeOptions(coverage=0.9, max_error=0.25)
    write_sets(folder, options, out=tmp_path / "a.csv", labels=table)
    lines = table.read_text().splitlines()
    table.write_text("\n".join(line for line in lines if "-new" not in line) + "\n")
    path = folder / "predictions.csv"
    header, *rows = path.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    stripped = [",".join(c[:2] + ([""] if c[1] == "new" else c[2:3]) + c[3:]) for c in cells]
    path.write_text("\n".join([header, *stripped]) + "\n")
    write_sets(folder, options, out=tmp_path / "b.csv", labels=table)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_a_table_is_not_overwritten_unless_asked(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=NEW)
    options, out = GuaranteeOptions(coverage=0.9), tmp_path / "sets.csv"
    write_sets(folder, options, out=out, labels=table)
    with pytest.raises(OutputExists, match="--overwrite"):
        write_sets(folder, options, out=out, labels=table)
    write_sets(folder, options, out=out, labels=table, overwrite=True)


def test_seen_bags_have_no_sets(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=(("train", 5), ("val", 60)))
    with pytest.raises(InputError, match="only training and validation bags"):
        write_sets(folder, GuaranteeOptions(coverage=0.9), out=tmp_path / "s.csv", labels=table)


# The commands


def test_the_command_writes_sets(tmp_path, capsys):
    folder, table = write_cohort(tmp_path / "p", parts=NEW)
    out = tmp_path / "sets.csv"
    arguments = ["sets", str(folder), "--labels", str(table), "--out", str(out)]
    arguments += ["--coverage", "0.9", "--max-error", "0.25"]
    assert main(arguments) == 0
    low, high = coverage_band(40, alpha=0.1)
    assert (
        f"between {low:.3f} and {high:.3f} for 9 of 10 calibration sets" in capsys.readouterr().out
    )
    assert main([*arguments, "--overwrite", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bags"] == len(read(out)) and document["coverage"] == 0.9
    assert main([*arguments, "--json"]) == 2


def test_evaluate_has_the_section(tmp_path, capsys):
    folder, table = write_cohort(tmp_path / "p")
    arguments = ["evaluate", str(folder), "--labels", str(table), "--bootstrap", "0", "--json"]
    options = ["--coverage", "0.9", "--max-missed", "0.2", "--max-error", "0.25", "--per-class"]
    assert main([*arguments, *options, "--set-score", "aps"]) == 0
    found = json.loads(capsys.readouterr().out)["guarantees"]
    assert {"sets", "missed", "accepted", "shift"} <= set(found)
    assert (found["sets"]["method"], found["sets"]["per_class"]) == ("aps", True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--per-class"], "--per-class alone guarantees nothing"),
        (["--calibration", "x"], "--calibration alone guarantees nothing"),
        (["--max-error", "0.2", "--per-class"], "--per-class needs --coverage"),
        (["--coverage", "90"], "--coverage is 90; expected a number between 0 and 1"),
        ([], "needs a level"),
    ],
)
def test_flags_without_effect_are_refused(tmp_path, capsys, flags, message):
    folder, _ = write_cohort(tmp_path / "p")
    assert main(["sets", str(folder), "--out", str(tmp_path / "s.csv"), *flags]) == 2
    assert message in capsys.readouterr().err
