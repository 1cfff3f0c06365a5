"""Thresholds of positive calls (p ≥ t), chosen on validation bags.

The default has the best F1. `youden` maximises sensitivity + specificity (Youden, Cancer 1950),
`sensitivity=.95` finds nearly all positives, and `cost=c_fn:c_fp` weighs the two errors.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .metric import check, one_class_reason
from .resample import Flags, Values

ROUNDING = 1e-9
DEFAULT = 0.5
RULES = "youden, sensitivity=<share>, cost=<c_fn>:<c_fp>"


@dataclass(frozen=True, slots=True)
class CallThreshold:
    """The threshold of a positive call (p ≥ value); `reason` explains the use of the default."""

    value: float
    reason: str | None = None


def choose_threshold(y: ArrayLike, p: ArrayLike) -> CallThreshold:
    """Return the threshold with the best F1 on these (validation) bags.

    Candidates are the midpoints between neighbouring distinct probabilities, and half of the lowest
    one (all positive). Ties are resolved towards 0.5, then towards the lower candidate. Without a
    positive bag, F1 is undefined and the threshold is 0.5, with the reason.

    Raises:
        InputError: there are not as many labels as probabilities.
    """
    labels, score = np.asarray(y, dtype=bool), np.asarray(p, dtype=np.float64)
    check({f"{len(labels)} labels for {len(score)} probabilities": len(labels) == len(score)})
    if not labels.any():
        return CallThreshold(DEFAULT, f"no positive bag among {len(labels)}: F1 is undefined")
    return _best(labels, score, youden=False)


def threshold_by_rule(rule: str, y: Flags, p: Values) -> CallThreshold:
    """Return the threshold that a rule chooses on validation bags.

    `youden` has the candidates and ties of `choose_threshold`. `sensitivity=.95` is the largest
    threshold with at least this sensitivity, the probability of a positive. `cost=10:1` (a missed
    positive costs ten false ones) is c_fp / (c_fp + c_fn), at which both calls have the same
    expected cost; it needs no bags, but calibrated probabilities (Elkan, IJCAI 2001). The threshold
    is 0.5 with the reason if the bags lack a class that the rule needs.

    Raises:
        InputError: there is no such rule, or its number is out of range.
    """
    name, _, text = rule.partition("=")
    if rule == "youden":
        reason = one_class_reason(y, what="bags")
        if reason:
            return CallThreshold(DEFAULT, f"{reason}: Youden's index is undefined")
        return _best(y, p, youden=True)
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if name == "sensitivity" and len(numbers) == 1:
        (share,) = numbers
        words = f"the sensitivity is {share}, but expected above 0 and at most 1"
        check({words: 0 < share <= 1})
        positives = np.sort(p[y])[::-1]
        if len(positives) == 0:
            reason = f"no positive bag among {len(y)}: sensitivity is undefined"
            return CallThreshold(DEFAULT, reason)
        called = max(math.ceil(share * len(positives) - ROUNDING), 1)
        return CallThreshold(float(positives[called - 1]))
    if name == "cost" and len(numbers) == 2:
        missed, false = numbers
        words = f"the costs are {missed} and {false}, but expected numbers above 0"
        check({words: 0 < missed < math.inf and 0 < false < math.inf})
        return CallThreshold(false / (false + missed))
    raise InputError(f"the threshold rule is {rule!r}, but expected one of: {RULES}")


def _best(y: Flags, p: Values, *, youden: bool) -> CallThreshold:
    """Return the candidate with the best F1 or Youden's index."""
    distinct, group = np.unique(p, return_inverse=True)
    below = np.append(0.0, distinct[:-1])
    middle = (below + distinct) / 2
    # Adjacent floats have no midpoint: the upper one separates them.
    middle[1:] = np.where(middle[1:] <= below[1:], distinct[1:], middle[1:])
    true, false = (np.bincount(group, weights=w)[::-1].cumsum()[::-1] for w in (y, ~y))
    # Of whole numbers, so that ties are exact.
    index = true * int((~y).sum()) - false * int(y.sum())
    quality = index if youden else 2 * true / (true + false + y.sum())
    best = middle[quality == quality.max()]
    return CallThreshold(float(best[np.argmin(np.abs(best - DEFAULT))]))
