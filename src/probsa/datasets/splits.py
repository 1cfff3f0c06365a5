"""Stage 5: assign bags to training, validation and test; a group is never in several parts.

The splits of an experiment have a fixed test part. Every other bag validates in exactly one of
them. They are stored as CLAM's `splits_k.csv`, which runs can use, and `splits.json`; stored splits
that no longer fit the labels are rejected.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ..core import TextTable, as_record, counted, is_missing, write_csv, write_json
from ..errors import InputError, TableError
from ..tasks import SHOWN
from .choices import MOST_VALIDATION
from .labels import LabelTable
from .names import SPLIT_PARTS, nearest, without_suffix

MOST_FOLDS = 20
"""Into how many folds a training part is divided at most, to take some of them for validation; more
are made only for shares below 1 / 20."""
TOLERANCE = 0.25
"""How far the first of k folds may be from a requested share of 1 / k, relative to the share.

Within this tolerance, the first fold validates, as it always did in version 0.2, so that splits of
that version can be made again. Otherwise the fold nearest to the share validates.
"""
NO_TEST = (
    "nothing is held out for testing: all figures are of the validation bags, on which the epoch "
    "and any threshold were chosen. To test, add a column 'fold' (0, 1, 2, …; then --test-fold 0) "
    "or 'split' (train, val, test) to the table of labels"
)
"""What is said of a split without a test part."""


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
    train. A column `split` is used as given. Without it, or if it has no `val`, the share
    `validation` of the labelled training bags validates, as nearly as whole groups allow that are
    stratified by `LabelTable.labels`.

    Raises:
        TableError: the arguments do not fit the table, a group would be in two parts, or a bag
            without a label would train or validate.
    """
    where = table.where
    if table.folds is not None:
        folds = sorted(set(table.folds))
        fold_list = ", ".join(map(str, folds))
        if test_fold is None:
            raise TableError(
                f"{where} gives folds ({fold_list}): say which to test with --test-fold"
            )
        if test_fold not in folds:
            raise TableError(f"{where} has no fold {test_fold}: it has {fold_list}")
        if len(folds) < 3:
            raise TableError(
                f"{where} has {len(folds)} folds: one tests and one validates, so training "
                "needs a third. Give a column 'split' instead"
            )
        # the first fold follows the last
        val_fold = folds[(folds.index(test_fold) + 1) % len(folds)]
        part_of_fold = {test_fold: "test", val_fold: "val"}
        row_parts = [part_of_fold.get(fold, "train") for fold in table.folds]
        origin = f"fold {test_fold} of {where} tests, fold {val_fold} validates"
    elif test_fold is not None:
        raise TableError(
            f"{where} has no column 'fold', which --test-fold needs{table.similar_column('fold')}"
        )
    elif table.splits is not None:
        row_parts = table.splits
        origin = f"from the column 'split' of {where}"
    else:
        row_parts = [None if y is None else "train" for y in table.labels]
        origin = f"all labelled bags of {where}"
    rows = zip(table.bags, row_parts, strict=True)
    parts = {bag: part for bag, part in rows if part is not None}
    _check_parts(table, parts, origin)
    if "val" not in parts.values():
        available = sum(part == "train" for part in parts.values())
        val_bags = _validation(table, parts, share=validation, seed=seed)
        parts |= dict.fromkeys(val_bags, "val")
        origin += (
            f"; {len(val_bags)} of {counted(available, 'bag')} of the training part validate: "
            f"{len(val_bags) / available:.1%}, {_division(table, seed)}"
        )
    return _split_of(parts, origin)


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
    reason = table.of_task.labels.untrained(y, table.classes)
    if reason is not None:
        columns = ", ".join(map(repr, table.target))
        raise TableError(f"{table.where} ({columns}, {split.origin}): {reason}")


def read_clam_split(path: Path | str, table: LabelTable) -> Split:
    """Read CLAM's `splits_k.csv` (ragged columns train, val, test) or `splits_k_bool.csv`.

    Repeats of a bag within a part, which occur in CAMIL's published splits, are ignored, and so are
    the label columns (`train_label`, …) of TransMIL and CAMIL.

    Raises:
        TableError: a bag is not in the table, a bag or a group is in several parts, or a column or
            a cell is missing.
    """
    path = Path(path)
    splits = TextTable.read(path, expected=",train,val,test")
    header = tuple(splits.frame.columns)
    index_columns = [n for n in header if n.removesuffix("_label") not in SPLIT_PARTS]
    if not set(SPLIT_PARTS) <= set(header) or len(index_columns) > 1:
        raise TableError(
            f"{path} has the columns {', '.join(name or '(no name)' for name in header)}: "
            "expected an index and train, val, test, as in CLAM's splits_0.csv"
        )
    bags = set(table.bags)
    bag_of = without_suffix(splits.frame.to_numpy().ravel(), bags, where=str(path))
    parts: dict[str, str] = {}
    for line, row in splits.numbered:
        for part in SPLIT_PARTS:
            name = row[part]
            if index_columns and name.lower() == "true":
                # in `splits_k_bool.csv`, the index column holds the name
                name = row[index_columns[0]]
            name = bag_of.get(name, name)
            if name not in bags and (name.lower() == "false" or is_missing(name)):
                continue
            if name not in bags:
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
    _check_parts(table, parts, origin)
    return _split_of({bag: parts[bag] for bag in table.bags if bag in parts}, origin)


