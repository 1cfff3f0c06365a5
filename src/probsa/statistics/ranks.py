"""Average ranks of methods over several columns (data sets, metrics), and their tests.

Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006. These tests need
many independent columns. AUROC and F1 of one data set are not independent, nor are splits that
share a test part. With too few columns the results give the reason why they are not significant.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import friedmanchisquare, rankdata, studentized_range, wilcoxon

from ..errors import InputError
from .paired import ALPHA

EXACT = 200
"""Up to this number of pairs the signed-rank test is exact."""


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
        if self.ranks.shape[1] < 2:
            return dict.fromkeys(self.methods, float("nan"))
        return dict(zip(self.methods, self.ranks.std(1, ddof=1).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class HypothesisTest:
    """A statistic with its p; `reason` says why there is no p, or why p cannot be small."""

    statistic: float | None
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

    Raises:
        InputError: there are no methods, they have different columns, or a value is nan.
    """
    rows = {name: np.asarray(v, dtype=np.float64) for name, v in values.items()}
    shapes = {name: row.shape for name, row in rows.items()}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
        raise InputError(f"columns of each method: {shapes}: expected lists of equal length")
    table = np.stack(list(rows.values()))
    if table.shape[1] == 0:
        raise InputError("no columns to rank methods in")
    for name, row in zip(values, table, strict=True):
        if np.isnan(row).any():
            raise InputError(f"{name} has no value in column {int(np.argmax(np.isnan(row)))}")
    return Ranks(methods=tuple(values), ranks=rankdata(-table, axis=0))


def signed_rank(a: ArrayLike, b: ArrayLike) -> HypothesisTest:
    """Apply Wilcoxon's signed-rank test to paired values; equal pairs are left out.

    With n pairs, p is at least 2^(1 - n): 0.0625 with five and 0.031 with six. If that is above
    0.05, the reason says so. p is exact up to 200 pairs, also with ties.

    Raises:
        InputError: the values are not paired.
    """
    d = _paired_differences(a, b)
    unequal = int((d != 0).sum())
    if unequal == 0:
        return HypothesisTest(statistic=0.0, p=1.0, reason=f"all {len(d)} pairs are equal")
    statistic, p = _signed_rank_sum(d[d != 0])
    least = 2.0 ** (1 - unequal)
    reason = None
    if least > ALPHA:
        reason = f"too few pairs: p is at least {least:.3g} with {unequal} unequal pairs"
    return HypothesisTest(statistic=statistic, p=p, reason=reason)


def friedman(ranks: Ranks) -> HypothesisTest:
    """Apply Friedman's test for any difference among the methods (chi-squared, tie-corrected).

    It needs three methods and two columns; the approximation is good from about ten columns on.
    """
    k, n = ranks.ranks.shape
    if k < 3:
        return HypothesisTest(
            statistic=None, p=None, reason=f"{k} methods: Friedman's test needs three"
        )
    if n < 2:
        return HypothesisTest(
            statistic=None, p=None, reason="one column: nothing varies between columns"
        )
    if (np.ptp(ranks.ranks, axis=0) == 0).all():
        return HypothesisTest(statistic=0.0, p=1.0, reason="all methods are equal in every column")
    result = friedmanchisquare(*ranks.ranks)
    reason = None
    if n < 10 and k < 6:
        reason = f"{n} columns of {k} methods: the chi-squared approximation is rough"
    return HypothesisTest(statistic=float(result.statistic), p=float(result.pvalue), reason=reason)


def nemenyi(methods: int, columns: int) -> float:
    """Return the critical difference q · √(k (k + 1) / 6 n), q the studentised range over √2."""
    if methods < 2 or columns < 1:
        raise InputError(
            f"{methods} methods in {columns} columns: expected at least two methods and one column"
        )
    q = studentized_range.ppf(1 - ALPHA, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * columns)))


def critical_difference(values: Mapping[str, ArrayLike]) -> CriticalDifference:
    """Return average ranks with Friedman's test, Nemenyi's critical difference and its cliques.

    Raises:
        InputError: as for `average_ranks`, or there are fewer than two methods.
    """
    ranks = average_ranks(values)
    k, n = ranks.ranks.shape
    least = nemenyi(k, n)
    test = friedman(ranks)
    reason = None
    if least >= k - 1:
        reason = (
            f"too few columns: with {n}, the critical difference of {k} methods is {least:.2f}, "
            f"but no two ranks can be more than {k - 1} apart"
        )
    elif test.p is not None and test.p > ALPHA:
        reason = f"Friedman's test finds no difference (p = {test.p:.2g}): pairs cannot be compared"
    return CriticalDifference(
        ranks=ranks,
        friedman=test,
        difference=least,
        cliques=_cliques(ranks.mean, least),
        reason=reason,
    )


def _signed_rank_sum(d: Float[np.ndarray, " pairs"]) -> tuple[float, float]:
    """Return the smaller sum of signed ranks, and its two-sided p."""
    if len(d) > EXACT:
        result = wilcoxon(d)
        return float(result.statistic), float(result.pvalue)  # pyright: ignore[reportAttributeAccessIssue]
    # Doubled, because the mean ranks of ties may be halves.
    ranks = np.rint(2 * rankdata(np.abs(d))).astype(np.int64)
    # The distribution of the sum if each sign is random.
    chance = np.zeros(ranks.sum() + 1)
    chance[0] = 1.0
    for r in ranks:
        chance[r:] = (chance[r:] + chance[:-r]) / 2
        chance[:r] /= 2
    least = min(ranks[d > 0].sum(), ranks[d < 0].sum())
    return float(least / 2), float(min(1.0, 2 * chance[: least + 1].sum()))


def _paired_differences(a: ArrayLike, b: ArrayLike) -> Float[np.ndarray, " pairs"]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape or len(first) == 0:
        raise InputError(f"values of shapes {first.shape} and {second.shape}: expected pairs")
    # Rounded, so that 0.3 - 0.2 and 0.2 - 0.1 are ties.
    d = np.round(first - second, 12)
    if not np.isfinite(d).all():
        raise InputError("some values are nan or infinite: leave those pairs out")
    return d


def _cliques(mean: Mapping[str, float], difference: float) -> tuple[tuple[str, ...], ...]:
    """Return the maximal runs of methods whose first and last do not differ significantly."""
    order = sorted(mean, key=lambda name: mean[name])
    cliques: list[tuple[str, ...]] = []
    end = 0
    for i, first in enumerate(order):
        run = [name for name in order[i:] if mean[name] - mean[first] <= difference]
        if len(run) > 1 and i + len(run) > end:
            cliques.append(tuple(run))
            end = i + len(run)
    return tuple(cliques)
