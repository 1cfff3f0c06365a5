"""Attention pooling of S posterior samples at little more than the cost of one.

A linear classifier commutes with pooling, uᵀ Hᵀ softmax(f_s) = Σ_n softmax(f_s)_n (uᵀh_n), so every
instance is projected once to g_n (C numbers) and S samples cost O(N·S·C), not O(N·D·S).
In prediction the samples come in blocks that stay in cache.
Shapes: n instances, s samples, c classes; blocks are sample-major (s, n).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import segment_softmax, segment_sum
from ..errors import InputError
from ..variational import (
    Noise,
    Posterior,
    sample_instances,
    stream_samples,
)

Watch = Callable[[int, Tensor, Tensor], None]


def pool_linear(
    q: Posterior, g: Float[Tensor, "n classes"], sizes: Sequence[int], *, eps: Noise | None = None
) -> Float[Tensor, "bags samples classes"]:
    """Return the logits (without the bias) of each sample, from the class scores g of instances.

    Args:
        q: Posterior of the attention logits. One that is not stochastic gives one sample, and may
            have a mean (n, classes), which pools each class by its own attention map.
        g: uᵀh_n for each instance and class.
        sizes: Number of instances of each bag.
        eps: The noise of the samples (see `sample_major`); ignored if q is not stochastic.
    """
    g = g.to(q.mean.dtype)
    if not q.stochastic:
        eps = None
    elif eps is None or q.mean.ndim == 2:
        raise InputError("a stochastic posterior needs noise, and has one attention map")
    with _full_precision(g):
        if q.mean.ndim == 2:
            return segment_sum(segment_softmax(q.mean, sizes) * g, sizes)[:, None]
        f = sample_instances(q, eps, sizes)
        if g.is_cuda:  # one kernel for all bags
            return segment_sum(segment_softmax(f, sizes)[:, :, None] * g[:, None, :], sizes)
        parts = zip(f.T.contiguous().split(list(sizes), 1), g.split(list(sizes)), strict=True)
        return torch.stack([f_sn.softmax(1) @ g_nc for f_sn, g_nc in parts])


def pool_vectors(
    f: Float[Tensor, "n samples"], h: Float[Tensor, "n d"], sizes: Sequence[int]
) -> Float[Tensor, "bags samples d"]:
    """Return z = Hᵀ softmax(f_s) of each sample, for a classifier that is not linear: O(N·D·S)."""
    parts = zip(f.split(list(sizes)), h.split(list(sizes)), strict=True)
    with _full_precision(h):
        return torch.stack([f_b.softmax(0).T @ h_b for f_b, h_b in parts])


def _full_precision(like: Tensor) -> torch.autocast:
    """Turn autocast off: a sum over 10⁴ instances in bfloat16 would be wrong by 0.4 %."""
    return torch.autocast(like.device.type, enabled=False)


def weight_moments(
    f: Float[Tensor, "n samples *classes"], sizes: Sequence[int]
) -> tuple[Float[Tensor, "n *classes"], Float[Tensor, "n *classes"]]:
    """Return the mean and the variance over samples of the weights softmax(f)_n."""
    a = segment_softmax(f, sizes)
    return a.mean(1), a.var(1, correction=0)


@dataclass(frozen=True, slots=True)
class Pooled:
    """Logits of all samples, and the moments over samples of each instance's weight."""

    logits: Float[Tensor, "bags samples classes"]
    weight_mean: Float[Tensor, " n"]
    weight_variance: Float[Tensor, " n"]


def pool_streamed(
    q: Posterior,
    g: Float[Tensor, "n classes"],
    sizes: Sequence[int],
    *,
    samples: int,
    generators: Sequence[torch.Generator],
    watch: Watch | None = None,
) -> Pooled:
    """Pool as `pool_linear` does, without gradients, with noise drawn block by block.

    Nothing of size n x samples is stored. Also returns the moments of the weights softmax(f)_n.

    Args:
        q: A stochastic posterior.
        g: uᵀh_n for each instance and class.
        sizes: Number of instances of each bag.
        samples: Number of samples.
        generators: One generator per bag.
        watch: Called with each block's bag, samples f and weights softmax(f), to read them.
    """
    g = g.to(q.mean.dtype)
    logits = g.new_empty(len(sizes), samples, g.shape[1])
    first, second = torch.zeros_like(q.mean), torch.zeros_like(q.mean)
    bags = zip(*(v.split(list(sizes)) for v in (q.mean, g, first, second)), strict=True)
    with _full_precision(g):
        streams = stream_samples(q, sizes, samples=samples, generators=generators)
        for b, (blocks, (mean_n, g_nc, first_n, second_n)) in enumerate(
            zip(streams, bags, strict=True)
        ):
            # Sums of differences from softmax(μ): a variance of small numbers survives float32.
            centre_n = mean_n.softmax(0)
            room: Tensor | None = None
            for rows, f_sn in blocks:
                room = torch.empty_like(f_sn) if room is None else room
                a_sn = torch.softmax(f_sn, 1, out=room[: len(f_sn)])
                torch.mm(a_sn, g_nc, out=logits[b, rows])
                if watch is not None:
                    watch(b, f_sn, a_sn)
                first_n += a_sn.sub_(centre_n).sum(0)
                second_n += a_sn.square_().sum(0)
            first_n /= samples
            second_n.div_(samples).sub_(first_n.square()).clamp_min_(0)
            first_n += centre_n
    return Pooled(logits, first, second)
