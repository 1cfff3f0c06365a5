"""Rows that others submit: which are left out, and what they leave unchanged."""

import csv
import hashlib
import json

import h5py
import pytest
from support.leaderboards import BAGS, SOME_LABELS, Y, write_experiment, write_row

from probsa.benchmark.leaderboard.writing import write_leaderboard
from probsa.benchmark.results.results import read_results
from probsa.datasets import fingerprint_line


def _write(out):
    """Write the leaderboard; return the rows of the set's table, and all text."""
    write_leaderboard(out, read_results(out), resamples=50)
    rows = {}
    if (out / "leaderboard" / "leaderboard_toy.csv").is_file():
        with (out / "leaderboard" / "leaderboard_toy.csv").open() as f:
            found = list(csv.DictReader(f))
        rows = {r["method"]: r for r in found}
        assert len(rows) == len(found)
    return rows, (out / "leaderboard" / "leaderboard.md").read_text()


def _change(path, change, *, data="toy", to=None, replicate="0"):
    """Change the bags of a row, and give it the fingerprint of the changed bags."""
    row = json.loads(path.read_text())
    bags = row["sets"][data]["replicates"][replicate]
    change(bags)
    digest = hashlib.sha256()
    for name in sorted(bags):
        b = bags[name]
        digest.update(fingerprint_line(name, y=b["y"], n=b["n"], positive=b["positive"]))
    row["sets"][data]["fingerprint"] = digest.hexdigest()
    (to or path).write_text(json.dumps(row))


@pytest.fixture
def row(tmp_path):
    """A row of the first of two methods, in the folder of the experiment."""
    write_experiment(tmp_path, seeds=1)
    path = tmp_path / "submissions" / "row.json"
    write_row(tmp_path, path)
    return path


def test_a_row_equals_the_runs_it_was_made_from(tmp_path, row):
    rows, text = _write(tmp_path)
    for key in ("auroc", "nll", "ap", "doubt_gain"):
        assert rows["theirs (submitted)"][key] == rows["abmil"][key] != ""
    assert "left out, because" not in text and "Left out" not in text


def test_a_row_that_lacks_a_fold_is_left_out_with_the_reason(tmp_path):
    write_experiment(tmp_path, seeds=1)
    write_row(tmp_path, tmp_path / "submissions" / "row.json", folds=3)
    _, text = _write(tmp_path)
    assert "row.json on toy: left out, because in replicate 0 its 30 bags are not those" in text
    assert "which has 40: bag 'f3b0' is missing" in text


# ------------------------------------------------------------- values that no bag can have


@pytest.mark.parametrize(
    ("bag", "values", "message"),
    [
        ("f0b1", {"average_precision": -0.5}, "average_precision is -0.5, expected 0 to 1"),
        ("f0b1", {"average_precision": 1.1}, "average_precision is 1.1, expected 0 to 1"),
        ("f0b1", {"auroc": -0.01}, "auroc is -0.01, expected 0 to 1"),
        ("f0b1", {"auroc": float("nan")}, "auroc is nan, expected 0 to 1"),
        ("f0b1", {"doubt_gain": -1.2}, "doubt_gain is -1.2, expected -1 to 1"),
        ("f0b1", {"faithfulness": 2.0}, "faithfulness is 2.0, expected -1 to 1"),
        ("f0b1", {"p": 1.5}, "p is 1.5, expected 0 to 1"),
        ("f0b1", {"y": 2}, "y is 2, expected 0 or 1"),
        ("f0b1", {"positive": 13}, "n, labelled and positive are 12, 12 and 13"),
        ("f0b1", {"average_precision": None}, "average_precision is null, expected a number"),
        ("f0b1", {"auroc": None}, "auroc is null, expected a number from 0 to 1, as y is 1, and 3"),
        ("f0b1", {"positive": 12, "auroc": 0.5}, "auroc is 0.5, expected null: only positive bags"),
        ("f0b0", {"average_precision": 0.9}, "average_precision is 0.9, expected null: only"),
        ("f0b0", {"auroc": 0.9}, "auroc is 0.9, expected null: only positive bags"),
        ("f0b0", {"doubt_gain": 0.1}, "doubt_gain is 0.1, expected null: only positive bags"),
        ("f0b0", {"faithfulness": 0.1}, "faithfulness is 0.1, expected null: only positive bags"),
    ],
)
def test_values_that_no_bag_can_have_are_left_out(tmp_path, row, bag, values, message):
    before, _ = _write(tmp_path)

    def change(bags):
        for key, value in values.items():
            (bags[bag] if key in bags[bag] else bags[bag]["measures"])[key] = value

    _change(row, change)
    after, text = _write(tmp_path)
    assert f"Left out: row.json, toy, replicate 0, bag '{bag}': {message}" in text
    assert str(row) not in text
    del before["theirs (submitted)"]
    assert after == before


