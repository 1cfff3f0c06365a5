"""Label tables and the splits made from them, and their errors."""

import csv
import re
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold
from support.refusals import refused

from probsa.datasets import (
    LabelTable,
    Split,
    check_enough_match,
    check_labels_match,
    fold_splits,
    make_split,
    match_bags,
    patient_table,
    read_clam_split,
    read_table,
)
from probsa.errors import InputError, TableError
from probsa.tasks import LABELS, TargetOptions


def table(tmp_path: Path, text: str, **options: object) -> LabelTable:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    return read_table(path, **options)


def made(n: int, *, positive: int, groups: int | None = None) -> LabelTable:
    return LabelTable(
        bags=tuple(f"b{i:03}" for i in range(n)),
        labels=tuple(int(i % n < positive) for i in range(n)),
        groups=None if groups is None else tuple(f"p{i % groups}" for i in range(n)),
        classes=("0", "1"),
    )


def test_a_table_is_read_with_ids_as_text(tmp_path):
    t = table(tmp_path, "bag,label,group,fold\n049,1,p1,0\n 050 ,0,,1\n\n51,1.0,p2,2\n")
    assert t == LabelTable(
        path=tmp_path / "labels.csv",
        bags=("049", "050", "51"),
        labels=(1, 0, 1),
        groups=("p1", "050", "p2"),  # a bag without a group forms its own
        folds=(0, 1, 2),
        classes=("0", "1"),
    )
    t = table(tmp_path, ",case_id,slide_id,age,label,age\n0,p1,a,61,1,61\n1,p1,b,,0,\n")
    assert (t.bags, t.labels, t.groups, t.notes) == (("a", "b"), (1, 0), ("p1", "p1"), ())
    named = ["normal", "tumour", "other"]
    t = table(tmp_path, "bag,label\na,tumour\nb,normal\nc,2\n", classes=named)
    assert (t.labels, t.classes) == ((1, 0, 2), ("normal", "tumour", "other"))
    assert table(tmp_path, "bag,label\na,1\n").classes == ("0", "1")
    assert table(tmp_path, "bag,label\na,2\nb,0\nc,1\n").classes == ("0", "1", "2")
    assert table(tmp_path, "bag,label\na,\nb,1\n", labels_required=False).labels == (None, 1)
    assert table(tmp_path, "bag\na\n", labels_required=False).labels == (None,)


def test_two_words_are_classes_in_alphabetical_order_and_a_note_says_so(tmp_path):
    t = table(tmp_path, "bag,label\na,tumour\nb,normal\nc,tumour\n")
    assert (t.classes, t.labels, t.task) == (("normal", "tumour"), (1, 0, 1), "binary")
    (note,) = t.notes
    assert "tumour normal" in note  # the other order
    refused(TableError, "--classes", table, tmp_path, "bag,label\na,x\nb,y\nc,z\n")
    ordinal = TargetOptions(task="ordinal")
    text = "bag,label\na,x\nb,y\n"
    refused(TableError, "'x'", table, tmp_path, text, target=ordinal)


