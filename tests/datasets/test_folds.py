"""Folds of a table of labels: patients and sites whole, balanced, and read back by training."""

import csv
import json
import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.refusals import refused
from support.stored import write_folder

from probsa.cli import main
from probsa.datasets import FoldOptions, balance, fold_splits, make_folds, make_split, read_table
from probsa.datasets.fold_table import AbsentStratum, JoinedSites, LargeSite, MixedSites
from probsa.errors import InputError, OutputExists, TableError
from probsa.tasks import TargetOptions

CLASSES = ("acinar", "lepidic", "solid")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def write_rows(path, header, rows):
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_tcga(path, *, sites=30, deviation=1.0, seed=0):
    """Write bags with names of TCGA; the shares of three classes differ between sites."""
    rng = np.random.default_rng(seed)
    rows = []
    for site in range(sites):
        code = f"{LETTERS[site % 26]}{site // 26}"
        shares = rng.dirichlet([3, 2, 1])
        for patient in range(max(1, int(rng.lognormal(2, deviation)))):
            label = rng.choice(CLASSES, p=shares)
            for slide in range(int(rng.integers(1, 4))):
                rows.append((f"TCGA-{code}-{patient:04d}-01Z-00-DX{slide + 1}", label))
    return write_rows(path, "bag,label", rows)


def write_cohort(path, *, patients=24, sites=8, slides=2):
    """Write bags with columns of patients and sites; half of the patients of a site are positive,
    and all have something else in a further column."""
    rows = []
    for patient in range(patients):
        for slide in range(slides):
            site = f"site{patient % sites}"
            label = patient // sites % 2
            rows.append((f"b{patient}_{slide}", label, f"p{patient}", site, "=1 + 1"))
    return write_rows(path, "bag,label,group,site,remark", rows)


def read_rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def parts_by(keys, folds):
    """The folds in which each patient or site is."""
    parts = {}
    for key, fold in zip(keys, folds, strict=True):
        parts.setdefault(key, set()).add(fold)
    return parts


@pytest.fixture(scope="module")
def small_tcga(tmp_path_factory):
    return write_tcga(tmp_path_factory.mktemp("small") / "labels.csv", sites=16, deviation=0.4)


@pytest.fixture(scope="module")
def tcga(tmp_path_factory):
    return write_tcga(tmp_path_factory.mktemp("folds") / "labels.csv")


@cache
def made(path, **options):
    return make_folds(path, FoldOptions(**options), classes=CLASSES)


LONG = pytest.mark.nightly  # tens of seconds of the solver


@pytest.mark.parametrize(
    ("sites", "test_share"),
    [
        (None, 0.0),
        (None, 0.2),
        ("spread", 0.0),
        ("spread", 0.2),
        ("apart", 0.0),
        pytest.param("apart", 0.2, marks=LONG),
    ],
)
def test_patients_and_sites_stay_whole(tcga, small_tcga, sites, test_share):
    folds = made(small_tcga if test_share else tcga, sites=sites, test_share=test_share)
    patients = [bag[:12] for bag in folds.table.bags]
    assert list(folds.patients) == patients
    assert all(len(parts) == 1 for parts in parts_by(patients, folds.folds).values())
    numbers = {0, 1, 2, 3, 4} | ({None} if test_share else set())
    assert set(folds.folds) == numbers
    site_parts = parts_by([bag[5:7] for bag in folds.table.bags], folds.folds)
    if sites == "apart":
        assert all(len(parts) == 1 for parts in site_parts.values())
    else:
        assert np.mean([len(parts) > 1 for parts in site_parts.values()]) > 0.6
    held_out = sum(fold is None for fold in folds.folds) / len(folds.folds)
    assert held_out == pytest.approx(test_share, abs=0.02 if sites != "apart" else 0.05)


def test_folds_are_far_more_balanced_than_random_sites(tcga):
    folds = made(tcga, sites="apart", test_share=0.0)
    names = sorted({bag[5:7] for bag in folds.table.bags})
    counts = np.zeros((len(names), 3))
    for bag, label in zip(folds.table.bags, folds.table.labels, strict=True):
        counts[names.index(bag[5:7]), label] += 1
    shares = np.full(5, 0.2)
    own_parts = np.zeros(len(names), int)
    for bag, fold in zip(folds.table.bags, folds.folds, strict=True):
        own_parts[names.index(bag[5:7])] = fold
    assert folds.imbalance == pytest.approx(balance.imbalance(counts, own_parts, shares))
    rng = np.random.default_rng(0)
    random = [balance.imbalance(counts, rng.integers(0, 5, len(names)), shares) for _ in range(200)]
    assert folds.imbalance < min(random)
    assert folds.imbalance < 0.25 * np.mean(random)
    assert folds.least_imbalance - 1e-9 <= folds.imbalance <= folds.least_imbalance + 0.02


