"""Read one run folder of an experiment: its cell.json and its test predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core import read_json
from ...errors import InputError
from ...evaluation import PREDICTIONS_TABLE, read_predictions, target_data
from ...tasks import TargetData
from ...training import RunFolder, read_split
from ...variational import KLWeight
from ..grid.methods_and_cells import Method

CELL = "cell.json"
"""Describes a run within its experiment; it is written last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished cell, read from its cell.json."""

    path: Path
    data: str
    method: Method
    split: int
    seed: int
    folds: bool
    groups: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The run folders of an experiment."""

    done: tuple[Run, ...]
    unfinished: tuple[Path, ...]
    """Runs without predictions: waiting, running or failed."""
    skipped: tuple[tuple[Path, str], ...]
    """Damaged runs, with the reason."""


def read_cells(out: Path) -> Runs:
    """Read the cell.json of every run folder below `out`/cells."""
    done: list[Run] = []
    unfinished: list[Path] = []
    skipped: list[tuple[Path, str]] = []
    folders = sorted(p for p in (out / "cells").glob("*/*/split*-seed*") if p.is_dir())
    for path in folders:
        try:
            run = _run(path) if (path / "predictions" / PREDICTIONS_TABLE).is_file() else None
        except InputError as error:
            skipped.append((path, str(error)))
            continue
        if run is None:
            unfinished.append(path)
        else:
            done.append(run)
    return Runs(done=tuple(done), unfinished=tuple(unfinished), skipped=tuple(skipped))


def _run(path: Path) -> Run | None:
    """Return a finished run, or None if it has no cell.json yet."""
    file = path / CELL
    if not file.is_file():
        return None
    values = read_object(file)
    try:
        kl = values["kl_weight"]
        method = Method(
            label=str(values["label"]),
            model=str(values["model"]),
            arguments=dict(values["arguments"]),
            kl_weight=_kl_weight(kl),
        )
        groups = values["groups"]
        return Run(
            path=path,
            data=str(values["data"]),
            method=method,
            split=int(values["split"]),
            seed=int(values["seed"]),
            folds=bool(values["folds"]),
            groups=None if groups is None else {str(k): str(v) for k, v in groups.items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{CELL} cannot be used ({type(error).__name__}: {error}): remove the folder and run "
            "the grid again"
        ) from error


def _kl_weight(value: Any) -> KLWeight | None:
    if value in ("linear", "cyclical"):
        return value
    return None if value is None else float(value)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of keys and values.

    Raises:
        InputError: The file cannot be read, or holds something else.
    """
    value = read_json(path, advice="remove the folder and run the grid again")
    if not isinstance(value, dict):
        raise InputError(f"{path.name} holds a {type(value).__name__}, expected keys and values")
    return value


Truth = tuple[float | None, ...]
"""The targets of a bag, None where unknown; its class is one number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """The test part of one run."""

    run: Run
    all: frozenset[str]
    """Every bag of its split."""
    y: Mapping[str, Truth]
    data: TargetData
    """Targets and predictions of the bags, in the order of `y`."""

    @property
    def bags(self) -> tuple[str, ...]:
        return tuple(sorted(self.y))


def read_tested(run: Run) -> Tested:
    """Read a run's test part.

    Raises:
        ProbSAError: A file is damaged, or a test bag lacks a prediction or a label.
    """
    table = read_predictions(run.path / "predictions")
    split = read_split(RunFolder(run.path))
    row = {bag: i for i, bag in enumerate(table.bags)}
    missing = [bag for bag in split.test if bag not in row]
    if missing:
        raise InputError(f"{len(missing)} test bags have no prediction ({missing[0]!r} first)")
    if not split.test:
        raise InputError("its split has no test part")
    rows, task = [row[bag] for bag in split.test], table.of_task
    values = table.targets
    if values is None:  # one class or grade per bag
        values = np.array([[np.nan if y is None else y] for y in table.labels], dtype=np.float64)
    y = values[rows]
    known = np.isfinite(y)
    lacking = ~(known.any(1) if task.has_findings else known.all(1))
    if task.two_classes:
        lacking |= ~np.isin(y[:, 0], (0, 1))
    if lacking.any():
        first = int(lacking.argmax())
        what = "no label" if not known[first].any() else f"the label {y[first, 0]:g}, not 0 or 1"
        raise InputError(f"test bag {split.test[first]!r} has {what}")
    data = target_data(table, rows, y)
    if task.two_classes:
        data = replace(data, threshold=_threshold(run.path))
    return Tested(
        run=run,
        all=frozenset((*split.train, *split.val, *split.test)),
        y={
            bag: tuple(float(v) if ok else None for v, ok in zip(of_bag, is_known, strict=True))
            for bag, of_bag, is_known in zip(split.test, y, known, strict=True)
        },
        data=data,
    )


def _threshold(path: Path) -> float:
    """Return the run's threshold; 0.5, as in its predictions, if it had no validation part."""
    stored = RunFolder(path).thresholds()
    if stored is None:
        raise InputError("threshold.json is missing: run the grid again")
    return 0.5 if stored.threshold is None else float(stored.threshold)
