"""Likelihoods of ordered grades 0 … K, such as ISUP: cumulative link and continuation ratio."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .continuation import log_stops
from .likelihoods import Likelihood, Predictive, in_float32

GAP = 1e-4
"""Smallest distance between two thresholds."""


class Ordinal(Likelihood):
    """A likelihood of grades, by the log-probability of each."""

    task = "ordinal"

    @abstractmethod
    def log_grades(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch grades"]:
        """Return log P(Y = k) of each sample."""

    def nll(
        self, logits: Float[Tensor, "bags samples columns"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        log_p = self.log_grades(in_float32(logits))
        target = y.long()[:, None, None].expand(-1, log_p.shape[1], 1)
        return -log_p.gather(2, target)[..., 0].mean(1)

    def at_least(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch steps"]:
        p = self.log_grades(logits).exp()
        return p.flip(-1).cumsum(-1).flip(-1)[..., 1:]

    def predict(self, logits: Float[Tensor, "bags samples columns"]) -> Predictive:
        p = self.log_grades(in_float32(logits)).exp()
        return Predictive(p.mean(1), p.std(1, correction=0))

    def expected_grade(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch 1"]:
        """Return Σ_k k P(Y = k) of each sample."""
        p = self.log_grades(logits).exp()
        return (p * torch.arange(p.shape[-1], device=p.device)).sum(-1, keepdim=True)


class CumulativeLink(Ordinal):
    """One logit η and ordered thresholds: P(Y ≥ k) = σ(η − θ_k) (proportional odds).

    The order θ_1 < … < θ_K holds by construction: each step is softplus(δ) + 1e-4.

    Args:
        starts: initial thresholds, rising: the logits of the training part's cumulative shares.
    """

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
        theta = self.thresholds.to(logits.dtype)
        above = logits - theta  # η − θ_k
        at_least, below = F.logsigmoid(above), F.logsigmoid(-above)
        # P(Y = k) = σ(θ_{k+1} − η) σ(η − θ_k) (1 − e^{θ_k − θ_{k+1}}), stable for any η
        between = torch.log(-torch.expm1(-theta.diff()))
        middle = below[..., 1:] + at_least[..., :-1] + between
        return torch.cat([below[..., :1], middle, at_least[..., -1:]], -1)

    def probability(self, logits: Float[Tensor, "*batch 1"]) -> Float[Tensor, "*batch 1"]:
        """Return the expected grade of each sample, which explanations differ."""
        return self.expected_grade(logits)


class Corn(Ordinal):
    """Continuation ratio: P(Y ≥ k | Y ≥ k − 1) = σ(z_k), with K logits, or one and K biases.

    Source: Shi, Cao & Raschka, 2023 (CORN), as a likelihood of the grade. Their loss divides by
    the number of (bag, step) pairs, this one by bags.

    Args:
        starts: of a model with one logit, the initial biases; None for K logits.
    """

    def __init__(self, *, starts: Sequence[float] | None = None) -> None:
        super().__init__()
        self.biases = None if starts is None else nn.Parameter(torch.tensor(starts))

    def _steps(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch steps"]:
        return logits if self.biases is None else logits + self.biases.to(logits.dtype)

    def log_grades(self, logits: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*batch grades"]:
        return log_stops(-self._steps(logits))

    def probability(
        self, logits: Float[Tensor, "*batch columns"]
    ) -> Float[Tensor, "*batch columns"]:
        """Return P(Y ≥ k) of each step; of a model with one logit, the expected grade."""
        if self.biases is not None:
            return self.expected_grade(logits)
        return F.logsigmoid(logits).cumsum(-1).exp()
