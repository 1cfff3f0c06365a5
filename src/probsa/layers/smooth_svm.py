"""The smooth top-1 SVM (Berrada, Zisserman & Kumar, ICLR 2018, arXiv:1802.07595).

It follows the authors' library, which uses the hard loss where the scores are so far apart that
smoothing has no effect. torchmil's copy takes the logarithm over instances instead of classes.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .attention import full_precision

THRESHOLD = 1000.0
"""Ratio of the two largest class probabilities from which the hard loss is used."""


def smooth_top1_svm(
    scores: Float[Tensor, "m classes"],
    y: Int[Tensor, " m"],
    *,
    alpha: float = 1.0,
    tau: float = 1.0,
) -> Float[Tensor, " m"]:
    """Return τ log Σ_j exp(m_j / τ) with m_j = s_j + α 1[j ≠ y] − s_y.

    If the two largest m_j differ by τ log 1000 or more, return max_j m_j.
    """
    s = full_precision(scores)
    other = torch.ones_like(s).scatter(1, y[:, None], 0.0)
    m = s + alpha * other - s.gather(1, y[:, None])
    first, second = s.detach().topk(2, dim=1).values.unbind(1)
    hard = first - second >= tau * math.log(THRESHOLD)
    return torch.where(hard, m.amax(1), tau * (m / tau).logsumexp(1))
