"""The likelihood of ordered grades 0 … K, such as ISUP: a cumulative link."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .likelihoods import Likelihood, Predictive, in_float32

GAP = 1e-4
"""Smallest distance between two thresholds."""


class CumulativeLink(Likelihood):
    """One logit η and ordered thresholds: P(Y ≥ k) = σ(η − θ_k) (proportional odds).

    The order θ_1 < … < θ_K holds by construction: each step is softplus(δ) + 1e-4.

    Args:
        starts: initial thresholds, rising: the logits of the training part's cumulative shares.
    """

    task = "ordinal"

    def __init__(self, *, starts: Sequence[float]) -> None:
        super().__init__()
        theta = torch.tensor(starts)
        steps = (theta.diff() - GAP).clamp_min(1e-3)
        self.first = nn.Parameter(theta[:1].clone())
        self.steps = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus's inverse

    @property
    def thresholds(self) -> Float[Tensor, " k"]:
        """θ_1 … θ_K."""
        return torch.cat([self.first, self.first + (F.softplus(self.steps) + GAP).cumsum(0)])

    def log_grades(self, logits: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch grades"]:
        """Return log P(Y = k) of each sample."""
        theta = self.thresholds.to(logits.dtype)
        above = logits - theta  # η − θ_k
        at_least, below = F.logsigmoid(above), F.logsigmoid(-above)
        # P(Y = k) = σ(θ_{k+1} − η) σ(η − θ_k) (1 − e^{θ_k − θ_{k+1}}), stable for any η
        between = torch.log(-torch.expm1(-theta.diff()))
        middle = below[..., 1:] + at_least[..., :-1] + between
        return torch.cat([below[..., :1], middle, at_least[..., -1:]], -1)

    def nll(self, logits: Float[Tensor, "bags samples 1"], y: Tensor) -> Float[Tensor, " bags"]:
        log_p = self.log_grades(in_float32(logits))
        target = y.long()[:, None, None].expand(-1, log_p.shape[1], 1)
        return -log_p.gather(2, target)[..., 0].mean(1)

    def at_least(self, logits: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch steps"]:
        p = self.log_grades(logits).exp()
        return p.flip(-1).cumsum(-1).flip(-1)[..., 1:]

    def predict(self, logits: Float[Tensor, "bags samples 1"]) -> Predictive:
        p = self.log_grades(in_float32(logits)).exp()
        return Predictive(p.mean(1), p.std(1, correction=0))

    def probability(self, logits: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch 1"]:
        """Return the expected grade Σ_k k P(Y = k) of each sample, which explanations differ."""
        p = self.log_grades(logits).exp()
        return (p * torch.arange(p.shape[-1], device=p.device)).sum(-1, keepdim=True)
