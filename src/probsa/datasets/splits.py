"""Stage 5: assign bags to training, validation and test; a group is never in several parts."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from ..core import TextTable, as_record
from ..errors import InputError, TableError
from .labels import LabelTable
from .names import SPLIT_PARTS, nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Names of the bags of each part, and the origin of the split."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    origin: str
    """How the split was made, in one sentence."""

    def part_of(self, name: str) -> str:
        """Return `train`, `val` or `test`, or `unused` for a bag in none of them."""
        return next((part for part in SPLIT_PARTS if name in getattr(self, part)), "unused")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values for `from_dict`."""
        return {**{part: list(getattr(self, part)) for part in SPLIT_PARTS}, "origin": self.origin}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Split":
        """Return the split that `to_dict` wrote.

        Raises:
            InputError: a part is missing or is not a list of names.
        """
        return as_record(cls, stored, where="the stored split")


def make_split(
    table: LabelTable, *, test_fold: int | None = None, validation: float = 0.2, seed: int = 0
) -> Split:
    """Return the split that the table defines, or make one from it.

    With folds, `test_fold` k is tested, k + 1 validates (the first follows the last), and the rest
    train. A column `split` is used as given. Without it, or if it has no `val`, a share of about
    `validation` of the labelled training bags validates, stratified by `LabelTable.labels`,
    by whole groups.

    Raises:
        TableError: the arguments do not fit the table, a group would be in two parts, or a bag
            without a label would train or validate.
    """
    if table.folds is not None:
        parts, origin = _by_fold(table, test_fold)
    elif test_fold is not None:
        raise TableError(f"{table.where} has no column 'fold': leave --test-fold out, or add it")
    elif table.splits is not None:
        parts = {b: p for b, p in zip(table.bags, table.splits, strict=True) if p is not None}
        origin = f"from the column 'split' of {table.where}"
    else:
        labels = zip(table.bags, table.labels, strict=True)
        parts = {b: "train" for b, label in labels if label is not None}
        origin = f"all labelled bags of {table.where}"
    check_parts(table, parts, origin)
    if "val" not in parts.values():
        val_bags = _validation(table, parts, share=validation, seed=seed)
        parts |= dict.fromkeys(val_bags, "val")
        origin += (
            f"; {len(val_bags)} bags of the training part validate: about {validation:.0%}, "
            f"{table.of_task.labels.stratified_by.format(*table.target)}, groups kept whole, seed "
            f"{seed}"
        )
    return split_of(parts, origin)


def check_training_part(table: LabelTable, split: Split) -> None:
    """Check that a model can learn every class, finding or event from the training part.

    For tasks with classes or grades, training needs bags of two or more of them, and each one of a
    validation or test bag must occur in training, since its probability would be untrained
    otherwise. For multilabel, each finding needs a bag with and one without it in training, and one
    with it in the test part if that has labels. For regression, the training values must differ.
    For survival, training needs an event; how many the model needs is left to its likelihood.

    Raises:
        TableError: one of these is violated; names the class or finding and the part.
    """
    y = {part: table.y(getattr(split, part)) for part in SPLIT_PARTS}
    if (reason := table.of_task.labels.untrained(y, table.classes)) is not None:
        columns = ", ".join(map(repr, table.target))
        raise TableError(f"{table.where} ({columns}, {split.origin}): {reason}")


def read_clam_split(path: Path, table: LabelTable) -> Split:
    """Read CLAM's `splits_k.csv` (ragged columns train, val, test) or `splits_k_bool.csv`.

    Repeats of a bag within a part, which occur in CAMIL's published splits, are ignored, and so are
    the label columns (`train_label`, …) of TransMIL and CAMIL.

    Raises:
        TableError: a bag is not in the table, a bag or a group is in several parts, or a column or
            a cell is missing.
    """
    splits = TextTable.read(path, expected=",train,val,test")
    header = tuple(splits.frame.columns)
    index_columns = [n for n in header if n.removesuffix("_label") not in SPLIT_PARTS]
    if not set(SPLIT_PARTS) <= set(header) or len(index_columns) > 1:
        raise TableError(
            f"{path} has the columns {', '.join(name or '(no name)' for name in header)}: "
            "expected an index and train, val, test, as in CLAM's splits_0.csv"
        )
    known = set(table.bags)
    parts: dict[str, str] = {}
    for line, row in splits.numbered:
        for part in SPLIT_PARTS:
            # In `splits_k_bool.csv`, the index column holds the name.
            named_by_index = index_columns and row[part].lower() == "true"
            name = row[index_columns[0] if named_by_index else part]
            if name.lower() in ("", "false"):
                continue
            if name not in known:
                raise TableError(
                    f"{path}, line {line}: bag {name!r} ({part}) is not in {table.where}."
                    f"{nearest(name, table.bags)}"
                )
            if parts.get(name, part) != part:
                raise TableError(
                    f"{path}, line {line}: bag {name!r} is in {parts[name]} already, "
                    f"and here in {part}"
                )
            parts[name] = part
    origin = f"from {path}"
    check_parts(table, parts, origin)
    return split_of({bag: parts[bag] for bag in table.bags if bag in parts}, origin)


