"""Measures of a map within each positive bag, averaged over the bags.

They ask where in a bag the evidence lies, not which bags have any: unlike measures over pooled
instances, they cannot be raised by telling positive bags from negative ones.
"""

import numpy as np
from jaxtyping import Bool, Float, Num
from sklearn.metrics import average_precision_score, roc_auc_score

from ..statistics import Draws, Metric, ratio_of_sums
from .pools import NO_INSTANCE_LABELS

WITHIN = "auroc_within_bags"
WITHIN_BAGS = (WITHIN, "average_precision_within_bags", "pointing_game", "top_share")
"""AUROC; average precision; whether the top instance is positive; the positive share of the top
1 % of instances (at least one). Instances with equal scores count as in a random order."""
WITHIN_TITLES = {
    WITHIN: "AUROC",
    "average_precision_within_bags": "AP",
    "pointing_game": "top instance",
    "top_share": "top 1 %",
}
TOP = 0.01
NO_MIXED_BAG = "no positive bag has instances of both labels"


def within_bag(
    y: Bool[np.ndarray, " n"], score: Num[np.ndarray, " n"]
) -> Float[np.ndarray, " measures"]:
    """Return the measures of `WITHIN_BAGS` of a bag that has instances of both labels."""
    count = max(1, round(TOP * len(y)))
    return np.array(
        [
            roc_auc_score(y, score),
            average_precision_score(y, score),
            precision_of_top(y, score, count=1),
            precision_of_top(y, score, count=count),
        ]
    )


def precision_of_top(
    y: Bool[np.ndarray, " n"], score: Num[np.ndarray, " n"], *, count: int
) -> float:
    """Return the expected share of positives among the `count` highest scores, ties broken at
    random."""
    limit = np.partition(score, len(score) - count)[len(score) - count]
    above, tied = score > limit, score == limit
    share_of_tied = y[tied].mean()
    return float((y[above].sum() + share_of_tied * (count - above.sum())) / count)


def is_mixed(y: Bool[np.ndarray, " n"]) -> bool:
    """Return whether a bag has instances of both labels."""
    return bool(y.any()) and not bool(y.all())


def within_samples(
    values: Float[np.ndarray, "bags measures"], mixed: Bool[np.ndarray, " bags"], *, draws: Draws
) -> dict[str, Metric]:
    """Return the means of the measures over the mixed bags.

    Args:
        values: `within_bag` of each bag; rows of bags that are not mixed do not count.
        mixed: whether each bag is positive and has instances of both labels.
        draws: draws of the bags, with the data as row 0.
    """
    if not len(values):
        return dict.fromkeys(WITHIN_BAGS, Metric.undefined(NO_INSTANCE_LABELS))
    if not mixed.any():
        return dict.fromkeys(WITHIN_BAGS, Metric.undefined(NO_MIXED_BAG))
    return {
        name: ratio_of_sums(np.where(mixed, values[:, k], 0.0), mixed, draws=draws)
        for k, name in enumerate(WITHIN_BAGS)
    }