def test_spread_sites_are_in_folds_in_equal_numbers(tmp_path):
    path = write_cohort(tmp_path / "labels.csv", patients=60, sites=3, slides=1)
    folds = make_folds(path, FoldOptions(sites="spread"))
    assert folds.sites is not None
    pairs = zip(folds.sites, folds.table.labels, folds.folds, strict=True)
    counts = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 3 * 2 * 5
    assert set(counts.values()) == {2}


@pytest.mark.parametrize("sites", [None, "spread", "apart"])
def test_the_same_seed_gives_the_same_folds(tmp_path, sites):
    path = write_cohort(tmp_path / "labels.csv")
    first = make_folds(path, FoldOptions(sites=sites, seed=3))
    assert first.folds == make_folds(path, FoldOptions(sites=sites, seed=3)).folds
    assert first.folds != make_folds(path, FoldOptions(sites=sites, seed=4)).folds


def test_what_came_out_is_counted(tmp_path):
    folds = make_folds(write_cohort(tmp_path / "labels.csv"), FoldOptions(folds=3, site="site"))
    assert folds.options.sites == "apart"
    for number, part in enumerate(folds.parts):
        rows = [row for row, fold in enumerate(folds.folds) if fold == number]
        assert part.part == f"fold {number}"
        assert part.bags == len(rows) == sum(part.strata.values())
        assert part.patients == len({folds.patients[row] for row in rows})
        assert part.sites == len({folds.sites[row] for row in rows})
        assert part.strata["1"] == sum(folds.table.labels[row] == 1 for row in rows)


def test_the_table_keeps_all_columns_and_is_read_back(tmp_path):
    path = write_cohort(tmp_path / "labels.csv")
    before = path.read_bytes()
    folds = make_folds(path, FoldOptions())
    (out,) = folds.write(tmp_path / "new" / "folds.csv")
    assert path.read_bytes() == before
    assert list(read_rows(out)[0]) == ["bag", "label", "group", "site", "remark", "fold"]
    table = read_table(out)
    assert (table.bags, table.folds, table.groups) == (
        folds.table.bags,
        folds.folds,
        folds.patients,
    )
    assert [row["remark"].lstrip("'") for row in read_rows(out)] == ["=1 + 1"] * len(table.bags)
    for fold in range(5):
        split = make_split(table, test_fold=fold)
        tested = [b for b, f in zip(table.bags, folds.folds, strict=True) if f == fold]
        assert list(split.test) == tested
    assert len(fold_splits(table)) == 5


def test_patients_and_sites_from_names_become_columns(small_tcga, tmp_path):
    folds = made(small_tcga, sites="apart", test_share=0.2)
    out, test = folds.write(tmp_path / "folds.csv")
    assert test == tmp_path / "folds_test.csv"
    assert list(read_rows(out)[0]) == ["bag", "label", "group", "site", "fold"]
    assert list(read_rows(test)[0]) == ["bag", "label", "group", "site"]
    for row in (*read_rows(out), *read_rows(test)):
        assert (row["group"], row["site"]) == (row["bag"][:12], row["bag"][5:7])
    bags = [row["bag"] for row in read_rows(out)] + [row["bag"] for row in read_rows(test)]
    assert sorted(bags) == sorted(folds.table.bags)
    assert read_table(test, classes=CLASSES).patients_in_names is None
    assert (folds.patients_from.kind, folds.patients_from.forms) == ("names", ("TCGA",))


def test_what_is_there_is_not_replaced(tmp_path):
    path = write_cohort(tmp_path / "labels.csv")
    folds = make_folds(path, FoldOptions(test_share=0.2))
    before = path.read_bytes()
    refused(OutputExists, "itself", folds.write, path)
    os.link(path, tmp_path / "same.csv")
    refused(OutputExists, "itself", folds.write, tmp_path / "same.csv")
    assert path.read_bytes() == before
    out = tmp_path / "folds.csv"
    (tmp_path / "folds_test.csv").write_text("of the user")
    refused(OutputExists, "folds_test.csv", folds.write, out)
    assert not out.exists()
    (tmp_path / "folds_test.csv").unlink()
    folds.write(out)
    written = out.read_bytes()
    folds.write(out)  # the same again is no change
    assert out.read_bytes() == written
    other = make_folds(path, FoldOptions(test_share=0.2, seed=1))
    refused(OutputExists, "folds.csv", other.write, out)
    assert out.read_bytes() == written
    refused(OutputExists, "new", folds.write, _folder(tmp_path / "new"))


def _folder(path):
    path.mkdir()
    return path


