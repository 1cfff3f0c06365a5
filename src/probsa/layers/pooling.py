"""Pooling of S posterior samples at little more than the cost of one.

A linear classifier commutes with pooling, uᵀ Hᵀ softmax(f_s) = Σ_n softmax(f_s)_n (uᵀh_n), so every
instance is projected once to g_n (C numbers) and S samples cost O(N·S·C), not O(N·D·S).
Shapes: n instances, s samples, c classes; weights and values have their instances last.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..core import Segments, as_segments, is_on_cpu, segment_softmax, segment_sum, without_autocast
from ..variational import block_size

Scores = Float[Tensor, "s n"] | Float[Tensor, "classes s n"]
"""Logits of the weights, shared by all classes or one for each."""
Weights = Float[Tensor, "s n"] | Float[Tensor, "classes s n"]
"""softmax(scores) over the instances of a bag."""
Values = Float[Tensor, "classes n"] | Float[Tensor, "classes s n"]
"""What the weights average, fixed or one for each sample."""


@dataclass(frozen=True, slots=True)
class Readout:
    """The way from samples of f to logits, ℓ = Σ_n softmax(scores)_n values_n + bias.

    Attention has scores f and values g that are fixed: g is given. Evidence has scores βf and
    values αf: alpha and beta are given.
    """

    bias: Float[Tensor, " classes"]
    g: Float[Tensor, "classes n"] | None = None
    """Of attention: the instances as the linear classifier projects them."""
    alpha: Float[Tensor, " classes"] | None = None
    """Of evidence: the factor of the values; see `SoftMaximum`."""
    beta: Float[Tensor, " classes"] | None = None
    """Of evidence: the factor of the scores."""

    def __call__(self, f: Scores) -> tuple[Scores, Values]:
        """Return the scores and the values, given samples of f."""
        if self.alpha is None or self.beta is None:
            assert self.g is not None
            return f, self.g
        f = f[None] if f.ndim == 2 else f
        return self.beta[:, None, None] * f, self.alpha[:, None, None] * f


class SoftMaximum(nn.Module):
    """Pooling of evidence: high evidence anywhere in a bag makes the bag's logit high.

        ℓ = α Σ_n softmax(β f)_n f_n + b

    As β → 0 it is the mean of f, as β → ∞ the maximum. α, β > 0 and b of each class are learned;
    α and β start at 1, b at 0. Evidence from which a `level` was subtracted has the logits that it
    had: b is larger by α · level.
    """

    level: float | tuple[float, ...] = 0.0

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(classes))
        self.log_beta = nn.Parameter(torch.zeros(classes))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, like: Tensor) -> Readout:
        """Return the readout, in the dtype of `like`."""
        alpha = self.log_alpha.exp().to(like.dtype)
        beta = self.log_beta.exp().to(like.dtype)
        bias = self.bias.to(like.dtype)
        if self.level != 0.0:
            bias = bias + alpha * torch.tensor(self.level, dtype=like.dtype, device=like.device)
        return Readout(bias, alpha=alpha, beta=beta)


def pool(scores: Scores, values: Values, sizes: Sequence[int]) -> Float[Tensor, "bags s classes"]:
    """Return Σ_n softmax(scores)_n values_n of each bag and sample: the logits without their bias.

    Bags have `sizes` instances, one bag after another.
    """
    with without_autocast(values):
        if is_on_cpu(scores):
            # bag by bag: what one of them needs fits into the cache
            scores_of_bags = scores.split(list(sizes), -1)
            values_of_bags = values.split(list(sizes), -1)
            bags = zip(scores_of_bags, values_of_bags, strict=True)
            return torch.stack([weigh(s.softmax(-1), v) for s, v in bags])
        # one kernel for all bags: both become (n, classes, s), where 1 stands for any number
        s_ncs = scores.movedim(-1, 0)
        if s_ncs.ndim == 2:
            s_ncs = s_ncs[:, None]
        v_ncs = values.movedim(-1, 0)
        if v_ncs.ndim == 2:
            v_ncs = v_ncs[..., None]
        segments = as_segments(sizes, scores.device)
        pooled: Tensor = _PooledTogether.apply(s_ncs, v_ncs, segments)  # pyright: ignore
        return pooled.transpose(1, 2)


class _PooledTogether(torch.autograd.Function):
    """Σ_n softmax(s)_n v_n of all bags, with the gradients in closed form.

    With ℓ = Σ_n a_n v_n and its gradient G, those of v and s are a_n G and a_n Σ_c G (v_n − ℓ).
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, v: Tensor, segments: Segments) -> Tensor:
        a = segment_softmax(s, segments)
        pooled = segment_sum(a * v, segments)
        ctx.save_for_backward(a, v, pooled)
        ctx.segments = segments
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore
        a, v, pooled = ctx.saved_tensors
        # rows of both at once: the bag's logits and their gradients
        rows = ctx.segments.spread(torch.stack([pooled, grad], 1))
        pooled_n, grad_n = rows.unbind(1)
        by_value = (a * grad_n).sum_to_size(v.shape)
        by_score = (a * grad_n * (v - pooled_n)).sum_to_size(a.shape)
        return by_score, by_value, None


