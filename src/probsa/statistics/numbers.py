"""Metrics of a number per bag, in the user's unit.

Of the proper scores, NLL and CRPS, the means over bags are taken here; the likelihood gives them
for each bag.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from .intervals import ANY_VALUE, CORRELATION, LOSS, SHARE, UP_TO_ONE
from .metric import Metric, TargetMetrics, mean_of_items
from .resample import Draws, Values

ROUNDING = 1e-12
"""A share of a sum of squares below this is a rounding error: what is summed does not vary."""


def regression_metrics(
    y: Values,
    predicted: Values,
    *,
    scores: Mapping[str, Values],
    quantiles: Mapping[float, Values],
    draws: Draws,
) -> TargetMetrics:
    """Return the metrics of predicted means, and of intervals between quantiles.

    Args:
        y: the true value of each bag.
        predicted: the predicted mean of each bag.
        scores: further scores of each bag by name, such as `nll` and `crps`, to be averaged.
        quantiles: quantiles of the prediction by their level; the levels α and 1 - α bound an
            interval of coverage 1 - 2α, which is named after it, as `90 %`.
        draws: resamples of the bags.
    """
    error = predicted - y
    overall = {
        "mae": mean_of_items(np.abs(error), draws=draws, scale=LOSS),
        "rmse": mean_of_items(error**2, draws=draws, scale=LOSS).map(np.sqrt),
        "r_squared": r_squared(y, predicted, draws=draws),
        "spearman": spearman(y, predicted, draws=draws),
    }
    for name, score in scores.items():  # only the logarithm of a density can be below 0
        scale = ANY_VALUE if name == "nll" else LOSS
        overall[name] = mean_of_items(score, draws=draws, scale=scale)
    by_level = {round(level, 6): q for level, q in quantiles.items()}
    by_part = {}
    for level in sorted(by_level):
        low, high = by_level[level], by_level.get(opposite := round(1 - level, 6))
        if level < opposite and high is not None:
            by_part[f"{100 * (opposite - level):g} %"] = {
                "coverage": mean_of_items((low <= y) & (y <= high), draws=draws, scale=SHARE),
                "width": mean_of_items(high - low, draws=draws, scale=LOSS),
            }
    return TargetMetrics(overall=overall, by_part=by_part)


def r_squared(y: Values, predicted: Values, *, draws: Draws) -> Metric:
    """Return 1 - Σ (y - ŷ)² / Σ (y - ȳ)², with ȳ the mean of each row; undefined for constant y."""
    if len(y) == 0:
        return Metric.undefined("no bags")
    centred = y - y.mean()  # for precision; the sums below do not depend on it
    columns = np.stack([(y - predicted) ** 2, centred**2, centred, np.ones_like(y)], axis=1)
    residual, square, total, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = square - total**2 / n
        varies = (spread > ROUNDING * square) & (np.ptp(y) > 0)
        rows = np.where(varies, 1 - residual / spread, np.nan)
    return Metric.of(
        rows,
        support=draws.support(),
        scale=UP_TO_ONE,
        reason=f"all {len(y)} values are {y[0]:g}: R² is undefined",
    )


def spearman(y: Values, predicted: Values, *, draws: Draws) -> Metric:
    """Return the correlation of midranks, with ranks taken anew in each row."""
    if len(y) == 0:
        return Metric.undefined("no bags")
    weight = draws.weights()
    n = weight.sum(1, keepdims=True)
    a, b = _midranks(y, weight) - n / 2, _midranks(predicted, weight) - n / 2  # of mean 0
    spread = (weight * a * a).sum(1), (weight * b * b).sum(1)
    varies = np.minimum(*spread) > ROUNDING * n[:, 0] ** 3
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = np.where(varies, (weight * a * b).sum(1) / np.sqrt(spread[0] * spread[1]), np.nan)
    reason = f"truth or prediction is the same for all {len(y)} bags: the correlation is undefined"
    if not np.isfinite(rows[0]):
        return Metric.undefined(reason)
    support = draws.support()
    # by Fisher's z, the variance of a correlation r of n pairs is (1 - r²)² / n, not (1 - r²) / n
    inner = float(rows[0]) * support.trials / (support.trials + 1)
    support = replace(support, trials=support.trials / (1 - inner**2))
    return Metric.of(rows, support=support, scale=CORRELATION)


def _midranks(
    value: Values, weight: Float[np.ndarray, "rows items"]
) -> Float[np.ndarray, "rows items"]:
    """Return the weight below each value plus half of the weight of its ties."""
    order = np.argsort(value, kind="stable")
    below = np.zeros((len(weight), len(value) + 1))
    np.cumsum(weight[:, order], axis=1, out=below[:, 1:])
    first = np.searchsorted(value[order], value, side="left")
    last = np.searchsorted(value[order], value, side="right")
    return (below[:, first] + below[:, last]) / 2
