"""Calibration of probabilities: bins of a reliability diagram and the expected calibration error.

Bins of equal mass hold about the same number of items each (Nixon et al., CVPR Workshops 2019). A
consistency band shows how far observed frequencies stray from calibrated probabilities by chance
alone (Bröcker and Smith, Weather and Forecasting 2007).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from .bootstrap import Draws
from .metric import COVERAGE, Metric, interval

MOST_BINS, FEWEST_BINS, ITEMS_PER_BIN = 15, 2, 10
SIMULATIONS = 1000
"""Number of simulated label sets for consistency bands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """The bins of a reliability diagram, from low to high probability; no bin is empty."""

    count: tuple[int, ...]
    probability: tuple[float, ...]
    """Mean probability of the items of each bin."""
    frequency: tuple[float, ...]
    """Share of positive items in each bin."""
    low: tuple[float | None, ...]
    """Lower limit of a 95 % band; `reliability` and `sampled_reliability` say of what."""
    high: tuple[float | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return lists for JSON."""
        return {name: list(values) for name, values in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChanceError:
    """The calibration error that calibrated probabilities of the same items have by chance."""

    mean: float
    upper: float
    """The 95th percentile: a larger error is unlikely for calibrated probabilities."""


def bin_count(items: int) -> int:
    """Return the number of bins of equal mass: at least ten items each, from 2 to 15 bins."""
    return int(np.clip(items // ITEMS_PER_BIN, FEWEST_BINS, MOST_BINS))


def equal_mass_bins(p: Float[np.ndarray, " n"], *, bins: int) -> Int[np.ndarray, " n"]:
    """Return the bin of each item; bins are numbered without gaps from the lowest probability.

    Items are sorted and divided into `bins` parts whose sizes differ by at most one. Items with
    equal probabilities share the bin of the middle one of them, so that the order of the items does
    not matter; bins that become empty are dropped.
    """
    _, inverse, count = np.unique(p, return_inverse=True, return_counts=True)
    middle = np.cumsum(count) - (count + 1) / 2
    part = (middle * bins // max(len(p), 1)).astype(np.int64)
    return np.unique(part, return_inverse=True)[1][inverse]


def equal_width_bins(p: Float[np.ndarray, " n"], *, bins: int = MOST_BINS) -> Int[np.ndarray, " n"]:
    """Return the bin of each item, of `bins` bins of equal width between 0 and 1."""
    return np.minimum((p * bins).astype(np.int64), bins - 1)


def calibration_error(
    p: Float[np.ndarray, " n"],
    y: Bool[np.ndarray, " n"],
    *,
    bins: Int[np.ndarray, " n"],
    draws: Draws,
) -> Metric:
    """Return Σ over bins of |Σ (p - y)| / n, in the rows of `draws`.

    The bins are those of the data in every resample.
    """
    if len(p) == 0:
        return Metric.undefined("no items")
    gaps = np.eye(bins.max() + 1)[bins] * (p - y)[:, None]
    sums = draws.totals(np.concatenate([gaps, np.ones((len(p), 1))], axis=1))
    with np.errstate(invalid="ignore"):
        return Metric.of(np.abs(sums[:, :-1]).sum(1) / sums[:, -1])


def simulated_frequencies(
    p: Float[np.ndarray, " n"], *, bins: Int[np.ndarray, " n"], seed: int
) -> Float[np.ndarray, "simulations bins"]:
    """Return the share of positive items by bin if each item is positive with probability p.

    Items are independent of each other.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(bins, kind="stable")
    starts = np.searchsorted(bins[order], np.arange(bins.max() + 1))
    ascending, count = p[order], np.bincount(bins)
    rows = [
        np.add.reduceat((rng.random(len(p)) < ascending).astype(np.float64), starts) / count
        for _ in range(SIMULATIONS)
    ]
    return np.stack(rows)


def reliability(
    p: Float[np.ndarray, " n"],
    y: Bool[np.ndarray, " n"],
    *,
    bins: Int[np.ndarray, " n"],
    seed: int,
) -> tuple[Reliability, ChanceError]:
    """Return the bins with their consistency band, and the error expected by chance.

    Bins without items are not allowed. The band contains the frequency of a bin in 95 % of
    simulated label sets in which the probabilities are calibrated and items independent.
    """
    count, mean, frequency = _bins(p, y, bins=bins)
    simulated = simulated_frequencies(p, bins=bins, seed=seed)
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.percentile(simulated, [tail, 100 - tail], axis=0)
    errors = (np.abs(simulated - mean) * count).sum(1) / len(p)
    chance = ChanceError(mean=float(errors.mean()), upper=float(np.quantile(errors, COVERAGE)))
    diagram = Reliability(
        count=tuple(count.tolist()),
        probability=tuple(mean.tolist()),
        frequency=tuple(frequency.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
    )
    return diagram, chance


def sampled_reliability(
    p: Float[np.ndarray, " n"],
    y: Bool[np.ndarray, " n"],
    *,
    bins: Int[np.ndarray, " n"],
    draws: Draws,
) -> Reliability:
    """Return the bins with an interval of each frequency over the resamples of `draws`.

    For items that are not independent, such as instances of a bag. `draws` has the data as row 0. A
    limit is None without resamples, or if most of them have no item in the bin.
    """
    count, mean, frequency = _bins(p, y, bins=bins)
    one_hot = np.eye(len(count))[bins]
    sums = draws.totals(np.concatenate([one_hot * y[:, None], one_hot], axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = sums[:, : len(count)] / sums[:, len(count) :]
    limits = [interval(column)[:2] for column in rows[1:].T]
    return Reliability(
        count=tuple(count.tolist()),
        probability=tuple(mean.tolist()),
        frequency=tuple(frequency.tolist()),
        low=tuple(low for low, _ in limits),
        high=tuple(high for _, high in limits),
    )


def _bins(
    p: Float[np.ndarray, " n"], y: Bool[np.ndarray, " n"], *, bins: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " b"], Float[np.ndarray, " b"], Float[np.ndarray, " b"]]:
    count = np.bincount(bins)
    assert count.all(), "every bin has an item"
    return count, np.bincount(bins, weights=p) / count, np.bincount(bins, weights=y) / count