@pytest.mark.parametrize(
    ("header", "notes"),
    [
        ("bag,label,grup", ["'grup' .*'group'"]),
        ("bag,label,Fold", ["'Fold' .*'fold'"]),
        ("bag,label,patient_id,splits", ["'patient_id' .*'group'", "'splits' .*'split'"]),
        ("bag,label,patient,patient_id", []),
        ("bag,label,split,folds", []),
        ("bag,label,cv_fold", ["'cv_fold' .*'fold'"]),
        ("bag,label,kfolds", ["'kfolds' .*'fold'"]),
        ("bag,label,gold,age", []),
        ("bag,label,fodl", ["'fodl' .*'fold'"]),
        ("bag,label,gruop,slpit", ["'gruop' of .* to 'group'", "'slpit' of .* to 'split'"]),
    ],
)
def test_optional_columns_that_are_misspelt_are_noted(tmp_path, header, notes):
    cells = {"bag": "a", "label": "1", "split": "train"}
    row = ",".join(cells.get(name, "p") for name in header.split(","))
    t = table(tmp_path, f"{header}\n{row}\n")
    assert (t.groups is None) == ("patient" not in header.split(","))
    assert len(t.notes) == len(notes)
    assert all(re.search(wanted, note) for wanted, note in zip(notes, t.notes, strict=True))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        # the blank line counts: editors show line 4
        ("bag,label\n\na,0\nb,tumor\n", {}, r"labels\.csv, line 4, bag 'b': .*'tumor'"),
        ("bag,label\na,0.5\n", {}, "'0.5'"),
        ("bag,label\na,-1\n", {}, "'-1'"),
        ("bag,label\na,2\n", {"classes": ["n", "t"]}, "bag 'a': .*'2'.*n, t"),
        ("bag,label\na,1\n", {"classes": ["a", "a"]}, "a, a"),
        ("bag,label\na,1\nb,2\n", {}, "1, 2.*class 0"),
        ("bag,label\na,123456789012\nb,7\n", {}, "class 0, 1, 2, 3, 4, …"),
        ("bag,label\na,\nb,1\n", {}, r"labels\.csv, line 2, bag 'a'"),
        ("bag\na\n", {}, "'label'"),
        ("bag,Label\na,1\n", {"labels_required": False}, "'label'.*'Label'"),
        ("bag,label\na,0\nb,1\na,1\n", {}, "line 4: bag 'a' .*line 2"),
        ("bag,lable\na,0\n", {}, "'label'.*'lable'"),
        ("bag,diagnosis\na,1\n", {}, "'label'.*'diagnosis'"),
        ("id,diagnosis\na,1\n", {}, "'bag' .*'label'.*'id' .*'diagnosis'"),
        ("id,x,y\na,1,2\n", {}, "'bag' .*'label'.*'id'"),
        ("bag,label\na,skin\nb,skin\n", {}, "'skin'"),
        ("bag,label,fold,split\na,0,1,val\n", {}, "'fold' .*'split'"),
        ("bag,label,fold\na,0,x\n", {}, "line 2, bag 'a': .*'x'"),
        ("bag,label,fold\na,0,\n", {}, "line 2, bag 'a': .*''"),
        ("bag,label,split\na,0,valid\n", {}, "'valid', .*'val'"),
        ("", {}, "bag,label"),
    ],
)
def test_bad_tables(tmp_path, text, options, message):
    refused(TableError, message, table, tmp_path, text, **options)


def test_labels_and_bags_match_both_ways():
    t = replace(made(8, positive=4), path=Path("labels.csv"))
    check_labels_match(t, t.bags, allow_unlabelled=False)
    check_labels_match(t, (*t.bags, "new"), allow_unlabelled=True)
    for labels, names, message in (
        (t.labels, (*t.bags, "new"), r"labels\.csv .*1 bag \('new'\)"),
        (t.labels, ("b000", "x01"), r"7 labels \('b001', .*1 bag \('x01'\)"),
        ((None, *t.labels[1:]), t.bags, r"1 bag \('b000'\)"),
    ):
        with pytest.raises(TableError, match=message):
            check_labels_match(replace(t, labels=labels), names, allow_unlabelled=False)


@pytest.mark.parametrize(
    ("row", "bag", "message"),
    [
        ("49", "049", "'049', not '49'"),
        ("tumor_01.svs", "tumor_01", " 'tumor_01'"),
        ("tumour_01", "tumor_01", " 'tumor_01'"),
    ],
)
def test_the_likely_cause_of_a_name_without_a_bag(row, bag, message):
    t = LabelTable(bags=(row,), labels=(0,), classes=("0", "1"))
    refused(TableError, message, check_labels_match, t, (bag,), allow_unlabelled=True)


def test_an_id_with_the_suffix_of_a_file_is_that_bag(tmp_path):
    ids = ("a.tiff", "b.ome.tif", "c", "d.csv", "e.SVS")
    t = LabelTable(bags=ids, labels=(0, 0, 1, 1, 0), classes=("0", "1"))
    found = match_bags(t, ("a", "b", "c", "c.svs", "d", "e"))
    assert found.bags == ("a", "b", "c", "d.csv", "e")
    (note,) = found.notes
    assert "3 ids" in note and "'a.tiff'" in note
    assert match_bags(t, ("b", "b.ome", "c.svs")) == t  # either of two, or another way round
    for first in ("a", "a.svs"):
        twice = replace(t, bags=(first, *ids[:4]))
        refused(TableError, f"'{first}' and 'a.tiff' .*'a'", match_bags, twice, "a")
    (tmp_path / "splits_0.csv").write_text(",train,val,test\n0,a.tiff,c,b\n1,e,,\n")
    split = read_clam_split(tmp_path / "splits_0.csv", found)
    assert (split.train, split.val, split.test) == (("a", "e"), ("c",), ("b",))


