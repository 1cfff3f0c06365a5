"""Copies and near-copies among real features, and leaks of splits."""

from dataclasses import replace

import numpy as np
import pytest
from support.refusals import refused

from probsa.core import write_bag
from probsa.datasets import (
    BagSet,
    CopyGroup,
    LabelTable,
    Split,
    find_copies,
    find_leaks,
    fold_splits,
    make_split,
    open_bags,
    read_table,
    refuse_leaks,
)
from probsa.datasets.leaks import SAME, SAMPLE, SHARE
from probsa.errors import TableError

REAL = ("ct_ich", "colon_tiles")
OLD = ("musk1", "tiger")


def write(folder, bags):
    for name, x in bags.items():
        write_bag(folder / f"{name}.h5", features=x, kind="ct")
    return open_bags(folder)


def some(shared_data, data, *, count=20):
    bags = open_bags(shared_data / "bags" / data / "features")
    return {n: np.asarray(bags.stored(n).features, np.float32) for n in bags.names[:count]}


def order(n):
    return np.random.default_rng(1).permutation(n)


def noisy(x):
    return x * (1 + 1e-3 * np.random.default_rng(2).normal(size=x.shape)).astype(np.float32)


CHANGES = {
    "shuffled": lambda x: x[order(len(x))],
    "noise": noisy,
    "float16": lambda x: x.astype(np.float16),
    "dropped": lambda x: x[np.random.default_rng(3).random(len(x)) > 0.1],
    "all of it": lambda x: noisy(x)[order(len(x))][: -(len(x) // 10)].astype(np.float16),
    "half": lambda x: x[: len(x) // 2],
    "within more": lambda x: np.concatenate([x, x[::-1] * 1.3 + 0.1]).astype(np.float32),
}


@pytest.mark.parametrize("data", REAL)
def test_real_bags_that_share_nothing_raise_no_alarm(shared_data, data):
    bags = open_bags(shared_data / "bags" / data / "features")
    assert find_copies(bags, bags.names) == []


@pytest.mark.parametrize("data", OLD)
def test_the_old_benchmarks_raise_no_alarm(shared_data, tmp_path, data):
    with np.load(shared_data / "mil_benchmarks" / f"{data}.npz") as z:
        x = z["X"].astype(np.float32)
        of = z["bag"]
        count = len(z["y"])
    bags = write(tmp_path, {f"b{k}": x[of == k] for k in range(count)})
    assert find_copies(bags, bags.names) == []


@pytest.mark.parametrize(
    ("data", "change"), [*(("ct_ich", change) for change in CHANGES), ("colon_tiles", "all of it")]
)
def test_a_planted_copy_is_found_and_nothing_else(shared_data, tmp_path, data, change):
    real = some(shared_data, data)
    origin = list(real)[7]
    bags = write(tmp_path, real | {"z": CHANGES[change](real[origin])})
    (found,) = find_copies(bags, bags.names)
    assert found.bags == (origin, "z")
    assert found.kind == ("copy" if change == "shuffled" else "near-copy")
    assert found.share >= 0.9


def test_noise_beyond_the_rule_is_another_bag(shared_data, tmp_path):
    real = some(shared_data, "ct_ich", count=6)
    x = next(iter(real.values()))
    other = x * (1 + 0.02 * np.random.default_rng(0).normal(size=x.shape)).astype(np.float32)
    bags = write(tmp_path, real | {"z": other})
    assert find_copies(bags, bags.names) == []


def test_a_third_of_the_rows_is_less_than_the_rule_asks_of_either_bag(tmp_path):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(30, 20)).astype(np.float32) for _ in range(2))
    shared = {"a": a, "b": np.concatenate([b[:20], a[:10]])}
    bags = write(tmp_path, shared)
    assert find_copies(bags, bags.names) == []
    bags = write(tmp_path, {"b": np.concatenate([b[:15], a[:15]])})
    assert find_copies(bags, bags.names) == [
        CopyGroup(bags=("a", "b"), kind="near-copy", share=0.5)
    ]


def test_rows_that_a_bag_repeats_say_nothing(tmp_path):
    rng = np.random.default_rng(0)
    blank = rng.normal(size=(1, 20))
    # three of four patches of every bag are blank, except for sensor noise
    bags = write(
        tmp_path,
        {
            f"b{k}": np.concatenate(
                [blank * (1 + 1e-4 * rng.normal(size=(30, 20))), rng.normal(size=(10, 20))]
            ).astype(np.float32)
            for k in range(4)
        },
    )
    assert find_copies(bags, bags.names) == []


def test_bags_of_one_or_two_rows_are_compared_as_wholes(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 20)).astype(np.float32)
    bags = write(tmp_path, {"a": x[:1], "b": x[:1], "c": x, "d": x[1:3][::-1], "e": x[1:3]})
    copies = find_copies(bags, bags.names)
    assert [(c.bags, c.kind) for c in copies] == [(("a", "b"), "copy"), (("d", "e"), "copy")]


