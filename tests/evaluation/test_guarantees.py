"""Guarantees: their definition, their tables, and what they refuse."""

import io
import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.made_guarantees import joined, write_cohort
from support.made_predictions import made
from support.refusals import refused

from probsa.cli import main
from probsa.core import Outputs, TextTable, seed_of
from probsa.errors import InputError, OutputExists, UnmetGuarantee
from probsa.evaluation import (
    Caution,
    Context,
    GuaranteeOptions,
    read_predictions,
    write_predictions,
    write_sets,
)
from probsa.evaluation.context import read_truth
from probsa.evaluation.guarantees import CAUTIONS, check_groups, guarantees_section
from probsa.statistics import coverage_band

NEW = (("val", 40), ("new", 30))


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """As `cohort`, of too few patients to calibrate with."""
    parts = (("val", 15), ("test", 20))
    return write_cohort(tmp_path_factory.mktemp("few") / "p", parts=parts)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """New bags of classes with names, and their calibration bags."""
    folder = tmp_path_factory.mktemp("named") / "p"
    return write_cohort(folder, parts=NEW, classes=("benign", "tumour"))


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """A folder of predictions and its table; tests do not change them."""
    return write_cohort(tmp_path_factory.mktemp("cohort") / "p", seed=1)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "p")


def evaluated(folder, table, *, part="test"):
    """Return the bags of a part, as a report has them."""
    predictions = read_predictions(folder)
    truth = read_truth(predictions, table)
    parts = (part, "new")
    named = enumerate(zip(predictions.bags, predictions.parts, strict=True))
    return Context(
        predictions=predictions,
        truth=truth,
        part=part,
        threshold=predictions.threshold,
        rows=tuple(i for i, (bag, of) in named if of in parts and bag in truth.targets),
        bootstrap=0,
        seed=0,
    )


def section(folder, table, *, part="test", **options):
    """Return the section of a report on some bags."""
    return guarantees_section(evaluated(folder, table, part=part), GuaranteeOptions(**options))


def value(metric):
    return metric["value"]


def text(part):
    console = Console(width=200, file=io.StringIO())
    part.render(console)
    return console.file.getvalue()


def rows_of(folder, table, part):
    """Return (bag, y, p) of the bags of each group of a part, without the tested code."""
    group = {row["bag"]: row["group"] for row in TextTable.read(table).rows}
    by_group = defaultdict(list)
    for row in TextTable.read(folder / "predictions.csv").rows:
        if row["part"] == part:
            bag = row["bag"]
            by_group[group[bag]].append((bag, int(row["label"]), float(row["p_1"])))
    return list(by_group.values())


