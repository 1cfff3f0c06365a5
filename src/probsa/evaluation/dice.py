"""Dice of the instances that are called positive, at a threshold fixed on validation.

The threshold lies on the evidence of an instance (attention against uniform attention; scores.py),
since μ of attention has another level in every bag; on the score itself where that has no uniform.
"""

import numpy as np
from jaxtyping import Bool, Float

from ..statistics import Draws, Metric, Sampled, none, share, with_data
from .pools import Pool

DICE = ("dice", "dice_pooled")
"""The mean over positive bags with a positive instance, and that of all their instances at once."""

NO_VALIDATION = "no validation predictions to choose a threshold on"
NO_LABELS = "no positive validation bag has instance labels to choose a threshold on"


def dice_threshold(y: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> float:
    """The score from which calls have the best pooled Dice, 2 TP / (called + positive).

    Of thresholds with the same Dice the highest is taken. Needs a positive instance.
    """
    order = np.argsort(-score, kind="stable")
    ranked, true = score[order], np.cumsum(y[order])
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    dice = 2 * true[ends] / (ends + 1 + true[-1])
    return float(ranked[ends[np.argmax(dice)]])


def no_threshold(held: Pool | None) -> str | None:
    """The reason why validation gives no threshold, if so.

    held: the instances of positive validation bags; None: there are no validation predictions.
    """
    if held is None:
        return NO_VALIDATION
    if len(held.y) == 0:
        return NO_LABELS
    if held.y.all() or not held.y.any():
        return f"only one class among {len(held.y)} instances of positive validation bags"
    return None


def dice_metrics(pool: Pool, called: Bool[np.ndarray, " n"], *, draws: Draws) -> dict[str, Metric]:
    """Both Dice of calls on the instances of positive bags.

    Args:
        pool: their instances.
        called: whether each is called positive.
        draws: of bags.
    """
    found = dice_samples(pool, called, draws=with_data(draws))
    return {name: s.metric() for name, s in found.items()}


def dice_samples(pool: Pool, called: Bool[np.ndarray, " n"], *, draws: Draws) -> dict[str, Sampled]:
    """The rows of `dice_metrics`; `draws` of bags with the data as row 0."""
    if not pool.y.any():
        reason = f"no positive instance among {len(pool.y)} of positive bags"
        return dict.fromkeys(DICE, none(reason))
    bags = len(draws.member)

    def of_bags(value: Bool[np.ndarray, " n"]) -> Float[np.ndarray, " bags"]:
        return np.bincount(pool.bag, weights=value, minlength=bags)

    hit, size = 2 * of_bags(pool.y & called), of_bags(pool.y) + of_bags(called)
    # A bag without a positive instance has no region to be met.
    judged = of_bags(pool.y) > 0
    of_bag = np.divide(hit, size, out=np.zeros(bags), where=judged)
    pooled = share(hit, size, draws=draws)
    count = draws.totals(judged[:, None])[:, 0]
    assert pooled.rows is not None
    return {
        "dice": share(of_bag, judged, draws=draws),
        "dice_pooled": Sampled(rows=np.where(count > 0, pooled.rows, np.nan)),
    }
