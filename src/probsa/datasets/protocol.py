"""Stage 5: the splits of an experiment: made once by a rule, stored, and refused if they go stale.

The test part is fixed; of the rest every bag validates in exactly one split, stratified by class,
patients kept whole. Stored as CLAM's `splits_k.csv`, which a run can name, and `splits.json`.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from ..core import write_csv, write_json
from ..errors import InputError, TableError
from .labels import PARTS, SHOWN, Table
from .splits import Split, check_parts, make_split, read_clam_split

VERSION = 1
"""`probsa_splits` of the JSON that is written; a later one is refused."""
ABOUT = "splits.json"


def protocol_splits(
    table: Table,
    *,
    splits: int = 5,
    seed: int = 0,
    validation: Literal["rotate", "table"] = "rotate",
) -> list[Split]:
    """Train and validation parts of the training part, beside the fixed test part.

    Args:
        table: with a column `split`; its train and val bags together are the training part.
        splits: how many; each validates on one of so many parts (five: on 20 %).
        seed: of the shuffle before parts are made; the same seed gives the same splits.
        validation: `table` keeps the table's own `val` part instead, and gives one split.

    Raises:
        TableError: folds, or no `split` column; too few bags or patients; a class that a training
            part would lack; a test part of one class; a patient in training and test.
        InputError: fewer than two splits.
    """
    if table.folds is not None:
        raise TableError(f"{table.where} has folds, which are its splits: use them as they are")
    if table.splits is None:
        raise TableError(
            f"{table.where} says of no bag that it tests: add a column 'fold' (each fold is the "
            "test part once) or a column 'split' with train and test"
        )
    if validation == "table":
        if "val" not in table.splits:
            raise TableError(f"no bag of {table.where} is in 'val', so it has no validation part")
        return [_noted(table, make_split(table))]
    if splits < 2:
        raise InputError(f"splits is {splits}: give 2 or more, so that every bag can validate")
    parts = {
        b: "test" if p == "test" else "train"
        for b, p in zip(table.bags, table.splits, strict=True)
        if p is not None
    }
    where = f"the training part of {table.where}"
    check_parts(table, parts, f"train and val together are {where}")
    rows = [r for r, b in enumerate(table.bags) if parts.get(b) == "train"]
    test = tuple(b for b, p in parts.items() if p == "test")
    made = []
    for k, chosen in enumerate(_validating(table, rows, splits=splits, seed=seed)):
        names = {table.bags[r] for r in chosen}
        own = [table.bags[r] for r in rows]
        split = Split(
            train=tuple(b for b in own if b not in names),
            val=tuple(b for b in own if b in names),
            test=test,
            origin=f"split {k} of {splits} of {where}, stratified by class, groups kept whole, "
            f"seed {seed}",
        )
        made.append(_noted(table, split))
    return made


def fold_splits(table: Table) -> list[Split]:
    """One split a fold, as the table has them: fold k tests, k + 1 validates, the rest trains.

    A fold of one class is noted, not refused: scores can be pooled over folds.

    Raises:
        TableError: no folds, fewer than three, a group in two, all bags of one class, or a class
            that a training part would lack.
    """
    if table.folds is None:
        raise TableError(f"{table.where} has no column 'fold'")
    _several(table, table.bags, f"all bags of {table.where} together, each tested once,")
    found = [make_split(table, test_fold=k) for k in sorted(set(table.folds))]
    return [_noted(table, s, pooled=True) for s in found]


def write_splits(folder: Path, splits: Sequence[Split], *, settings: Any = None) -> list[Path]:
    """Writes `splits_0.csv`, … in CLAM's form, then `splits.json`: how they were made.

    Args:
        folder: made where it is not there.
        splits: in their order.
        settings: what they were made with, kept in the JSON.

    Returns: the CSV files, which `data.split` of a run can name.
    """
    paths = [folder / f"splits_{k}.csv" for k in range(len(splits))]
    for path, split in zip(paths, splits, strict=True):
        columns = zip_longest(*(getattr(split, p) for p in PARTS), fillvalue="")
        rows = [{"": k, **dict(zip(PARTS, row, strict=True))} for k, row in enumerate(columns)]
        write_csv(path, ("", *PARTS), rows)
    metadata = {
        "probsa_splits": VERSION,
        "settings": settings,
        "splits": [
            {"file": p.name, **{k: len(getattr(s, k)) for k in PARTS}, "origin": s.origin}
            for p, s in zip(paths, splits, strict=True)
        ],
    }
    write_json(folder / ABOUT, metadata)  # last: what has it is whole
    return paths


def read_splits(folder: Path, table: Table) -> list[Split]:
    """The splits that `write_splits` stored, once they are seen to fit the table still.

    Raises:
        TableError: none there, or they no longer fit: a bag gone or new, a group across parts,
            another test part, a class that training would lack. Says which.
    """
    metadata = read_about(folder)
    advice = f"Put the table back as it was, or remove {folder} to make new splits"
    found = []
    for entry in metadata["splits"]:
        try:
            split = read_clam_split(folder / entry["file"], table)
            _fits(table, split, folder / entry["file"])
            check_classes(table, split, pooled=table.folds is not None)
        except TableError as error:
            raise TableError(f"stored splits no longer fit: {error}. {advice}") from error
        found.append(replace(split, origin=entry["origin"]))
    return found


def read_about(folder: Path) -> dict[str, Any]:
    """The JSON beside stored splits.

    Raises:
        TableError: it is missing, damaged, or of a later version.
    """
    path = folder / ABOUT
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        version = metadata["probsa_splits"]
        entries = [(e["file"], e["origin"]) for e in metadata["splits"]]
    except FileNotFoundError as error:
        raise TableError(f"there are no stored splits: no {path}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise TableError(f"{path} is damaged: remove {folder} to make new splits") from error
    if version != VERSION or not entries:
        raise TableError(f"{path} is of version {version}, this probsa reads {VERSION}")
    return metadata


def check_classes(table: Table, split: Split, *, pooled: bool = False) -> list[str]:
    """What a split lacks without being useless, in words.

    Args:
        table: the labels.
        split: its parts.
        pooled: whether scores are pooled over splits, so that a test part may lack classes.

    Raises:
        TableError: a class that does not train; a test part of one class, unless `pooled`.
    """
    present = {y for y in table.labels if y is not None}
    train = _counts(table, split.train)
    if lost := sorted(present - set(train)):
        of = {c: _counts(table, (*split.train, *split.val, *split.test))[c] for c in lost}
        raise TableError(
            f"no bag of class {_classes(table, lost)} trains ({split.origin}): of "
            f"{_bags(sum(of.values()))} of it all validate or test. More bags or patients of that "
            "class are needed, or fewer splits"
        )
    if not pooled:
        _several(table, split.test, f"the test part ({split.origin})")
    notes = []
    for part, what in (("val", "validates"), ("test", "tests")):
        names = getattr(split, part)
        if names and (lost := sorted(present - set(_counts(table, names)))):
            notes.append(
                f"no bag of class {_classes(table, lost)} {what}, so AUROC is undefined there"
            )
    return notes


def _noted(table: Table, split: Split, *, pooled: bool = False) -> Split:
    notes = check_classes(table, split, pooled=pooled)
    return replace(split, origin="; ".join([split.origin, *notes]))


def _several(table: Table, names: Sequence[str], what: str) -> None:
    """Raises where labelled bags are of one class: nothing can be told apart."""
    counts = _counts(table, names)
    if len(counts) > 1 or (names and not counts):  # unlabelled test bags are predicted all the same
        return
    if not names:
        raise TableError(f"{what} has no bag: say which bags test")
    (only,) = counts
    shown = ", ".join(repr(n) for n in names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    raise TableError(
        f"{what} is of one class: {_bags(counts[only])} of class {table.classes[only]} "
        f"({shown}), none of another. No method can be told from another there"
    )


def _validating(table: Table, rows: Sequence[int], *, splits: int, seed: int) -> list[list[int]]:
    """For each split the rows that validate; every row once."""
    y = np.array([table.labels[r] for r in rows])
    groups = np.array([table.group(r) for r in rows])
    several = len(set(groups))
    if several < splits:
        raise TableError(
            f"the training part of {table.where} has {_bags(len(rows))} of {several} patients: too "
            f"few for {splits} splits, in each of which another patient validates"
        )
    for label in sorted(set(y.tolist())):
        own = set(groups[y == label])
        if len(own) < 2:
            raise TableError(
                f"class {table.classes[label]} has {_bags(int((y == label).sum()))} of one patient "
                f"({str(min(own))!r}) in the training part of {table.where}: when that patient "
                "validates, none is left to train on"
            )
    maker = StratifiedGroupKFold(n_splits=splits, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class of few bags: looked at by the caller
        try:
            found = [[rows[i] for i in val] for _, val in maker.split(rows, y, groups)]
        except ValueError as error:
            most = int(np.bincount(y).max())
            raise TableError(
                f"{table.where}: the largest class trains with {_bags(most)}: too few for {splits} "
                "splits"
            ) from error
    if not all(found):
        raise TableError(
            f"{splits} splits of {len(rows)} bags of {several} patients leave one without a "
            "validation part: give fewer splits"
        )
    return found


def _fits(table: Table, split: Split, path: Path) -> None:
    """Sees that the table has no bag that the split lacks, and the same test part."""
    held = {n: p for p in PARTS for n in getattr(split, p)}
    for row, bag in enumerate(table.bags):
        part = None if table.splits is None else table.splits[row]
        wanted = part is not None if table.splits is not None else table.labels[row] is not None
        if wanted and bag not in held:
            raise TableError(f"bag {bag!r} of {table.where} is new: {path} has it in no part")
        if bag in held and table.splits is not None and (held[bag] == "test") != (part == "test"):
            raise TableError(
                f"bag {bag!r} is in {held[bag]} in {path}, and {part or 'unused'} in {table.where}"
            )


def _counts(table: Table, names: Sequence[str]) -> dict[int, int]:
    wanted = set(names)
    found: dict[int, int] = {}
    for bag, label in zip(table.bags, table.labels, strict=True):
        if bag in wanted and label is not None:
            found[label] = found.get(label, 0) + 1
    return found


def _classes(table: Table, labels: Sequence[int]) -> str:
    return ", ".join(table.classes[c] for c in labels)


def _bags(n: int) -> str:
    return f"{n} bag{'' if n == 1 else 's'}"
