"""Every reader of groups keeps a bag without a group apart from the patient of its name."""

import csv

import numpy as np
import pytest
from support.made_predictions import made

from probsa.core import Bag
from probsa.datasets import BagList, Split, find_leaks, make_split, read_table
from probsa.evaluation import PREDICTIONS_TABLE, Context, Truth, read_predictions, write_predictions

NAMES = ("a", "b", "c", "d")
STATED = {"b": "a", "c": "c"}
"""The bag a has no group, b belongs to the patient a; c and d each belong to themselves."""


def write(folder, *, column):
    """Write predictions with or without the column of groups, whose cells for a and d are empty."""
    predictions = [made(name, [0.1, 0.9], [0, 1], probability=(0.3,)) for name in NAMES]
    labels = {name: k % 2 for k, name in enumerate(NAMES)}
    write_predictions(
        folder, predictions, labels=labels, parts={}, classes=("0", "1"), threshold=0.5, metadata={}
    )
    if column:
        path = folder / PREDICTIONS_TABLE
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], "group"])
            writer.writeheader()
            writer.writerows({**row, "group": STATED.get(row["bag"], "")} for row in rows)
    return read_predictions(folder)


@pytest.mark.parametrize("column", [True, False])
def test_bags_of_predictions_are_resampled_by_their_own_groups(tmp_path, column):
    predictions = write(tmp_path / "p", column=column)
    group = predictions.group_of if column else STATED
    context = Context(
        predictions=predictions,
        truth=Truth(targets=dict.fromkeys(NAMES, (0.0,)), group=group),
        part="all",
        rows=(0, 1, 2, 3),
        threshold=0.5,
        bootstrap=10,
        seed=0,
    )
    assert len(set(context.groups)) == 4
    assert context.draws.member.tolist() == [0, 1, 2, 3]
    resamples = context.resamples(NAMES, np.ones(4, dtype=bool))
    assert resamples.member.tolist() == [0, 1, 2, 3]


def test_bags_of_a_label_table_are_split_by_their_own_groups(tmp_path):
    path = tmp_path / "labels.csv"
    parts = dict(zip(NAMES, ("train", "test", "train", "val"), strict=True))
    rows = [f"{name},{k % 2},{STATED.get(name, '')},{parts[name]}" for k, name in enumerate(NAMES)]
    path.write_text("\n".join(["bag,label,group,split", *rows]) + "\n")
    table = read_table(path)
    assert len(set(table.groups)) == 4
    assert table.groups[1:] == ("a", "c", "d")
    split = make_split(table)  # refuses a group in two parts
    assert split.part_of("a") == "train" and split.part_of("b") == "test"
    rng = np.random.default_rng(0)
    bags = BagList([Bag.from_arrays(rng.normal(size=(5, 4)), name=name) for name in NAMES])
    assert find_leaks(bags, table, split) == []
    assert find_leaks(bags, table, Split(train=("b",), val=("a",), test=(), origin="")) == []
