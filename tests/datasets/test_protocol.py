"""Splits of the protocol, stored and read again; training cannot read the test part."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.refusals import refused

from probsa.core import pack, write_bag
from probsa.datasets import (
    SPLIT_PARTS,
    LabelTable,
    Split,
    drop_bags,
    fold_splits,
    open_bags,
    protocol_splits,
    read_clam_split,
    read_splits,
    write_splits,
)
from probsa.datasets.splits import check_classes
from probsa.errors import InputError, TableError
from probsa.training import BagReader, DataConfig, RunConfig, Shard, prepare
from probsa.training.batching import Loader


def cohort(*, patients=30, slides=2, test=10, seed=0):
    """Two slides per patient; a third of the patients are ill; the last `test` are tested."""
    rows = [p for p in np.random.default_rng(seed).permutation(patients) for _ in range(slides)]
    return LabelTable(
        bags=tuple(f"s{p:02d}_{k % slides}" for k, p in enumerate(rows)),
        labels=tuple(int(p % 3 == 0) for p in rows),
        groups=tuple(f"p{p}" for p in rows),
        splits=tuple("test" if p >= patients - test else "train" for p in rows),
        classes=("0", "1"),
    )


def table_of(labels, *, parts=None, groups=None, folds=None):
    return LabelTable(
        bags=tuple(f"b{k}" for k in range(len(labels))),
        labels=tuple(labels),
        groups=groups,
        folds=folds,
        splits=parts,
        classes=("healthy", "ill"),
    )


def train_and_test(train, test):
    """Parts of bags that first train and then test."""
    return ("train",) * train + ("test",) * test


def test_every_training_bag_validates_once_with_its_patient_beside_one_fixed_test_part():
    table = cohort()
    splits = protocol_splits(table)
    training = {b for b, p in zip(table.bags, table.splits, strict=True) if p == "train"}
    assert len(splits) == 5
    assert Counter(b for s in splits for b in s.val) == Counter(training)
    of = dict(zip(table.bags, table.groups, strict=True))
    ill = dict(zip(table.bags, table.labels, strict=True))
    for s in splits:
        assert set(s.train) | set(s.val) == training and not set(s.train) & set(s.val)
        assert set(s.test) == set(table.bags) - training
        assert len(s.val) == 8  # 20 % of 40
        assert not {of[b] for b in s.train} & {of[b] for b in s.val}
        # 7 of the 20 patients are ill: one or two of the four that validate
        assert sum(ill[b] for b in s.val) in (2, 4)
    first, again, other = (protocol_splits(table, seed=s) for s in (1, 1, 2))
    assert first == again and {s.val for s in first} != {s.val for s in other}
    out = replace(table, splits=(None, *table.splits[1:]))
    assert {s.part_of(table.bags[0]) for s in protocol_splits(out)} == {"unused"}


REFUSED = [
    (table_of([0, 1] * 5), "'split'"),
    (table_of([0, 1] * 5, folds=(0, 1, 2, 3, 4) * 2), "folds"),
    (table_of([0, 1] * 3, parts=train_and_test(4, 2)), "4 bags of 4 patients"),
    (table_of([0, 1] * 5, parts=train_and_test(6, 4)), "3 bags"),
    (
        table_of([0, 1] * 5 + [1, 1], parts=train_and_test(10, 2)),
        r"2 bags of class ill, .*'b10', 'b11'",
    ),
    (table_of([0, 1] * 5, parts=train_and_test(10, 0)), "test"),
    (table_of([None, 1] + [0, 1] * 5, parts=train_and_test(10, 2)), "'b0'"),
    (
        table_of([0] * 8 + [1, 1, 0, 1], parts=train_and_test(10, 2), groups=tuple("abcdefghiitu")),
        r"2 bags of class ill .*'i'",
    ),
    (
        table_of([0, 1] * 6, parts=train_and_test(10, 2), groups=tuple("abcdefghijaz")),
        "group 'a'",
    ),
]


@pytest.mark.parametrize(("table", "fact"), REFUSED)
def test_what_cannot_be_split_is_refused(table, fact):
    refused(TableError, fact, protocol_splits, table)


def test_one_split_is_none_and_unlabelled_test_bags_may_be_predicted():
    refused(InputError, "splits is 1", protocol_splits, cohort(), splits=1)
    table = table_of([0, 1] * 5 + [None, None], parts=train_and_test(10, 2))
    assert protocol_splits(table)[0].test == ("b10", "b11")
    table = cohort()
    parts = ["val" if p == "train" and k % 4 < 2 else p for k, p in enumerate(table.splits)]
    mixed = replace(table, splits=tuple(parts))
    assert [s.val for s in protocol_splits(mixed)] == [s.val for s in protocol_splits(table)]
    splits = protocol_splits(table_of([0] * 8 + [1, 1] + [0, 1], parts=train_and_test(10, 2)))
    without = [s for s in splits if not {"b8", "b9"} & set(s.val)]
    assert len(without) == 3
    for s in splits:
        noted = "class ill validates" in s.origin and "AUROC" in s.origin
        assert noted == (s in without)


def test_folds_are_used_as_they_are_and_a_fold_of_one_class_is_noted():
    table = table_of([0, 1] * 6, folds=tuple(k // 2 % 4 for k in range(12)))
    splits = fold_splits(table)
    assert len(splits) == 4 and splits[3].test == ("b6", "b7")
    assert splits[3].val == ("b0", "b1", "b8", "b9")  # the first fold after the last
    assert Counter(b for s in splits for b in s.test) == Counter(table.bags)
    table = table_of([0, 1, 0, 1, 0, 1, 0, 0], folds=(0, 0, 1, 1, 2, 2, 3, 3))
    origins = [s.origin for s in fold_splits(table)]
    assert "class ill tests" in origins[3]
    assert "class ill validates" in origins[2]
    assert [s.count("no bag") for s in origins] == [0, 0, 1, 1]
    refused(TableError, "8 bags of class healthy", fold_splits, replace(table, labels=(0,) * 8))
    refused(TableError, "'fold'", fold_splits, cohort())
    table = table_of([0, 1, 0, 1, 0, 0], folds=(0, 0, 1, 1, 2, 2))
    with pytest.raises(TableError, match=r"class ill .*2 bags"):
        check_classes(table, Split(train=("b4",), val=("b1",), test=("b2", "b3"), origin="made"))


def test_stored_splits_are_read_as_they_were(tmp_path):
    table = cohort()
    splits = protocol_splits(table, seed=3)
    paths = write_splits(tmp_path, splits, settings={"splits": 5, "seed": 3})
    for split, read in zip(splits, read_splits(tmp_path, table), strict=True):
        parts = {p: tuple(b for b in table.bags if b in getattr(split, p)) for p in SPLIT_PARTS}
        assert read == replace(split, **parts)  # in the order of the table
    metadata = json.loads((tmp_path / "splits.json").read_text())
    assert metadata["settings"] == {"splits": 5, "seed": 3}
    assert metadata["splits"][4]["val"] == 8 and "seed 3" in metadata["splits"][0]["origin"]
    assert set(read_clam_split(paths[2], table).val) == set(splits[2].val)  # as runs do
    assert paths[0].read_text().splitlines()[0] == ",train,val,test"
    refused(TableError, "splits.json", read_splits, tmp_path / "no", table)
    write_splits(tmp_path, protocol_splits(cohort()))
    path = tmp_path / "splits.json"
    later = json.dumps({**json.loads(path.read_text()), "probsa_splits": 2})
    damaged = json.dumps({"probsa_splits": 1, "splits": ["splits_0.csv"]})
    for text, message in ((later, "version 2"), ("{", "splits.json"), (damaged, "damaged")):
        path.write_text(text)
        refused(TableError, message, read_splits, tmp_path, cohort())


def test_stored_splits_without_an_entry_are_not_of_another_version(tmp_path):
    write_splits(tmp_path, [])
    with pytest.raises(TableError, match=r"splits\.json") as caught:
        read_splits(tmp_path, cohort())
    assert "version" not in str(caught.value)


def test_stored_splits_that_no_longer_fit_are_refused(tmp_path):
    table = cohort()
    write_splits(tmp_path, protocol_splits(table))
    groups = table.groups
    parts = table.splits
    moved = tuple("test" if g == "p0" else p for g, p in zip(groups, parts, strict=True))
    new = replace(
        table,
        bags=(*table.bags, "late"),
        labels=(*table.labels, 0),
        groups=(*groups, "p99"),
        splits=(*parts, "train"),
    )
    joined = tuple(
        "p0" if p == "train" and g in ("p1", "p2", "p3", "p4") else g
        for g, p in zip(groups, parts, strict=True)
    )
    healed = tuple(0 if p == "train" else y for y, p in zip(table.labels, parts, strict=True))
    for now, fact in (
        (drop_bags(table, table.bags[:1]), f"bag '{table.bags[0]}'"),
        (new, "bag 'late'"),
        (replace(table, splits=moved), "test"),
        (replace(table, groups=joined), "group 'p0'"),
        (replace(table, labels=healed), "class 1"),
    ):
        with pytest.raises(TableError, match=f"(?s){fact}.*{tmp_path}"):
            read_splits(tmp_path, now)
    left_out = replace(table, splits=(None, *parts[1:]))  # such bags are not new
    write_splits(tmp_path, protocol_splits(left_out))
    assert len(read_splits(tmp_path, left_out)) == 5


@pytest.mark.parametrize("bag", [0, 7])
def test_stored_splits_of_other_folds_are_refused(tmp_path, bag):
    folds = tuple(k // 2 % 4 for k in range(12))
    table = table_of([0, 1] * 6, folds=folds)
    write_splits(tmp_path, fold_splits(table))
    assert [s.test for s in read_splits(tmp_path, table)] == [s.test for s in fold_splits(table)]
    renumbered = replace(table, folds=tuple(fold + 1 for fold in folds))
    assert len(read_splits(tmp_path, renumbered)) == 4  # the same bags are tested together
    moved = replace(table, folds=(*folds[:bag], (folds[bag] + 1) % 4, *folds[bag + 1 :]))
    refused(TableError, "fold", read_splits, tmp_path, moved)


def test_the_test_part_cannot_be_read_by_training_or_its_workers(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(10):
        x = rng.normal(size=(4, 6)).astype(np.float32)
        write_bag(tmp_path / "features" / f"b{k}.h5", features=x, kind="slide")
    parts = ["test"] * 3 + ["val"] * 2 + ["train"] * 5
    lines = [f"b{k},{k % 2},{p}\n" for k, p in enumerate(parts)]
    (tmp_path / "labels.csv").write_text("bag,label,split\n" + "".join(lines))
    bags = open_bags(tmp_path / "features")
    bags.bag("b1")  # also a cached bag
    view = bags.sealed(["b1"], why="it tests")
    for read in (view.bag, view.stored):
        refused(InputError, r"bag 'b1' .*it tests", read, "b1")
    assert view.size("b1") == len(view.bag("b2")) == 4
    assert len(bags.bag("b1")) == 4  # the original is not sealed
    assert view.bag("b2") is bags.bag("b2")  # the cache is shared
    data = DataConfig(features=tmp_path / "features", labels=tmp_path / "labels.csv")
    prepared = prepare(RunConfig(model="abmil", data=data))
    assert prepared.split.test == ("b0", "b1", "b2")
    assert prepared.bags.in_dim == 6  # although the first bag is sealed
    reader = BagReader(prepared.bags, prepared.targets, model="abmil")
    pack([reader.labelled(n) for n in (*prepared.split.train, *prepared.split.val)])
    for name in prepared.split.test:
        refused(InputError, f"bag '{name}' .* in the test part", reader.labelled, name)
    for workers in (0, 1):
        loader = Loader(reader, workers=workers, device=torch.device("cpu"))
        reading = loader.epoch([Shard(("b5", "b0"), 2)])
        with pytest.raises(InputError, match=r"bag 'b0' .* in the test part"), reading as batches:
            list(batches)
