"""Stage 7: one number to minimise, from the model's named terms."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

SCHEDULED = "kl"
"""The term that λ's schedule acts on."""


def objective(
    terms: Mapping[str, Tensor], *, weights: Mapping[str, float], kl_weight: float
) -> Float[Tensor, ""]:
    """L = Σ_k w_k L_k with λ on the KL: L_LL + λ L_KL, eq. (2), plus what else a method adds.

    Args:
        terms: scalars by name, as `Model.losses` gives them.
        weights: the method's own (`Model.loss_weights`); 1 where a term is not named.
        kl_weight: λ of this step.
    """
    total = None
    for name, value in terms.items():
        w = weights.get(name, 1.0) * (kl_weight if name == SCHEDULED else 1.0)
        # λ = 0 must not turn an infinite KL into NaN, here or in a gradient
        term = w * value if w else torch.zeros_like(value)
        total = term if total is None else total + term
    assert total is not None, "a model gives at least one term"
    return total