def test_a_row_without_values_does_not_change_the_other_methods(tmp_path, row):
    before, _ = _write(tmp_path)
    row.rename(tmp_path / "row.json")
    alone, _ = _write(tmp_path)
    others = {"abmil", "clam-sb"}
    assert {n: r for n, r in before.items() if n in others} == alone

    def drop(bags):
        for bag in [b for b in BAGS if Y[b]][:10]:
            bags[bag]["measures"]["average_precision"] = None

    _change(tmp_path / "row.json", drop, to=row)
    after, text = _write(tmp_path)
    assert after == alone and "20 positive ones with instances of both labels" in text


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ', "[]", "\xff"])
def test_files_that_are_no_json_objects_are_left_out(tmp_path, row, text):
    row.with_name("x.json").write_text(text, encoding="latin-1")
    rows, shown = _write(tmp_path)
    assert "Left out: x.json is not a row of the leaderboard" in shown
    assert "theirs (submitted)" in rows


# ------------------------------------------------------------- comparison with the runs


@pytest.mark.parametrize(
    ("bag", "values", "message"),
    [
        ("f0b1", {"fold": 3}, "the fold of bag 'f0b1' is 3, expected 0 as in the runs"),
        ("f0b1", {"group": "x"}, "the group of bag 'f0b1' is 'x', expected 'f0b0' as in"),
        ("f0b1", {"n": 13, "labelled": 13}, "the number of instances of bag 'f0b1' is 13, exp"),
        ("f0b1", {"labelled": 11}, "instances with a label of bag 'f0b1' is 11, expected 12"),
        ("f0b1", {"positive": 4}, "of positive instances of bag 'f0b1' is 4, expected 3 as in"),
        (
            "f0b1",
            {"y": 0, "measures": dict.fromkeys(
                ("auroc", "average_precision", "doubt_gain", "faithfulness")
            )},
            "the label of bag 'f0b1' is 0, expected 1 as in the runs of this experiment",
        ),
    ],
)  # fmt: skip
def test_rows_that_differ_from_the_runs_are_left_out(tmp_path, row, bag, values, message):
    _change(row, lambda bags: bags[bag].update(values))
    rows, text = _write(tmp_path)
    assert "row.json on toy: left out, because in replicate 0" in text and message in text
    assert set(rows) == {"abmil", "clam-sb"}


def test_other_bags_and_another_fingerprint_are_left_out(tmp_path, row):
    other, third = row.with_name("other.json"), row.with_name("third.json")
    _change(row, lambda bags: bags.update(new=bags["f0b1"]), to=other)
    given = json.loads(row.read_text())
    given["sets"]["toy"]["fingerprint"] = "0"
    third.write_text(json.dumps(given | {"method": "third"}))
    row.unlink()
    _, text = _write(tmp_path)
    assert (
        "other.json on toy: left out, because in replicate 0 bag 'new' is not in the runs" in text
    )
    assert "third.json on toy: left out, because in replicate 0 its 40 bags do not have" in text


