"""What one method predicts for the test bags of one data set, replicate by replicate.

A data set has either folds (each bag is tested once, by the run of its fold) or one test part that
the runs of all splits predict. Each method then has several replicates of predictions for every
test bag: one per seed with folds, one per split and seed with a fixed test part.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ...tasks import F1_AT_HALF, HALF, TASKS, Measure, TargetData, Task
from ..grid.methods_and_cells import Method

PartValue = int | float | Float[np.ndarray, " _"] | None
Function = TypeVar("Function", bound=Callable[..., Any])
ALL_FOLDS = -1
"""Stands for the split of a replicate that pools the runs of all folds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """What one run predicts for the bags that it tests."""

    split: int
    rows: Int[np.ndarray, " tested"]
    """The index of each tested bag among those of the data set."""
    data: TargetData
    """Their targets and predictions, with the run's own thresholds and times."""
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """The predictions of one method on one data set."""

    data: str
    method: Method
    bags: tuple[str, ...]
    groups: Shaped[np.ndarray, " bags"]
    """Patients, the units that intervals resample."""
    replicates: tuple[tuple[RunPart, ...], ...]
    """One part per fold, or a single one."""
    seed: Int[np.ndarray, " replicates"]
    folds: bool = False
    """Whether each bag is tested by the run of its own fold."""
    f1_at_half: bool = False
    """Whether the overview has F1 at p ≥ 0.5 instead of F1 at the threshold of each run."""
    results: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)
    """What functions of these scores returned, see `once`."""

    @property
    def task(self) -> Task:
        """The task of the data set."""
        return TASKS[self.replicates[0][0].data.task]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes or findings."""
        return self.replicates[0][0].data.names

    @property
    def overview(self) -> tuple[Measure, ...]:
        """The metrics that tables of several data sets, ranks and figures show."""
        measures = self.task.measures
        if self.task.two_classes:
            hidden = "f1" if self.f1_at_half else F1_AT_HALF
            measures = tuple(m for m in measures if m.name != hidden)
        return measures[: self.task.overview]

    @property
    def parts(self) -> list[RunPart]:
        """The parts of all replicates."""
        return [part for parts in self.replicates for part in parts]

    @property
    def targets(self) -> Float[np.ndarray, "bags targets"]:
        """The targets of the bags; nan where unknown."""
        parts = self.replicates[0]
        targets = np.empty((len(self.bags), parts[0].data.y.shape[1]))
        for part in parts:
            targets[part.rows] = part.data.y
        return targets

    @property
    def positive(self) -> Bool[np.ndarray, " bags"]:
        """Which bags are positive; for data sets of two classes."""
        return self.targets[:, 0] > 0

    @property
    def labels(self) -> dict[str, bool]:
        """Whether each bag is positive, by name."""
        return dict(zip(self.bags, self.positive.tolist(), strict=True))

    @property
    def patients(self) -> dict[str, str]:
        """The patient of each bag, by name."""
        return dict(zip(self.bags, self.groups.tolist(), strict=True))

    @property
    def fold_of(self) -> dict[str, int] | None:
        """The fold of each bag, by name; None if one run predicts all of them."""
        return dict(zip(self.bags, self.split[0].tolist(), strict=True)) if self.folds else None

    @property
    def p(self) -> Float[np.ndarray, "replicates bags"]:
        """p(Y = 1); for data sets of two classes."""
        return self._by_bag(lambda part: part.data.predicted[:, -1])

    @property
    def calls(self) -> Bool[np.ndarray, "replicates bags"]:
        """Whether p(Y = 1) reaches the threshold of its run."""
        return self.p >= self._by_bag(lambda part: part.data.threshold)

    def called(self, measure: Measure) -> Bool[np.ndarray, "replicates bags"]:
        """Return the calls that an F1 is of."""
        return self.p >= HALF if measure.name == F1_AT_HALF else self.calls

    @property
    def split(self) -> Int[np.ndarray, "replicates bags"]:
        """The split of the run that tests each bag."""
        return self._by_bag(lambda part: part.split).astype(np.int64)

    def _by_bag(
        self, value: Callable[[RunPart], PartValue]
    ) -> Float[np.ndarray, "replicates bags"]:
        """Return the values of parts by bag; a number is that of all its bags."""
        by_bag = np.full((len(self.replicates), len(self.bags)), np.nan)
        for row, parts in zip(by_bag, self.replicates, strict=True):
            for part in parts:
                row[part.rows] = value(part)  # None becomes nan
        return by_bag

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(split, seed) of each replicate; with folds, (`ALL_FOLDS`, seed)."""
        splits = [ALL_FOLDS if self.folds else parts[0].split for parts in self.replicates]
        return list(zip(splits, self.seed.tolist(), strict=True))

    @property
    def blocks(self) -> list[int] | None:
        """The split of each replicate if a replicate is a split and a seed, else None."""
        splits = [k for k, _ in self.keys]
        return splits if len(set(splits)) > 1 else None

    def take(self, rows: Sequence[int]) -> "Scores":
        """Return some of the replicates, in this order."""
        replicates = tuple(self.replicates[r] for r in rows)
        return replace(self, replicates=replicates, seed=self.seed[list(rows)])


def once(function: Function) -> Function:
    """Make a function of scores compute once for the same ones: tables and figures share it.

    Its first argument is the scores of one method or a sequence of them; others have names.
    """

    @wraps(function)
    def remembering(scores: Scores | Sequence[Scores], **options: Any) -> Any:
        methods = (scores,) if isinstance(scores, Scores) else tuple(scores)
        call = signature(function).bind(scores, **options)
        call.apply_defaults()
        _, *arguments = call.arguments.items()  # without the scores themselves
        key = (function.__name__, methods, *arguments)
        results = methods[0].results
        if key not in results:
            results[key] = function(scores, **options)
        return results[key]

    return remembering  # pyright: ignore[reportReturnType]


def align(scores: Sequence[Scores]) -> tuple[list[Scores], int]:
    """Return the methods with their common replicates in one order, and how many were left out."""
    keys = [set(s.keys) for s in scores]
    all_keys = set().union(*keys)
    common = sorted(set.intersection(*keys))
    aligned = [s.take([s.keys.index(key) for key in common]) for s in scores]
    return aligned, len(all_keys) - len(common)


def by_data(scores: Sequence[Scores]) -> dict[str, list[Scores]]:
    """Return the methods of each data set, in their order."""
    grouped: dict[str, list[Scores]] = {}
    for s in scores:
        grouped.setdefault(s.data, []).append(s)
    return grouped
