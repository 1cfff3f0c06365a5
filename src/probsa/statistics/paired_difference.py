"""One paired difference: its estimate, interval and p from resampled patients and replicates.

d_r is the difference in replicate r and d is the mean over all R. Its error has two parts: that of
the patients (normal, from the resamples) and that of the replicates (Student's t with R - 1 degrees
of freedom, because R is small). The interval is that of their sum, as in the Behrens-Fisher
problem. Percentiles of resampled replicates would be too narrow for small R.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.optimize import root_scalar
from scipy.special import stdtr, stdtrit
from scipy.stats import rankdata

from .bootstrap import Draws
from .replicates import MetricName, resampled_metric

ALPHA = 0.05

ROUNDING = 1e-20
"""A variance below this is a rounding error: true standard errors are far above 1e-10."""

QUANTILES = 4000
"""Number of points at which the replicates' part of the error is evaluated."""

EXCHANGES = 999
"""Number of random exchanges of the two methods, used if the resamples do not vary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSample:
    """One method: its metric in the data (column 0) and in every resample, and its scores."""

    values: Float[np.ndarray, "replicates rows"]
    scores: Shaped[np.ndarray, "replicates items"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedData:
    """The labels, groups and replicates on which two methods are compared."""

    y: Bool[np.ndarray, " items"]
    member: Int[np.ndarray, " items"]
    """The group (patient) of each item."""
    freedom: int
    """Degrees of freedom of the patients, as `draw` returns them."""
    blocks: tuple[Hashable, ...]
    """The block of each replicate; replicates of a block are averaged."""
    metric: MetricName | Literal["other"]
    """`other` is a metric that only its values are known of: methods cannot be exchanged."""
    folds: Shaped[np.ndarray, "replicates items"] | None = None
    higher_is_better: bool = True
    scale: float = 1.0
    """The size of a large difference: 1 for metrics between 0 and 1, else in the metric's unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandardError:
    """The standard error of a difference, in two parts."""

    patients: float
    freedom: int
    """Degrees of freedom of the patients' part."""
    replicates: float
    """0 with a single replicate."""
    count: int
    """Number of replicates, or of their blocks."""

    @property
    def se(self) -> float:
        """The standard error of the sum of both parts."""
        return float(np.hypot(self.patients, self.replicates))

    def p(self, d: float) -> float:
        """Return the two-sided probability of an error at least as large as d."""
        if self.replicates == 0:
            return float(2 * stdtr(self.freedom, -abs(d) / self.patients))
        if self.patients == 0:
            return float(2 * stdtr(self.count - 1, -abs(d) / self.replicates))
        from_replicates = self.replicates * _student_quantiles(self.count - 1)
        return float(2 * stdtr(self.freedom, (from_replicates - abs(d)) / self.patients).mean())

    def half_width(self, alpha: float = ALPHA) -> float:
        """Return the d at which p is alpha."""
        upper = self.patients * -stdtrit(self.freedom, alpha / 8)
        if self.count > 1:
            upper += self.replicates * -stdtrit(self.count - 1, alpha / 8)
        return float(root_scalar(lambda d: self.p(d) - alpha, bracket=(0, 2 * upper)).root)