def test_sites_that_share_a_patient_are_kept_together(tmp_path):
    path = write_cohort(tmp_path / "labels.csv")
    path.write_text(path.read_text().replace("b0_1,0,p0,site0", "b0_1,0,p0,site5"))
    folds = make_folds(path, FoldOptions(sites="apart"))
    assert JoinedSites(("site0", "site5")) in folds.notes
    parts = parts_by(folds.sites, folds.folds)
    assert parts["site0"] == parts["site5"] and len(parts["site0"]) == 1
    assert all(len(p) == 1 for p in parts_by(folds.patients, folds.folds).values())


def test_a_site_larger_than_a_fold_is_noted(tmp_path):
    rows = [(f"b{k}", k % 2, "large" if k < 40 else f"s{k // 4}") for k in range(80)]
    path = write_rows(tmp_path / "labels.csv", "bag,label,site", rows)
    folds = make_folds(path, FoldOptions(sites="apart"))
    assert folds.notes == (LargeSite(("large",), 0.5, 0.2),)
    assert sorted(part.bags for part in folds.parts) == [8, 8, 12, 12, 40]


def test_a_class_of_few_sites_is_noted_and_trains_whichever_fold_is_tested(tmp_path):
    rows = [(f"b{k}", k % 2, f"s{k // 4}") for k in range(80)]
    rows += [("r0", 2, "s0"), ("r1", 2, "s1")]
    path = write_rows(tmp_path / "labels.csv", "bag,label,site", rows)
    for seed in range(5):
        folds = make_folds(path, FoldOptions(sites="apart", seed=seed))
        (note,) = [note for note in folds.notes if isinstance(note, AbsentStratum)]
        assert (note.stratum, note.unit, note.units, len(note.parts)) == ("2", "site", 2, 3)
        out = tmp_path / f"{seed}.csv"
        folds.write(out)
        fold_splits(read_table(out))


def test_known_sites_that_are_not_considered_are_noted(tcga, tmp_path):
    (note,) = made(tcga).notes
    assert isinstance(note, MixedSites)
    assert (note.sites, note.origin.kind) == (30, "names")
    (note,) = make_folds(write_cohort(tmp_path / "labels.csv"), FoldOptions()).notes
    assert isinstance(note, MixedSites)
    assert (note.sites, note.origin.column) == (8, "site")


def test_each_bag_is_a_patient_if_nothing_says_otherwise(tmp_path):
    path = write_rows(tmp_path / "labels.csv", "bag,label", [(f"b{k}", k % 2) for k in range(20)])
    folds = make_folds(path, FoldOptions())
    assert folds.patients == folds.table.bags
    assert folds.patients_from.kind == "bags"
    assert [part.strata for part in folds.parts] == [{"0": 2, "1": 2}] * 5
    assert folds.imbalance == folds.least_imbalance == 0


