"""A metric with all its resamples, so that it can be averaged over replicates and compared.

Row 0 is the data, the other rows are resamples. Metrics whose rows come from the same draws are
paired, so that their difference can be taken row by row.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from .bootstrap import Draws
from .metric import Metric, one_class_reason
from .replicates import resampled_metric


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledMetric:
    """The value of a metric in the data and in every resample, or the reason why it has none."""

    rows: Float[np.ndarray, " rows"] | None
    """nan in a resample where the metric is undefined."""
    reason: str | None = None

    @classmethod
    def undefined(cls, reason: str) -> "SampledMetric":
        """Return a metric without a value."""
        return cls(rows=None, reason=reason)

    @property
    def value(self) -> float | None:
        """The value in the data."""
        return None if self.rows is None else float(self.rows[0])

    def metric(self) -> Metric:
        """Return the value with its interval."""
        if self.rows is None:
            return Metric.undefined(self.reason or "")
        return Metric.from_resamples(self.rows[0], self.rows[1:])


def sampled_difference(a: SampledMetric, b: SampledMetric) -> SampledMetric:
    """Return the paired difference a - b; both must come from the same draws."""
    if a.rows is None or b.rows is None:
        return SampledMetric.undefined((a.reason if a.rows is None else b.reason) or "")
    return SampledMetric(rows=a.rows - b.rows)


def mean_over_replicates(
    replicates: Sequence[SampledMetric], *, weights: Float[np.ndarray, "rows replicates"]
) -> SampledMetric:
    """Return the weighted mean over the replicates in which the metric is defined.

    weights: the number of times each replicate was drawn in each row.
    """
    defined = [
        (sample.rows, column)
        for sample, column in zip(replicates, weights.T, strict=True)
        if sample.rows is not None
    ]
    if not defined:
        return SampledMetric.undefined(replicates[0].reason or "")
    value, weight = np.stack([rows for rows, _ in defined]), np.stack([w for _, w in defined])
    weight = np.where(np.isfinite(value), weight, 0.0)
    with np.errstate(invalid="ignore"):
        rows = (np.where(weight > 0, value, 0.0) * weight).sum(0) / weight.sum(0)
    return SampledMetric(rows=rows)


def replicate_weights(
    count: int, *, resamples: int, seed: int, blocks: Sequence[Hashable] | None = None
) -> Float[np.ndarray, "rows replicates"]:
    """Return the number of times each replicate is drawn in each row; row 0 is all ones.

    Of k replicates, k - 1 are drawn, because drawing k would underestimate the variance of a mean
    over few replicates (Rao and Wu, JASA 1988). A single replicate is in every row.

    blocks: the block of each replicate, for example the split if replicates are pairs of a split
        and a seed. Whole blocks are drawn, and the replicates of a block share its weight.
    """
    block_names = list(range(count)) if blocks is None else list(blocks)
    distinct = list(dict.fromkeys(block_names))
    member = np.array([distinct.index(b) for b in block_names])
    k = len(distinct)
    weights = np.ones((resamples + 1, k))
    if k > 1:
        rng = np.random.default_rng((seed, k))
        weights[1:] = rng.multinomial(k - 1, np.full(k, 1 / k), size=resamples)
    return weights[:, member] / np.bincount(member)[member]


def sampled_auroc(
    y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"], *, draws: Draws, what: str
) -> SampledMetric:
    """Return the AUROC of instances; `draws` is of these instances and has the data as row 0."""
    reason = one_class_reason(y, what=what)
    if reason:
        return SampledMetric.undefined(f"{reason}: AUROC is undefined")
    return SampledMetric(rows=resampled_metric(y, score[None], draws=draws, metric="auroc")[0])


def mean_of_items(values: Float[np.ndarray, " n"], *, draws: Draws) -> SampledMetric:
    """Return the weighted mean of a value per item in each row."""
    if len(values) == 0:
        return SampledMetric.undefined("no bags")
    return ratio_of_sums(values, np.ones_like(values), draws=draws)


def rows_or_reason(rows: Float[np.ndarray, " rows"], *, reason: str) -> SampledMetric:
    """Return the rows, or the reason if the metric is nan in the data (row 0)."""
    return SampledMetric(rows=rows) if np.isfinite(rows[0]) else SampledMetric.undefined(reason)


def ratio_of_sums(
    numerator: Int[np.ndarray, " n"] | Float[np.ndarray, " n"] | Bool[np.ndarray, " n"],
    denominator: Int[np.ndarray, " n"] | Float[np.ndarray, " n"] | Bool[np.ndarray, " n"],
    *,
    draws: Draws,
) -> SampledMetric:
    """Return Σ numerator / Σ denominator over the items of each row."""
    columns = np.stack([numerator, denominator], axis=1).astype(np.float64)
    above, below = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return SampledMetric(rows=above / below)