def weigh(a: Weights, values: Values) -> Float[Tensor, "s classes"]:
    """Return Σ_n a_n values_n of one bag, given its weights."""
    if a.ndim == 2 and values.ndim == 2:
        return a @ values.T
    if values.ndim == 2:  # the same for all samples
        values = values[:, None]
    return (a * values).sum(-1).T


def cached_blocks(scores: Scores, values: Values) -> Iterator[tuple[Scores, Values]]:
    """Yield the samples of one bag, so many at a time that a block stays in cache."""
    step = max(1, block_size(scores) // scores.shape[-1])
    for start in range(0, scores.shape[-2], step):
        samples = slice(start, start + step)
        block_values = values
        if values.ndim == 3:  # otherwise the same for all samples
            block_values = values[:, samples]
        yield scores[..., samples, :], block_values


def pool_vectors(
    f: Float[Tensor, "n samples"], h: Float[Tensor, "n d"], sizes: Sequence[int]
) -> Float[Tensor, "bags samples d"]:
    """Return z = Hᵀ softmax(f_s) of each sample, for a classifier that is not linear: O(N·D·S)."""
    return pool(f.T, h.to(f.dtype).T, sizes)


class SampledWeights(NamedTuple):
    """What samples of f say about the weight w_n = softmax(f)_n of each instance."""

    mean: Float[Tensor, "n *classes"]
    variance: Float[Tensor, "n *classes"]
    above_uniform: Float[Tensor, "n *classes"]
    """The share of the samples in which w_n > 1 / N, the uniform weight in a bag of N instances."""


class WeightSums:
    """Sums over samples of the weights of one bag, added block by block.

    Sums are of differences from the first sample, so that a variance of small numbers survives
    float32.
    """

    def __init__(self, first: Weights) -> None:
        self.centre = first.narrow(-2, 0, 1).clone()
        self.uniform = 1 / first.shape[-1]
        self.count = 0
        self.differences = torch.zeros_like(self.centre.squeeze(-2))
        self.squares = torch.zeros_like(self.differences)
        self.above = torch.zeros_like(self.differences)

    def add(self, a: Weights) -> None:
        """Add the weights of some samples."""
        self.above += (a > self.uniform).sum(-2)
        difference = a - self.centre
        self.differences += difference.sum(-2)
        self.squares += difference.square_().sum(-2)
        self.count += a.shape[-2]

    def result(self) -> SampledWeights:
        """Return the moments of each weight, and how often it is above the uniform one."""
        # mean and variance of the differences: E[d], and E[d²] − E[d]²
        mean = self.differences / self.count
        variance = (self.squares / self.count - mean.square()).clamp_min(0)
        return SampledWeights(
            mean=(mean + self.centre.squeeze(-2)).movedim(-1, 0),
            variance=variance.movedim(-1, 0),
            above_uniform=(self.above / self.count).movedim(-1, 0),
        )


def sampled_weights(f: Float[Tensor, "n samples *classes"], sizes: Sequence[int]) -> SampledWeights:
    """Return what the samples of packed bags say about the weights of their instances."""
    a = segment_softmax(f, sizes)
    segments = as_segments(sizes, f.device)
    uniform = segments.spread(segments.counts.to(a.dtype).reciprocal())
    above = (a > uniform.view(-1, *[1] * (a.ndim - 1))).to(a.dtype).mean(1)
    return SampledWeights(a.mean(1), a.var(1, correction=0), above)