MISSING_WORDS = ("NA", "N/A", "nan", "NaN", "null", "None", "-", ".", "[Not Available]", "#N/A")


@pytest.mark.parametrize("word", MISSING_WORDS)
@pytest.mark.parametrize("classes", [("0", "1"), ("normal", "tumor"), ("a", "b", "c")])
def test_a_word_for_a_missing_value_is_no_class(tmp_path, word, classes):
    rows = [(f"b{k}", classes[k % len(classes)]) for k in range(6)]
    rows[3] = ("b3", word)
    text = "bag,label\n" + "".join(f"{bag},{label}\n" for bag, label in rows)
    options = {"classes": classes} if len(classes) > 2 else {}
    t = table(tmp_path, text, labels_required=False, **options)
    assert t.classes == classes
    assert t.labels == tuple(None if k == 3 else k % len(classes) for k in range(6))
    assert sum(f"{word}: line 5" in note for note in t.notes) == 1
    with pytest.raises(TableError) as error:
        table(tmp_path, text, **options)
    message = str(error.value)
    assert "line 5, bag 'b3'" in message and repr(word) in message and "--classes" not in message
    if len(classes) > 2:
        with pytest.raises(TableError, match=r"--classes .*a, b, c"):
            table(tmp_path, text, labels_required=False)
        named = table(tmp_path, text, classes=(*classes, word))
        assert named.labels[3] == 3 and named.classes[3] == word


def test_all_lines_with_missing_labels_are_named_at_once(tmp_path):
    text = "bag,label\na,normal\nb,NA\nc,tumor\nd,\ne,nan\n"
    refused(TableError, "line 3, bag 'b': .*'NA', .*lines 5 and 6", table, tmp_path, text)


def test_missing_groups_folds_and_parts(tmp_path):
    text = "bag,label,group,split\na,0,NA,train\nb,1,NA,NA\nc,1,p,-\nd,0,p,test\n"
    t = table(tmp_path, text)
    assert t.groups == ("a", "b", "p", "p") and t.splits == ("train", None, None, "test")
    assert ["'group'" in t.notes[0], "'split'" in t.notes[1]] == [True, True]
    text = "bag,label,fold\na,0,1\nb,1,NA\n"
    refused(TableError, "line 3, bag 'b': .*'NA'", table, tmp_path, text)


PATHS = (
    *("/data/slides/{}.svs", r"C:\slides\{}.svs", r"\\server\share\{}", "./{}.ome.tiff", "x/{}.h5"),
    *("../features/{}.pt", r"mixed/of\both/{}.nii.gz", "/data/{}/", "file:///data/{}.SVS"),
)


@pytest.mark.parametrize("path", PATHS)
def test_the_last_part_of_a_path_is_the_bag(tmp_path, path):
    names = ("0007", "0008", "a.b c")
    rows = "".join(f"{path.format(name)},{k % 2}\n" for k, name in enumerate(names))
    t = match_bags(table(tmp_path, f"bag,label\n{rows}"), names)
    assert t.bags == names
    assert f"3 ids of {t.path}" in t.notes[0]
    (tmp_path / "splits_0.csv").write_text(
        f",train,val,test\n0,{path.format('0007')},{path.format('0008')},0009\n"
    )
    other = LabelTable(bags=(*names[:2], "0009"), labels=(0, 1, 1), classes=("0", "1"))
    assert read_clam_split(tmp_path / "splits_0.csv", other).train == ("0007",)


def test_paths_that_name_no_bag_or_one_twice_are_refused_with_their_line(tmp_path):
    names = ("0007", "0008")
    t = table(tmp_path, "bag,label\n/a/0007.svs,0\n\n/b/0007.svs,1\n")
    both = r"labels\.csv: '/a/0007.svs' \(line 2\) and '/b/0007.svs' \(line 4\)"
    refused(TableError, both, match_bags, t, names)
    t = match_bags(table(tmp_path, "bag,label\n/a/0007.svs,0\n/a/7.svs,1\n"), names)
    wanted = r"labels\.csv .*1 label \('/a/7.svs'; line 3\).*'0007'"
    refused(TableError, wanted, check_labels_match, t, names, allow_unlabelled=True)
    t = match_bags(table(tmp_path, "bag,label\nb.ome.tif,0\n"), ("b", "b.ome"))
    either = "'b.ome.tif'; line 2.*'b' or 'b.ome'"
    refused(TableError, either, check_labels_match, t, ("b", "b.ome"), allow_unlabelled=True)