def write_numbers(folder, *, count=60, seed=0, parts=("val", "test")):
    """Write predicted numbers of patients with two bags each, and their table."""
    g = np.random.default_rng(seed)
    predictions = []
    targets = {}
    part_of = {}
    for k in range(count):
        name = f"{folder.name}{k:03d}"
        amount = g.normal()
        sd = float(g.uniform(0.5, 2))
        values = np.array([amount, sd, *(amount + sd * np.arange(-2, 3))], np.float32)
        about = {"std": 0.1 * np.abs(values), "task": "regression"}
        about["outputs"] = Outputs.of_number((0.05, 0.25, 0.5, 0.75, 0.95))
        p = made(name, g.normal(size=4), np.zeros(4, int), probability=values)
        predictions.append(replace(p, **about))
        targets[name], part_of[name] = (amount + sd * g.normal(),), parts[k // 2 % len(parts)]
    metadata = {"model": "abmil", "training_targets": [list(t) for t in targets.values()]}
    write_predictions(
        folder,
        predictions,
        labels=targets,
        parts=part_of,
        classes=(),
        threshold=None,
        metadata=metadata,
    )
    rows = [f"{name},p{k // 2},{y}" for k, (name, (y,)) in enumerate(targets.items())]
    table = folder.with_suffix(".csv")
    table.write_text("\n".join(["bag,group,label", *rows]) + "\n")
    return folder, table


# The definition


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("per_class", [False, True])
def test_sets_are_those_of_the_definition(cohort, per_class, score):
    options = {"coverage": 0.8, "per_class": per_class, "score": score}
    found = section(*cohort, **options).to_dict()["sets"]

    def scores(bag, p):
        of_class = np.array([1 - p, p])
        if score == "lac":
            return 1 - of_class
        u = np.random.default_rng(seed_of("aps", bag)).random()
        return np.where(of_class < 0.5, 1 - of_class, 0) + u * of_class

    val, test = (
        [[(y, scores(bag, p)) for bag, y, p in bags] for bags in rows_of(*cohort, part)]
        for part in ("val", "test")
    )
    threshold = {}
    for c in (0, 1):
        losses = [[s[y] for y, s in bags if not per_class or y == c] for bags in val]
        losses = [np.array(s) for s in losses if s]
        k = len(losses)
        threshold[c] = next(
            t
            for t in sorted(np.concatenate(losses))
            if (sum((s > t).mean() for s in losses) + 1) / (k + 1) <= 0.2 + 1e-12
        )
        assert found["calibration_groups"][str(c) if per_class else "all"] == k
    covered = []
    sizes = []
    for bags in test:
        inside = [[s[c] <= threshold[c] for c in (0, 1)] for _, s in bags]
        covered.append(np.mean([i[y] for i, (y, _) in zip(inside, bags, strict=True)]))
        sizes.append(np.mean([sum(i) for i in inside]))
    metrics = found["metrics"]
    for c in (0, 1):
        hits = [[s[c] <= threshold[c] for y, s in bags if y == c] for bags in test]
        expected = np.mean([np.mean(hit) for hit in hits if hit])
        assert value(metrics[f"coverage_{c}"]) == pytest.approx(expected)
    assert found["thresholds"] == pytest.approx({"0": threshold[0], "1": threshold[1]})
    assert value(metrics["coverage"]) == pytest.approx(np.mean(covered))
    assert value(metrics["set_size"]) == pytest.approx(np.mean(sizes))
    shares = [value(metrics[f"{k}_sets"]) for k in ("empty", "single", "larger")]
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_intervals_are_those_of_the_definition(score, numbers, tmp_path):
    """A patient with one bag counts as much as one with two."""
    folder, table = numbers
    rows = TextTable.read(folder / "predictions.csv").rows
    dropped = {r["bag"] for r in rows[3::6]}
    rows = [r for r in rows if r["bag"] not in dropped]
    lines = table.read_text().splitlines()
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("\n".join(x for x in lines if x.split(",")[0] not in dropped) + "\n")
    found = section(folder, fewer, coverage=0.8, score=score).to_dict()["intervals"]
    y, mean, sd = (np.array([float(r[c]) for r in rows]) for c in ("label", "mean", "sd"))
    scale = sd if score == "aps" else np.ones(len(rows))
    patient = np.array([int(r["bag"][-3:]) // 2 for r in rows])
    part = np.array([r["part"] for r in rows])
    off = (y - mean) / scale

    def over_patients(values, of="test"):
        groups = dict.fromkeys(patient[part == of].tolist())
        return np.mean([values[patient == k].mean() for k in groups])

    def risk(q):  # the share of a patient's bags outside; a new patient adds 1 at most
        return (15 * over_patients(np.abs(off) > q, "val") + 1) / (15 + 1)

    q = found["half_width"]
    assert risk(q * (1 + 1e-6)) <= 0.2 < risk(q * (1 - 1e-6)) and found["calibration_groups"] == 15
    inside = np.abs(off) <= q * (1 + 1e-6)
    q = q * (1 + 1e-6)
    got = {k: value(m) for k, m in found["metrics"].items()}
    assert got == {
        "coverage": pytest.approx(over_patients(inside)),
        "coverage_of_bags": pytest.approx(inside[part == "test"].mean()),
        "width": pytest.approx(over_patients(2 * q * scale), rel=1e-5),
        "below": pytest.approx(over_patients(off < -q)),
        "above": pytest.approx(over_patients(off > q)),
    }
    assert got["coverage"] != pytest.approx(got["coverage_of_bags"])
    assert got["below"] != pytest.approx(got["above"])
    assert found["adapts"] is (score == "aps")


def test_accepted_calls_are_those_outside_the_undecided_range(tmp_path):
    folder, table = write_cohort(tmp_path / "p", seed=3, skill=2.0)
    found = section(folder, table, max_error=0.2).to_dict()["accepted"]
    low, high = found["undecided"]
    assert low < 0.4 < high  # the threshold of the calls

    def over_groups(part):
        """The share of accepted calls, their error rate, and that of all calls."""
        calls = [
            [(not low < p < high, (p >= 0.4) != y) for _, y, p in bags]
            for bags in rows_of(folder, table, part)
        ]
        of_groups = [np.mean([(a, a and w, w) for a, w in of], axis=0) for of in calls]
        share, both, wrong = np.mean(of_groups, axis=0)
        return [share, both / share, wrong]

    names = ("accepted", "error_of_accepted", "error_of_all")
    got = [value(found["metrics"][name]) for name in names]
    assert got == pytest.approx(over_groups("test")) and 0 < got[0] < 1
    of_calibration = [found["calibration_accepted"], found["calibration_error"]]
    assert of_calibration == pytest.approx(over_groups("val")[:2])
    assert found["calibration_error"] <= 0.2


def test_nothing_or_everything_may_be_accepted(tmp_path):
    poor = section(*write_cohort(tmp_path / "p", seed=4, skill=0.0), max_error=0.2)
    found = poor.to_dict()["accepted"]
    assert found["certified"] is False and value(found["metrics"]["accepted"]) == 0
    assert found["metrics"]["error_of_accepted"]["reason"] == "no such bags"
    assert found["calibration_groups"] == 40
    good = section(*write_cohort(tmp_path / "q", skill=30), max_error=0.2)
    found = good.to_dict()["accepted"]
    assert value(found["metrics"]["accepted"]) == 1 and found["threshold_log_odds"] is None


def test_the_report_says_what_is_promised(cohort):
    found = section(*cohort, coverage=0.9, max_error=0.25)
    low, high = coverage_band(40, alpha=0.1)
    shown = text(found)
    for fact in (f"{low:.3f}", f"{high:.3f}", "40 calibration groups", "class 1"):
        assert fact in shown
    assert found.cautions == (Caution.CHOSEN_ON_CALIBRATION,)
    assert all(CAUTIONS[caution] in shown for caution in found.cautions)
    without_groups = section(cohort[0], None, coverage=0.9).cautions
    assert without_groups == (Caution.CHOSEN_ON_CALIBRATION, Caution.NO_GROUPS)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert list(values) == [
        "calibration",
        "calibration_bags",
        "calibration_groups",
        "sets",
        "accepted",
        "caution",
        "unmet",
    ]


def test_other_bags_can_calibrate(cohort, numbers, tmp_path):
    folder, table = cohort
    other, other_table = write_cohort(tmp_path / "q", parts=(("val", 30), ("new", 50)), seed=5)
    both = joined(tmp_path, table, other_table)
    found = section(folder, both, coverage=0.9, calibration=other)
    assert (found.values["calibration_groups"], found.values["caution"]) == (50, None)
    assert found.cautions == ()
    stored = section(folder, None, coverage=0.9, calibration=other).to_dict()
    assert stored["calibration_groups"] == stored["calibration_bags"] > 50  # bags are groups
    unseen, _ = write_numbers(tmp_path / "other", seed=5, parts=("test",))
    found = section(numbers[0], None, coverage=0.8, calibration=unseen).to_dict()
    assert found["calibration_bags"] == 60 and "intervals" in found
    only_validation, _ = write_cohort(tmp_path / "v", parts=(("val", 30),), seed=6)
    found = section(folder, None, coverage=0.9, calibration=only_validation)
    assert "val" in found.values["calibration"]
    assert Caution.CHOSEN_ON_CALIBRATION in found.cautions


# Refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coverage": 1.0}, "--coverage is 1;"),
        ({"max_error": 90.0}, "--max-error is 90;"),
        ({}, "--coverage or --max-error"),
    ],
)
def test_levels_are_checked(options, words):
    refused(InputError, words, GuaranteeOptions, **options)


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("multilabel", {"coverage": 0.8}, "--coverage .* multilabel"),
        ("survival", {"coverage": 0.8}, "--coverage .* survival"),
        ("regression", {"max_error": 0.1}, "--max-error .* regression"),
        ("regression", {"coverage": 0.8, "per_class": True}, "--per-class .* regression"),
    ],
)
def test_what_a_task_cannot_have_is_refused(numbers, task, options, words):
    bags = evaluated(*numbers)
    bags = replace(bags, predictions=replace(bags.predictions, task=task))
    refused(InputError, words, guarantees_section, bags, GuaranteeOptions(**options))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 5}, "'q-test0-0'"),
        ({"epoch": 4}, "epoch is 3 and 4"),
        ({"classes": ("a", "b")}, "classes is 0, 1 and a, b"),
    ],
)
def test_other_bags_that_cannot_calibrate_are_refused(cohort, tmp_path, other, words):
    folder, _ = write_cohort(tmp_path / "q", **other)
    refused(InputError, words, section, *cohort, coverage=0.9, calibration=folder)


