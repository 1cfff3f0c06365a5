"""What the run folders of an experiment hold, brought into the shape that tables need.

A data set either has folds (every bag is tested once, by the run of its fold) or one test part that
every split's run predicts. Either way a method has so many `replicates` of scores for every test
bag: with folds one a seed (pooled over folds), with a fixed test part one a split and seed.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ._base import Method


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """One method on one data set: what each replicate gives every test bag (rows: replicates)."""

    data: str
    method: Method
    bags: tuple[str, ...]
    y: Int[np.ndarray, " bags"]
    groups: Shaped[np.ndarray, " bags"]
    """Patients: what intervals resample."""
    p: Float[np.ndarray, "replicates bags"]
    """p(Y = 1)."""
    calls: Bool[np.ndarray, "replicates bags"]
    """p at or above the threshold of the run that gave it, chosen on its validation part."""
    split: Int[np.ndarray, "replicates bags"]
    """Of the run that gave it."""
    seed: Int[np.ndarray, " replicates"]
    runs: tuple[Path, ...] = field(default=())
    """The run folders it was read from."""
    folds: bool = False
    """Whether every bag is tested by the run of its own fold."""


def read_scores(out: Path) -> list[Scores]:
    """Every method and data set of an experiment's folder, from its run folders alone.

    Only whole replicates count: with folds, a seed of which a fold is missing is left out.

    Raises:
        InputError: no finished run below `out`.
    """
    raise NotImplementedError(out)
