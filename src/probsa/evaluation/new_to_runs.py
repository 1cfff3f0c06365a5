"""Null maps and distances from training of several runs that predict together.

Of each bag, the mean is taken over the runs that were neither trained nor validated on it, as for
the predictions themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..core import Bag, StoredBag
from ..training import RunFolder
from .null_files import null_maps_file
from .null_maps import NullMaps
from .several_runs import seen_bags
from .training_distance import TrainingDistance


@dataclass(frozen=True, kw_only=True, slots=True)
class NullMapsOfRuns:
    """The null maps of several runs."""

    maps: tuple[NullMaps, ...]
    seen: tuple[frozenset[str], ...]
    """The bags of the training and validation part of each run."""

    @property
    def about(self) -> dict[str, Any]:
        """What is known of the fits."""
        return {"runs": [dict(m.about) for m in self.maps]}

    def scores(self, bag: StoredBag) -> dict[str, Float[np.ndarray, " n"] | str]:
        """Return the mean scores by map; a map that some runs lack is that of the others.

        Raises:
            BagError: the bag has another number of features than those of the fits.
        """
        of_runs = [
            m.scores(bag) for m, s in zip(self.maps, self.seen, strict=True) if bag.name not in s
        ]
        return {name: _mean([scores[name] for scores in of_runs]) for name in of_runs[0]}


@dataclass(frozen=True, kw_only=True, slots=True)
class DistancesOfRuns:
    """The distances from the training bags of several runs."""

    distances: tuple[TrainingDistance, ...]
    seen: tuple[frozenset[str], ...]
    """The bags of the training and validation part of each run."""

    def of(self, bag: Bag) -> dict[str, Any]:
        """Return the mean distances of a bag and its instances, by field of `Prediction`.

        Raises:
            BagError: the bag has another number of features than those of training.
        """
        of_runs = [
            d.of(bag) for d, s in zip(self.distances, self.seen, strict=True) if bag.name not in s
        ]
        means = {name: np.mean([v[name] for v in of_runs], axis=0) for name in of_runs[0]}
        return {k: float(v) if v.ndim == 0 else v.astype(np.float32) for k, v in means.items()}


def null_maps_of(runs: Sequence[Path]) -> NullMaps | NullMapsOfRuns | None:
    """Return the null maps of a run or of several runs; None if a run has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    files = [null_maps_file(run) for run in runs]
    if not all(file.is_file() for file in files):
        return None
    maps = tuple(NullMaps.load(file) for file in files)
    if len(maps) == 1:
        return maps[0]
    return NullMapsOfRuns(maps=maps, seen=tuple(map(seen_bags, runs)))


def distances_of(runs: Sequence[Path]) -> TrainingDistance | DistancesOfRuns | None:
    """Return the distances from training of a run or of several runs; None if a run has none.

    Raises:
        InputError: a file is damaged.
    """
    found = [TrainingDistance.of_run(RunFolder(run)) for run in runs]
    distances = tuple(d for d in found if d is not None)
    if len(distances) < len(runs):
        return None
    if len(distances) == 1:
        return distances[0]
    return DistancesOfRuns(distances=distances, seen=tuple(map(seen_bags, runs)))


def _mean(scores: Sequence[Float[np.ndarray, " n"] | str]) -> Float[np.ndarray, " n"] | str:
    """Return the mean of the scores, or the first reason if there are none."""
    arrays = [s for s in scores if not isinstance(s, str)]
    return np.mean(arrays, axis=0) if arrays else scores[0]