def test_calibration_bags_that_void_guarantees_are_refused(cohort, numbers, tmp_path):
    folder, table = cohort
    with pytest.raises(InputError, match="binary and regression"):
        section(folder, None, coverage=0.9, calibration=numbers[0])
    with pytest.raises(InputError, match=r"bags \('p-test0-0', .* and \d+ more\)"):
        section(folder, table, coverage=0.9, calibration=folder)
    with pytest.raises(InputError, match="--calibration"):
        section(folder, table, coverage=0.9, part="val")
    leaked = tmp_path / "leaked.csv"
    leaked.write_text(table.read_text().replace("p-val3\n", "p-test5\n"))
    with pytest.raises(InputError, match=r"1 group \('p-test5'\)"):
        section(folder, leaked, coverage=0.9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coverage": 0.95}, r"--coverage 0\.95 .*\b19 groups .* 15: .* --coverage 0\.937"),
        ({"coverage": 0.95, "per_class": True}, r"class 0 .*\b19 groups"),
        ({"max_error": 0.1}, r"--max-error 0\.1 .*\b30 calibration groups"),
        ({"coverage": 0.95, "max_error": 0.1}, r"--coverage 0\.95 .* --max-error 0\.1 "),
    ],
)
def test_too_few_calibration_bags_are_refused(few, options, words):
    refused(UnmetGuarantee, words, section, *few, **options)


