"""Stage 7: the objective to minimise, from the model's named loss terms."""

from collections.abc import Mapping
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor


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
