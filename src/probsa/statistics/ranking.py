"""Methods over several columns (data sets, metrics): average ranks, and the tests of them.

Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006. These tests need
many independent columns. AUROC and F1 of one data set are not independent, nor are splits with one
test part: with few columns the answer is that they are few.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.stats import friedmanchisquare, rankdata, studentized_range, wilcoxon
from scipy.stats import t as student

from ..errors import InputError

ALPHA = 0.05

EXACT = 200
"""Pairs up to which the signed-rank test counts all signs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The rank of each method in each column: 1 is best, ties share the mean of their ranks."""

    methods: tuple[str, ...]
    ranks: Float[np.ndarray, "methods columns"]

    @property
    def mean(self) -> dict[str, float]:
        """The average rank."""
        return dict(zip(self.methods, self.ranks.mean(1).tolist(), strict=True))

    @property
    def sd(self) -> dict[str, float]:
        """Its standard deviation over the columns (ddof = 1; nan of one column)."""
        if self.ranks.shape[1] < 2:
            return dict.fromkeys(self.methods, float("nan"))
        return dict(zip(self.methods, self.ranks.std(1, ddof=1).tolist(), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A p, or the reason why there is none; `reason` also where no p could have been small."""

    statistic: float | None
    p: float | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticalDifference:
    """What a critical-difference diagram shows."""

    ranks: Ranks
    friedman: Outcome
    difference: float
    """Average ranks further apart than this differ (Nemenyi)."""
    cliques: tuple[tuple[str, ...], ...]
    """Methods that are not told apart, best first: a bar each; those of one method are left out."""
    reason: str | None = None
    """What keeps the diagram from saying anything, if something does."""


def average_ranks(values: Mapping[str, ArrayLike]) -> Ranks:
    """Ranks of the methods in each column, higher values first, ties averaged.

    The paper's tables 2 and 3: columns are the six (data set, metric) pairs of one family.

    Raises:
        InputError: no methods, methods with unlike columns, a value that is nan.
    """
    rows = {name: np.asarray(v, dtype=np.float64) for name, v in values.items()}
    shapes = {name: row.shape for name, row in rows.items()}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
        raise InputError(f"columns of each method: {shapes}: one list each, as long, is expected")
    table = np.stack(list(rows.values()))
    if table.shape[1] == 0:
        raise InputError("no columns to rank methods in")
    for name, row in zip(values, table, strict=True):
        if np.isnan(row).any():
            raise InputError(f"{name} has no value in column {int(np.argmax(np.isnan(row)))}")
    return Ranks(methods=tuple(values), ranks=rankdata(-table, axis=0))


def signed_rank(a: ArrayLike, b: ArrayLike) -> Outcome:
    """Wilcoxon's signed-rank test of paired values; pairs that are level are left out.

    n pairs reach no p below 2^(1 - n): five pairs 0.0625, six 0.031. A reason is given where that
    is above 0.05. The p is exact, with ties too, up to 200 pairs.

    Raises:
        InputError: values that are not paired.
    """
    d = _paired(a, b)
    there = int((d != 0).sum())
    if there == 0:
        return Outcome(statistic=0.0, p=1.0, reason=f"all {len(d)} pairs are level")
    statistic, p = _signs(d[d != 0])
    least = 2.0 ** (1 - there)
    reason = None
    if least > ALPHA:
        reason = f"too few pairs: {there} that differ reach no p below {least:.3g}"
    return Outcome(statistic=statistic, p=p, reason=reason)


def friedman(ranks: Ranks) -> Outcome:
    """Friedman's test of whether any method differs from any other (chi-squared, ties corrected).

    It needs three methods; from two columns on there is a p, from about ten on it can be trusted.
    """
    k, n = ranks.ranks.shape
    if k < 3:
        return Outcome(statistic=None, p=None, reason=f"{k} methods: Friedman's test needs three")
    if n < 2:
        return Outcome(statistic=None, p=None, reason="one column: nothing varies between columns")
    if (np.ptp(ranks.ranks, axis=0) == 0).all():
        return Outcome(statistic=0.0, p=1.0, reason="all methods are level in every column")
    found = friedmanchisquare(*ranks.ranks)
    reason = None
    if n < 10 and k < 6:
        reason = f"{n} columns of {k} methods: the chi-squared approximation is rough"
    return Outcome(statistic=float(found.statistic), p=float(found.pvalue), reason=reason)