def test_features_that_hardly_vary_do_not_hide_a_copy(tmp_path):
    rng = np.random.default_rng(0)
    # a large offset and a constant: rounding and noise exceed the std
    x = {k: rng.normal(size=(20, 12)).astype(np.float32) for k in "abcd"}
    x = {k: np.hstack([v, 1e4 + 0.1 * v[:, :3], np.full((20, 1), 7)]) for k, v in x.items()}
    bags = write(
        tmp_path,
        {**{k: v.astype(np.float32) for k, v in x.items()}, "e": noisy(x["c"].astype(np.float32))},
    )
    assert [c.bags for c in find_copies(bags, bags.names)] == [("c", "e")]


def test_one_bag_is_no_copy_of_itself(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    bags = write(tmp_path, dict.fromkeys("abc", x))
    assert find_copies(bags, ["a"]) == find_copies(bags, ["a", "a"]) == []
    assert find_copies(bags, ["c", "a"]) == [CopyGroup(bags=("c", "a"), kind="copy", share=1.0)]


def change_rows(x, difference, rng):
    """Return `x` with rows that differ from its own by `difference` times their norm."""
    steps = rng.normal(size=x.shape)
    steps *= np.linalg.norm(x, axis=1, keepdims=True) / np.linalg.norm(steps, axis=1, keepdims=True)
    return x + difference * steps


def bags_with_copies(rng, *, copies, difference, others):
    """Return bags in random order, and the groups of an original with its shuffled copies."""
    bags = {f"other{k:02}": rng.normal(size=(rng.integers(4, 90), 24)) for k in range(others)}
    groups = []
    for count in copies:
        original = rng.normal(size=(rng.integers(6, 90), 24))
        group = {f"group{len(groups)}_00": original}
        for k in range(1, count):
            rows = rng.permutation(len(original))
            group[f"group{len(groups)}_{k:02}"] = change_rows(original, difference, rng)[rows]
        bags |= group
        groups.append(set(group))
    names = rng.permutation(list(bags)).tolist()
    return {name: bags[name].astype(np.float32) for name in names}, groups


@pytest.mark.parametrize("count", [2, 3, 8, 9, 12, 17, 30, 40])
@pytest.mark.parametrize("difference", [0.0, 1e-3, 0.003, 0.0045, 0.006, 0.02])
def test_all_copies_are_found_with_few_comparisons(tmp_path, monkeypatch, count, difference):
    """Rows are equal up to a difference of .005.

    Two copies differ by √2 times their difference from the original: at .0045, they are connected
    through it alone.
    """
    rng = np.random.default_rng([count, int(1e6 * difference)])
    content, groups = bags_with_copies(rng, copies=(count, 5), difference=difference, others=30)
    bags = write(tmp_path, content)
    names = list(content)
    reads = []
    stored = BagSet.stored

    def count_reads(self, name):
        reads.append(name)
        return stored(self, name)

    monkeypatch.setattr(BagSet, "stored", count_reads)
    found = find_copies(bags, names)
    assert {frozenset(group.bags) for group in found} == {
        frozenset(group) for group in groups if difference < SAME
    }
    for group in found:
        assert group.kind == ("near-copy" if difference else "copy")
        assert SHARE <= group.share <= 1
        assert list(group.bags) == sorted(group.bags, key=names.index)
    # One read for the scale of the features, one for the sketch, two for a comparison.
    comparisons = (len(reads) - len(names) - min(SAMPLE, len(names))) / 2
    assert comparisons <= len(names)


def test_a_group_of_copies_in_several_parts_is_one_leak(tmp_path):
    rng = np.random.default_rng(0)
    content, (group,) = bags_with_copies(rng, copies=(30,), difference=1e-3, others=9)
    bags = write(tmp_path, content)
    names = tuple(content)
    table = LabelTable(bags=names, labels=(0,) * len(names), classes=("0", "1"))
    split = Split(train=names[:13], val=names[13:26], test=names[26:], origin="made")
    (leak,) = find_leaks(bags, table, split)
    assert set(leak.bags) == group
    assert leak.parts == tuple(split.part_of(name) for name in leak.bags)
    assert (leak.kind, leak.across, leak.labels_differ) == ("near-copy", True, False)
    assert "30" in leak.what and all(part in leak.what for part in ("train", "val", "test"))


def test_bags_are_in_one_group_with_the_bag_that_connects_them(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 20)).astype(np.float32)
    bags = write(tmp_path, {"first": x[:20], "second": x[20:]})
    assert find_copies(bags, bags.names) == []
    bags = write(tmp_path, {"whole": x})
    (group,) = find_copies(bags, bags.names)
    assert group.bags == ("first", "second", "whole")


