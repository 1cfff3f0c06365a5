"""Stage 7: λ, the weight of the KL, as a function of the global step (so a resumed run goes on)."""

import math
from fractions import Fraction
from typing import Literal

from .errors import InputError

KLWeight = float | Literal["linear", "cyclical"]


def kl_weight(schedule: KLWeight, step: int, total: int) -> float:
    """λ at step t = 0 … T−1 of T.

    A number is constant. `linear` rises from 0 to 1 over the first half. `cyclical` (Fu et al. 2019
    as the paper sets it) is `cyclical(step, total)`.
    """
    if isinstance(schedule, int | float) and not isinstance(schedule, bool):
        if not 0 <= schedule < math.inf:
            raise InputError(f"kl_weight is {schedule}: a finite number, 0 or more")
        return float(schedule)
    if schedule == "linear":
        return linear(step, total)
    if schedule == "cyclical":
        return cyclical(step, total)
    raise InputError(f"kl_weight is {schedule!r}: a number, 'linear' or 'cyclical'")


def linear(step: int, total: int, *, share: float = 0.5) -> float:
    """From 0 to 1 over the first `share` of the steps, then 1."""
    ramp = _floor(share, total)
    return 1.0 if ramp == 0 else min(1.0, step / ramp)


def cyclical(step: int, total: int, *, cycles: int = 5, share: float = 0.8) -> float:
    """M cycles of K = ⌊T/M⌋ steps: λ rises over the first R = ⌊share · K⌋ of each, then stays 1.

    λ = 1 where R = 0, where T < M, and for the steps left over after the last whole cycle.
    """
    length = total // cycles
    ramp = _floor(share, length)
    if length == 0 or ramp == 0 or step >= cycles * length:
        return 1.0
    return min(1.0, (step % length) / ramp)


def _floor(share: float, steps: int) -> int:
    """⌊share · steps⌋ of the share as written: 0.57 · 100 is 57, in floats 56.99999999999999."""
    return int(Fraction(str(share)) * steps)
