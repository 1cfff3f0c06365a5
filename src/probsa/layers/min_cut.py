"""Min-cut pooling: soft assignment S of N instances to K clusters that keeps neighbours together.

Bianchi, Grattarola & Alippi (ICML 2020), arXiv:1907.00481. A is sparse; no N × N matrix is formed.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Sizes, segment_sum
from .graph import Arcs, propagate, row_sum


def pool_clusters(
    soft: Float[Tensor, "n clusters"], h: Float[Tensor, "n d"], sizes: Sizes
) -> tuple[Float[Tensor, "bags clusters d"], Float[Tensor, "bags clusters clusters"]]:
    """Return SᵀH and SᵀS of each bag."""
    both = torch.cat([h, soft], 1)
    parts = zip(soft.split(list(sizes)), both.split(list(sizes)), strict=True)
    products = torch.stack([s.T @ v for s, v in parts])
    return products[..., : h.shape[1]], products[..., h.shape[1] :]


def mincut(soft: Float[Tensor, "n clusters"], a: Arcs) -> Float[Tensor, " bags"]:
    """Return −tr(SᵀAS) / tr(SᵀDS) of each bag, in [−1, 0]; 0 for a bag without edges."""
    degrees = row_sum(a, a.weights[:, None])[:, 0]
    around = (soft * propagate(a, soft)).sum(1)
    within, total = segment_sum(
        torch.stack([around, degrees * soft.square().sum(1)], 1), a.sizes
    ).unbind(1)
    return -within / torch.where(total > 0, total, 1.0)


def ortho(gram: Float[Tensor, "bags clusters clusters"]) -> Float[Tensor, " bags"]:
    """Return ‖SᵀS / ‖SᵀS‖ − I / √K‖ of each bag (Frobenius norms)."""
    k = gram.shape[1]
    even = torch.eye(k, dtype=gram.dtype, device=gram.device) / k**0.5
    return _size(gram / _size(gram)[:, None, None] - even)


def _size(v: Float[Tensor, "bags r c"]) -> Float[Tensor, " bags"]:
    # torch.norm adds the K² squares one by one; in float32 the gradient would lose four digits.
    squares = v.square().flatten(1).sum(1)
    return squares.clamp_min(torch.finfo(v.dtype).tiny).sqrt()