def split_of(parts: Mapping[str, str], origin: str) -> Split:
    """Return the split that puts each bag in its part."""
    named = {p: tuple(b for b, at in parts.items() if at == p) for p in SPLIT_PARTS}
    return Split(**named, origin=origin)


def _by_fold(table: LabelTable, test_fold: int | None) -> tuple[dict[str, str], str]:
    folds = table.folds or ()
    known = sorted(set(folds))
    shown = ", ".join(map(str, known))
    if test_fold is None:
        raise TableError(f"{table.where} gives folds ({shown}): say which to test with --test-fold")
    if test_fold not in known:
        raise TableError(f"{table.where} has no fold {test_fold}: it has {shown}")
    if len(known) < 3:
        raise TableError(
            f"{table.where} has {len(known)} folds: one tests and one validates, so training "
            "needs a third. Give a column 'split' instead"
        )
    val_fold = known[(known.index(test_fold) + 1) % len(known)]
    role = {test_fold: "test", val_fold: "val"}
    parts = {b: role.get(k, "train") for b, k in zip(table.bags, folds, strict=True)}
    return parts, f"fold {test_fold} of {table.where} tests, fold {val_fold} validates"


def check_parts(table: LabelTable, parts: Mapping[str, str], origin: str) -> None:
    """Check that there are training bags, that all but test bags have labels, and that groups stay
    together.

    Raises:
        TableError: one of these is violated; names the bag or the group.
    """
    if "train" not in parts.values():
        raise TableError(f"no bag is left to train on ({origin})")
    first_bag_of: dict[str, str] = {}
    for row, bag in enumerate(table.bags):
        if bag not in parts:
            continue
        if table.labels[row] is None and parts[bag] != "test":
            raise TableError(
                f"{table.where}: bag {bag!r} has no label, but is in {parts[bag]} ({origin})"
            )
        first_bag = first_bag_of.setdefault(table.group(row), bag)
        if parts[first_bag] != parts[bag]:
            raise TableError(
                f"group {table.group(row)!r} is in two parts: bag {first_bag!r} in "
                f"{parts[first_bag]}, bag {bag!r} in {parts[bag]} ({origin}). Keep the bags of a "
                "group together"
            )


def stratified_folds(
    y: np.ndarray, groups: np.ndarray, k: int, *, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return k divisions into training and validation rows, with groups kept whole.

    Raises:
        ValueError: the largest class has fewer rows than folds.
    """
    splitter = StratifiedGroupKFold(n_splits=k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # scikit-learn warns of classes with fewer bags than folds; the callers check them.
        warnings.simplefilter("ignore", UserWarning)
        return list(splitter.split(y, y, groups))


def _validation(
    table: LabelTable, parts: Mapping[str, str], *, share: float, seed: int
) -> Sequence[str]:
    """Choose the validation bags."""
    if not 0 < share <= 0.5:
        raise InputError(f"validation is {share:g}: give a share above 0 and up to 0.5")
    rows = [row for row, bag in enumerate(table.bags) if parts.get(bag) == "train"]
    groups = np.array([table.group(row) for row in rows])
    k = min(round(1 / share), len(set(groups)))
    y = table.of_task.labels.balanced_strata([table.labels[r] for r in rows], k)
    # sklearn rejects more folds than the largest class has bags.
    k = min(k, int(np.bincount(y).max()))
    if k < 2:
        raise TableError(
            f"{table.where}: {len(rows)} bags in {len(set(groups))} groups are too few to take a "
            "validation part from: give a column 'split'"
        )
    # the first of those whose two parts cover the most classes
    train, val = max(
        stratified_folds(y, groups, k, seed=seed),
        key=lambda parts: tuple(len(set(y[part])) for part in parts),
    )
    missing = table.of_task.labels.needed_strata(y.tolist()) - set(y[train].tolist())
    if missing:
        raise TableError(
            f"{table.where}: no bag {table.stratum_names(sorted(missing))} would be left to train "
            "on when a validation part is taken: give a column 'split', or more of these bags"
        )
    if len(val) == 0:
        raise TableError(
            f"{table.where}: {len(rows)} bags in {len(set(groups))} groups left the validation "
            "part without a bag: give a column 'split', or more groups"
        )
    return [table.bags[rows[position]] for position in val]