def test_the_stated_number_of_patients_suffices(tmp_path):
    """With one bag for each patient 22 would do, but these have several."""

    def found(patients):
        parts = (("val", patients), ("test", 20))
        folder, table = write_cohort(tmp_path / f"p{patients}", parts=parts, skill=30)
        return section(folder, table, max_error=0.1).to_dict()["accepted"]

    refused(UnmetGuarantee, r"\b30 .* 29:", found, 29)
    assert found(30)["certified"]


@pytest.mark.parametrize("groups", [1, 2, 6, 8, 15, 20, 999])
def test_the_suggested_level_is_possible(groups):
    with pytest.raises(UnmetGuarantee) as error:
        check_groups(groups, coverage=0.9999)
    suggested = float(str(error.value).rsplit(" ", 1)[1])
    check_groups(groups, coverage=suggested)
    if suggested < 0.998:
        with pytest.raises(UnmetGuarantee):
            check_groups(groups, coverage=suggested + 0.002)


def test_a_request_that_cannot_be_met_does_not_keep_others_from_the_report(few, capsys):
    folder, table = few
    found = section(folder, table, coverage=0.8, max_error=0.1)
    assert "sets" in found.values and "accepted" not in found.values
    (reason,) = found.values["unmet"].values()
    assert text(found).rstrip().endswith(f"not guaranteed: {reason}")
    given = ["evaluate", str(folder), "--labels", str(table), "--bootstrap", "0", "--json"]
    status = main([*given, "--coverage", "0.8", "--max-error", "0.1"])
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert status == 2 and shown.err == f"probsa: error: {reason}\n"
    assert report["metrics"]["auroc"]["value"] is not None
    assert report["guarantees"]["unmet"] == {"--max-error": reason}
    assert main([*given, "--coverage", "0.8", "--per-class", "--set-score", "aps"]) == 0
    sets = json.loads(capsys.readouterr().out)["guarantees"]["sets"]
    assert (sets["method"], sets["per_class"]) == ("aps", True)


# The table of new bags


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("per_class", [False, True])
def test_sets_hold_the_classes_with_high_p_values(named, tmp_path, score, per_class):
    names, (folder, table) = ("benign", "tumour"), named
    options = GuaranteeOptions(coverage=0.9, score=score, per_class=per_class)
    out = tmp_path / "sets.csv"
    written = write_sets(folder, options, out=out, labels=table, classes=names).values
    rows = TextTable.read(out).rows
    assert all(row["bag"].startswith("p-new") for row in rows) and len(rows) == written["bags"]
    for row in rows:
        inside = [c for c in names if float(row[f"p_value_{c}"]) > 0.1 + 1e-6]
        assert row["set"] == "|".join(inside)
    assert sum(written["sizes"].values()) == len(rows)
    assert set(written["bands"]) == (set(names) if per_class else {"all"})


