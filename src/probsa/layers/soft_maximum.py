"""Pooling by a soft maximum: evidence that is high anywhere in a bag makes the bag's logit high.

    ℓ = α Σ_n softmax(β f)_n f_n + b

As β → 0 it is the mean of f, as β → ∞ the maximum. Instance n contributes α softmax(βf)_n f_n.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..variational import Likelihood
from .explanations import BagExplainer, PooledExplanation, joined


class SoftMaximum(nn.Module):
    """The learned α, β > 0 and b of each class; α and β start at 1, b at 0."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(classes))
        self.log_beta = nn.Parameter(torch.zeros(classes))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(
        self, f: Float[Tensor, "m s"], sizes: Sequence[int]
    ) -> Float[Tensor, "bags s classes"]:
        """Return the logits of all samples.

        Args:
            f: samples of all instances, of one class after another.
            sizes: number of instances of each bag; of all bags of a class, class after class.
        """
        bags = len(sizes) // len(self.log_alpha)
        alpha, beta, bias = (
            v.repeat_interleave(bags).to(f.dtype)
            for v in (self.log_alpha.exp(), self.log_beta.exp(), self.bias)
        )
        parts = zip(f.T.contiguous().split(list(sizes), 1), beta, strict=True)
        pooled = torch.stack([((b * f_sn).softmax(1) * f_sn).sum(1) for f_sn, b in parts])
        logits = alpha[:, None] * pooled + bias[:, None]
        return logits.view(-1, bags, f.shape[1]).permute(1, 2, 0)


@dataclass(frozen=True, slots=True)
class PooledEvidence:
    """Logits of all samples, and the moments over samples of each instance's weight."""

    logits: Float[Tensor, "bags samples classes"]
    weight_mean: Float[Tensor, "n classes"]
    weight_variance: Float[Tensor, "n classes"]
    explanation: PooledExplanation | None


Block = tuple[slice, Float[Tensor, "classes s n"]]
"""Sample numbers, and the samples of one bag."""


class EvidencePooling:
    """Pools the samples of one bag after another, block by block, without gradients.

    Args:
        pooling: The soft maximum.
        samples: Number of samples.
        likelihood: For explanations; None for no explanations.
    """

    def __init__(
        self, pooling: SoftMaximum, *, samples: int, likelihood: Likelihood | None
    ) -> None:
        self.pooling, self.samples, self.likelihood = pooling, samples, likelihood

    def __call__(self, blocks: Iterable[Iterable[Block]], *, like: Tensor) -> PooledEvidence:
        """Return what all bags give; `blocks` yields the blocks of each bag in turn."""
        p = self.pooling
        alpha, beta, bias = (
            v.to(like.dtype) for v in (p.log_alpha.exp(), p.log_beta.exp(), p.bias)
        )
        parts = [self._bag(own, alpha=alpha, beta=beta, bias=bias) for own in blocks]
        explained = [part.explanation for part in parts]
        return PooledEvidence(
            torch.cat([part.logits for part in parts]),
            torch.cat([part.weight_mean for part in parts]),
            torch.cat([part.weight_variance for part in parts]),
            joined(explained) if None not in explained else None,  # pyright: ignore
        )

    def _bag(
        self, blocks: Iterable[Block], *, alpha: Tensor, beta: Tensor, bias: Tensor
    ) -> PooledEvidence:
        logits = alpha.new_empty(self.samples, len(alpha))
        explainer: BagExplainer | None = None
        centre: Tensor | None = None
        first = second = alpha.new_zeros(())
        for rows, f in blocks:
            scores = beta[:, None, None] * f
            a, values = scores.softmax(2), alpha[:, None, None] * f
            logits[rows] = (a * values).sum(2).T + bias
            if centre is None:
                # sums of differences from one sample: a variance of small numbers survives float32
                centre = a[:, :1].clone()
                if self.likelihood is not None:
                    explainer = BagExplainer(f.shape[2], bias=bias, likelihood=self.likelihood)
            if explainer is not None:
                explainer.add(scores, a, values)
            a = a - centre
            first, second = first + a.sum(1), second + a.square().sum(1)
        assert centre is not None, "there is at least one sample"
        first, second = first / self.samples, second / self.samples
        variance = (second - first.square()).clamp_min(0)
        result = None if explainer is None else explainer.result()
        return PooledEvidence(logits[None], (first + centre[:, 0]).T, variance.T, result)