def nemenyi(methods: int, columns: int, *, alpha: float = ALPHA) -> float:
    """The critical difference q · √(k (k + 1) / 6 n), q of the studentised range over √2."""
    if methods < 2 or columns < 1:
        raise InputError(f"{methods} methods in {columns} columns: two and one are the least")
    q = studentized_range.ppf(1 - alpha, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * columns)))


def critical_difference(values: Mapping[str, ArrayLike]) -> CriticalDifference:
    """Average ranks with Friedman's test, Nemenyi's critical difference and its cliques.

    Raises:
        InputError: as `average_ranks`; fewer than two methods.
    """
    ranks = average_ranks(values)
    k, n = ranks.ranks.shape
    least = nemenyi(k, n)
    test = friedman(ranks)
    reason = None
    if least >= k - 1:
        reason = (
            f"too few columns: with {n} of them, ranks of {k} methods differ from {least:.2f} on, "
            f"and no two can be more than {k - 1} apart"
        )
    elif test.p is not None and test.p > ALPHA:
        reason = f"Friedman's test finds no difference (p = {test.p:.2g}): no pair is to be read"
    return CriticalDifference(
        ranks=ranks,
        friedman=test,
        difference=least,
        cliques=_cliques(ranks.mean, least),
        reason=reason,
    )


def corrected_t(a: ArrayLike, b: ArrayLike, *, test_share: float) -> Outcome:
    """Student's t of paired values over cross-validation splits, with Nadeau and Bengio's variance.

    t = mean(d) / √((1 / n + test / train) · var(d)), n - 1 degrees of freedom: training parts of
    splits overlap, which the plain t takes for independence. Machine Learning 2003.

    Args:
        a: one value a split.
        b: the same of the other method.
        test_share: of all bags, the part that each split tests on: 0.2 with five folds.

    Raises:
        InputError: values that are not paired, a share outside (0, 1).
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share is {test_share}: a part of all bags in (0, 1) is expected")
    d = _paired(a, b)
    n = len(d)
    if n < 2:
        return Outcome(statistic=None, p=None, reason="one split: nothing varies between splits")
    if np.ptp(d) == 0:
        if d[0] == 0:
            return Outcome(statistic=0.0, p=1.0, reason=f"all {n} splits are level")
        return Outcome(statistic=None, p=None, reason=f"all {n} splits differ by the same amount")
    t = d.mean() / np.sqrt((1 / n + test_share / (1 - test_share)) * d.var(ddof=1))
    return Outcome(statistic=float(t), p=float(2 * student.sf(abs(t), n - 1)))


def _signs(d: Float[np.ndarray, " pairs"]) -> tuple[float, float]:
    """The lesser sum of signed ranks, and its two-sided p."""
    if len(d) > EXACT:
        found = wilcoxon(d)
        return float(found.statistic), float(found.pvalue)  # pyright: ignore[reportAttributeAccessIssue]
    ranks = np.rint(2 * rankdata(np.abs(d))).astype(np.int64)  # of ties: halves
    # How often each sum comes up when every sign is a toss.
    chance = np.zeros(ranks.sum() + 1)
    chance[0] = 1.0
    for r in ranks:
        chance[r:] = (chance[r:] + chance[:-r]) / 2
        chance[:r] /= 2
    least = min(ranks[d > 0].sum(), ranks[d < 0].sum())
    return float(least / 2), float(min(1.0, 2 * chance[: least + 1].sum()))


def _paired(a: ArrayLike, b: ArrayLike) -> Float[np.ndarray, " pairs"]:
    one, two = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if one.ndim != 1 or one.shape != two.shape or len(one) == 0:
        raise InputError(f"values of shapes {one.shape} and {two.shape}: pairs are expected")
    # 0.3 - 0.2 and 0.2 - 0.1 are level.
    d = np.round(one - two, 12)
    if not np.isfinite(d).all():
        raise InputError("some values are nan or infinite: leave those pairs out")
    return d


def _cliques(mean: Mapping[str, float], difference: float) -> tuple[tuple[str, ...], ...]:
    """The longest runs of methods whose first and last are not told apart."""
    order = sorted(mean, key=lambda name: mean[name])
    found: list[tuple[str, ...]] = []
    end = 0
    for i, first in enumerate(order):
        run = [name for name in order[i:] if mean[name] - mean[first] <= difference]
        if len(run) > 1 and i + len(run) > end:
            found.append(tuple(run))
            end = i + len(run)
    return tuple(found)
