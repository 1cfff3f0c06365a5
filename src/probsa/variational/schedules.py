"""Stage 7: schedules of λ, the weight of the KL term, and of the learning rate.

λ depends on the global step and the learning rate on the epoch and the validation losses. A
checkpoint holds all of these, so a resumed run continues its schedules.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from ..errors import InputError

KLWeight = float | Literal["linear", "cyclical"]
RateSchedule = Literal["constant", "cosine", "step", "plateau"]

LOWER = 1e-4
"""Smallest decrease of the loss that ends a plateau."""


def kl_weight(schedule: KLWeight, step: int, total: int) -> float:
    """Return λ at step t = 0 … T−1 of T.

    A number is a constant λ. `linear` rises from 0 to 1 over the first half of the steps.
    `cyclical` (Fu et al. 2019, with the paper's settings) is the function `cyclical`.
    """
    if isinstance(schedule, int | float) and not isinstance(schedule, bool):
        if not 0 <= schedule < math.inf:
            raise InputError(f"kl_weight is {schedule}; expected a finite number, 0 or more")
        return float(schedule)
    if schedule == "linear":
        return linear(step, total)
    if schedule == "cyclical":
        return cyclical(step, total)
    raise InputError(f"kl_weight is {schedule!r}; expected a number, 'linear' or 'cyclical'")


def linear(step: int, total: int, *, share: float = 0.5) -> float:
    """Return a λ that rises from 0 to 1 over the first `share` of the steps and stays at 1."""
    ramp = _floor(share, total)
    return 1.0 if ramp == 0 else min(1.0, step / ramp)


def cyclical(step: int, total: int, *, cycles: int = 5, share: float = 0.8) -> float:
    """Return the λ of M cycles of K = ⌊T/M⌋ steps each.

    In each cycle λ rises from 0 to 1 over the first R = ⌊share · K⌋ steps and stays at 1. It is 1
    everywhere if R = 0 or T < M, and in the steps that remain after the last whole cycle.
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
    """Return the factor of the learning rate in epoch e = 0 … E−1 of E.

    `step` is s^⌊e / k⌋. `cosine` falls from 1 to s as s + (1 − s)(1 + cos(πe / E)) / 2. `plateau`
    multiplies by s after every k epochs in a row without a lower validation loss, as Keras does.

    Args:
        schedule: Name of the schedule.
        epoch: The epoch e.
        epochs: The number of epochs E.
        losses: The validation losses of the epochs before e.
        share: The factor s.
        every: The number of epochs k.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "step":
        return share ** (epoch // every)
    if schedule == "cosine":
        return share + (1 - share) * (1 + math.cos(math.pi * epoch / epochs)) / 2
    if schedule == "plateau":
        return share ** _plateaus(losses, every)
    raise InputError(
        f"schedule is {schedule!r}; expected 'constant', 'cosine', 'step' or 'plateau'"
    )


def _plateaus(losses: Sequence[float | None], every: int) -> int:
    lowest, waited, plateaus = math.inf, 0, 0
    for loss in losses:
        if loss is not None and loss < lowest - LOWER:
            lowest, waited = loss, 0
            continue
        waited += 1
        if waited == every:
            plateaus, waited = plateaus + 1, 0
    return plateaus


def _floor(share: float, steps: int) -> int:
    """Return ⌊share · steps⌋ in exact decimals: 0.57 · 100 is 57, not 56.99999999999999."""
    return int(Fraction(str(share)) * steps)
