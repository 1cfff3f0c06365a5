"""Thresholds of positive calls (p ≥ t) by rules other than F1.

`youden` maximises sensitivity + specificity (Youden, Cancer 1950), `sensitivity=.95` finds nearly
all positives, and `cost=c_fn:c_fp` weighs the two errors. The data are validation bags.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from ..errors import InputError
from .metric import one_class_reason

ROUNDING = 1e-9
RULES = "youden, sensitivity=<share>, cost=<c_fn>:<c_fp>"


@dataclass(frozen=True, slots=True)
class CallThreshold:
    """The threshold of a positive call (p ≥ value); `reason` explains the use of the default."""

    value: float
    reason: str | None = None


def threshold_by_rule(
    rule: str, y: Bool[np.ndarray, " bags"], p: Float[np.ndarray, " bags"]
) -> CallThreshold:
    """Return the threshold that a rule chooses on validation bags.

    Args:
        rule: `youden`, `sensitivity=.95` or `cost=10:1` (a missed positive costs ten false ones).
        y: whether each bag is positive.
        p: the probability of each bag.

    Raises:
        InputError: there is no such rule, or its number is out of range.
    """
    name, _, text = rule.partition("=")
    if name == "youden" and not text:
        return youden_threshold(y, p)
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if name == "sensitivity" and len(numbers) == 1:
        return sensitivity_threshold(y, p, at_least=numbers[0])
    if name == "cost" and len(numbers) == 2:
        return CallThreshold(cost_threshold(false_negative=numbers[0], false_positive=numbers[1]))
    raise InputError(f"the threshold rule is {rule!r}, but expected one of: {RULES}")


def youden_threshold(y: Bool[np.ndarray, " bags"], p: Float[np.ndarray, " bags"]) -> CallThreshold:
    """Return the threshold with the highest sensitivity + specificity.

    Candidates are the midpoints between neighbouring distinct probabilities, and half of the lowest
    one. Ties are resolved towards 0.5, then towards the lower candidate. It is 0.5 if there is one
    class only, with the reason.
    """
    reason = one_class_reason(y, what="bags")
    if reason:
        return CallThreshold(0.5, f"{reason}: Youden's index is undefined")
    distinct, group = np.unique(p, return_inverse=True)
    below = np.append(0.0, distinct[:-1])
    middle = (below + distinct) / 2
    # Adjacent floats have no midpoint: the upper one separates them.
    middle[1:] = np.where(middle[1:] <= below[1:], distinct[1:], middle[1:])
    true = np.bincount(group, weights=y)[::-1].cumsum()[::-1]
    false = np.bincount(group, weights=~y)[::-1].cumsum()[::-1]
    # Of integers, so that ties are exact.
    index = true * int((~y).sum()) - false * int(y.sum())
    best = np.flatnonzero(index == index.max())
    return CallThreshold(float(middle[best[np.argmin(np.abs(middle[best] - 0.5))]]))


def sensitivity_threshold(
    y: Bool[np.ndarray, " bags"], p: Float[np.ndarray, " bags"], *, at_least: float
) -> CallThreshold:
    """Return the largest threshold with at least this sensitivity, the probability of a positive.

    It is 0.5 without a positive bag, with the reason.

    Raises:
        InputError: `at_least` is not above 0 and at most 1.
    """
    if not 0 < at_least <= 1:
        raise InputError(f"the sensitivity is {at_least}, but expected above 0 and at most 1")
    positives = np.sort(p[y])[::-1]
    if len(positives) == 0:
        reason = f"no positive bag among {len(y)}: sensitivity is undefined"
        return CallThreshold(0.5, reason)
    called = max(math.ceil(at_least * len(positives) - ROUNDING), 1)
    return CallThreshold(float(positives[called - 1]))


def cost_threshold(*, false_negative: float, false_positive: float) -> float:
    """Return c_fp / (c_fp + c_fn), at which both calls have the same expected cost.

    It needs no bags, but calibrated probabilities (Elkan, IJCAI 2001).

    Raises:
        InputError: a cost is not above 0 and finite.
    """
    if not (0 < false_negative < math.inf and 0 < false_positive < math.inf):
        raise InputError(
            f"the costs are {false_negative} and {false_positive}, but expected numbers above 0"
        )
    return false_positive / (false_positive + false_negative)
