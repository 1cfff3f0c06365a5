"""Calibration of probabilities, and the error rate of calls if the most doubtful are withheld.

Bins of equal mass hold about the same number of items each (Nixon et al., CVPR Workshops 2019). A
consistency band shows how far observed frequencies stray from calibrated probabilities by chance
alone (Bröcker and Smith, Weather and Forecasting 2007). The patient is the unit of chance: labels
of all items of a patient are simulated from one random number.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from .intervals import COVERAGE, MEAN_SHARE, SHARE, Scale, interval
from .metric import Metric
from .resample import CELLS, Draws, Flags, Labels, Support, Values

MOST_BINS = 15
FEWEST_BINS = 2
ITEMS_PER_BIN = 10
RARE = 0.98
"""Share of the simulated sets whose calibration error is at most the upper limit. The limit for one
set in twenty was passed by up to 6 % of calibrated models with several bags per patient."""
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
        errors = np.abs(sums[:, :-1]).sum(1) / sums[:, -1]
    return Metric.of(errors, support=draws.support(), scale=MEAN_SHARE, reason="no items")


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorByChance:
    """The calibration error of calibrated probabilities on the same items."""

    mean: float
    upper: float
    """The error that one of fifty sets of labels exceeds, see `RARE`."""


def reliability(
    p: Values, y: Flags, *, bins: Labels, patient: Labels, seed: int
) -> tuple[Reliability, ErrorByChance]:
    """Return the bins with their consistency band, and the calibration error expected by chance.

    The band contains the frequency of a bin in 95 % of simulated sets of labels for which the
    probabilities are calibrated. In a set, an item is positive if its probability is above the
    random number of its patient. With one item per patient, this is what independent patients have
    by chance. With several, their labels depend on each other as much as they can: no other
    dependence gives the sum of a bin a larger spread (sums of comonotonic variables are the largest
    in convex order; Dhaene et al., Insurance: Mathematics and Economics 2002). An error above
    `upper` is therefore evidence of miscalibration, however alike the items of a patient are.

    Args:
        p: the probability of each item.
        y: whether each item is positive.
        bins: the bin of each item; no bin is empty.
        patient: the index of each item's patient.
        seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(bins, kind="stable")
    count = np.bincount(bins)
    starts = np.cumsum(count) - count
    ascending = p[order]
    of_item = patient[order]
    patients = int(patient.max()) + 1
    simulated = np.empty((SIMULATIONS, len(count)))
    block = max(1, CELLS // len(p))
    for first in range(0, SIMULATIONS, block):  # in blocks, so that an array fits the cache
        rows = simulated[first : first + block]
        labels = rng.random((len(rows), patients))[:, of_item] < ascending
        rows[:] = np.add.reduceat(labels.astype(np.float64), starts, axis=1) / count
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(simulated, [tail, 1 - tail], axis=0)
    diagram = _diagram(p, y, bins=bins, low=tuple(low.tolist()), high=tuple(high.tolist()))
    errors = (np.abs(simulated - diagram.probability) * diagram.count).sum(1) / len(p)
    by_chance = ErrorByChance(mean=float(errors.mean()), upper=float(np.quantile(errors, RARE)))
    return diagram, by_chance


def sampled_reliability(p: Values, y: Flags, *, bins: Labels, draws: Draws) -> Reliability:
    """Return the bins with an interval of each frequency over the resamples of `draws`.

    A limit is None where a metric would have no interval, for example with a bin that has items of
    two patients only.
    """
    low, high = list[float | None](), list[float | None]()
    for b in range(bins.max() + 1):
        inside = bins == b
        support = Support.of({None: draws.patients_with(inside)})
        found = interval(draws.ratio(inside & y, inside), support=support, scale=MEAN_SHARE)
        low.append(found.low)
        high.append(found.high)
    return _diagram(p, y, bins=bins, low=tuple(low), high=tuple(high))


def _diagram(p: Values, y: Flags, *, bins: Labels, low: Limits, high: Limits) -> Reliability:
    count = np.bincount(bins)
    assert count.all(), "every bin has an item"
    return Reliability(
        count=tuple(count.tolist()),
        probability=tuple((np.bincount(bins, weights=p) / count).tolist()),
        frequency=tuple((np.bincount(bins, weights=y) / count).tolist()),
        low=low,
        high=high,
    )


def retention_curve(
    wrong: Flags, doubt: Values, *, draws: Draws, scale: Scale = SHARE
) -> RetentionCurve:
    """Return the error rates of the least doubtful calls (Malinin et al., ICLR 2020, appendix).

    scale: `MEAN_SHARE` for items that are many in each patient.

    A share may cut through items with equal doubt; the same fraction of each of them is kept, which
    is the mean over their orders. A resample without items has no error rate.
    """
    order = np.argsort(doubt, kind="stable")
    ascending = doubt[order]
    member = draws.member[order]
    shares = np.array(SHARES)
    last = np.append(np.flatnonzero(ascending[1:] != ascending[:-1]), len(order) - 1)
    rows = np.full((len(draws.counts), len(shares)), np.nan)
    for row, counts in zip(rows, draws.counts, strict=True):  # one by one: items may be many
        weight = counts[member]
        kept = np.append(0.0, np.cumsum(weight)[last])
        errors = np.append(0.0, np.cumsum(weight * wrong[order])[last])
        if kept[-1] > 0:
            row[:] = np.interp(shares * kept[-1], kept, errors) / (shares * kept[-1])
    found = []
    for share, column in zip(shares, rows.T, strict=True):
        kept_items = np.zeros(len(order), dtype=bool)
        kept_items[order[: math.ceil(round(share * len(order), 9))]] = True
        support = draws.support({None: kept_items})
        found.append(interval(column, support=support, scale=scale))
    return RetentionCurve(
        error_rate=tuple(rows[0].tolist()),
        low=tuple(of_share.low for of_share in found),
        high=tuple(of_share.high for of_share in found),
    )