def _split_of(parts: Mapping[str, str], origin: str) -> Split:
    """Return the split that puts each bag in its part."""

    def bags_in(name: str) -> tuple[str, ...]:
        return tuple(bag for bag, part in parts.items() if part == name)

    return Split(train=bags_in("train"), val=bags_in("val"), test=bags_in("test"), origin=origin)


def _division(table: LabelTable, seed: int) -> str:
    """Say how a training part is divided."""
    stratified = table.of_task.labels.stratified_by.format(*table.target)
    return f"{stratified}, groups kept whole, seed {seed}"


def _check_parts(table: LabelTable, parts: Mapping[str, str], origin: str) -> None:
    """Check that bags train, that all but test bags have labels, and that groups stay together."""
    if "train" not in parts.values():
        raise TableError(f"no bag is left to train on ({origin})")
    first_row_of: dict[str, int] = {}
    for row, bag in enumerate(table.bags):
        if bag not in parts:
            continue
        if table.labels[row] is None and parts[bag] != "test":
            raise TableError(
                f"{table.where}, {table.place(row)} has no label, but is in {parts[bag]} ({origin})"
            )
        first = first_row_of.setdefault(table.group(row), row)
        first_part = parts[table.bags[first]]
        if first_part != parts[bag]:
            raise TableError(
                f"{table.where}: group {table.group(row)!r} is in two parts: {table.place(first)} "
                f"in {first_part}, {table.place(row)} in {parts[bag]} ({origin}). Keep the bags of "
                "a group together"
            )


