"""Stage 7: λ, the weight of the KL, by the global step; the learning rate's factor by the epoch.

Both are functions of what a checkpoint holds, so a resumed run goes on.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from ..errors import InputError

KLWeight = float | Literal["linear", "cyclical"]
RateSchedule = Literal["constant", "cosine", "step", "plateau"]

LOWER = 1e-4
"""A loss that is less than this below the lowest one is on the plateau."""


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


def rate_factor(
    schedule: RateSchedule,
    *,
    epoch: int,
    epochs: int,
    losses: Sequence[float | None] = (),
    share: float = 0.2,
    every: int = 10,
) -> float:
    """What the learning rate is multiplied by in epoch e = 0 … E−1 of E.

    `step`: s^⌊e / k⌋. `cosine`: from 1 to s as s + (1 − s)(1 + cos(πe / E)) / 2. `plateau`: s once
    for every k epochs in a row without a lower validation loss (Keras's rule, CAMIL's).

    Args:
        schedule: which.
        epoch: e.
        epochs: E.
        losses: the validation losses of the epochs before e.
        share: s.
        every: k.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "step":
        return share ** (epoch // every)
    if schedule == "cosine":
        return share + (1 - share) * (1 + math.cos(math.pi * epoch / epochs)) / 2
    if schedule == "plateau":
        return share ** _plateaus(losses, every)
    raise InputError(f"schedule is {schedule!r}: 'constant', 'cosine', 'step' or 'plateau'")


def _plateaus(losses: Sequence[float | None], every: int) -> int:
    lowest, waited, found = math.inf, 0, 0
    for loss in losses:
        if loss is not None and loss < lowest - LOWER:
            lowest, waited = loss, 0
            continue
        waited += 1
        if waited == every:
            found, waited = found + 1, 0
    return found


def _floor(share: float, steps: int) -> int:
    """⌊share · steps⌋ of the share as written: 0.57 · 100 is 57, in floats 56.99999999999999."""
    return int(Fraction(str(share)) * steps)