def test_the_table_agrees_with_the_evaluation_of_the_same_bags(tmp_path):
    folder, table = write_cohort(tmp_path / "p", parts=NEW, skill=2.5)
    options = {"coverage": 0.9, "max_error": 0.2}
    out = tmp_path / "sets.csv"
    written = write_sets(folder, GuaranteeOptions(**options), out=out, labels=table).to_dict()
    report = section(folder, table, **options).to_dict()
    rows = TextTable.read(out).rows
    assert written["caution"] == report["caution"]
    for key in ("certified", "undecided", "max_error"):
        assert written[key] == report["accepted"][key]
    assert written["accepted"] == sum(row["accepted"] == "yes" for row in rows) > 0
    group = {row["bag"]: row["group"] for row in TextTable.read(table).rows}
    sizes = defaultdict(list)
    for row in rows:
        sizes[group[row["bag"]]].append(len(row["set"].split("|")) if row["set"] else 0)
    mean = np.mean([np.mean(s) for s in sizes.values()])
    assert value(report["sets"]["metrics"]["set_size"]) == pytest.approx(mean)


def test_limits_of_numbers_are_written(numbers, tmp_path):
    out = tmp_path / "limits.csv"
    options = GuaranteeOptions(coverage=0.8)
    written = write_sets(numbers[0], options, out=out, labels=numbers[1]).to_dict()
    rows = TextTable.read(out).rows
    assert list(rows[0]) == ["bag", "low", "high"] and len(rows) == written["bags"] == 30
    assert list(written["bands"]) == ["all"]
    assert (written["sizes"], written["accepted"], written["certified"]) == ({}, None, None)
    folder = Path(shutil.copytree(numbers[0], tmp_path / "p"))
    table = numbers[1]
    lines = (folder / "predictions.csv").read_text().splitlines()
    place = lines[0].split(",").index("sd")
    row = lines[4].split(",")
    row[place] = "0"
    (folder / "predictions.csv").write_text("\n".join([*lines[:4], ",".join(row), *lines[5:]]))
    with pytest.raises(InputError, match=f"'{row[0]}' .* 0,"):
        section(folder, table, coverage=0.8, score="aps")
    assert section(folder, table, coverage=0.8, score="lac").to_dict()["intervals"]


@pytest.mark.parametrize("per_class", [False, True])
def test_labels_of_new_bags_are_not_needed(tmp_path, per_class):
    folder, table = write_cohort(tmp_path / "p", parts=NEW)
    options = GuaranteeOptions(coverage=0.9, max_error=0.25, per_class=per_class)
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


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ((("val", 15), ("new", 20)), UnmetGuarantee, r"^--max-error 0\.1 "),
        ((("train", 5), ("val", 60)), InputError, "probsa predict"),
    ],
)
def test_no_table_is_written_that_would_lack_a_column_or_a_bag(tmp_path, parts, error, words):
    folder, table = write_cohort(tmp_path / "p", parts=parts)
    options = GuaranteeOptions(coverage=0.8, max_error=0.1)
    out = tmp_path / "sets.csv"
    refused(error, words, write_sets, folder, options, out=out, labels=table)
    assert not out.exists()


def test_the_command_writes_sets_and_keeps_tables(tmp_path, capsys):
    folder, table = write_cohort(tmp_path / "p", parts=NEW)
    out = tmp_path / "sets.csv"
    arguments = ["sets", str(folder), "--labels", str(table), "--out", str(out)]
    arguments += ["--coverage", "0.9", "--max-error", "0.25"]
    assert main(arguments) == 0
    assert f"{coverage_band(40, alpha=0.1)[0]:.3f}" in capsys.readouterr().out
    assert main([*arguments, "--overwrite", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bags"] == len(TextTable.read(out).rows) and document["coverage"] == 0.9
    with pytest.raises(OutputExists, match="--overwrite"):
        write_sets(folder, GuaranteeOptions(coverage=0.9), out=out, labels=table)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--per-class"], "--per-class"),
        (["--calibration", "x"], "--calibration"),
        (["--max-error", "0.2", "--per-class"], "--per-class"),
        (["--max-error", "0.2", "--set-score", "aps"], "--set-score"),
        ([], "--coverage"),
    ],
)
def test_flags_without_effect_are_refused(cohort, tmp_path, capsys, flags, words):
    assert main(["sets", str(cohort[0]), "--out", str(tmp_path / "s.csv"), *flags]) == 2
    assert words in capsys.readouterr().err


def test_the_folder_of_the_calibration_bags_may_be_called_val(tmp_path, monkeypatch, capsys):
    new_bags, _ = write_cohort(tmp_path / "new", parts=NEW)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "sets.csv"
    command = ["sets", str(new_bags), "--coverage", "0.9", "--out", str(out)]
    assert main([*command, "--calibration", "val"]) == 2
    assert "val" in capsys.readouterr().err
    assert not out.exists()