@cache
def _student_quantiles(freedom: int) -> Float[np.ndarray, " q"]:
    return stdtrit(freedom, (np.arange(QUANTILES) + 0.5) / QUANTILES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The difference of two methods on the same bags."""

    difference: float
    """Mean over the replicates."""
    low: float | None
    """Lower limit of the 95 % interval; None if the resamples do not vary."""
    high: float | None
    p: float | None
    """Two-sided, before any correction; None if there are too few patients."""
    spread: StandardError | None
    """None if nothing varies."""
    reason: str | None = None
    """The reason why there is no p, or how it was found if not from the resamples."""
    left_out: int = 0
    """Number of resamples in which the metric is undefined."""

    @property
    def se(self) -> float:
        """Standard error; 0 if nothing varies."""
        return 0.0 if self.spread is None else self.spread.se


def compare_pair(a: MethodSample, b: MethodSample, *, data: PairedData) -> Difference:
    """Return a - b, with its interval and p."""
    per_replicate = _block_means(a.values - b.values, data.blocks)
    observed, resamples = per_replicate[:, 0], per_replicate[:, 1:]
    d = float(observed.mean())
    defined = resamples[:, np.isfinite(resamples).all(0)]
    left_out = resamples.shape[1] - defined.shape[1]

    def without_interval(p: float | None, reason: str) -> Difference:
        limit = 0.0 if np.array_equal(a.scores, b.scores) else None
        return Difference(
            difference=d, low=limit, high=limit, p=p, spread=None, reason=reason, left_out=left_out
        )

    if np.array_equal(a.scores, b.scores):
        return without_interval(1.0, "both give the same scores")
    if data.freedom < 1 or defined.shape[1] < max(2, left_out):
        groups = data.member.max() + 1
        if data.freedom < 1 or not defined.size:
            return without_interval(None, f"{groups} patients are too few to resample")
        undefined = f"{left_out} of {resamples.shape[1]} resamples of {groups} patients"
        return without_interval(None, f"the metric is undefined in {undefined}")
    error = _standard_error(observed, defined, freedom=data.freedom)
    if error.se**2 < ROUNDING * data.scale**2:
        if abs(d) < np.sqrt(ROUNDING) * data.scale:
            return without_interval(1.0, "the methods are equal in every resample")
        if data.metric == "other":
            return without_interval(None, "the difference is the same in every resample")
        return without_interval(
            _exchange_test(a, b, data=data),
            "the difference is the same in every resample: p is from exchanging the methods in "
            "random patients",
        )
    half = error.half_width()
    # metrics lie in [0, 1], means of values and other metrics anywhere
    limit = np.inf if data.metric in ("mean", "other") else 1.0
    return Difference(
        difference=d,
        low=float(max(d - half, -limit)),
        high=float(min(d + half, limit)),
        p=min(1.0, error.p(d)),
        spread=error,
        left_out=left_out,
    )


def _block_means(
    values: Float[np.ndarray, "replicates rows"], blocks: Sequence[Hashable]
) -> Float[np.ndarray, "blocks rows"]:
    replicates_of: dict[Hashable, list[int]] = {}
    for i, block in enumerate(blocks):
        replicates_of.setdefault(block, []).append(i)
    return np.stack([values[i].mean(0) for i in replicates_of.values()])


def _standard_error(
    observed: Float[np.ndarray, " r"], resamples: Float[np.ndarray, "r resamples"], *, freedom: int
) -> StandardError:
    """Estimate V_g + max(V_s - V_gs, 0); with two replicates, max(V_g - V_gs, 0) + V_s.

    V_g, the variance over resamples of the patients, contains the effect of the patients and V_gs,
    that of the interaction of replicates and patients. V_s = var(d_r) / R contains the effect of
    the replicates and V_gs again. V_gs is estimated from many patients and V_s from R numbers, so
    V_gs is subtracted from V_s, unless V_s is estimated from two numbers only.
    """
    count, mean = len(observed), resamples.mean(0)
    patients = float(mean.var(ddof=1))
    if count == 1:
        return StandardError(patients=np.sqrt(patients), freedom=freedom, replicates=0.0, count=1)
    replicates = float(observed.var(ddof=1) / count)
    deviations = (resamples - mean).var(axis=1, ddof=1)
    interaction = float(deviations.sum() / (count * (count - 1)))
    if count == 2:
        patients = max(patients - interaction, 0.0)
    else:
        replicates = max(replicates - interaction, 0.0)
    return StandardError(
        patients=float(np.sqrt(patients)),
        freedom=freedom,
        replicates=float(np.sqrt(replicates)),
        count=count,
    )


def _exchange_test(a: MethodSample, b: MethodSample, *, data: PairedData) -> float:
    """Return p of |d| among the differences with the methods exchanged in random patients.

    Scores are exchanged as ranks, because two methods need not have the same scale.
    """
    assert data.metric != "other", "only its values are known"
    name = data.metric
    plain = name in ("f1", "accuracy", "mean")
    scores_a, scores_b = (s.scores if plain else rankdata(s.scores, axis=1) for s in (a, b))
    draws = Draws(counts=np.ones((1, data.member.max() + 1)), member=data.member)

    @no_type_check  # as in `replicates`
    def metric(scores: Shaped[np.ndarray, "replicates items"]) -> float:
        rows = resampled_metric(data.y, scores, draws=draws, metric=name, folds=data.folds)
        return float(rows.mean())

    d, rng = abs(metric(scores_a) - metric(scores_b)), np.random.default_rng(0)
    at_least_as_large = 0
    for _ in range(EXCHANGES):
        swap = rng.random(draws.counts.shape[1])[data.member] < 0.5
        exchanged = metric(np.where(swap, scores_b, scores_a))
        exchanged -= metric(np.where(swap, scores_a, scores_b))
        at_least_as_large += int(abs(exchanged) >= d - np.sqrt(ROUNDING))
    return (1 + at_least_as_large) / (1 + EXCHANGES)