def test_bags_that_cannot_be_read_are_left_out(tmp_path):
    x = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    bags = write(tmp_path, {"a": x, "b": x, "wide": np.hstack([x, x]), "z": x})
    (tmp_path / "z.h5").write_bytes(b"damaged")
    assert [c.bags for c in find_copies(bags, bags.names)] == [("a", "b")]
    assert find_copies(bags, ["wide", "z"]) == []


@pytest.fixture
def four(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
    return write(tmp_path, {f"b{k}": x[k] for k in range(4)})


TABLE = LabelTable(
    bags=("b0", "b1", "b2", "b3"),
    labels=(0, 1, 0, 1),
    groups=("p", "q", "r", "s"),
    classes=("0", "1"),
)
CLEAN = Split(train=("b0", "b1"), val=("b2",), test=("b3",), origin="made by hand")


def test_a_clean_split_has_no_leak(four):
    assert find_leaks(four, TABLE, CLEAN) == refuse_leaks(four, TABLE, CLEAN) == []


def test_a_patient_in_two_parts_is_refused(four):
    table = replace(TABLE, groups=("p", "q", "r", "p"))
    with pytest.raises(
        TableError,
        match=r"made by hand.*'p' .*train \(bag 'b0'\) .*test \(bag 'b3'\)",
    ):
        refuse_leaks(four, table, CLEAN)
    both = replace(TABLE, groups=("p", "q", "p", "p"))
    kinds = [(x.kind, x.parts) for x in find_leaks(four, both, CLEAN)]
    assert kinds == [("patient", ("train", "val", "test"))]


def test_a_test_bag_in_validation_is_refused(four):
    split = replace(CLEAN, val=("b2", "b3"))
    refused(TableError, "'b3' .*val .*test", refuse_leaks, four, TABLE, split)
    assert [x.kind for x in find_leaks(four, TABLE, split)] == ["bag"]


def test_a_copy_in_another_part_is_refused_and_in_the_same_told(four, tmp_path):
    x = np.asarray(four.stored("b0").features)
    bags = write(tmp_path, {"b3": noisy(x[::-1])})
    with pytest.raises(
        TableError,
        match=r"'b0' \(train\) and 'b3' \(test\) .*100%",
    ):
        refuse_leaks(bags, TABLE, CLEAN)
    (told,) = refuse_leaks(bags, TABLE, Split(train=("b0", "b3"), val=("b1",), test=(), origin=""))
    assert (told.kind, told.parts, told.across) == ("near-copy", ("train", "train"), False)
    # bags that are in no part are ignored
    assert find_leaks(bags, TABLE, replace(CLEAN, test=())) == []


def test_what_was_found_once_serves_every_split(four):
    known = [CopyGroup(bags=("b1", "b2"), kind="copy", share=1.0)]
    with pytest.raises(TableError, match=r"'b1' \(train\) and 'b2' \(val\)"):
        refuse_leaks(four, TABLE, CLEAN, copies=known)
    split = Split(train=("b1", "b2"), val=(), test=("b3",), origin="")
    assert len(refuse_leaks(four, TABLE, split, copies=known)) == 1


def test_a_long_list_is_counted(tmp_path):
    x = np.random.default_rng(0).normal(size=(7, 4, 3)).astype(np.float32)
    names = [f"{part}{k}" for part in ("a", "b") for k in range(7)]
    bags = write(tmp_path, {name: x[int(name[1])] for name in names})
    table = LabelTable(bags=tuple(names), labels=(0,) * 14, classes=("0", "1"))
    split = Split(train=tuple(names[:7]), val=(), test=tuple(names[7:]), origin="made")
    assert len(find_leaks(bags, table, split)) == 7
    refused(TableError, "and 2 more", refuse_leaks, bags, table, split)


@pytest.mark.parametrize("data", REAL)
def test_the_folds_of_real_bags_do_not_leak(shared_data, data):
    folder = shared_data / "bags" / data
    bags = open_bags(folder / "features")
    table = read_table(folder / "labels.csv")
    copies = find_copies(bags, bags.names)
    assert [refuse_leaks(bags, table, s, copies=copies) for s in fold_splits(table)] == [[]] * 5
    split = make_split(table, test_fold=0)
    broken = replace(split, val=(*split.val, split.test[0]))
    with pytest.raises(TableError, match=f"'{split.test[0]}' .*val .*test"):
        refuse_leaks(bags, table, broken, copies=copies)
