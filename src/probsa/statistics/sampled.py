"""A metric with all its resamples, so that it can be averaged over replicates and compared.

Row 0 is the data, the other rows are resamples. Metrics whose rows come from the same draws are
paired, so that their difference can be taken row by row.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from .bootstrap import Draws
from .metric import Metric, one_class_reason
from .replicates import resampled_metric


def mean_over_replicates(
    replicates: Sequence[Metric], *, weights: Float[np.ndarray, "rows replicates"]
) -> Metric:
    """Return the weighted mean over the replicates in which the metric is defined.

    weights: the number of times each replicate was drawn in each row.
    """
    defined = [
        (sample.rows, column)
        for sample, column in zip(replicates, weights.T, strict=True)
        if sample.rows is not None
    ]
    if not defined:
        return Metric.undefined(replicates[0].reason or "")
    value, weight = np.stack([rows for rows, _ in defined]), np.stack([w for _, w in defined])
    weight = np.where(np.isfinite(value), weight, 0.0)
    with np.errstate(invalid="ignore"):
        rows = (np.where(weight > 0, value, 0.0) * weight).sum(0) / weight.sum(0)
    return Metric.of(rows)


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
) -> Metric:
    """Return the AUROC of instances; `draws` is of these instances and has the data as row 0."""
    reason = one_class_reason(y, what=what)
    if reason:
        return Metric.undefined(f"{reason}: AUROC is undefined")
    return Metric.of(resampled_metric(y, score[None], draws=draws, metric="auroc")[0])


def mean_of_items(values: Float[np.ndarray, " n"], *, draws: Draws) -> Metric:
    """Return the weighted mean of a value per item in each row."""
    if len(values) == 0:
        return Metric.undefined("no bags")
    return ratio_of_sums(values, np.ones_like(values), draws=draws)


def ratio_of_sums(
    numerator: Int[np.ndarray, " n"] | Float[np.ndarray, " n"] | Bool[np.ndarray, " n"],
    denominator: Int[np.ndarray, " n"] | Float[np.ndarray, " n"] | Bool[np.ndarray, " n"],
    *,
    draws: Draws,
) -> Metric:
    """Return Σ numerator / Σ denominator over the items of each row."""
    columns = np.stack([numerator, denominator], axis=1).astype(np.float64)
    above, below = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return Metric.of(above / below)
