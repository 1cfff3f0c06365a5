"""Splits of the protocol, stored and read again; training cannot read the test part."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from probsa.core.bags import pack
from probsa.core.store import write_bag
from probsa.datasets import open_bags, read_table
from probsa.datasets.labels import SPLIT_PARTS, LabelTable
from probsa.datasets.splits import (
    Split,
    check_classes,
    fold_splits,
    protocol_splits,
    read_clam_split,
    read_splits,
    write_splits,
)
from probsa.errors import InputError, TableError
from probsa.training.batching import BagReader, Loader, Shard
from probsa.training.config import DataConfig, RunConfig
from probsa.training.preparation import prepare


def cohort(*, patients=30, slides=2, test=10, seed=0):
    """Two slides per patient; a third of the patients are ill; the last `test` are tested."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(patients)
    bags = [f"s{p:02d}_{k}" for p in order for k in range(slides)]
    part = ["test" if p >= patients - test else "train" for p in order for _ in range(slides)]
    return LabelTable(
        bags=tuple(bags),
        labels=tuple(int(p % 3 == 0) for p in order for _ in range(slides)),
        groups=tuple(f"p{p}" for p in order for _ in range(slides)),
        splits=tuple(part),
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


def test_every_training_bag_validates_once_beside_one_fixed_test_part():
    table = cohort()
    splits = protocol_splits(table)
    assert len(splits) == 5
    training = {b for b, p in zip(table.bags, table.splits, strict=True) if p == "train"}
    assert Counter(b for s in splits for b in s.val) == Counter(training)
    for s in splits:
        assert set(s.train) | set(s.val) == training
        assert not set(s.train) & set(s.val)
        assert set(s.test) == set(table.bags) - training
        assert len(s.val) == 8  # 20 % of 40


def test_patients_stay_whole_and_classes_keep_their_share():
    table = cohort()
    of = dict(zip(table.bags, table.groups, strict=True))
    ill = dict(zip(table.bags, table.labels, strict=True))
    for s in protocol_splits(table):
        assert not {of[b] for b in s.train} & {of[b] for b in s.val}
        # 7 of the 20 patients are ill: one or two of the four that validate
        assert sum(ill[b] for b in s.val) in (2, 4)


def test_train_and_val_of_the_table_are_one_training_part():
    table = cohort()
    parts = ["val" if p == "train" and k % 4 < 2 else p for k, p in enumerate(table.splits)]
    assert "val" in parts
    mixed = replace(table, splits=tuple(parts))
    assert [s.val for s in protocol_splits(mixed)] == [s.val for s in protocol_splits(table)]
    (own,) = protocol_splits(mixed, validation="table")
    assert own.val == tuple(b for b, p in zip(table.bags, parts, strict=True) if p == "val")
    with pytest.raises(TableError, match="no bag of the table is in 'val'"):
        protocol_splits(table, validation="table")


def test_the_same_seed_gives_the_same_splits_and_another_gives_others():
    first, again, other = (protocol_splits(cohort(), seed=s) for s in (1, 1, 2))
    assert first == again
    assert {s.val for s in first} != {s.val for s in other}


def test_bags_that_the_column_leaves_out_are_in_no_part():
    table = cohort()
    out = replace(table, splits=(None, *table.splits[1:]))
    for s in protocol_splits(out):
        assert s.part_of(table.bags[0]) == "unused"


def test_a_patient_in_training_and_test_is_refused():
    table = cohort()
    row = table.splits.index("test")
    parts = [*table.splits[:row], "train", *table.splits[row + 1 :]]
    with pytest.raises(TableError, match=f"group '{table.groups[row]}' is in two parts"):
        protocol_splits(replace(table, splits=tuple(parts)))


def test_a_test_part_of_one_class_is_refused_with_its_bags():
    table = table_of([0, 1] * 5 + [1, 1], parts=("train",) * 10 + ("test",) * 2)
    with pytest.raises(TableError, match=r"2 bags of class ill, none of another \('b10', 'b11'\)"):
        protocol_splits(table)
    with pytest.raises(TableError, match="has no bag: state which bags to test on"):
        protocol_splits(table_of([0, 1] * 5, parts=("train",) * 10))


def test_unlabelled_test_bags_may_be_predicted():
    table = table_of([0, 1] * 5 + [None, None], parts=("train",) * 10 + ("test",) * 2)
    assert protocol_splits(table)[0].test == ("b10", "b11")
    untold = replace(table, labels=(None, *table.labels[1:]))
    with pytest.raises(TableError, match="'b0' has no label"):
        protocol_splits(untold)


def test_a_class_that_one_patient_alone_has_cannot_always_train():
    labels, groups = [0] * 8 + [1, 1] + [0, 1], tuple("abcdefghiitu")
    table = table_of(labels, parts=("train",) * 10 + ("test",) * 2, groups=groups)
    with pytest.raises(TableError, match=r"2 bags of class ill of one patient \('i'\)"):
        protocol_splits(table)


def test_a_validation_part_of_one_class_is_noted():
    table = table_of([0] * 8 + [1, 1] + [0, 1], parts=("train",) * 10 + ("test",) * 2)
    splits = protocol_splits(table)
    without = [s for s in splits if not {"b8", "b9"} & set(s.val)]
    assert len(without) == 3
    for s in splits:
        noted = "no bag of class ill validates, so AUROC is undefined there" in s.origin
        assert noted == (s in without)


@pytest.mark.parametrize(
    ("table", "splits", "said"),
    [
        (table_of([0, 1] * 5), 5, "does not say which bags are tested"),
        (table_of([0, 1] * 5, folds=(0, 1, 2, 3, 4) * 2), 5, "use those"),
        (table_of([0, 1] * 3, parts=("train",) * 4 + ("test",) * 2), 5, "4 bags of 4 patients"),
        (table_of([0, 1] * 5, parts=("train",) * 6 + ("test",) * 4), 5, "trains with 3 bags"),
    ],
)
def test_what_cannot_be_split_is_refused(table, splits, said):
    with pytest.raises(TableError, match=said):
        protocol_splits(table, splits=splits)


def test_one_split_is_none():
    with pytest.raises(InputError, match="splits is 1"):
        protocol_splits(cohort(), splits=1)


def test_folds_are_used_as_they_are():
    table = table_of([0, 1] * 6, folds=tuple(k // 2 % 4 for k in range(12)))
    splits = fold_splits(table)
    assert len(splits) == 4
    assert splits[3].test == ("b6", "b7")
    assert splits[3].val == ("b0", "b1", "b8", "b9")  # the first fold after the last
    assert Counter(b for s in splits for b in s.test) == Counter(table.bags)


def test_a_fold_of_one_class_is_noted_and_a_table_of_one_is_refused():
    table = table_of([0, 1, 0, 1, 0, 1, 0, 0], folds=(0, 0, 1, 1, 2, 2, 3, 3))
    origins = [s.origin for s in fold_splits(table)]
    assert "no bag of class ill tests" in origins[3]
    assert "no bag of class ill validates" in origins[2]
    assert [s.count("no bag") for s in origins] == [0, 0, 1, 1]
    with pytest.raises(TableError, match="8 bags of class healthy"):
        fold_splits(replace(table, labels=(0,) * 8))
    with pytest.raises(TableError, match="no column 'fold'"):
        fold_splits(cohort())


def test_a_class_that_never_trains_is_refused_with_its_number():
    table = table_of([0, 1, 0, 1, 0, 0], folds=(0, 0, 1, 1, 2, 2))
    with pytest.raises(TableError, match=r"class ill trains .* all 2 bags of it validate or"):
        check_classes(table, Split(train=("b4",), val=("b1",), test=("b2", "b3"), origin="made"))


# --- stored


def test_stored_splits_are_read_as_they_were(tmp_path):
    table = cohort()
    splits = protocol_splits(table, seed=3)
    paths = write_splits(tmp_path, splits, settings={"splits": 5, "seed": 3})
    assert read_splits(tmp_path, table) == [_in_table_order(s, table) for s in splits]
    metadata = json.loads((tmp_path / "splits.json").read_text())
    assert metadata["settings"] == {"splits": 5, "seed": 3}
    assert metadata["splits"][4]["val"] == 8
    assert "seed 3" in metadata["splits"][0]["origin"]
    # runs can use the file
    as_run = read_clam_split(paths[2], table)
    assert set(as_run.val) == set(splits[2].val)
    header = paths[0].read_text().splitlines()[0]
    assert header == ",train,val,test"


def _in_table_order(split, table):
    parts = {p: tuple(b for b in table.bags if b in getattr(split, p)) for p in SPLIT_PARTS}
    return replace(split, **parts)


def test_stored_splits_that_no_longer_fit_are_refused(tmp_path):
    table = cohort()
    write_splits(tmp_path, protocol_splits(table))
    first, bags = table.bags[0], table.bags
    gone = replace(
        table, bags=bags[1:], labels=table.labels[1:], groups=table.groups[1:],
        splits=table.splits[1:],
    )  # fmt: skip
    new = replace(
        table, bags=(*bags, "late"), labels=(*table.labels, 0), groups=(*table.groups, "p99"),
        splits=(*table.splits, "train"),
    )  # fmt: skip
    moved = replace(table, splits=tuple("test" if g == "p0" else p for g, p in
                                        zip(table.groups, table.splits, strict=True)))  # fmt: skip
    joined = replace(table, groups=tuple(
        "p0" if table.splits[k] == "train" and g in ("p1", "p2", "p3", "p4") else g
        for k, g in enumerate(table.groups)))  # fmt: skip
    healed = replace(
        table,
        labels=tuple(
            0 if p == "train" else y for y, p in zip(table.labels, table.splits, strict=True)
        ),
    )
    for now, said in (
        (gone, f"bag '{first}' .* is not in"),
        (new, "bag 'late' of the table is new"),
        (moved, "but test in the table"),
        (joined, "group 'p0' is in two parts"),
        (healed, "no bag of class 1 trains"),
    ):
        with pytest.raises(TableError, match=f"(?s)no longer fit: .*{said}.*Put the table back"):
            read_splits(tmp_path, now)


def test_bags_that_were_left_out_are_not_new(tmp_path):
    table = cohort()
    table = replace(table, splits=(None, *table.splits[1:]))
    write_splits(tmp_path, protocol_splits(table))
    assert len(read_splits(tmp_path, table)) == 5


def test_missing_and_damaged_stores_are_said(tmp_path):
    with pytest.raises(TableError, match="there are no stored splits"):
        read_splits(tmp_path, cohort())
    write_splits(tmp_path, protocol_splits(cohort()))
    metadata = json.loads((tmp_path / "splits.json").read_text())
    (tmp_path / "splits.json").write_text(json.dumps({**metadata, "probsa_splits": 2}))
    with pytest.raises(TableError, match="version 2, this probsa reads 1"):
        read_splits(tmp_path, cohort())
    (tmp_path / "splits.json").write_text("{")
    with pytest.raises(TableError, match="is damaged"):
        read_splits(tmp_path, cohort())


def test_the_published_partition_of_panda_splits_in_the_protocols_way(shared_data, tmp_path):
    file = shared_data / "labels_splits" / "panda_silva2021_partition.csv.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    out = tmp_path / "labels.csv"
    out.write_text(
        "bag,label,split\n"
        + "".join(
            f"{r['slide_name']},{int(float(r['isup_0']) == 0)},{r['Partition']}\n" for r in rows
        )
    )
    table = read_table(out)
    splits = protocol_splits(table)
    assert [len(s.test) for s in splits] == [1794] * 5
    assert sum(len(s.val) for s in splits) == 8469 + 353
    assert {len(s.val) for s in splits} <= {1764, 1765}
    y = dict(zip(table.bags, table.labels, strict=True))
    for s in splits:  # exactly stratified
        assert sum(y[b] for b in s.val) / len(s.val) == pytest.approx(
            sum(y[b] for b in (*s.train, *s.val)) / 8822, abs=1e-3
        )


# --- sealed


@pytest.fixture
def stored(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(10):
        write_bag(
            tmp_path / "features" / f"b{k}.h5",
            features=rng.normal(size=(4, 6)).astype(np.float32),
            kind="slide",
        )
    parts = ["test"] * 3 + ["val"] * 2 + ["train"] * 5
    lines = [f"b{k},{k % 2},{p}\n" for k, p in enumerate(parts)]
    (tmp_path / "labels.csv").write_text("bag,label,split\n" + "".join(lines))
    return tmp_path


def test_a_sealed_bag_cannot_be_read(stored):
    bags = open_bags(stored / "features")
    bags.bag("b1")  # also a cached bag
    view = bags.sealed(["b1"], why="it tests")
    for read in (view.bag, view.stored):
        with pytest.raises(InputError, match=r"bag 'b1' of .* cannot be read here: it tests"):
            read("b1")
    assert view.size("b1") == 4
    assert len(view.bag("b2")) == 4
    assert len(bags.bag("b1")) == 4  # the original is not sealed
    assert view.bag("b2") is bags.bag("b2")  # the cache is shared


def test_training_cannot_read_its_test_part(stored):
    data = DataConfig(features=stored / "features", labels=stored / "labels.csv")
    prepared = prepare(RunConfig(model="abmil", data=data))
    assert prepared.split.test == ("b0", "b1", "b2")
    assert prepared.bags.in_dim == 6  # although the first bag is sealed
    reader = BagReader(prepared.bags, prepared.targets)
    pack([reader.labelled(n) for n in (*prepared.split.train, *prepared.split.val)])
    for name in prepared.split.test:
        with pytest.raises(InputError, match=f"bag '{name}' .* in the test part"):
            reader.labelled(name)


def test_worker_processes_are_no_way_around_the_seal(stored):
    data = DataConfig(features=stored / "features", labels=stored / "labels.csv")
    prepared = prepare(RunConfig(model="abmil", data=data))
    loader = Loader(BagReader(prepared.bags, prepared.targets), workers=1)
    with pytest.raises(InputError, match=r"bag 'b0' .* in the test part"):
        list(loader.epoch([Shard(("b5", "b0"), 2)]))