def test_messages_on_cells_name_their_lines(tmp_path):
    t = table(tmp_path, "bag,label,group,split\na,0,p,train\n\nb,1,p,test\n")
    words = r"labels\.csv: group 'p' .*line 2, bag 'a' in train, line 4, bag 'b'"
    refused(TableError, words, make_split, t)
    t = table(tmp_path, "bag,label,split\na,0,train\nb,,train\n", labels_required=False)
    refused(TableError, r"labels\.csv, line 3, bag 'b' .*train", make_split, t)
    t = table(tmp_path, "bag,label,group\na,0,p\nb,1,TCGA/01\n")
    words = r"labels\.csv, line 3, bag 'b': .*'TCGA/01'"
    refused(TableError, words, patient_table, t)


@pytest.mark.parametrize(
    "column", ["folds", "Fold", "cv_fold", "kfold", "fodl", "flod", "fol", "foldd", "fould", "fld"]
)
def test_a_misspelt_column_of_folds_is_suggested(tmp_path, column):
    t = table(tmp_path, f"bag,label,{column}\na,0,1\nb,1,2\n")
    refused(TableError, f"'{column}'", make_split, t, test_fold=1)
    refused(TableError, f"'{column}'", fold_splits, t)


def test_a_table_of_other_bags_is_refused_where_labels_without_bag_are_left_out():
    t = replace(made(40, positive=20), path=Path("labels.csv"))
    check_enough_match(t, (*t.bags[:4], *(f"x{k}" for k in range(200))))
    check_enough_match(t, t.bags[:1])
    for names in ((), ("x",), (*t.bags[:3], *(f"x{k}" for k in range(60)))):
        refused(TableError, r"[03] of 40 labels of labels\.csv", check_enough_match, t, names)


def test_folds_test_on_k_and_validate_on_the_next():
    t = replace(made(10, positive=5), folds=(0, 1, 2, 3, 4) * 2)
    split = make_split(t, test_fold=4)
    assert split.test == ("b004", "b009")
    assert split.val == ("b000", "b005")
    assert split.train == ("b001", "b002", "b003", "b006", "b007", "b008")
    assert "fold 4" in split.origin and "fold 0" in split.origin
    assert make_split(t, test_fold=1).val == ("b002", "b007")
    for now, fold, message in (
        (t, None, r"0, 1, 2, 3, 4.*--test-fold"),
        (t, 5, "fold 5: .*0, 1, 2, 3, 4"),
        (replace(t, folds=(0, 1) * 5), 0, "2 folds"),
        (replace(t, folds=None), 0, "'fold'"),
    ):
        refused(TableError, message, make_split, now, test_fold=fold)


def test_a_split_column_is_taken_as_it_is():
    t = replace(made(6, positive=3), splits=("train", "val", "test", "train", None, "val"))
    split = make_split(t)
    assert (split.train, split.val, split.test) == (("b000", "b003"), ("b001", "b005"), ("b002",))
    assert [split.part_of(b) for b in t.bags] == ["train", "val", "test", "train", "unused", "val"]
    assert Split.from_dict(split.to_dict()) == split
    t = replace(made(50, positive=20), splits=("train",) * 40 + ("test",) * 10)
    split = make_split(t, validation=0.25)
    assert split.test == t.bags[40:] and len(split.val) == 10
    assert set(split.train) | set(split.val) == set(t.bags[:40])
    refused(TableError, "train", make_split, replace(t, splits=("test",) * 50))


