"""Split-conformal intervals of a number, for items that come in groups (patients).

The score of an item is |y - ŷ|, or |y - ŷ| / s with its own predicted spread s (Lei et al., JASA
2018). The threshold is that of `group_risk`: each group counts once, however many items it has.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from .conformal import require_groups
from .group_risk import group_shares, risk_threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class ConformalIntervals:
    """Intervals ŷ ± q, or ŷ ± q s, that contain the truth with a probability of 1 - α."""

    alpha: float
    half_width: float
    """q: in the unit of the number, or in multiples of the predicted spread."""
    normalised: bool
    """Whether the intervals are proportional to a predicted spread."""
    groups: int
    """Number of calibration groups."""

    @classmethod
    def calibrated(
        cls,
        y: Float[np.ndarray, " items"],
        predicted: Float[np.ndarray, " items"],
        *,
        groups: Sequence[Hashable],
        alpha: float,
        spread: Float[np.ndarray, " items"] | None = None,
    ) -> "ConformalIntervals":
        """Compute q from calibration items.

        A random item of a new group is then inside its interval with a probability of at least
        1 - α, if the groups are exchangeable. With one item per group, q is the ⌈(K + 1)(1 - α)⌉-th
        smallest of K scores.

        Args:
            y: the true values.
            predicted: the predictions.
            groups: the group of each item.
            alpha: 1 - coverage.
            spread: the predicted standard deviation of each item, above 0; None for intervals of
                the same width.

        Raises:
            InputError: there are too few groups for α, or a spread is not above 0.
        """
        share, member = group_shares(groups)
        count = len(np.unique(member))
        require_groups(count, alpha=alpha, what="calibration bags")
        score = np.abs(y - predicted)
        if spread is not None:
            score = score / _checked(spread)
        return cls(
            alpha=alpha,
            half_width=risk_threshold(score, share, groups=count, alpha=alpha),
            normalised=spread is not None,
            groups=count,
        )

    def intervals(
        self,
        predicted: Float[np.ndarray, " items"],
        *,
        spread: Float[np.ndarray, " items"] | None = None,
    ) -> Float[np.ndarray, "items 2"]:
        """Return the lower and the upper limit of each item; both belong to the interval.

        Raises:
            InputError: the spread is missing, or given although it was not calibrated.
        """
        if (spread is not None) != self.normalised:
            wanted = "need" if self.normalised else "were calibrated without"
            raise InputError(f"these intervals {wanted} a predicted spread")
        scale = np.ones_like(predicted) if spread is None else _checked(spread)
        half = self.half_width * scale
        return np.stack([predicted - half, predicted + half], axis=1)


def _checked(spread: Float[np.ndarray, " items"]) -> Float[np.ndarray, " items"]:
    if not bool((np.isfinite(spread) & (spread > 0)).all()):
        raise InputError("predicted spreads must be above 0 and finite; some are not")
    return spread
