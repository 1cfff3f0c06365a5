"""The predictions of one method on one data set whose task is not two classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, Shaped

from ...core import TaskName
from ...tasks import TargetData
from ..grid.methods_and_cells import Method


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPart:
    """What one run predicts for the bags that it tests."""

    split: int
    rows: Int[np.ndarray, " tested"]
    """The index of each tested bag among those of the data set."""
    data: TargetData
    """Their targets and predictions; those of survival are at times that the run has chosen."""
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetScores:
    """The predictions of a method by replicate: one run per fold, or a single run."""

    data: str
    method: Method
    bags: tuple[str, ...]
    groups: Shaped[np.ndarray, " bags"]
    """Patients, the units that intervals resample."""
    replicates: tuple[tuple[RunPart, ...], ...]
    seed: Int[np.ndarray, " replicates"]
    folds: bool = False
    """Whether each bag is tested by the run of its own fold."""

    @property
    def task(self) -> TaskName:
        """The task of the data set."""
        return self.replicates[0][0].data.task

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes or findings."""
        return self.replicates[0][0].data.names

    @property
    def y(self) -> Float[np.ndarray, "bags targets"]:
        """The targets of the bags; nan where unknown."""
        parts = self.replicates[0]
        y = np.empty((len(self.bags), parts[0].data.y.shape[1]))
        for part in parts:
            y[part.rows] = part.data.y
        return y

    @property
    def split(self) -> Int[np.ndarray, "replicates bags"]:
        """The split of the run that tests each bag."""
        splits = np.empty((len(self.replicates), len(self.bags)), dtype=np.int64)
        for r, parts in enumerate(self.replicates):
            for part in parts:
                splits[r, part.rows] = part.split
        return splits

    @property
    def runs(self) -> tuple[Path, ...]:
        """The run folders, replicate after replicate, each by split."""
        return tuple(part.path for parts in self.replicates for part in parts)

    def take(self, rows: Sequence[int]) -> "TargetScores":
        """Return some of the replicates, in this order."""
        return replace(
            self, replicates=tuple(self.replicates[r] for r in rows), seed=self.seed[list(rows)]
        )