def test_the_validation_part_is_stratified_and_follows_the_seed():
    t = made(100, positive=30)
    split = make_split(t)
    labels = dict(zip(t.bags, t.labels, strict=True))
    assert (len(split.train), len(split.val), split.test) == (80, 20, ())
    assert sum(labels[b] for b in split.val) == 6
    assert make_split(t) == split and "seed 0" in split.origin
    assert make_split(t, seed=1).val != split.val
    # a rare class stays in training: the best fold is taken, not the first one
    split = make_split(made(20, positive=2))
    assert len({"b000", "b001"} & set(split.train)) == len({"b000", "b001"} & set(split.val)) == 1
    t = made(20, positive=10)
    t = replace(t, labels=(None, *t.labels[1:]))
    split = make_split(t)
    assert split.part_of("b000") == "unused" and len(split.train) + len(split.val) == 19
    tested = make_split(replace(t, splits=("test", *["train"] * 15, *["val"] * 4)))
    assert tested.test == ("b000",)
    with pytest.raises(TableError, match=r"bag 'b000' .*train"):
        make_split(replace(t, splits=("train",) * 16 + ("val",) * 4))
    refused(TableError, "4 bags in 1 groups", make_split, made(4, positive=2, groups=1))
    with pytest.raises(TableError, match=r"class [01]"):
        make_split(replace(made(4, positive=2), groups=("p", "p", "q", "q")))
    for share in (0.0, 0.6):
        with pytest.raises(InputError, match=f"validation is {share:g}"):
            make_split(made(10, positive=5), validation=share)


SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 1 / 3, 0.35, 0.4, 0.45, 0.5)
"""Shares of the training part that may validate; some are 1 / k."""