def test_every_task_is_balanced(tmp_path):
    rows = []
    for k in range(60):
        finding = "" if k % 10 == 9 else k % 2
        rows.append((f"b{k}", k, k % 3, finding, k % 4 // 2, k + 1, k % 4 // 3))
    path = write_rows(tmp_path / "t.csv", "bag,number,grade,one,two,time,event", rows)
    strata = {}
    for task, columns in {
        "ordinal": "grade",
        "regression": "number",
        "multilabel": ("one", "two"),
        "survival": ("time", "event"),
    }.items():
        target = TargetOptions(task=task, target=columns)
        folds = make_folds(path, FoldOptions(), target=target)
        strata[task] = set(folds.parts[0].strata)
        counts = np.array([list(part.strata.values()) for part in folds.parts])
        assert (np.ptp(counts, axis=0) <= 1).all()
    assert strata["ordinal"] == {"0", "1", "2"}
    assert strata["multilabel"] == {"with one", "without one", "with two", "without two"}
    assert strata["survival"] == {"event", "censored"}
    assert len(strata["regression"]) == 5


def test_bags_without_a_label_are_spread_as_well(tmp_path):
    rows = [(f"b{k}", "" if k % 4 == 3 else k % 4 % 2) for k in range(40)]
    folds = make_folds(write_rows(tmp_path / "t.csv", "bag,label", rows), FoldOptions())
    assert [part.strata["no label"] for part in folds.parts] == [2] * 5


def test_what_cannot_be_balanced_is_refused_by_name(tmp_path):
    path = write_cohort(tmp_path / "labels.csv", sites=4, patients=8)
    refused(TableError, "4 sites", make_folds, path, FoldOptions(sites="apart"))
    refused(TableError, "8 patients", make_folds, path, FoldOptions(folds=9))
    refused(TableError, "test part", make_folds, path, FoldOptions(folds=8, test_share=0.1))
    refused(TableError, "without a bag", make_folds, path, FoldOptions(folds=3, test_share=0.01))
    rows = [(f"b{k}", int(k == 7), f"s{k // 2}", k) for k in range(20)]
    single = write_rows(tmp_path / "single.csv", "bag,label,site,group", rows)
    refused(TableError, "one patient.*'7'", make_folds, single, FoldOptions())
    refused(TableError, "one site.*'s3'", make_folds, single, FoldOptions(sites="apart"))
    one = write_rows(tmp_path / "one.csv", "bag,label", [(f"b{k}", 1) for k in range(9)])
    refused(TableError, "b0", make_folds, one, FoldOptions())
    none = write_rows(tmp_path / "none.csv", "bag,label", [(f"b{k}", "") for k in range(9)])
    refused(TableError, "no bag a label", make_folds, none, FoldOptions())


def test_sites_are_not_guessed(tmp_path):
    path = write_cohort(tmp_path / "labels.csv")
    refused(TableError, "'sites'.*'site'", make_folds, path, FoldOptions(site="sites"))
    rows = [(f"b{k}", k % 2, "" if k == 3 else f"s{k // 4}") for k in range(40)]
    empty = write_rows(tmp_path / "empty.csv", "bag,label,site", rows)
    refused(TableError, "line 5", make_folds, empty, FoldOptions(sites="apart"))
    rows = [(f"b{k}", k % 2) for k in range(40)]
    unnamed = write_rows(tmp_path / "unnamed.csv", "bag,label", rows)
    refused(TableError, "--site", make_folds, unnamed, FoldOptions(sites="apart"))
    rows[0] = ("TCGA-AB-1234", 0)
    mixed = write_rows(tmp_path / "mixed.csv", "bag,label", rows)
    refused(TableError, "39 bags", make_folds, mixed, FoldOptions(sites="spread"))


@pytest.mark.parametrize("column", ["fold", "split"])
def test_a_table_with_folds_is_refused(tmp_path, column):
    value = 0 if column == "fold" else "train"
    rows = [(f"b{k}", k % 2, value) for k in range(20)]
    path = write_rows(tmp_path / "labels.csv", f"bag,label,{column}", rows)
    refused(TableError, column, make_folds, path, FoldOptions())


@pytest.mark.parametrize(
    "options", [{"folds": 2}, {"folds": 21}, {"test_share": 0.6}, {"sites": "near"}, {"seed": -1}]
)
def test_options_out_of_their_limits_are_refused(options):
    refused(InputError, next(iter(options)), FoldOptions, **options)


def test_training_uses_the_folds_and_notes_patients_in_names(tmp_path, capsys):
    features, labels = write_folder(tmp_path / "data", bags=24)
    rows = []
    for k, file in enumerate(sorted(features.iterdir())):
        name = f"TCGA-{'ABC'[k // 8]}A-{k // 2:04d}-0{k % 2}Z"
        file.rename(features / f"{name}.h5")
        rows.append((name, k // 2 % 2))
    write_rows(labels, "bag,label", rows)
    table = read_table(labels)
    assert table.patients_in_names is not None
    assert (table.patients_in_names.named, table.patients_in_names.patient_count) == (24, 12)
    small = "--model abmil --embed 8 --epochs 1 --device cpu --tensorboard false --maps none"
    common = ["--features", str(features), *small.split()]
    assert main(["train", "--labels", str(labels), "--out", str(tmp_path / "a"), *common]) == 0
    assert "24 bags look like 12 patients (TCGA names)" in " ".join(capsys.readouterr().err.split())
    out = tmp_path / "folds.csv"
    assert main(["folds", str(labels), "--out", str(out), "--folds", "3", "--sites", "apart"]) == 0
    capsys.readouterr()
    data = ["--labels", str(out), "--test-fold", "1", "--out", str(tmp_path / "b")]
    assert main(["train", *data, *common]) == 0
    assert "look like" not in capsys.readouterr().err
    tested = {row["bag"] for row in read_rows(out) if row["fold"] == "1"}
    predicted = read_rows(tmp_path / "b" / "predictions" / "predictions.csv")
    assert {row["bag"] for row in predicted if row["part"] == "test"} == tested
    assert replace(table, groups=table.bags).patients_in_names is None


def test_the_command_answers_as_json_with_facts(tmp_path, capsys):
    path = write_cohort(tmp_path / "labels.csv")
    out = tmp_path / "folds.csv"
    assert main(["folds", str(path), "--out", str(out), "--site", "site", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == [str(out)]
    assert document["folds"] == {row["bag"]: int(row["fold"]) for row in read_rows(out)}
    assert (document["patients"], document["sites"]) == (24, 8)
    assert [part["part"] for part in document["parts"]] == [f"fold {k}" for k in range(5)]
    assert document["least_imbalance"] <= document["imbalance"]
