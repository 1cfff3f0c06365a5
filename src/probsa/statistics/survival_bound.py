"""Lower bounds of survival times that hold with a given probability, from censored data.

The bound is calibrated on the observed time, the earlier of event T and censoring C. Because T is
never earlier, it holds for T too, without any assumption on the censoring; with much censoring it
is far too low (Candès, Lei and Ren, JRSS B 2023, section 1). Groups are those of `group_risk`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from .conformal import require_groups
from .group_risk import group_shares, risk_threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class SurvivalBound:
    """The bound L: the first time of a grid at which predicted survival is at most `level`."""

    alpha: float
    level: float
    times: Float[np.ndarray, " t"]
    """The grid of times; the bound is one of them, and the last one at most."""
    groups: int
    """Number of calibration groups."""

    @classmethod
    def calibrated(
        cls,
        time: Float[np.ndarray, " items"],
        survival: Float[np.ndarray, "items t"],
        *,
        times: Float[np.ndarray, " t"],
        groups: Sequence[Hashable],
        alpha: float,
    ) -> "SurvivalBound":
        """Compute the level from calibration items.

        A random item of a new group then has T ≥ min(T, C) ≥ L with a probability of at least
        1 - α, if the groups are exchangeable.

        Args:
            time: the observed time of each item, of its event or censoring.
            survival: predicted survival at `times`, which must not rise.
            times: the rising times of the grid.
            groups: the group of each item.
            alpha: the largest probability that the event comes before the bound.

        Raises:
            InputError: there are too few groups for α, or predicted survival rises.
        """
        _check(survival, times)
        share, member = group_shares(groups)
        count = len(np.unique(member))
        require_groups(count, alpha=alpha, what="calibration bags")
        # L > time exactly if survival at the last grid time until `time` is above the level. Before
        # the grid, it is 1; from the last grid time on, no bound is later.
        step = np.searchsorted(times, time, side="right")
        padded = np.concatenate([np.ones((len(time), 1)), survival], axis=1)
        score = np.take_along_axis(padded, step[:, None], axis=1)[:, 0]
        score = np.where(time >= times[-1], -np.inf, score)
        level = risk_threshold(score, share, groups=count, alpha=alpha)
        return cls(alpha=alpha, level=level, times=times, groups=count)

    def bounds(self, survival: Float[np.ndarray, "items t"]) -> Float[np.ndarray, " items"]:
        """Return the bound of each item; 0 if the calibration allows no other.

        Raises:
            InputError: there is not one column per time, or predicted survival rises.
        """
        _check(survival, self.times)
        reached = survival <= self.level
        first = np.where(reached.any(1), reached.argmax(1), len(self.times) - 1)
        return np.zeros(len(survival)) if self.level >= 1 else self.times[first]


def _check(survival: Float[np.ndarray, "items t"], times: Float[np.ndarray, " t"]) -> None:
    if len(times) == 0 or (np.diff(times) <= 0).any() or survival.shape[1] != len(times):
        raise InputError(f"survival of shape {survival.shape} needs as many rising times")
    if not bool(((survival >= 0) & (survival <= 1)).all() and (np.diff(survival) <= 0).all()):
        raise InputError("predicted survival must lie in [0, 1] and never rise")