def cohort(n, *, patients, positive, task="binary"):
    """Return a table with bags of patients: `none`, `pairs`, or of `random` sizes."""
    rng = np.random.default_rng(n)
    groups = {
        "none": None,
        "pairs": tuple(f"p{k // 2}" for k in range(n)),
        "random": tuple(f"p{k}" for k in rng.integers(0, max(4, n // 3), n)),
    }[patients]
    values = rng.normal(size=n) if task == "regression" else rng.random(n) < positive
    values = [(float(value),) for value in values]
    return LabelTable(
        bags=tuple(f"b{k:03}" for k in range(n)),
        labels=LABELS[task].bag_strata(values),
        values=tuple(values),
        groups=groups,
        classes=("0", "1") if task == "binary" else (),
        task=task,
    )


@pytest.mark.parametrize("patients", ["none", "pairs", "random"])
@pytest.mark.parametrize(
    ("task", "positive"), [("binary", 0.4), ("binary", 0.1), ("regression", 0.0)]
)
def test_the_share_that_is_asked_for_validates(patients, task, positive):
    for n in (20, 37, 100):
        t = cohort(n, patients=patients, positive=positive, task=task)
        sizes = Counter(t.groups or t.bags)
        for share in SHARES:
            split = make_split(t, validation=share)
            assert split.val and split.train
            assert {*split.train} | {*split.val} == {*t.bags}
            got = len(split.val) / n
            # Whole patients, and as many of each class as of the others, cannot be met exactly.
            assert abs(got - share) <= max(1.1 * max(sizes.values()) / n, 0.02), (n, share, got)
            of_patient = dict(zip(t.bags, t.groups or t.bags, strict=True))
            assert not {of_patient[b] for b in split.val} & {of_patient[b] for b in split.train}
            assert f"{len(split.val)} of {n} bags" in split.origin
            assert f"{got:.1%}" in split.origin


@pytest.mark.parametrize("n", [8, 10, 12, 15])
def test_a_small_cohort_has_a_validation_part_too(n):
    for share in SHARES:
        split = make_split(made(n, positive=n // 2), validation=share)
        assert 1 <= len(split.val) <= n // 2
        assert abs(len(split.val) / n - share) <= 2 / n  # a bag of each class


def first_fold(t, share):
    """Return the validation part of version 0.2, by the same rule on its own."""
    groups = np.array(t.groups or t.bags)
    y = np.array(t.labels)
    folds = min(round(1 / share), len({*groups}), int(np.bincount(y).max()))
    splitter = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        divisions = list(splitter.split(y, y, groups))
    classes = [tuple(len({*y[part]}) for part in division) for division in divisions]
    _, val = divisions[classes.index(max(classes))]
    return tuple(t.bags[row] for row in val)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.25, 1 / 3, 0.5])
@pytest.mark.parametrize("patients", ["none", "pairs", "random"])
def test_splits_of_version_0_2_that_kept_their_share_are_made_again(patients, share):
    compared = 0
    for n in (10, 20, 30, 50, 100, 200):
        t = cohort(n, patients=patients, positive=0.4)
        expected = first_fold(t, share)
        if abs(len(expected) / n - share) <= 0.2 * share:
            assert make_split(t, validation=share).val == expected
            compared += 1
    assert compared >= 2


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.integers(0, 8), min_size=12, max_size=40),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_no_group_is_ever_in_two_parts(groups, seed, data):
    labels = data.draw(st.lists(st.integers(0, 1), min_size=len(groups), max_size=len(groups)))
    t = LabelTable(
        bags=tuple(map(str, range(len(groups)))),
        labels=tuple(labels),
        groups=tuple(map(str, groups)),
        classes=("0", "1"),
    )
    try:
        split = make_split(t, seed=seed)
    except TableError as error:  # too few groups, or one contains a whole class
        assert len(set(groups)) < 2 or "left to train on" in str(error) or "too few" in str(error)
        return
    assert sorted((*split.train, *split.val), key=int) == list(t.bags)
    assert split.train and split.val
    at = {b: split.part_of(b) for b in t.bags}
    for g in set(groups):
        assert len({at[str(i)] for i, other in enumerate(groups) if other == g}) == 1


def test_a_split_that_leaks_a_group_is_refused():
    t = replace(made(6, positive=3, groups=3), splits=("train", "val", "test") * 2)
    make_split(t)
    leaking = replace(t, groups=("p", "q", "r", "p", "q", "p"))
    message = "group 'p' .*bag 'b000' in train, bag 'b005' in test"
    refused(TableError, message, make_split, leaking)
    with pytest.raises(TableError, match="bag 'b000' in test, bag 'b005' in train"):
        make_split(replace(leaking, splits=None, folds=(0, 1, 2, 0, 1, 2)), test_fold=0)


def test_clam_splits_are_ragged(tmp_path):
    path = tmp_path / "splits_0.csv"
    bags = ("049", "050", "51", "52", "53")
    t = LabelTable(bags=bags, labels=(0, 1, 0, 1, 0), classes=("0", "1"))
    ragged = ",train,val,test\n0,51,049,050\n1,52,,\n"
    booleans = ",train,val,test\n049,False,True,False\n050,False,False,True\n51,True,False,False\n"
    for text in (ragged, booleans + "52,True,False,False\n"):
        path.write_text(text)
        split = read_clam_split(path, t)
        assert (split.train, split.val, split.test) == (("51", "52"), ("049",), ("050",))
        assert split.part_of("53") == "unused" and split.origin == f"from {path}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",train,val,test\n0,49,050,\n", "line 2: bag '49' .*'049'"),
        (",train,val,test\n0,049,050,\n1,05", "line 3: 2 cells, .*4"),
        (",train,val,test\n0,049,050,\n1,050,,\n", "line 3: bag '050' .*val"),
        (",train,val\n0,049,050\n", r"\(no name\), train, val"),
        (",train,val,test\n0,,049,\n", "train"),
        (",train,val,test\n0,049,050,\n", "group 'p'"),
    ],
)
def test_bad_clam_splits(tmp_path, text, message):
    t = LabelTable(bags=("049", "050"), labels=(0, 1), groups=("p", "p"), classes=("0", "1"))
    (tmp_path / "splits_0.csv").write_text(text)
    refused(TableError, message, read_clam_split, tmp_path / "splits_0.csv", t)


def test_the_real_splits_of_camelyon16(shared_data, tmp_path):
    folder = shared_data / "labels_splits"
    with (folder / "camelyon16_labels_camil.csv").open() as f:
        lines = [f"{r['case_id']},{r['slide_id']},{r['label']}" for r in csv.DictReader(f)]
    text = "\n".join(["case_id,slide_id,label", *lines]) + "\n"
    t = table(tmp_path, text, classes=["normal_tissue", "tumor_tissue"])
    assert (len(t.bags), sum(y or 0 for y in t.labels)) == (399, 160)
    for k in range(5):
        split = read_clam_split(folder / f"camelyon16_camil_splits_{k}.csv", t)
        # the fourth split repeats a bag in val, and so omits another one
        assert len(split.train) + len(split.val) == (269 if k == 3 else 270)
        assert len(split.test) == 129 and all(b.startswith("test_") for b in split.test)
