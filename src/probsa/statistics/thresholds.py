"""Thresholds of positive calls (p ≥ t), chosen on validation bags.

The default has the best F1. `youden` maximises sensitivity + specificity (Youden, Cancer 1950),
`sensitivity=.95` finds nearly all positives, and `cost=c_fn:c_fp` weighs the two errors.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .metric import one_class_reason
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
    if len(labels) != len(score):
        raise InputError(f"{len(labels)} labels for {len(score)} probabilities")
    if not labels.any():
        return CallThreshold(DEFAULT, f"no positive bag among {len(labels)}: F1 is undefined")
    candidates, true, false = _candidates(labels, score)
    # A quotient of whole numbers, so that ties are exact.
    return _best(candidates, 2 * true / (true + false + labels.sum()))


def threshold_by_rule(rule: str, y: Flags, p: Values) -> CallThreshold:
    """Return the threshold that a rule chooses on validation bags.

    A rule is `youden`, `sensitivity=.95` or `cost=10:1` (a missed positive costs ten false ones).

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


def youden_threshold(y: Flags, p: Values) -> CallThreshold:
    """Return the threshold with the highest sensitivity + specificity.

    Candidates and ties are those of `choose_threshold`. It is 0.5 if there is one class only, with
    the reason.
    """
    reason = one_class_reason(y, what="bags")
    if reason:
        return CallThreshold(DEFAULT, f"{reason}: Youden's index is undefined")
    candidates, true, false = _candidates(y, p)
    # Of whole numbers, so that ties are exact.
    return _best(candidates, true * int((~y).sum()) - false * int(y.sum()))


def sensitivity_threshold(y: Flags, p: Values, *, at_least: float) -> CallThreshold:
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
        return CallThreshold(DEFAULT, reason)
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


def _candidates(y: Flags, p: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the candidate thresholds, and the true and false positives at each of them."""
    distinct, group = np.unique(p, return_inverse=True)
    below = np.append(0.0, distinct[:-1])
    middle = (below + distinct) / 2
    # Adjacent floats have no midpoint: the upper one separates them.
    middle[1:] = np.where(middle[1:] <= below[1:], distinct[1:], middle[1:])
    true, false = (np.bincount(group, weights=w)[::-1].cumsum()[::-1] for w in (y, ~y))
    return middle, true, false


def _best(candidates: Values, quality: Values) -> CallThreshold:
    best = candidates[quality == quality.max()]
    return CallThreshold(float(best[np.argmin(np.abs(best - DEFAULT))]))
