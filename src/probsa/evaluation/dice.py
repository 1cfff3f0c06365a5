"""Dice of the instances that are called positive, at a threshold chosen on validation bags.

The threshold applies to the evidence of an instance (its attention relative to uniform attention;
scores.py), because the level of the attention mean μ differs between bags. Scores for which uniform
attention is undefined are thresholded themselves.
"""

import numpy as np
from jaxtyping import Bool, Float

from ..statistics import Draws, Metric, ratio_of_sums
from .pools import Pool

DICE = ("dice", "dice_pooled")
"""The mean over bags with a positive instance, and the Dice of all instances of positive bags."""
DICE_OF_MAP = "dice_of_map"
"""The mean at evidence 0 for scores with a level, and at the chosen threshold for others."""

NO_VALIDATION = "no validation predictions to choose a threshold on"
NO_LABELS = "no positive validation bag has instance labels to choose a threshold on"


def dice_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """Return the score threshold with the best pooled Dice, 2 TP / (called + positive).

    Ties are resolved towards the highest threshold. At least one instance must be positive.
    """
    order = np.argsort(-score, kind="stable")
    ranked, true_positives = score[order], np.cumsum(y[order])
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    dice = 2 * true_positives[ends] / (ends + 1 + true_positives[-1])
    return float(ranked[ends[np.argmax(dice)]])


def no_threshold_reason(validation: Pool | None) -> str | None:
    """Return the reason why no threshold can be chosen, or None.

    validation: the instances of positive validation bags; None without validation predictions.
    """
    if validation is None:
        return NO_VALIDATION
    if len(validation.y) == 0:
        return NO_LABELS
    if validation.y.all() or not validation.y.any():
        return f"only one class among {len(validation.y)} instances of positive validation bags"
    return None


def no_positive_reason(pool: Pool) -> str | None:
    """Return the reason why calls cannot be correct, or None; the pool is of positive bags."""
    return None if pool.y.any() else f"no positive instance among {len(pool.y)} of positive bags"


def dice_samples(pool: Pool, called: Bool[np.ndarray, " n"], *, draws: Draws) -> dict[str, Metric]:
    """Return the metrics of `DICE`.

    Args:
        pool: the instances of positive bags.
        called: whether each instance is called positive.
        draws: draws of bags with the data as row 0.
    """
    reason = no_positive_reason(pool)
    if reason:
        return dict.fromkeys(DICE, Metric.undefined(reason))
    bags = len(draws.member)

    def per_bag(value: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " bags"]:
        return np.bincount(pool.bag, weights=value, minlength=bags)

    hit, size = 2 * per_bag(pool.y & called), per_bag(pool.y) + per_bag(called)
    # The Dice of a bag is undefined without a positive instance.
    defined = per_bag(pool.y) > 0
    dice = np.divide(hit, size, out=np.zeros(bags), where=defined)
    pooled = ratio_of_sums(hit, size, draws=draws)
    count = draws.totals(defined[:, None])[:, 0]
    assert pooled.rows is not None
    return {
        "dice": ratio_of_sums(dice, defined, draws=draws),
        "dice_pooled": Metric.of(np.where(count > 0, pooled.rows, np.nan)),
    }
