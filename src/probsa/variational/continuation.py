"""Continuation ratios: a process that stops at step k with probability h_k if it has come so far.

Discrete hazards of survival times and CORN's grades (Shi, Cao & Raschka 2023) are both of this
form: the hazard of an event is σ(ℓ), and that of staying at a grade is σ(−z).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def log_survival(stop: Float[Tensor, "*batch steps"]) -> Float[Tensor, "*batch steps"]:
    """Return log Π_{j ≤ k} (1 − h_j), the log-probability of passing step k, with h = σ(stop)."""
    return F.logsigmoid(-stop).cumsum(-1)


def log_stops(stop: Float[Tensor, "*batch steps"]) -> Float[Tensor, "*batch steps_plus_1"]:
    """Return the log-probability of stopping at each step and, last, of passing all of them."""
    passed = log_survival(stop)
    before = torch.cat([torch.zeros_like(passed[..., :1]), passed[..., :-1]], -1)
    return torch.cat([before + F.logsigmoid(stop), passed[..., -1:]], -1)
