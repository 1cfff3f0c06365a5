"""The data sets of a grid: those that it names, or what lies in the folders that are given."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..datasets.tables import Table
from ..errors import InputError
from .methods import run_keys

FEATURES, LABELS = "features", "labels.csv"
"""What makes a folder a data set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set of a grid."""

    name: str
    keys: Mapping[str, Any]
    """Dotted keys that all its runs have: its paths, how it is read, how it is trained on."""
    table: Table
    splits: tuple[int, ...]
    """The folds that test, or the numbers of the splits of the training part."""
    made: int
    """How many splits are made of the training part; 0 where the labels have folds."""

    @property
    def folds(self) -> bool:
        """Whether every bag is tested by the run of its own fold."""
        return self.table.folds is not None

    @property
    def groups(self) -> dict[str, str] | None:
        """The patient of each bag."""
        if self.table.groups is None:
            return None
        return dict(zip(self.table.bags, self.table.groups, strict=True))


def found_at(given: str) -> dict[str, dict[str, Any]]:
    """The data sets of a folder, as a grid would name them: `DIR`, or `NAME=DIR`.

    Raises:
        InputError: it holds none; says what was looked for.
    """
    name, equals, rest = given.partition("=")
    if not (equals and re.fullmatch(r"[\w.-]+", name)) or Path(given).exists():
        name, rest = "", given
    folder = Path(rest).expanduser().resolve()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}, which --data names")
    if (one := _whole(folder)) is not None:
        return {name or folder.name: one}
    below = {p.name: _whole(p) for p in sorted(folder.iterdir()) if p.is_dir()}
    several = {n: keys for n, keys in below.items() if keys is not None}
    if not several:
        raise InputError(
            f"{folder}, which --data names, is no data set: expected {FEATURES}/ and {LABELS} in "
            "it or in folders below it. Features that lie elsewhere are named in the grid: "
            "data: {features: DIR, labels: FILE}"
        )
    if name and len(several) > 1:
        raise InputError(
            f"{folder} holds {len(several)} data sets ({', '.join(several)}), which cannot all be "
            f"called {name!r}: give --data {folder}, or one of them"
        )
    return {name: next(iter(several.values()))} if name else several


def _whole(folder: Path) -> dict[str, Any] | None:
    """What a grid would say of a folder of features with its labels."""
    features, labels = folder / FEATURES, folder / LABELS
    if not (features.is_dir() and labels.is_file()):
        return None
    return {"features": str(features), "labels": str(labels)}


def named_sets(given: Any, *, where: str) -> dict[str, dict[str, Any]]:
    """What a grid says under `data`, by name; paths are made absolute.

    Raises:
        InputError: it names no paths; UnknownName: a key that no run has.
    """
    if not isinstance(given, dict) or not given:
        raise InputError(
            f"data in {where} is {given!r}: expected {{features: DIR, labels: FILE}}, or a name "
            "with such a mapping for each of several"
        )
    if {"features", "labels", "dataset"} & set(given):
        one = _absolute(given, where=where)
        return {str(one.pop("name", None) or _name(Path(one["features"]))): one}
    for name, keys in given.items():
        if not isinstance(keys, dict):
            raise InputError(f"data in {where} has {name}: {keys!r}; expected a mapping of keys")
        if not re.fullmatch(r"[\w.-]+", str(name)):
            raise InputError(
                f"data in {where} has the name {name!r}, which is to be a folder: give letters, "
                "digits, . - and _"
            )
    return {str(n): _absolute(keys, where=f"{where} (data {n})") for n, keys in given.items()}


def keys_of(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Dotted keys of what a grid says of one data set."""
    return run_keys({k: v for k, v in given.items() if k != "name"}, where=where)


def _absolute(given: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    found = dict(given)
    for key in ("features", "labels"):
        if not isinstance(found.get(key), str | Path):
            raise InputError(f"{where} gives no {key}: data needs features and labels, both paths")
        found[key] = str(Path(found[key]).expanduser().resolve())
    return found


def _name(features: Path) -> str:
    """What a data set is called after where its features lie."""
    named = features.parent if features.name.startswith(FEATURES) else features
    return re.sub(r"[^\w.-]+", "-", named.name) or "data"


def chosen_splits(table: Table, given: int | Sequence[int], *, where: str) -> tuple[int, ...]:
    """Which splits a data set has: its folds, or as many as are to be made.

    Raises:
        InputError: one that is not there.
    """
    if table.folds is None:
        return tuple(range(given)) if isinstance(given, int) else tuple(given)
    folds = tuple(sorted(set(table.folds)))
    if isinstance(given, int):
        return folds
    if missing := [k for k in given if k not in folds]:
        raise InputError(
            f"splits in {where} has {missing[0]}, but the folds of {table.where} are "
            f"{', '.join(str(k) for k in folds)}"
        )
    return tuple(given)
