"""Stage 7: the objective to minimise, and the schedules of λ and of the learning rate.

λ, the weight of the KL term, depends on the global step, and the learning rate on the epoch and the
validation losses. A checkpoint holds all of these, so a resumed run continues its schedules.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from .options import KLWeight, RateSchedule

CYCLES = 5
LOWER = 1e-4
"""Smallest decrease of the loss that ends a plateau."""


def objective(
    terms: Mapping[str, Tensor], *, weights: Mapping[str, float], kl_weight: float
) -> Float[Tensor, ""]:
    """Return L = Σ_k w_k L_k: L_LL + λ L_KL, eq. (2), plus any further terms of a method.

    Args:
        terms: Scalar losses by name, as returned by `Model.losses`; λ multiplies `kl`.
        weights: The method's weights of its terms (`Model.loss_weights`), by default 1.
        kl_weight: The weight λ of the KL term at this step.
    """
    weighted = []
    for name, value in terms.items():
        w = weights.get(name, 1.0) * (kl_weight if name == "kl" else 1.0)
        # With λ = 0, an infinite KL must not become NaN, here or in a gradient.
        weighted.append(w * value if w else torch.zeros_like(value))
    return reduce(torch.add, weighted)


def kl_weight(schedule: KLWeight, step: int, total: int) -> float:
    """Return λ at step t = 0 … T−1 of T.

    A number is a constant λ. `linear` rises from 0 to 1 over the first half of the steps.
    `cyclical` (Fu et al. 2019, with the paper's settings) has 5 cycles of K = ⌊T/5⌋ steps. In each,
    λ rises from 0 to 1 over the first R = ⌊0.8 K⌋ steps and stays at 1. It is 1 everywhere if
    R = 0, and in the steps that remain after the last whole cycle.
    """
    if schedule == "linear":
        ramp = total // 2
    elif schedule == "cyclical":
        length = total // CYCLES
        ramp = 4 * length // 5 if step < CYCLES * length else 0
        step = step % length if ramp else 0
    else:
        return float(schedule)
    return step / ramp if step < ramp else 1.0


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
    if schedule == "step":
        return share ** (epoch // every)
    if schedule == "cosine":
        return share + (1 - share) * (1 + math.cos(math.pi * epoch / epochs)) / 2
    if schedule == "constant":
        return 1.0
    lowest = math.inf
    waiting = 0  # epochs since the lowest loss
    plateaus = 0
    for loss in losses:
        if loss is not None and loss < lowest - LOWER:
            lowest = loss
            waiting = 0
        else:
            waiting += 1
            if waiting % every == 0:
                plateaus += 1
    return share**plateaus
