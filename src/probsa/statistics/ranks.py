"""Average ranks of methods over several columns (data sets, metrics), and their tests.

Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006. These tests need
many independent columns. AUROC and F1 of one data set are not independent, nor are splits that
share a test part. With too few columns the results give the reason why they are not significant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from .comparison import ALPHA


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The rank of each method in each column: 1 is best, and ties share their mean rank."""

    methods: tuple[str, ...]
    ranks: Float[np.ndarray, "methods columns"]

    @property
    def mean(self) -> dict[str, float]:
        """The average rank of each method."""
        return dict(zip(self.methods, self.ranks.mean(1).tolist(), strict=True))

    @property
    def sd(self) -> dict[str, float]:
        """The standard deviation over the columns (ddof = 1; nan with a single column)."""
        some = self.ranks.shape[1] > 1
        sd = self.ranks.std(1, ddof=1) if some else np.full(len(self.methods), np.nan)
        return dict(zip(self.methods, sd.tolist(), strict=True))


class HypothesisTest(NamedTuple):
    """The p of a test; `reason` says why there is none, or why it cannot be small."""

    p: float | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalDifference:
    """The contents of a critical-difference diagram."""

    ranks: Ranks
    friedman: HypothesisTest
    difference: float
    """Methods whose average ranks differ by more than this differ significantly (Nemenyi)."""
    cliques: tuple[tuple[str, ...], ...]
    """Groups of two or more methods that do not differ significantly, best first; one bar each."""
    reason: str | None = None
    """The reason why the diagram shows no significant difference, if that is known beforehand."""


def average_ranks(values: Mapping[str, ArrayLike]) -> Ranks:
    """Rank the methods in each column, highest value first, with ties averaged.

    In the paper's tables 2 and 3, the columns are the six (data set, metric) pairs of a family.
    """
    table = np.array([*values.values()], dtype=np.float64)
    return Ranks(methods=tuple(values), ranks=rankdata(-table, axis=0))


def signed_rank(a: ArrayLike, b: ArrayLike) -> HypothesisTest:
    """Apply Wilcoxon's signed-rank test to paired values; equal pairs are left out.

    p is exact, also with ties. With n pairs it is at least 2^(1 - n): 0.0625 with five and 0.031
    with six. If that is above 0.05, the reason says so.
    """
    # Rounded, so that 0.3 - 0.2 and 0.2 - 0.1 are ties.
    d = np.round(np.subtract(a, b), 12)
    if not d.any():
        return HypothesisTest(1.0, f"all {len(d)} pairs are equal")
    d = d[d != 0]
    # Doubled, because the mean ranks of ties may be halves.
    ranks = np.rint(2 * rankdata(np.abs(d))).astype(np.int64)
    # The distribution of the sum if each sign is random.
    chance = np.zeros(ranks.sum() + 1)
    chance[0] = 1.0
    for r in ranks:
        chance[r:] = (chance[r:] + chance[:-r]) / 2
        chance[:r] /= 2
    smaller, least = min(ranks[d > 0].sum(), ranks[d < 0].sum()), 2.0 ** (1 - len(d))
    few = f"too few pairs: p is at least {least:.3g} with {len(d)} unequal pairs"
    p = float(min(1.0, 2 * chance[: smaller + 1].sum()))
    return HypothesisTest(p, few if least > ALPHA else None)


def friedman(ranks: Ranks) -> HypothesisTest:
    """Apply Friedman's test for any difference among the methods (chi-squared, tie-corrected).

    It needs three methods and two columns; the approximation is good from about ten columns on.
    """
    k, n = ranks.ranks.shape
    if k < 3:
        return HypothesisTest(None, f"{k} methods: Friedman's test needs three")
    if n < 2:
        return HypothesisTest(None, "one column: nothing varies between columns")
    if (np.ptp(ranks.ranks, axis=0) == 0).all():
        return HypothesisTest(1.0, "all methods are equal in every column")
    rough = f"{n} columns of {k} methods: the chi-squared approximation is rough"
    p = float(friedmanchisquare(*ranks.ranks).pvalue)
    return HypothesisTest(p, rough if n < 10 and k < 6 else None)


def nemenyi(methods: int, columns: int) -> float:
    """Return the critical difference q · √(k (k + 1) / 6 n), q the studentised range over √2."""
    q = studentized_range.ppf(1 - ALPHA, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * columns)))


def critical_difference(values: Mapping[str, ArrayLike]) -> CriticalDifference:
    """Return average ranks with Friedman's test, Nemenyi's critical difference and its cliques."""
    ranks = average_ranks(values)
    k, n = ranks.ranks.shape
    least, test, mean, reason = nemenyi(k, n), friedman(ranks), ranks.mean, None
    if least >= k - 1:
        reason = (
            f"too few columns: with {n}, the critical difference of {k} methods is {least:.2f}, "
            f"but no two ranks can be more than {k - 1} apart"
        )
    elif test.p is not None and test.p > ALPHA:
        reason = f"Friedman's test finds no difference (p = {test.p:.2g}): pairs cannot be compared"
    # The maximal runs of methods whose first and last do not differ significantly.
    order, cliques, end = sorted(mean, key=lambda name: mean[name]), [], 0
    for i, first in enumerate(order):
        run = [name for name in order[i:] if mean[name] - mean[first] <= least]
        if len(run) > 1 and i + len(run) > end:
            cliques.append(tuple(run))
            end = i + len(run)
    return CriticalDifference(
        ranks=ranks, friedman=test, difference=least, cliques=tuple(cliques), reason=reason
    )
