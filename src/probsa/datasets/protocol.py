"""Stage 5: the splits of an experiment, made once by a rule and stored.

The test part is fixed. Every other bag is used for validation in exactly one split, stratified by
class, with patients kept together. Splits are stored as CLAM's `splits_k.csv`, which runs can use,
and `splits.json`; stored splits that no longer fit the labels are rejected.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core import counted, write_csv, write_json
from ..errors import InputError, TableError
from ..tasks import SHOWN
from .labels import LabelTable
from .names import SPLIT_PARTS
from .splits import (
    Split,
    check_parts,
    make_split,
    read_clam_split,
    split_of,
    stratified_folds,
)

VERSION = 1
"""`probsa_splits` of the written JSON; later versions are rejected."""
SPLITS_FILE = "splits.json"


def protocol_splits(
    table: LabelTable,
    *,
    splits: int = 5,
    seed: int = 0,
    validation: Literal["rotate", "table"] = "rotate",
) -> list[Split]:
    """Divide the training part into train and validation; the test part is fixed.

    Args:
        table: Table with a column `split`; its train and val bags form the training part.
        splits: Number k of splits; each uses 1/k of the training part for validation.
        seed: Seed of the shuffle; the same seed gives the same splits.
        validation: `table` uses the table's own `val` part instead, which gives one split.

    Raises:
        TableError: the table has folds or no `split` column; there are too few bags or patients; a
            class is missing from a training part; the test part has a single class; a patient is in
            both training and test.
        InputError: fewer than two splits were requested.
    """
    if table.folds is not None:
        raise TableError(f"{table.where} has folds, which define its splits: use those")
    if table.splits is None:
        raise TableError(
            f"{table.where} does not say which bags are tested: add a column 'fold' (each fold is "
            "the test part once) or a column 'split' with train and test"
        )
    if validation == "table":
        if "val" not in table.splits:
            raise TableError(f"no bag of {table.where} is in 'val', so it has no validation part")
        return [_with_notes(table, make_split(table))]
    if splits < 2:
        raise InputError(f"splits is {splits}: give 2 or more, so that bags remain for training")
    parts = {
        b: "test" if p == "test" else "train"
        for b, p in zip(table.bags, table.splits, strict=True)
        if p is not None
    }
    where = f"the training part of {table.where}"
    check_parts(table, parts, f"train and val together are {where}")
    rows = [r for r, b in enumerate(table.bags) if parts.get(b) == "train"]
    stratified_by = table.of_task.labels.stratified_by.format(*table.target)
    result = []
    for k, val_rows in enumerate(_validation_rows(table, rows, splits=splits, seed=seed)):
        val = dict.fromkeys((table.bags[r] for r in val_rows), "val")
        origin = (
            f"split {k} of {splits} of {where}, {stratified_by}, groups kept whole, seed {seed}"
        )
        result.append(_with_notes(table, split_of(parts | val, origin)))
    return result


def fold_splits(table: LabelTable) -> list[Split]:
    """Return one split per fold: fold k tests, fold k + 1 validates, the others train.

    A fold with a single class is noted but accepted, as scores can be pooled over folds.

    Raises:
        TableError: there are fewer than three folds, a group is in several, all bags have one
            class, or a class is missing from a training part.
    """
    if table.folds is None:
        raise TableError(f"{table.where} has no column 'fold'")
    _check_two_classes(table, table.bags, f"all bags of {table.where} together, each tested once,")
    splits = [make_split(table, test_fold=k) for k in sorted(set(table.folds))]
    return [_with_notes(table, split, pooled=True) for split in splits]


def write_splits(folder: Path, splits: Sequence[Split], *, settings: Any = None) -> list[Path]:
    """Write `splits_0.csv`, … in CLAM's format, then `splits.json` with their origin.

    Args:
        folder: Output folder, created if it does not exist.
        splits: The splits in order.
        settings: The settings that the splits were made with, stored in the JSON.

    Returns:
        The CSV files, which `data.split` of a run can name.
    """
    paths = [folder / f"splits_{k}.csv" for k in range(len(splits))]
    for path, split in zip(paths, splits, strict=True):
        columns = zip_longest(*(getattr(split, p) for p in SPLIT_PARTS), fillvalue="")
        rows = [
            {"": k, **dict(zip(SPLIT_PARTS, row, strict=True))} for k, row in enumerate(columns)
        ]
        write_csv(path, ("", *SPLIT_PARTS), rows)
    metadata = {
        "probsa_splits": VERSION,
        "settings": settings,
        "splits": [
            {"file": p.name, **{k: len(getattr(s, k)) for k in SPLIT_PARTS}, "origin": s.origin}
            for p, s in zip(paths, splits, strict=True)
        ],
    }
    write_json(folder / SPLITS_FILE, metadata)  # written last, to mark the folder as complete
    return paths


def read_splits(folder: Path, table: LabelTable) -> list[Split]:
    """Read the splits that `write_splits` stored, and check that they still fit the table.

    Raises:
        TableError: there are no stored splits, or they no longer fit: bags were added or removed,
            a group is in several parts, the test part differs, or a class has no training bag.
    """
    metadata = read_splits_metadata(folder)
    advice = f"Put the table back as it was, or remove {folder} to make new splits"
    splits = []
    for entry in metadata["splits"]:
        try:
            split = read_clam_split(folder / entry["file"], table)
            _check_fit(table, split, folder / entry["file"])
            check_classes(table, split, pooled=table.folds is not None)
        except TableError as error:
            raise TableError(f"stored splits no longer fit: {error}. {advice}") from error
        splits.append(replace(split, origin=entry["origin"]))
    return splits


def read_splits_metadata(folder: Path) -> dict[str, Any]:
    """Read the JSON file of stored splits.

    Raises:
        TableError: the file is missing, damaged, or of a later version.
    """
    path = folder / SPLITS_FILE
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        version = metadata["probsa_splits"]
        entries = [(e["file"], e["origin"]) for e in metadata["splits"]]
    except FileNotFoundError as error:
        raise TableError(f"there are no stored splits: {path} is missing") from error
    except (ValueError, TypeError, KeyError) as error:
        raise TableError(f"{path} is damaged: remove {folder} to make new splits") from error
    if version != VERSION or not entries:
        raise TableError(f"{path} is of version {version}, this probsa reads {VERSION}")
    return metadata


def check_classes(table: LabelTable, split: Split, *, pooled: bool = False) -> list[str]:
    """Check the classes of each part, and return notes on classes missing from val or test.

    Args:
        table: The labels.
        split: The parts.
        pooled: Whether scores are pooled over splits, so that a test part may lack classes.

    Raises:
        TableError: a class has no training bag, or, unless `pooled`, the test part has one class.
    """
    present = table.of_task.labels.needed_strata(set(table.strata(table.bags)))

    def missing(names: Sequence[str]) -> list[int]:
        return sorted(present - set(table.strata(names)))

    if untrained := missing(split.train):
        strata = table.strata((*split.train, *split.val, *split.test))
        count = sum(y in untrained for y in strata)
        raise TableError(
            f"no bag {table.stratum_names(untrained)} trains ({split.origin}): all "
            f"{counted(count, 'bag')} of it validate or test. More bags or patients of that kind "
            "are needed, or fewer splits"
        )
    if not pooled:
        _check_two_classes(table, split.test, f"the test part ({split.origin})")
    return [
        f"no bag {table.stratum_names(missing(names))} {what}, so "
        f"{table.of_task.words.undefined} is undefined there"
        for names, what in ((split.val, "validates"), (split.test, "tests"))
        if names and missing(names)
    ]


def _with_notes(table: LabelTable, split: Split, *, pooled: bool = False) -> Split:
    notes = check_classes(table, split, pooled=pooled)
    return replace(split, origin="; ".join([split.origin, *notes]))


def _check_two_classes(table: LabelTable, names: Sequence[str], what: str) -> None:
    """Raise if the labelled bags all have the same class, or none has an event."""
    if not names:
        raise TableError(f"{what} has no bag: state which bags to test on")
    known = table.strata(names)  # a test part may be entirely unlabelled
    if (reason := table.of_task.labels.untestable(known, table.classes)) is not None:
        shown = ", ".join(repr(n) for n in names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise TableError(f"{what} {reason} ({shown}). Methods cannot be compared on it")


def _validation_rows(
    table: LabelTable, rows: Sequence[int], *, splits: int, seed: int
) -> list[list[int]]:
    """Return the validation rows of each split; every row validates once."""
    y = table.of_task.labels.balanced_strata([table.labels[r] for r in rows], splits)
    groups = np.array([table.group(r) for r in rows])
    group_count = len(set(groups))
    if group_count < splits:
        raise TableError(
            f"the training part of {table.where} has {counted(len(rows), 'bag')} of {group_count} "
            f"patients: too few for {splits} splits, in each of which another patient validates"
        )
    for label in sorted(table.of_task.labels.needed_strata(y.tolist())):
        class_groups = set(groups[y == label])
        if len(class_groups) < 2:
            count = counted(int((y == label).sum()), "bag")
            raise TableError(
                f"the training part of {table.where} has {count} {table.stratum_names([label])} of "
                f"one patient ({str(min(class_groups))!r}): when that patient validates, none is "
                "left to train on"
            )
    try:
        folds = stratified_folds(y, groups, splits, seed=seed)
    except ValueError as error:
        most = int(np.bincount(y).max())
        raise TableError(
            f"{table.where}: the largest class trains with {counted(most, 'bag')}: too few for "
            f"{splits} splits"
        ) from error
    val_parts = [[rows[i] for i in val] for _, val in folds]
    if not all(val_parts):
        raise TableError(
            f"{splits} splits of {len(rows)} bags of {group_count} patients leave one without a "
            "validation part: give fewer splits"
        )
    return val_parts


def _check_fit(table: LabelTable, split: Split, path: Path) -> None:
    """Check that the split contains every bag of the table, with the same test part."""
    part_of = {n: p for p in SPLIT_PARTS for n in getattr(split, p)}
    parts = table.splits or [None if y is None else "" for y in table.labels]
    for bag, part in zip(table.bags, parts, strict=True):
        if part is not None and bag not in part_of:
            raise TableError(f"bag {bag!r} of {table.where} is new: it is in no part of {path}")
        moved = bag in part_of and (part_of[bag] == "test") != (part == "test")
        if moved and table.splits is not None:
            raise TableError(
                f"bag {bag!r} is in {part_of[bag]} in {path}, but {part or 'unused'} in "
                f"{table.where}"
            )
