"""Metrics of a number per bag, in the user's unit.

Of the proper scores, NLL and CRPS, the means over bags are taken here; the likelihood gives them
for each bag.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from .bootstrap import Draws
from .metric import Metric
from .sampled import mean_of_items
from .target_metrics import TargetMetrics


def r_squared(
    y: Float[np.ndarray, " bags"], predicted: Float[np.ndarray, " bags"], *, draws: Draws
) -> Metric:
    """Return 1 - Σ (y - ŷ)² / Σ (y - ȳ)², with ȳ the mean of each row; undefined for constant y."""
    if len(y) == 0:
        return Metric.undefined("no bags")
    centred = y - y.mean()  # for precision; the sums below do not depend on it
    columns = np.stack([(y - predicted) ** 2, centred**2, centred, np.ones_like(y)], axis=1)
    residual, square, total, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = 1 - residual / (square - total**2 / n)
    varies = _varies(y, draws.weights())
    reason = f"all {len(y)} values are {y[0]:g}: R² is undefined"
    return Metric.of(np.where(varies, rows, np.nan), reason=reason)


def spearman(
    y: Float[np.ndarray, " bags"], predicted: Float[np.ndarray, " bags"], *, draws: Draws
) -> Metric:
    """Return the correlation of midranks, with ranks taken anew in each row."""
    if len(y) == 0:
        return Metric.undefined("no bags")
    weight = draws.weights()
    a, b = _midranks(y, weight), _midranks(predicted, weight)
    n = weight.sum(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = (
            a - (weight * a).sum(1, keepdims=True) / n,
            b - (weight * b).sum(1, keepdims=True) / n,
        )
        rows = (weight * a * b).sum(1) / np.sqrt((weight * a * a).sum(1) * (weight * b * b).sum(1))
    defined = _varies(y, weight) & _varies(predicted, weight)
    reason = f"truth or prediction is the same for all {len(y)} bags: the correlation is undefined"
    return Metric.of(np.where(defined, rows, np.nan), reason=reason)


def _midranks(
    value: Float[np.ndarray, " bags"], weight: Float[np.ndarray, "rows bags"]
) -> Float[np.ndarray, "rows bags"]:
    """Return the weight below each value plus half of the weight of its ties."""
    order = np.argsort(value, kind="stable")
    below = np.zeros((len(weight), len(value) + 1))
    np.cumsum(weight[:, order], axis=1, out=below[:, 1:])
    first = np.searchsorted(value[order], value, side="left")
    last = np.searchsorted(value[order], value, side="right")
    return (below[:, first] + below[:, last]) / 2


def _varies(
    value: Float[np.ndarray, " bags"], weight: Float[np.ndarray, "rows bags"]
) -> Bool[np.ndarray, " rows"]:
    drawn = weight > 0
    return np.where(drawn, value, np.inf).min(1) < np.where(drawn, value, -np.inf).max(1)


def interval_metrics(
    y: Float[np.ndarray, " bags"],
    low: Float[np.ndarray, " bags"],
    high: Float[np.ndarray, " bags"],
    *,
    draws: Draws,
) -> dict[str, Metric]:
    """Return the share of bags inside their interval (`coverage`), and the mean `width`."""
    inside = ((low <= y) & (y <= high)).astype(np.float64)
    return {
        "coverage": mean_of_items(inside, draws=draws),
        "width": mean_of_items(high - low, draws=draws),
    }


def regression_metrics(
    y: Float[np.ndarray, " bags"],
    predicted: Float[np.ndarray, " bags"],
    *,
    scores: Mapping[str, Float[np.ndarray, " bags"]] | None = None,
    quantiles: Mapping[float, Float[np.ndarray, " bags"]] | None = None,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics of predicted means, and of intervals between quantiles.

    Args:
        y: the true value of each bag.
        predicted: the predicted mean of each bag.
        scores: further scores of each bag by name, such as `nll` and `crps`, to be averaged.
        quantiles: quantiles of the prediction by their level; the levels α and 1 - α bound an
            interval of coverage 1 - 2α, which is named after it, as `90 %`.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: a value is not finite, or there are not as many predictions as values.
    """
    if len(y) != len(predicted):
        raise InputError(f"{len(y)} values for {len(predicted)} predictions: expected as many")
    if not (np.isfinite(y).all() and np.isfinite(predicted).all()):
        raise InputError("values and predictions must be finite; some are infinite or nan")
    draws = Draws.of_data(len(y)) if draws is None else draws
    error = predicted - y
    squares = mean_of_items(error**2, draws=draws)
    overall = {
        "mae": mean_of_items(np.abs(error), draws=draws),
        "rmse": squares if squares.rows is None else Metric.of(np.sqrt(squares.rows)),
        "r_squared": r_squared(y, predicted, draws=draws),
        "spearman": spearman(y, predicted, draws=draws),
    }
    overall |= {name: mean_of_items(s, draws=draws) for name, s in (scores or {}).items()}
    by_level = {round(level, 6): column for level, column in (quantiles or {}).items()}
    by_part = {}
    for level in sorted(by_level):
        opposite = round(1 - level, 6)
        if level < opposite and opposite in by_level:
            name = f"{100 * (opposite - level):g} %"
            low, high = by_level[level], by_level[opposite]
            by_part[name] = interval_metrics(y, low, high, draws=draws)
    return TargetMetrics(overall=overall, by_part=by_part)
