"""Read the run folders of an experiment: their cell.json and their test predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core import read_record
from ...errors import InputError
from ...evaluation import PREDICTIONS_TABLE, read_predictions, target_data
from ...tasks import TargetData
from ...training import RunFolder, read_split
from ...variational import KLWeight
from ..grid.methods_and_cells import Method

CELL = "cell.json"
"""Describes a run within its experiment; it is written last."""
ADVICE = "remove the folder and run the grid again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished cell, as its cell.json describes it."""

    data: str
    label: str
    model: str
    arguments: Mapping[str, Any]
    kl_weight: KLWeight | None
    split: int
    seed: int
    folds: bool
    groups: Mapping[str, str] | None
    path: Path = Path()

    @property
    def method(self) -> Method:
        """The method that was run."""
        return Method(
            label=self.label,
            model=self.model,
            arguments=self.arguments,
            kl_weight=self.kl_weight,
        )


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
    for path in sorted(p for p in (out / "cells").glob("*/*/split*-seed*") if p.is_dir()):
        files = path / "predictions" / PREDICTIONS_TABLE, path / CELL
        if not all(file.is_file() for file in files):
            unfinished.append(path)
            continue
        try:
            done.append(replace(read_record(Run, path / CELL, advice=ADVICE), path=path))
        except InputError as error:
            skipped.append((path, str(error)))
    return Runs(done=tuple(done), unfinished=tuple(unfinished), skipped=tuple(skipped))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """The test part of one run."""

    run: Run
    every: tuple[str, ...]
    """The bags that a whole replicate tests, sorted; with folds, all bags of the split."""
    bags: tuple[str, ...]
    """The bags that this run tests."""
    data: TargetData
    """Their targets and predictions."""


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
        stored = RunFolder(run.path).thresholds()
        if stored is None:
            raise InputError("threshold.json is missing: run the grid again")
        # without a validation part calls are at 0.5, as in the predictions
        threshold = 0.5 if stored.threshold is None else float(stored.threshold)
        data = replace(data, threshold=threshold)
    every = (*split.train, *split.val, *split.test) if run.folds else split.test
    return Tested(run=run, every=tuple(sorted(set(every))), bags=split.test, data=data)
