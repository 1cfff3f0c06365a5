"""Conformal prediction sets of classes, for items that come in groups (patients).

Scores: LAC (Sadinle, Lei and Wasserman, JASA 2019) and APS (Romano, Sesia and Candès, NeurIPS
2020). The threshold is that of `group_risk`: each group counts once, however many items it has.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import beta, betabinom

from ..errors import InputError
from .group_risk import ROUNDING, group_shares, least_groups, risk_threshold, tail_p_values

BAND = 0.9
"""Mass of the bands of realised coverage: from the 5th to the 95th percentile."""


def lac_scores(p: Float[np.ndarray, "items classes"]) -> Float[np.ndarray, "items classes"]:
    """Return the score of each class, s(x, y) = 1 - p_y."""
    return 1 - p


def aps_scores(
    p: Float[np.ndarray, "items classes"], *, u: Float[np.ndarray, " items"] | None = None
) -> Float[np.ndarray, "items classes"]:
    """Return the score of each class, the probability of the more probable classes plus u · p_y.

    u: uniform random numbers, one per item, with which coverage is exact; None for u = 1, with
        which no set is empty and the sets are larger than necessary.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    before = np.cumsum(ranked, axis=1) - ranked
    part = np.ones(len(p)) if u is None else u
    scores = np.empty_like(p)
    np.put_along_axis(scores, order, before + part[:, None] * ranked, axis=1)
    return scores


def coverage_band(groups: int, *, alpha: float, mass: float = BAND) -> tuple[float, float]:
    """Return the central interval of the realised coverage over calibration sets of K groups.

    With one item per group and no ties, the coverage of one calibration set, over infinitely many
    new items, is Beta(k, K + 1 - k) distributed with k = ⌈(K + 1)(1 - α)⌉. Several items per
    group vary less, and ties raise the coverage.

    Raises:
        InputError: there are too few groups for α.
    """
    first, second = _beta_parameters(groups, alpha)
    low, high = beta.ppf([(1 - mass) / 2, (1 + mass) / 2], first, second)
    return float(low), float(high)


def coverage_band_in_test(
    groups: int, *, test_groups: int, alpha: float, mass: float = BAND
) -> tuple[float, float]:
    """Return the same interval for the coverage observed in m new groups, which is wider.

    With one item per group, the number of covered ones is Beta-binomial(m, k, K + 1 - k).

    Raises:
        InputError: there are too few groups for α.
    """
    first, second = _beta_parameters(groups, alpha)
    tails = [(1 - mass) / 2, (1 + mass) / 2]
    low, high = betabinom.ppf(tails, test_groups, first, second) / test_groups
    return float(low), float(high)


def _beta_parameters(groups: int, alpha: float) -> tuple[int, int]:
    require_groups(groups, alpha=alpha, what="calibration bags")
    k = math.ceil((groups + 1) * (1 - alpha) - ROUNDING)
    return k, groups + 1 - k


def require_groups(groups: int, *, alpha: float, what: str) -> None:
    """Check that there are enough calibration groups for a level.

    Raises:
        InputError: there are fewer; says how many are needed, and which level is possible.
    """
    least = least_groups(alpha)
    if groups >= least:
        return
    best = ""
    if groups:
        possible = smallest_alpha(groups)
        best = f", or allow at least {possible:.3g} (coverage {1 - possible:.3g})"
    raise InputError(
        f"an error of at most {alpha:.3g} needs {what} of at least {least} groups (patients), "
        f"but there are {groups}: add calibration bags{best}"
    )


def smallest_alpha(groups: int) -> float:
    """Return the smallest level that so many groups suffice for, rounded up to thousandths."""
    return math.ceil(1000 / (groups + 1)) / 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ConformalSets:
    """Thresholds of the scores of each class, made from calibration items."""

    alpha: float
    per_class: bool
    """Whether coverage holds within each class (Mondrian), rather than over all classes."""
    thresholds: Float[np.ndarray, " classes"]
    groups: tuple[int, ...]
    """Number of calibration groups behind the threshold of each class."""
    scores: tuple[Float[np.ndarray, " _"], ...]
    """Calibration scores behind the threshold of each class."""
    shares: tuple[Float[np.ndarray, " _"], ...]
    """The share of each of them in its group."""

    @classmethod
    def calibrated(
        cls,
        scores: Float[np.ndarray, "items classes"],
        y: Int[np.ndarray, " items"],
        *,
        groups: Sequence[Hashable],
        alpha: float,
        per_class: bool = False,
    ) -> "ConformalSets":
        """Compute the thresholds for coverage 1 - α.

        A set then contains the class of a random item of a new group with a probability of at
        least 1 - α, if the groups are exchangeable. With `per_class`, this holds for a random item
        of each class, of a new group that has such items.

        Args:
            scores: the score of each class; low values conform.
            y: the class of each item.
            groups: the group of each item.
            alpha: 1 - coverage.
            per_class: calibrate each class with its own items.

        Raises:
            InputError: there are too few groups for α; says how many are needed.
        """
        of_label = np.take_along_axis(scores, y[:, None], axis=1)[:, 0]
        classes = range(scores.shape[1])
        parts = [y == c for c in classes] if per_class else [np.ones(len(y), dtype=bool)]
        fitted: list[tuple[float, int, np.ndarray, np.ndarray]] = []
        for c, part in enumerate(parts):
            share, member = group_shares([groups[int(i)] for i in np.flatnonzero(part)])
            count = len(np.unique(member))
            what = f"calibration bags of class {c}" if per_class else "calibration bags"
            require_groups(count, alpha=alpha, what=what)
            threshold = risk_threshold(of_label[part], share, groups=count, alpha=alpha)
            fitted.append((threshold, count, of_label[part], share))
        fitted = fitted if per_class else fitted * len(classes)
        return cls(
            alpha=alpha,
            per_class=per_class,
            thresholds=np.array([f[0] for f in fitted], dtype=np.float64),
            groups=tuple(f[1] for f in fitted),
            scores=tuple(f[2] for f in fitted),
            shares=tuple(f[3] for f in fitted),
        )

    def sets(self, scores: Float[np.ndarray, "items classes"]) -> Bool[np.ndarray, "items classes"]:
        """Return which classes are in the set of each item."""
        return scores <= self.thresholds

    def p_values(
        self, scores: Float[np.ndarray, "items classes"]
    ) -> Float[np.ndarray, "items classes"]:
        """Return the conformal p-value of each class; the set holds those above α."""
        columns = [
            tail_p_values(scores[:, c], score=self.scores[c], share=self.shares[c], groups=k)
            for c, k in enumerate(self.groups)
        ]
        return np.stack(columns, axis=1)
