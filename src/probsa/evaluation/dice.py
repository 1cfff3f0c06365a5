"""Dice of the instances that are called positive, at a threshold fixed on validation.

The threshold lies on the evidence of an instance (attention against uniform attention; scores.py),
since μ of attention has another level in every bag; on the score itself where that has no uniform.
"""

import numpy as np
from jaxtyping import Bool, Float

from .bootstrap import Draws
from .metrics import Metric, measured, undefined
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


def dice_metrics(
    pool: Pool, called: Bool[np.ndarray, " n"] | str, *, draws: Draws
) -> dict[str, Metric]:
    """Both Dice of calls on the instances of positive bags.

    Args:
        pool: their instances.
        called: whether each is called positive; text: why nothing can be called.
        draws: of bags.
    """
    if isinstance(called, str):
        return dict.fromkeys(DICE, undefined(called))
    if not pool.y.any():
        reason = f"no positive instance among {len(pool.y)} of positive bags"
        return dict.fromkeys(DICE, undefined(reason))
    both, sums = pool.y & called, pool.y.astype(np.int64) + called
    bags = len(draws.member)
    hit = np.bincount(pool.bag, weights=both, minlength=bags)
    size = np.bincount(pool.bag, weights=sums, minlength=bags)
    # A bag without a positive instance has no region to be met.
    judged = np.bincount(pool.bag, weights=pool.y, minlength=bags) > 0
    of_bag = np.divide(2 * hit, size, out=np.zeros(bags), where=judged)
    mean, count, pooled_hit, pooled_size = draws.totals(
        np.stack([of_bag, judged, hit, size], axis=1)
    ).T
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "dice": measured(of_bag.sum() / judged.sum(), mean / count),
            "dice_pooled": measured(
                2 * hit.sum() / size.sum(),
                np.where(count > 0, 2 * pooled_hit / pooled_size, np.nan),
            ),
        }