def test_replicates_are_compared_one_by_one(tmp_path, row):
    write_row(tmp_path, row, replicate=1)
    rows, _ = _write(tmp_path)
    assert "theirs (submitted)" in rows
    _change(row, lambda bags: bags["f0b1"].update(fold=3), replicate="1")
    _, text = _write(tmp_path)
    assert "because in replicate 1 the fold of bag 'f0b1' is 3, expected 0" in text


def test_rows_of_a_set_that_was_not_run_are_compared_with_the_first(tmp_path, row):
    def as_other(name, path, change):
        given = json.loads(row.read_text())
        given["sets"] = {"other": given["sets"]["toy"]}
        path.write_text(json.dumps(given | {"method": name}))
        _change(path, change, data="other")

    as_other("a", row.with_name("a.json"), lambda bags: None)
    as_other("b", row.with_name("b.json"), lambda bags: bags.pop("f3b1"))
    as_other("c", row.with_name("c.json"), lambda bags: bags["f0b1"].update(group="x"))
    as_other("d", row.with_name("d.json"), lambda bags: None)
    _, text = _write(tmp_path)
    assert "b.json on other: left out, because in replicate 0 its 39 bags are not those" in text
    assert "group of bag 'f0b1' is 'x', expected 'f0b0' as in a.json" in text
    with (tmp_path / "leaderboard" / "leaderboard_other.csv").open() as f:
        assert {r["method"] for r in csv.DictReader(f)} == {"a (submitted)", "d (submitted)"}


# ------------------------------------------------------------- names


def test_a_name_belongs_to_one_file(tmp_path, row):
    same, other = row.with_name("s.json"), row.with_name("t.json")
    same.write_text(row.read_text())
    _change(row, lambda bags: bags["f0b1"].update(p=0.5), to=other)
    rows, text = _write(tmp_path)
    assert set(rows) == {"abmil", "clam-sb", "theirs (submitted)"}
    for name in ("s.json", "t.json"):
        assert f"{name}: left out, because row.json has the name 'theirs (submitted)'" in text


def test_a_row_with_the_name_of_an_own_method_is_told_apart(tmp_path, row):
    row.unlink()
    write_row(tmp_path, row, name="abmil")
    rows, text = _write(tmp_path)
    assert set(rows) == {"abmil", "clam-sb", "abmil (submitted)"}
    assert "left out, because" not in text and "Left out" not in text


def test_a_row_that_is_left_out_does_not_take_its_name(tmp_path, row):
    _change(row, lambda bags: None, to=row.with_name("s.json"))
    _change(row, lambda bags: bags["f0b1"].update(fold=3))
    rows, text = _write(tmp_path)
    assert "theirs (submitted)" in rows and "row.json on toy: left out" in text


def test_own_runs_without_some_labels_are_noted(tmp_path):
    write_experiment(tmp_path, seeds=1)
    for split in range(4):  # the second method was predicted before two bags had labels
        folder = tmp_path / "cells" / "toy" / "clam-sb" / f"split{split}-seed0" / "predictions"
        for bag in ("f0b1", "f2b3"):
            path = folder / "instances" / f"{bag}.h5"
            if path.is_file():
                with h5py.File(path, "a") as f:
                    del f["instance_labels"]
    _, text = _write(tmp_path)
    assert "18 positive ones with instances of both labels" in text
    assert "clam-sb on toy has no AP within 2 bags that others have one in ('f0b1' first)" in text
    write_row(tmp_path, tmp_path / "submissions" / "row.json")
    rows, _ = _write(tmp_path)
    assert "theirs (submitted)" in rows


def test_bags_without_instance_labels_in_the_set_have_none_in_a_row(tmp_path):
    write_experiment(tmp_path, seeds=1, labels=SOME_LABELS)
    path = tmp_path / "submissions" / "row.json"
    write_row(tmp_path, path, labels=SOME_LABELS)
    rows, text = _write(tmp_path)
    assert "18 positive ones with instances of both labels" in text
    for key in ("auroc", "nll", "ap", "doubt_gain"):
        assert rows["theirs (submitted)"][key] == rows["abmil"][key] != ""
