"""Thresholds of positive calls (p ≥ t), chosen on validation bags."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import InputError
from .metric import one_class_reason, require
from .resample import Flags, Values

ROUNDING = 1e-9
DEFAULT = 0.5
RULES = "f1, youden, sensitivity=<share>, specificity=<share>, cost=<c_fn>:<c_fp>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """The threshold of a positive call (p ≥ value), and where it comes from."""

    value: float
    origin: Literal["stored", "chosen", "default"]
    """`stored` with predictions or a run, `chosen` on validation bags, or the `default`, 0.5."""
    bags: int = 0
    """How many validation bags there were to choose it on, if it is not a stored one."""
    reason: str | None = None
    """Why these bags could not choose it."""
    rule: str | None = None
    """The rule that the user asked for, such as `sensitivity=0.95`; None for the best F1."""
    reached: float | None = None
    """The sensitivity or specificity that the rule asks for, on the validation bags."""
    of_class: int | None = None
    """How many of these bags are positive for a sensitivity, negative for a specificity."""

    @property
    def asked(self) -> str | None:
        """`sensitivity` or `specificity`, if the rule asks for one."""
        name = (self.rule or "").partition("=")[0]
        return name if name in ("sensitivity", "specificity") else None

    @property
    def asked_share(self) -> str:
        """The sensitivity or specificity that the rule asks for, as it was written."""
        return (self.rule or "").partition("=")[2]


def choose_threshold(y: Flags, p: Values, *, rule: str = "f1") -> Threshold:
    """Return the threshold that a rule chooses on validation bags.

    `f1` has the largest F1, and `youden` the largest sensitivity + specificity (Youden, Cancer
    1950). Their candidates are the midpoints between neighbouring distinct probabilities, and half
    of the lowest one (all positive); ties are resolved towards 0.5, then towards the lower one.
    `sensitivity=.95` is the largest threshold with at least this sensitivity, the probability of a
    positive. `specificity=.95` is the smallest one with at least this specificity, midway between
    the probability of a negative and the next one. `cost=10:1` (a missed positive costs ten false
    ones) is c_fp / (c_fp + c_fn), at which both calls have the same expected cost; it needs no
    bags, but calibrated probabilities (Elkan, IJCAI 2001). It is the default, with the reason, if
    the bags lack a class that the rule needs.

    Raises:
        InputError: there is no such rule, or its number is out of range.
    """
    name, _, text = rule.partition("=")
    no_positive = f"no positive bag among {len(y)}"
    if rule == "f1":
        return _best(y, p) if y.any() else _default(y, f"{no_positive}: F1 is undefined")
    if rule == "youden":
        reason = one_class_reason(y, what="bags")
        if reason:
            return _default(y, f"{reason}: Youden's index is undefined")
        return _best(y, p, youden=True)
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if name in ("sensitivity", "specificity") and len(numbers) == 1:
        (share,) = numbers
        require(0 < share <= 1, f"the {name} is {share}, but expected above 0 and at most 1")
        return _with_share(y, p, share, rule=rule)
    if name == "cost" and len(numbers) == 2:
        missed, false = numbers
        require(
            0 < missed < math.inf and 0 < false < math.inf,
            f"the costs are {missed} and {false}, but expected numbers above 0",
        )
        return Threshold(value=false / (false + missed), origin="chosen", bags=len(y))
    raise InputError(f"the threshold rule is {rule!r}, but expected one of: {RULES}")


def _with_share(y: Flags, p: Values, share: float, *, rule: str) -> Threshold:
    """Return the threshold with at least this share of right calls, see `choose_threshold`."""
    name = rule.partition("=")[0]
    of_class = y if name == "sensitivity" else ~y
    count = int(of_class.sum())
    if count == 0:
        kind = "positive" if name == "sensitivity" else "negative"
        return _default(y, f"no {kind} bag among {len(y)}: {name} is undefined")
    right = max(math.ceil(share * count - ROUNDING), 1)
    ascending = np.sort(p[of_class].astype(np.float64))
    if name == "sensitivity":
        value = float(ascending[count - right])
        reached = float((p[y] >= value).mean())
    else:
        highest = float(ascending[right - 1])
        above = p[p > highest]
        following = float(above.min()) if len(above) else 1.0
        value = (highest + following) / 2
        if value <= highest:  # adjacent floats have no midpoint
            value = float(np.nextafter(highest, 2.0))
        reached = float((p[~y] < value).mean())
    return Threshold(
        value=value, origin="chosen", bags=len(y), rule=rule, reached=reached, of_class=count
    )


def _default(y: Flags, reason: str) -> Threshold:
    return Threshold(value=DEFAULT, origin="default", bags=len(y), reason=reason)


def _best(y: Flags, p: Values, *, youden: bool = False) -> Threshold:
    """Return the candidate with the best F1 or Youden's index."""
    distinct, group = np.unique(p.astype(np.float64), return_inverse=True)
    below = np.append(0.0, distinct[:-1])
    middle = (below + distinct) / 2
    # Adjacent floats have no midpoint: the upper one separates them.
    middle[1:] = np.where(middle[1:] <= below[1:], distinct[1:], middle[1:])
    true, false = (np.bincount(group, weights=w)[::-1].cumsum()[::-1] for w in (y, ~y))
    # Of whole numbers, so that ties are exact.
    index = true * int((~y).sum()) - false * int(y.sum())
    quality = index if youden else 2 * true / (true + false + y.sum())
    best = middle[quality == quality.max()]
    nearest = best[np.argmin(np.abs(best - DEFAULT))]
    return Threshold(value=float(nearest), origin="chosen", bags=len(y))