def _stratified_folds(
    y: np.ndarray, groups: np.ndarray, k: int, *, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return k divisions into training and validation rows; ValueError if a class is too small."""
    from sklearn.model_selection import StratifiedGroupKFold

    splitter = StratifiedGroupKFold(n_splits=k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # scikit-learn warns of classes with fewer bags than folds; the callers check them.
        warnings.simplefilter("ignore", UserWarning)
        return list(splitter.split(y, y, groups))


def _validation(
    table: LabelTable, parts: Mapping[str, str], *, share: float, seed: int
) -> Sequence[str]:
    """Choose the validation bags."""
    if not 0 < share <= MOST_VALIDATION:
        raise InputError(
            f"validation is {share:g}: give a share above 0 and up to {MOST_VALIDATION:g}"
        )
    rows = [row for row, bag in enumerate(table.bags) if parts.get(bag) == "train"]
    groups = np.array([table.group(row) for row in rows])
    strata = [table.labels[row] for row in rows]
    fraction = _folds_of_share(share, most=len(set(groups)))
    y = table.of_task.labels.balanced_strata(strata, fraction.denominator)
    # sklearn rejects more folds than the largest class has bags.
    most = min(fraction.denominator, int(np.bincount(y).max()))
    fraction = _folds_of_share(share, most=most)
    if fraction == 1:
        raise TableError(
            f"{table.where}: {len(rows)} bags in {len(set(groups))} groups are too few to take a "
            "validation part from: give a column 'split'"
        )
    folds = _stratified_folds(y, groups, fraction.denominator, seed=seed)
    tolerance = TOLERANCE * share if fraction.numerator == 1 else 0.0

    def quality(division: tuple[np.ndarray, np.ndarray]) -> tuple[int, int, float]:
        """Both parts should have as many classes as possible, and the share that is asked for."""
        train, val = division
        excess = abs(len(val) / len(rows) - share) - tolerance
        # rounded, so that equal shares are equal however they were computed
        return len(set(y[train])), len(set(y[val])), -round(max(0.0, excess), 9)

    train, val = max(_unions(folds, fraction.numerator), key=quality)
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


def _folds_of_share(share: float, *, most: int) -> Fraction:
    """Return the fraction nearest to a share, whose denominator is the number of folds.

    Its numerator is the number of folds that validate, at least one of at most `most`. A share of
    1 / k is returned as it is if there may be k folds.
    """
    most = max(1, most)
    folds = max(MOST_FOLDS, round(1 / share))
    fraction = Fraction(share).limit_denominator(min(most, folds))
    if fraction == 0:  # the share is less than half of the smallest possible fold
        return Fraction(1, most)
    return fraction


def _unions(
    folds: Sequence[tuple[np.ndarray, np.ndarray]], count: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training and validation rows; `count` folds in a row validate, from each fold on."""
    fold_rows = [val for _, val in folds]
    every_row = np.sort(np.concatenate(fold_rows))
    for first in range(len(fold_rows)):
        chosen = [fold_rows[(first + k) % len(fold_rows)] for k in range(count)]
        val = np.sort(np.concatenate(chosen))
        yield np.setdiff1d(every_row, val), val


VERSION = 1
"""`probsa_splits` of the written JSON; later versions are rejected."""
SPLITS_FILE = "splits.json"


def protocol_splits(table: LabelTable, *, splits: int = 5, seed: int = 0) -> list[Split]:
    """Divide the training part into train and validation; the test part is fixed.

    The train and val bags of the column `split` form the training part, of which each of the k
    `splits` uses another 1/k for validation.

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
    if splits < 2:
        raise InputError(f"splits is {splits}: give 2 or more, so that bags remain for training")
    parts: dict[str, str] = {}
    for bag, part in zip(table.bags, table.splits, strict=True):
        if part is not None:
            parts[bag] = "test" if part == "test" else "train"
    where = f"the training part of {table.where}"
    _check_parts(table, parts, f"train and val together are {where}")
    rows = [r for r, b in enumerate(table.bags) if parts.get(b) == "train"]
    result = []
    for k, val_rows in enumerate(_validation_rows(table, rows, splits=splits, seed=seed)):
        val = dict.fromkeys((table.bags[r] for r in val_rows), "val")
        origin = f"split {k} of {splits} of {where}, {_division(table, seed)}"
        split = _split_of(parts | val, origin)
        check_classes(table, split)
        result.append(_note_missing_classes(table, split))
    return result


def fold_splits(table: LabelTable) -> list[Split]:
    """Return one split per fold: fold k tests, fold k + 1 validates, the others train.

    A fold with a single class is noted but accepted, as scores can be pooled over folds.

    Raises:
        TableError: there are fewer than three folds, a group is in several, all bags have one
            class, or a class is missing from a training part.
    """
    if table.folds is None:
        raise TableError(f"{table.where} has no column 'fold'{table.similar_column('fold')}")
    _check_two_classes(table, table.bags, f"all bags of {table.where} together, each tested once,")
    splits = [make_split(table, test_fold=k) for k in sorted(set(table.folds))]
    for split in splits:
        check_classes(table, split, pooled=True)
    return [_note_missing_classes(table, split) for split in splits]


def write_splits(
    folder: Path | str, splits: Sequence[Split], *, settings: Any = None
) -> list[Path]:
    """Write `splits_0.csv`, … in CLAM's format, then `splits.json` with their origin and settings.

    Returns:
        The CSV files, which `data.split` of a run can name.
    """
    folder = Path(folder)
    paths = [folder / f"splits_{k}.csv" for k in range(len(splits))]
    entries: list[dict[str, Any]] = []
    for path, split in zip(paths, splits, strict=True):
        # the columns of CLAM's files are as long as the parts
        rows = []
        for k, names in enumerate(zip_longest(split.train, split.val, split.test, fillvalue="")):
            train, val, test = names
            rows.append({"": k, "train": train, "val": val, "test": test})
        write_csv(path, ("", *SPLIT_PARTS), rows)
        counts = {part: len(getattr(split, part)) for part in SPLIT_PARTS}
        entries.append({"file": path.name, **counts, "origin": split.origin})
    metadata = {"probsa_splits": VERSION, "settings": settings, "splits": entries}
    write_json(folder / SPLITS_FILE, metadata)  # written last, to mark the folder as complete
    return paths


def read_splits(folder: Path | str, table: LabelTable) -> list[Split]:
    """Read the splits that `write_splits` stored, and check that they still fit the table.

    Raises:
        TableError: there are no stored splits, or they no longer fit: bags were added or removed,
            a group is in several parts, the test part or the tested fold differs, or a class has
            no training bag.
    """
    folder = Path(folder)
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


def read_splits_metadata(folder: Path | str) -> dict[str, Any]:
    """Read the JSON file of stored splits.

    Raises:
        TableError: the file is missing, damaged, without splits, or of a later version.
    """
    folder = Path(folder)
    path = folder / SPLITS_FILE
    advice = f"remove {folder} to make new splits"
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        version = metadata["probsa_splits"]
        # raises if an entry is not a mapping with these keys
        files = [(entry["file"], entry["origin"]) for entry in metadata["splits"]]
    except FileNotFoundError as error:
        raise TableError(f"there are no stored splits: {path} is missing") from error
    except (ValueError, TypeError, KeyError) as error:
        raise TableError(f"{path} is damaged: {advice}") from error
    if version != VERSION:
        raise TableError(f"{path} is of version {version}, this probsa reads {VERSION}")
    if not files:
        raise TableError(f"{path} lists no splits: {advice}")
    return metadata


def check_classes(table: LabelTable, split: Split, *, pooled: bool = False) -> None:
    """Check that every class of the table trains, and that the test part can be scored.

    pooled: scores are pooled over the test parts of several splits, each of which may have a single
    class.

    Raises:
        TableError: a class has no training bag, or the test part has a single class.
    """
    untrained = _missing_classes(table, split.train)
    if untrained:
        strata = table.strata((*split.train, *split.val, *split.test))
        count = sum(y in untrained for y in strata)
        raise TableError(
            f"no bag {table.stratum_names(untrained)} trains ({split.origin}): all "
            f"{counted(count, 'bag')} of it validate or test. More bags or patients of that kind "
            "are needed, or fewer splits"
        )
    if not pooled:
        _check_two_classes(table, split.test, f"the test part ({split.origin})")


def _missing_classes(table: LabelTable, names: Sequence[str]) -> list[int]:
    """Return the classes of the table that none of these bags has."""
    present = table.of_task.labels.needed_strata(set(table.strata(table.bags)))
    return sorted(present - set(table.strata(names)))


def _note_missing_classes(table: LabelTable, split: Split) -> Split:
    """Return a split whose origin names the classes that do not validate or are not tested."""
    notes = [split.origin]
    for names, verb in ((split.val, "validates"), (split.test, "tests")):
        missing = _missing_classes(table, names)
        if names and missing:
            notes.append(
                f"no bag {table.stratum_names(missing)} {verb}, so "
                f"{table.of_task.words.undefined_metric} is undefined there"
            )
    return replace(split, origin="; ".join(notes))


def _check_two_classes(table: LabelTable, names: Sequence[str], part: str) -> None:
    """Raise if the labelled bags of a part all have the same class, or none has an event."""
    if not names:
        raise TableError(f"{part} has no bag: state which bags to test on")
    strata = table.strata(names)  # a test part may be entirely unlabelled
    reason = table.of_task.labels.untestable(strata, table.classes)
    if reason is not None:
        examples = ", ".join(repr(name) for name in names[:SHOWN])
        if len(names) > SHOWN:
            examples += ", …"
        raise TableError(f"{part} {reason} ({examples}). Methods cannot be compared on it")


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
        folds = _stratified_folds(y, groups, splits, seed=seed)
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
    """Check that a stored split contains the bags that the table uses, and tests those it tests.

    With a column `split`, the test bags must be those of the column; with folds, all bags of one
    fold. A table with neither does not say which bags are tested.
    """
    stored_parts: dict[str, str] = {}
    for part in SPLIT_PARTS:
        stored_parts |= dict.fromkeys(getattr(split, part), part)
    for row, bag in enumerate(table.bags):
        stored = stored_parts.get(bag)
        if table.splits is None:
            is_used = table.labels[row] is not None
        else:
            is_used = table.splits[row] is not None
        if is_used and stored is None:
            raise TableError(f"bag {bag!r} of {table.where} is new: it is in no part of {path}")
        if stored is None or table.splits is None:
            continue
        part = table.splits[row] or "unused"
        if (stored == "test") != (part == "test"):
            raise TableError(f"bag {bag!r} is in {stored} in {path}, but {part} in {table.where}")
    if table.folds is not None:
        _check_tested_fold(table, table.folds, split, path)


def _check_tested_fold(table: LabelTable, folds: Sequence[int], split: Split, path: Path) -> None:
    """Check that the test part is one fold of the table, that of its first test bag."""
    tested = set(split.test)
    rows = [row for row, bag in enumerate(table.bags) if bag in tested]
    if not rows:
        raise TableError(f"{path} tests no bag, but {table.where} has folds")
    first = rows[0]
    for row, bag in enumerate(table.bags):
        if (bag in tested) != (folds[row] == folds[first]):
            raise TableError(
                f"bag {bag!r} is {'' if bag in tested else 'not '}tested with "
                f"{table.bags[first]!r} in {path}, but has fold {folds[row]} in {table.where}, "
                f"where {table.bags[first]!r} has fold {folds[first]}"
            )
