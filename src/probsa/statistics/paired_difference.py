"""One paired difference: estimate, interval, p, from resampled patients and observed replicates.

d_r is the difference in replicate r, d the mean of all R. Its error has two parts: the patients'
(normal: from the resamples) and the replicates' (few: Student's t with R - 1 degrees of freedom);
the interval is of their sum, as Behrens and Fisher's. Percentiles of resampled replicates would
be too narrow: 5 numbers drawn from 5 have 4/5 of the variance, and no tails.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.optimize import root_scalar
from scipy.special import stdtr, stdtrit
from scipy.stats import rankdata

from .bootstrap import Draws
from .delong_test import ROUNDING
from .replicates import MetricName, resampled

ALPHA = 0.05

QUANTILES = 4000
"""Points at which the replicates' part of the error is taken."""

EXCHANGES = 999
"""Of the two methods, where resamples do not vary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One method: its metric in the data (column 0) and in every resample, and its scores."""

    values: Float[np.ndarray, "replicates rows"]
    scores: Shaped[np.ndarray, "replicates items"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What two methods are compared on."""

    y: Bool[np.ndarray, " items"]
    member: Int[np.ndarray, " items"]
    """The group (patient) of each item."""
    freedom: int
    """Groups less strata; see `comparison`."""
    blocks: tuple[Hashable, ...]
    """Of each replicate: replicates of a block are averaged."""
    metric: MetricName
    folds: Shaped[np.ndarray, "replicates items"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The two parts of a difference's error."""

    patients: float
    """Standard error."""
    freedom: int
    replicates: float
    """Standard error; 0 with one replicate."""
    count: int
    """Of the replicates (of their blocks, if they have blocks)."""

    @property
    def se(self) -> float:
        """Of the sum of both."""
        return float(np.hypot(self.patients, self.replicates))

    def p(self, d: float) -> float:
        """Two-sided: how often an error is at least as large as d."""
        if self.replicates == 0:
            return float(2 * stdtr(self.freedom, -abs(d) / self.patients))
        if self.patients == 0:
            return float(2 * stdtr(self.count - 1, -abs(d) / self.replicates))
        part = self.replicates * _quantiles(self.count - 1)
        return float(2 * stdtr(self.freedom, (part - abs(d)) / self.patients).mean())

    def half_width(self, alpha: float = ALPHA) -> float:
        """The d at which p is alpha."""
        far = self.patients * -stdtrit(self.freedom, alpha / 8)
        if self.count > 1:
            far += self.replicates * -stdtrit(self.count - 1, alpha / 8)
        return float(root_scalar(lambda d: self.p(d) - alpha, bracket=(0, 2 * far)).root)


@cache
def _quantiles(freedom: int) -> Float[np.ndarray, " q"]:
    """Of Student's t, at equal steps of probability."""
    return stdtrit(freedom, (np.arange(QUANTILES) + 0.5) / QUANTILES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Of two methods on the same bags."""

    difference: float
    """Mean over the replicates."""
    low: float | None
    """Of the 95 % interval; None where the resamples do not vary."""
    high: float | None
    p: float | None
    """Two-sided, before any correction; None where there are too few patients."""
    spread: Spread | None
    """None where nothing varies."""
    reason: str | None = None
    """Why there is no p, or where it comes from if not from the resamples."""
    left_out: int = 0
    """Resamples in which the metric was undefined."""

    @property
    def se(self) -> float:
        """Standard error; 0 where nothing varies."""
        return 0.0 if self.spread is None else self.spread.se


def difference(a: Sample, b: Sample, *, data: Data) -> Difference:
    """a - b, with its interval and p."""
    per_replicate = _averaged(a.values - b.values, data.blocks)
    observed, drawn = per_replicate[:, 0], per_replicate[:, 1:]
    d = float(observed.mean())
    good = drawn[:, np.isfinite(drawn).all(0)]
    left_out = drawn.shape[1] - good.shape[1]

    def without_spread(p: float | None, reason: str) -> Difference:
        zero = 0.0 if np.array_equal(a.scores, b.scores) else None
        return Difference(
            difference=d, low=zero, high=zero, p=p, spread=None, reason=reason, left_out=left_out
        )

    if np.array_equal(a.scores, b.scores):
        return without_spread(1.0, "both give the same scores")
    if data.freedom < 1 or good.shape[1] < max(2, left_out):
        groups = data.member.max() + 1
        if data.freedom < 1 or not good.size:
            return without_spread(None, f"{groups} patients are too few to resample")
        undefined = f"{left_out} of {drawn.shape[1]} resamples of {groups} patients"
        return without_spread(None, f"the metric is undefined in {undefined}")
    spread = _spread(observed, good, freedom=data.freedom)
    if spread.se**2 < ROUNDING:
        if abs(d) < np.sqrt(ROUNDING):
            return without_spread(1.0, "no resample tells them apart")
        return without_spread(
            _exchanged(a, b, data=data),
            "the difference is the same in every resample: p is of exchanging the methods, "
            "patient by patient",
        )
    half = spread.half_width()
    return Difference(
        difference=d,
        low=max(d - half, -1.0),  # no two shares differ by more
        high=min(d + half, 1.0),
        p=min(1.0, spread.p(d)),
        spread=spread,
        left_out=left_out,
    )


def _averaged(
    values: Float[np.ndarray, "replicates rows"], blocks: Sequence[Hashable]
) -> Float[np.ndarray, "blocks rows"]:
    of: dict[Hashable, list[int]] = {}
    for i, block in enumerate(blocks):
        of.setdefault(block, []).append(i)
    return np.stack([values[i].mean(0) for i in of.values()])


def _spread(
    observed: Float[np.ndarray, " r"], drawn: Float[np.ndarray, "r resamples"], *, freedom: int
) -> Spread:
    """Of the mean: V_g + max(V_s - V_gs, 0), and with two replicates max(V_g - V_gs, 0) + V_s.

    V_g, over resamples of the patients, holds the patients' effect and V_gs, that of replicates
    reacting to patients in their own ways. V_s = var(d_r) / R holds the replicates' own effect and
    V_gs again. V_gs is known from many patients, V_s from R numbers: it is taken out of V_s, unless
    V_s is of two numbers, which is too little to subtract from.
    """
    count, mean = len(observed), drawn.mean(0)
    patients = float(mean.var(ddof=1))
    if count == 1:
        return Spread(patients=np.sqrt(patients), freedom=freedom, replicates=0.0, count=1)
    own = float(observed.var(ddof=1) / count)
    both = float((drawn - mean).var(axis=1, ddof=1).sum() / (count * (count - 1)))
    if count == 2:
        patients = max(patients - both, 0.0)
    else:
        own = max(own - both, 0.0)
    return Spread(
        patients=float(np.sqrt(patients)),
        freedom=freedom,
        replicates=float(np.sqrt(own)),
        count=count,
    )


def _exchanged(a: Sample, b: Sample, *, data: Data) -> float:
    """p of |d| among differences with the two methods' scores exchanged in random patients.

    Scores are exchanged as ranks, since two methods need not share a scale.
    """
    calls = data.metric in ("f1", "accuracy")
    one, two = (s.scores if calls else rankdata(s.scores, axis=1) for s in (a, b))
    draws = Draws(counts=np.ones((1, data.member.max() + 1)), member=data.member)

    def of(s: Shaped[np.ndarray, "replicates items"]) -> float:
        rows = resampled(data.y, s, draws=draws, metric=data.metric, folds=data.folds)
        return float(rows.mean())

    d, rng = abs(of(one) - of(two)), np.random.default_rng(0)
    as_far = 0
    for _ in range(EXCHANGES):
        swap = rng.random(draws.counts.shape[1])[data.member] < 0.5
        other = of(np.where(swap, two, one)) - of(np.where(swap, one, two))
        as_far += int(abs(other) >= d - np.sqrt(ROUNDING))
    return (1 + as_far) / (1 + EXCHANGES)
