"""One paired difference: its estimate, interval and p from resampled patients and replicates.

d_r is the difference in replicate r and d is the mean over all R. Its error has two parts: that of
the patients (normal, from the resamples) and that of the replicates (Student's t with R - 1 degrees
of freedom, because R is small). The interval is that of their sum, as in the Behrens-Fisher
problem. Percentiles of resampled replicates would be too narrow for small R.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Float, Shaped
from scipy.optimize import root_scalar
from scipy.special import stdtr, stdtrit
from scipy.stats import rankdata

from .metric import f1_and_accuracy
from .resample import Draws, Flags, Labels

MetricName = Literal["auroc", "average_precision", "f1", "accuracy", "mean"]
"""`mean` averages values of the items, which are metrics themselves, such as the AP of each bag."""
Replicated = Shaped[np.ndarray, "replicates items"]
Resampled = Float[np.ndarray, "replicates rows"]

ALPHA = 0.05
ROUNDING = 1e-20
"""A variance below this (relative to 1, the largest metric) is a rounding error."""
QUANTILES = 4000
"""Number of points at which the replicates' part of the error is evaluated."""
EXCHANGES = 999
"""Number of random exchanges of the two methods, used if the resamples do not vary."""


@no_type_check  # called for every exchange: the tests' checks of shapes cost more than it does
def resampled_metric(
    y: Flags,
    score: Replicated,
    *,
    draws: Draws,
    metric: MetricName,
    folds: Replicated | None = None,
) -> Resampled:
    """Return the metric of each replicate in each row of the draws; nan where it is undefined.

    With `folds`, the metric is computed in each fold and averaged over the folds (nan as soon as
    one fold has a single class).
    """

    def of(y: Flags, score: np.ndarray, draws: Draws) -> np.ndarray:
        if metric == "auroc":
            return draws.auroc(y, score.astype(np.float64))
        if metric == "average_precision":
            return draws.ranks(y, score.astype(np.float64))[1]
        if metric == "mean":
            return draws.ratio(score, np.ones(len(score)))
        return f1_and_accuracy(y, score.astype(bool), draws=draws)[int(metric == "accuracy")]

    if folds is None:
        return np.stack([of(y, s, draws) for s in score])
    rows = []
    for s, fold in zip(score, folds, strict=True):
        parts = [np.flatnonzero(fold == f) for f in np.unique(fold)]
        rows.append(np.mean([of(y[k], s[k], draws.for_items(k)) for k in parts], axis=0))
    return np.stack(rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSample:
    """One method: its metric in the data (column 0) and in every resample, and its scores."""

    values: Resampled
    scores: Replicated


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedData:
    """The labels, groups and replicates on which two methods are compared."""

    y: Flags
    member: Labels
    """The group (patient) of each item."""
    freedom: int
    """Degrees of freedom of the patients, as `draw_patients` returns them."""
    blocks: tuple[Hashable, ...]
    """The block of each replicate; replicates of a block are averaged."""
    metric: MetricName | Literal["other"]
    """`other` is a metric that only its values are known of: methods cannot be exchanged."""
    folds: Replicated | None = None
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

    @classmethod
    def estimated(cls, values: Resampled, *, freedom: int) -> "StandardError":
        """Estimate V_g + max(V_s - V_gs, 0); with two replicates, max(V_g - V_gs, 0) + V_s.

        V_g, the variance over resamples of the patients, contains the effect of the patients and
        V_gs, that of the interaction of replicates and patients. V_s = var(d_r) / R contains the
        effect of the replicates and V_gs again. V_gs is estimated from many patients and V_s from
        R numbers, so V_gs is subtracted from V_s, unless V_s is estimated from two numbers only.
        """
        observed, resamples = values[:, 0], values[:, 1:]
        count, mean = len(observed), resamples.mean(0)
        patients, replicates = mean.var(ddof=1), 0.0
        if count > 1:
            replicates = observed.var(ddof=1) / count
            interaction = (resamples - mean).var(axis=1, ddof=1).sum() / (count * (count - 1))
            if count == 2:
                patients = max(patients - interaction, 0.0)
            else:
                replicates = max(replicates - interaction, 0.0)
        return cls(
            patients=float(np.sqrt(patients)),
            freedom=freedom,
            replicates=float(np.sqrt(replicates)),
            count=count,
        )

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
    blocks: dict[Hashable, list[int]] = {}
    for i, block in enumerate(data.blocks):
        blocks.setdefault(block, []).append(i)
    values = np.stack([(a.values - b.values)[i].mean(0) for i in blocks.values()])
    d = float(values[:, 0].mean())
    finite = np.asarray(np.isfinite(values[:, 1:]).all(0))
    resamples, left_out = len(finite), int((~finite).sum())
    identical = np.array_equal(a.scores, b.scores)

    def without_interval(p: float | None, reason: str) -> Difference:
        limit = 0.0 if identical else None
        return Difference(
            difference=d, low=limit, high=limit, p=p, spread=None, reason=reason, left_out=left_out
        )

    if identical:
        return without_interval(1.0, "both give the same scores")
    groups = data.member.max() + 1
    if data.freedom < 1 or left_out == resamples:
        return without_interval(None, f"{groups} patients are too few to resample")
    if resamples - left_out < max(2, left_out):
        undefined = f"{left_out} of {resamples} resamples of {groups} patients"
        return without_interval(None, f"the metric is undefined in {undefined}")
    error = StandardError.estimated(values[:, np.append(True, finite)], freedom=data.freedom)
    if error.se**2 < ROUNDING * data.scale**2:
        if abs(d) < np.sqrt(ROUNDING) * data.scale:
            return without_interval(1.0, "the methods are equal in every resample")
        same = "the difference is the same in every resample"
        if data.metric == "other":
            return without_interval(None, same)
        exchanged = f"{same}: p is from exchanging the methods in random patients"
        return without_interval(_exchange_test(a, b, data=data), exchanged)
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


def _exchange_test(a: MethodSample, b: MethodSample, *, data: PairedData) -> float:
    """Return p of |d| among the differences with the methods exchanged in random patients.

    Scores are exchanged as ranks, because two methods need not have the same scale.
    """
    name = data.metric
    assert name != "other", "only its values are known"
    plain = name in ("f1", "accuracy", "mean")
    scores_a, scores_b = (s.scores if plain else rankdata(s.scores, axis=1) for s in (a, b))
    draws = Draws(counts=np.ones((1, data.member.max() + 1)), member=data.member)

    @no_type_check  # as above
    def metric(scores: Replicated) -> float:
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
