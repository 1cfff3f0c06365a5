"""Stage 5: which bags train, validate and test; bags of one group are never in two parts."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold

from ..errors import InputError, TableError
from .labels import PARTS, Table, nearest, read_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Names of the bags of each part, and how the split came about."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    origin: str
    """One sentence."""

    def part_of(self, name: str) -> str:
        """`train`, `val` or `test`; `unused` for a bag in none of them."""
        return next((p for p in PARTS if name in getattr(self, p)), "unused")

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` takes, ready for JSON."""
        return {**{p: list(getattr(self, p)) for p in PARTS}, "origin": self.origin}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Split":
        """The split that `to_dict` wrote."""
        parts = {p: tuple(stored[p]) for p in PARTS}
        return cls(**parts, origin=stored["origin"])


def make_split(
    table: Table, *, test_fold: int | None = None, validation: float = 0.2, seed: int = 0
) -> Split:
    """The split that the table states, or one made from it.

    Folds: tests on `test_fold` k, validates on k + 1 (the first after the last), trains on the
    rest. A column `split` is taken as it is. Otherwise, and where that column has no `val`, about
    `validation` of the labelled training bags validate, stratified by class, groups kept whole.

    Raises:
        TableError: what is asked for does not fit the table, a group would be in two parts, or a
            bag without a label would train or validate.
    """
    if table.folds is not None:
        parts, origin = _by_fold(table, test_fold)
    elif test_fold is not None:
        raise TableError(f"{table.where} has no column 'fold': leave --test-fold out, or add it")
    elif table.splits is not None:
        parts = {b: p for b, p in zip(table.bags, table.splits, strict=True) if p is not None}
        origin = f"as the column 'split' of {table.where} says"
    else:
        parts = {b: "train" for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
        origin = f"all labelled bags of {table.where}"
    check_parts(table, parts, origin)
    if "val" not in parts.values():
        chosen = _validation(table, parts, share=validation, seed=seed)
        parts |= dict.fromkeys(chosen, "val")
        origin += (
            f"; {len(chosen)} bags of the training part validate: about {validation:.0%}, "
            f"stratified by class, groups kept whole, seed {seed}"
        )
    return _split(parts, origin)


def read_clam_split(path: Path, table: Table) -> Split:
    """CLAM's `splits_k.csv` (ragged columns train, val, test) or `splits_k_bool.csv`.

    A bag that stands twice in one part is in it once, as in CAMIL's published splits. Columns
    of labels (`train_label`, …), which TransMIL and CAMIL add, are left unread.

    Raises:
        TableError: a name that the table does not have, a bag or a group in two parts, a part
            that is not there.
    """
    header, rows = read_rows(path)
    column = {p: header.index(p) for p in PARTS if p in header}
    index = [c for c in header if c not in PARTS and c.removesuffix("_label") not in PARTS]
    if len(column) < len(PARTS) or len(index) > 1:
        raise TableError(
            f"{path} has the columns {', '.join(c or '(no name)' for c in header)}: expected an "
            "index and train, val, test, as CLAM's splits_0.csv has them"
        )
    known = set(table.bags)
    parts: dict[str, str] = {}
    for line, row in rows:
        for part, at in column.items():
            cell = row[at] if at < len(row) else ""
            # In a table of booleans the index holds the name.
            name = row[header.index(index[0])] if index and cell.lower() == "true" else cell
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
    origin = f"as {path} says"
    check_parts(table, parts, origin)
    return _split({b: parts[b] for b in table.bags if b in parts}, origin)


def _split(parts: Mapping[str, str], origin: str) -> Split:
    named = {p: tuple(b for b, at in parts.items() if at == p) for p in PARTS}
    return Split(**named, origin=origin)


def _by_fold(table: Table, test_fold: int | None) -> tuple[dict[str, str], str]:
    folds = table.folds or ()
    known = sorted(set(folds))
    listed = ", ".join(str(k) for k in known)
    if test_fold is None:
        raise TableError(
            f"{table.where} gives folds ({listed}): say which to test with --test-fold"
        )
    if test_fold not in known:
        raise TableError(f"{table.where} has no fold {test_fold}: it has {listed}")
    if len(known) < 3:
        raise TableError(
            f"{table.where} has {len(known)} folds: one tests and one validates, so training "
            "needs a third. Give a column 'split' instead"
        )
    val_fold = known[(known.index(test_fold) + 1) % len(known)]
    role = {test_fold: "test", val_fold: "val"}
    parts = {b: role.get(k, "train") for b, k in zip(table.bags, folds, strict=True)}
    return parts, f"fold {test_fold} of {table.where} tests, fold {val_fold} validates"


def check_parts(table: Table, parts: Mapping[str, str], origin: str) -> None:
    """Sees that something trains, all but test bags have labels, and no group is in two parts.

    Raises:
        TableError: names the bag or the group.
    """
    if "train" not in parts.values():
        raise TableError(f"no bag is left to train on ({origin})")
    seen: dict[str, str] = {}
    for row, bag in enumerate(table.bags):
        if bag not in parts:
            continue
        if table.labels[row] is None and parts[bag] != "test":
            raise TableError(
                f"{table.where}: bag {bag!r} has no label, but is to be in {parts[bag]} ({origin})"
            )
        other = seen.setdefault(table.group(row), bag)
        if parts[other] != parts[bag]:
            raise TableError(
                f"group {table.group(row)!r} is in two parts: bag {other!r} in {parts[other]}, "
                f"bag {bag!r} in {parts[bag]} ({origin}). Keep the bags of a group together"
            )


def _validation(
    table: Table, parts: Mapping[str, str], *, share: float, seed: int
) -> Sequence[str]:
    """Training bags that are to validate: the best of the folds that sklearn offers."""
    if not 0 < share <= 0.5:
        raise InputError(f"validation is {share:g}: give a share above 0 and up to 0.5")
    rows = [r for r, b in enumerate(table.bags) if parts.get(b) == "train"]
    y = np.array([table.labels[r] for r in rows])
    group = np.array([table.group(r) for r in rows])
    k = min(round(1 / share), len(set(group)))
    # sklearn refuses more folds than the largest class has bags.
    k = min(k, int(np.bincount(y).max()))
    if k < 2:
        raise TableError(
            f"{table.where}: {len(rows)} bags in {len(set(group))} groups are too few to take a "
            "validation part from: give a column 'split'"
        )
    folds = StratifiedGroupKFold(n_splits=k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A class with fewer bags than folds; whether that matters is looked at below.
        warnings.simplefilter("ignore", UserWarning)
        offers = list(folds.split(rows, y, group))

    def worth(offer: tuple[np.ndarray, np.ndarray]) -> tuple[int, int]:
        return len(set(y[offer[0]])), len(set(y[offer[1]]))

    train, val = max(offers, key=worth)  # the first of the best
    lost = set(y.tolist()) - set(y[train].tolist())
    if lost or len(val) == 0:
        named = ", ".join(table.classes[c] for c in sorted(lost))
        raise TableError(
            f"{table.where}: no bag of class {named} would be left to train on when a validation "
            "part is taken: give a column 'split', or more bags of that class"
        )
    return [table.bags[rows[i]] for i in val]
