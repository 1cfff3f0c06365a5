"""Calibration of probabilities, and the error rate of calls if the most doubtful are withheld.

Bins of equal mass hold about the same number of items each (Nixon et al., CVPR Workshops 2019). A
consistency band shows how far observed frequencies stray from calibrated probabilities by chance
alone (Bröcker and Smith, Weather and Forecasting 2007).
"""

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float

from .metric import COVERAGE, Metric, interval
from .resample import Draws, Flags, Labels, Values

MOST_BINS, FEWEST_BINS, ITEMS_PER_BIN = 15, 2, 10
SIMULATIONS = 1000
"""Number of simulated label sets for consistency bands."""
SHARES: tuple[float, ...] = tuple(k / 20 for k in range(1, 21))
"""The shares of the items that are kept in a retention curve: 5, 10, …, 100 %."""

Numbers = TypeVar("Numbers", float, np.ndarray)
Limits: TypeAlias = tuple[float | None, ...]
"""Limits of 95 % intervals, None where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """The bins of a reliability diagram, from low to high probability; no bin is empty."""

    count: tuple[int, ...]
    probability: tuple[float, ...]
    """Mean probability of the items of each bin."""
    frequency: tuple[float, ...]
    """Share of positive items in each bin."""
    low: Limits
    """`reliability` and `sampled_reliability` say of what."""
    high: Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionCurve:
    """Error rates of the kept items at `SHARES`, with their intervals."""

    error_rate: tuple[float, ...]
    low: Limits
    high: Limits


def equal_mass_bins(p: Values) -> Labels:
    """Return the bin of each item; bins are numbered without gaps from the lowest probability.

    Items are sorted and divided into 2 to 15 parts, of at least ten items each if possible, whose
    sizes differ by at most one. Items with equal probabilities share the bin of the middle one of
    them, so that the order of the items does not matter; bins that become empty are dropped.
    """
    _, inverse, count = np.unique(p, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count + 1) / 2
    bins = np.clip(len(p) // ITEMS_PER_BIN, FEWEST_BINS, MOST_BINS)
    part = (middle * bins // max(len(p), 1)).astype(np.int64)
    return np.unique(part, return_inverse=True)[1][inverse]


def equal_width_bins(p: Values) -> Labels:
    """Return the bin of each item, of 15 bins of equal width between 0 and 1."""
    return np.minimum((p * MOST_BINS).astype(np.int64), MOST_BINS - 1)


def calibration_error(p: Values, y: Flags, *, bins: Labels, draws: Draws) -> Metric:
    """Return Σ over bins of |Σ (p - y)| / n, in the rows of `draws`.

    The bins are those of the data in every resample.
    """
    gaps = np.eye(max(bins, default=0) + 1)[bins] * (p - y)[:, None]
    sums = draws.totals(np.concatenate([gaps, np.ones((len(p), 1))], axis=1))
    with np.errstate(invalid="ignore"):
        return Metric.of(np.abs(sums[:, :-1]).sum(1) / sums[:, -1], reason="no items")


def reliability(
    p: Values, y: Flags, *, bins: Labels, seed: int
) -> tuple[Reliability, float, float]:
    """Return the bins with their consistency band, and the calibration error expected by chance.

    The band contains the frequency of a bin in 95 % of simulated label sets in which the
    probabilities are calibrated and items independent. Of the errors of these sets, the mean and
    the 95th percentile are returned. Bins without items are not allowed.
    """
    rng = np.random.default_rng(seed)
    order, count = np.argsort(bins, kind="stable"), np.bincount(bins)
    starts, ascending = np.cumsum(count) - count, p[order]
    sets = ((rng.random(len(p)) < ascending).astype(np.float64) for _ in range(SIMULATIONS))
    simulated = np.stack([np.add.reduceat(labels, starts) / count for labels in sets])
    diagram = _diagram(p, y, bins=bins, rows=simulated)
    errors = (np.abs(simulated - diagram.probability) * diagram.count).sum(1) / len(p)
    return diagram, float(errors.mean()), float(np.quantile(errors, COVERAGE))


def sampled_reliability(p: Values, y: Flags, *, bins: Labels, draws: Draws) -> Reliability:
    """Return the bins with an interval of each frequency over the resamples of `draws`.

    For items that are not independent, such as instances of a bag. A limit is None without
    resamples, or if most of them have no item in the bin.
    """
    inside = [bins == b for b in range(bins.max() + 1)]
    rows = np.stack([draws.ratio(b & y, b)[1:] for b in inside], axis=1)
    return _diagram(p, y, bins=bins, rows=rows)


def _diagram(
    p: Values, y: Flags, *, bins: Labels, rows: Float[np.ndarray, "rows bins"]
) -> Reliability:
    count = np.bincount(bins)
    assert count.all(), "every bin has an item"
    low, high = _limits(rows)
    return Reliability(
        count=tuple(count.tolist()),
        probability=tuple((np.bincount(bins, weights=p) / count).tolist()),
        frequency=tuple((np.bincount(bins, weights=y) / count).tolist()),
        low=low,
        high=high,
    )


def retention_curve(wrong: Flags, doubt: Values, *, draws: Draws) -> RetentionCurve:
    """Return the error rates of the least doubtful calls (Malinin et al., ICLR 2020, appendix).

    A share may cut through items with equal doubt; the same fraction of each of them is kept, which
    is the mean over their orders. A resample without items has no error rate.
    """
    order = np.argsort(doubt, kind="stable")
    ascending, member, shares = doubt[order], draws.member[order], np.array(SHARES)
    last = np.append(np.flatnonzero(ascending[1:] != ascending[:-1]), len(order) - 1)
    rows = np.full((len(draws.counts), len(shares)), np.nan)
    for row, counts in zip(rows, draws.counts, strict=True):  # one by one: items may be many
        weight = counts[member].astype(np.float64)
        kept = np.append(0.0, np.cumsum(weight)[last])
        errors = np.append(0.0, np.cumsum(weight * wrong[order])[last])
        if kept[-1] > 0:
            row[:] = np.interp(shares * kept[-1], kept, errors) / (shares * kept[-1])
    low, high = _limits(rows[1:])
    return RetentionCurve(error_rate=tuple(rows[0].tolist()), low=low, high=high)


def _limits(rows: Float[np.ndarray, "rows columns"]) -> tuple[Limits, Limits]:
    """Return the lower and the upper limits of the columns."""
    low, high, _ = zip(*map(interval, rows.T), strict=True)
    return low, high


def augrc(error_rate: Numbers, auroc: Numbers) -> Numbers:
    """Return the area under the generalised risk-coverage curve; lower is better.

    AUGRC = (1 - AUROC) · (1 - e) · e + e² / 2, where e is the error rate and AUROC is that of the
    uncertainty for finding errors (ties count half). The generalised risk at a coverage is the
    share of all items that are accepted and wrong (Traub et al., NeurIPS 2024).
    """
    return (1 - auroc) * (1 - error_rate) * error_rate + error_rate**2 / 2
