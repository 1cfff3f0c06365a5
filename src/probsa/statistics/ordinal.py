"""Metrics of ordered grades 0 to K, such as ISUP grades.

Quadratic-weighted κ always counts with all K + 1 grades, so that an absent grade does not shorten
distances. The call is the median of the predicted distribution, which has the least expected
absolute error. The ranked probability score is Epstein's (Journal of Applied Meteorology 1969).
"""

import numpy as np
from jaxtyping import Float, Int

from .areas_by_class import binary_areas
from .bootstrap import Draws
from .confusion_matrix import accuracy, cohen_kappa, confusion
from .metric import Metric, one_class_reason
from .multiclass import check_classes, class_nll
from .sampled import mean_of_items
from .target_metrics import TargetMetrics

ROUNDING = 1e-9
"""A cumulative probability this little below ½ counts as ½."""

DIGITS = 12
"""Sums of probabilities that agree to so many decimals are tied when bags are ranked."""


def median_call(p: Float[np.ndarray, "bags grades"]) -> Int[np.ndarray, " bags"]:
    """Return the smallest grade k with P(Y ≤ k) ≥ ½."""
    return np.argmax(np.cumsum(p, axis=1) >= 0.5 - ROUNDING, axis=1)


def ranked_probability_scores(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags grades"]
) -> Float[np.ndarray, " bags"]:
    """Return Σ_{k<K} (P(Y ≤ k) - 1[y ≤ k])² of each bag; lower is better, 0 is perfect."""
    below = y[:, None] <= np.arange(p.shape[1] - 1)
    return ((np.cumsum(p, axis=1)[:, :-1] - below) ** 2).sum(1)


def cut_aurocs(
    y: Int[np.ndarray, " bags"], p: Float[np.ndarray, "bags grades"], *, draws: Draws
) -> dict[int, Metric]:
    """Return for each cut k from 1 to K the AUROC of P(Y ≥ k) for finding y ≥ k."""
    at_least = np.cumsum(p[:, ::-1], axis=1)[:, ::-1].round(DIGITS)
    metrics = {}
    for k in range(1, p.shape[1]):
        high = y >= k
        reason = one_class_reason(high, what="bags")
        if reason is not None and len(y):
            side = "at least" if high.all() else "below"
            reason = f"all {len(y)} bags are {side} grade {k}: AUROC is undefined"
        metrics[k] = binary_areas(high, at_least[:, k], draws=draws, reason=reason)[0]
    return metrics


def ordinal_metrics(
    y: Int[np.ndarray, " bags"],
    p: Float[np.ndarray, "bags grades"],
    *,
    draws: Draws | None = None,
) -> TargetMetrics:
    """Return the metrics over all bags, and the AUROC at each cut between grades.

    Args:
        y: the grade of each bag, from 0.
        p: the probability of each grade.
        draws: resamples, with the data as row 0; None for the data alone.

    Raises:
        InputError: grades and probabilities do not fit each other.
    """
    check_classes(y, p)
    draws = Draws.of_data(len(y)) if draws is None else draws
    call = median_call(p)
    matrix = confusion(y, call, classes=p.shape[1], draws=draws)
    error = np.abs(call - y).astype(np.float64)
    overall = {
        "quadratic_kappa": cohen_kappa(matrix, weighting="quadratic"),
        "linear_kappa": cohen_kappa(matrix, weighting="linear"),
        "mae": mean_of_items(error, draws=draws),
        "accuracy": accuracy(matrix),
        "within_one": mean_of_items((error <= 1).astype(np.float64), draws=draws),
        "rps": mean_of_items(ranked_probability_scores(y, p), draws=draws),
        "nll": class_nll(y, p, draws=draws),
    }
    cuts = cut_aurocs(y, p, draws=draws)
    return TargetMetrics(overall=overall, by_part={f"≥{k}": {"auroc": m} for k, m in cuts.items()})
