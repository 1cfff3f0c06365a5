"""Attention pooling of S posterior samples at little more than the cost of one.

A linear classifier commutes with pooling, uᵀ Hᵀ softmax(f_s) = Σ_n softmax(f_s)_n (uᵀh_n), so every
instance is projected once to g_n (C numbers) and S samples cost O(N·S·C), not O(N·D·S).
On a CPU the samples come in blocks that stay in cache; the backward pass computes them again.
Shapes: n instances, s samples, c classes; blocks are sample-major (s, n).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core import segment_softmax, segment_sum
from ..errors import InputError
from ..variational import (
    Factorised,
    Field,
    Noise,
    Posterior,
    Sampler,
    Shapes,
    block_shapes,
    factorises,
    noise_blocks,
    noise_sizes,
    sample_blocks,
    sample_instances,
    stream_samples,
)

Watch = Callable[[int, Tensor, Tensor], None]


class _LinearPooling(torch.autograd.Function):
    """ℓ_sc = Σ_n softmax(f_s)_n g_nc for every bag, with the samples f of a `Factorised` q."""

    @staticmethod
    def forward(  # noqa: PLR0917 - apply() takes no names
        ctx: Any,
        q: Factorised,
        noise: Tensor | None,
        g: Tensor,
        sizes: list[int],
        *parameters: Tensor,
    ) -> Tensor:
        samples = 1 if noise is None else noise.numel() // len(g)
        logits = g.new_empty(len(sizes), samples, g.shape[1])
        bag_gs = g.T.contiguous().split(sizes, 1)
        shapes = block_shapes(noise, sizes)
        rows = logits.flatten(0, 1).split([s for _, s, _ in shapes])
        for ell_sc, (bag, a_sn, _) in zip(rows, _weights(q, noise, sizes, shapes), strict=True):
            torch.mm(a_sn, bag_gs[bag].T, out=ell_sc)
        ctx.save_for_backward(noise, g, logits, *parameters)
        ctx.q, ctx.sizes, ctx.shapes = q, sizes, shapes
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        noise, g, logits, *parameters = ctx.saved_tensors
        # dℓ_sc/df_sn = a_sn (g_nc − ℓ_sc), so the gradient of g and that of each parameter θ are
        # sums over samples of a_sn and of a_sn ∂f_sn/∂θ_n, times the columns of `d_sc`:
        # dL/dℓ_sc, and Σ_c ℓ_sc dL/dℓ_sc in the last one.
        d_sc = torch.cat([grad, (grad * logits).sum(2, keepdim=True)], 2).flatten(0, 1)
        a_sums = g.new_zeros(d_sc.shape[1], g.shape[0])
        own_sums = [torch.zeros_like(a_sums) for _ in parameters]
        a_bag_sums, *own_bag_sums = [v.split(ctx.sizes, 1) for v in (a_sums, *own_sums)]
        rows = d_sc.split([s for _, s, _ in ctx.shapes])
        weights = _weights(ctx.q, noise, ctx.sizes, ctx.shapes)
        derivatives: Sequence[Tensor | None] = ()
        for d_rows, (bag, a_sn, noise_sn) in zip(rows, weights, strict=True):
            a_bag_sums[bag].addmm_(d_rows.T, a_sn)
            derivatives = ctx.q.derivatives(noise_sn)
            left = sum(derivative is not None for derivative in derivatives)
            for sums, derivative in zip(own_bag_sums, derivatives, strict=True):
                if derivative is not None:
                    left -= 1  # the last product may overwrite the softmax
                    product = a_sn * derivative if left else a_sn.mul_(derivative)
                    sums[bag].addmm_(d_rows.T, product)
        totals = [
            a_sums if d is None else own for d, own in zip(derivatives, own_sums, strict=True)
        ]
        gradients = [(g.T * sums[:-1]).sum(0) - sums[-1] for sums in totals]
        return None, None, a_sums[:-1].T, None, *gradients


class _SampledPooling(torch.autograd.Function):
    """ℓ_sc = Σ_n softmax(f_s)_n g_nc for every bag, from samples of all instances (s, n)."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, g: Tensor, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(f, g)
        ctx.sizes = sizes
        parts = zip(f.split(sizes, 1), g.split(sizes), strict=True)
        return torch.stack([f_sn.softmax(1) @ g_nc for f_sn, g_nc in parts])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        f, g = ctx.saved_tensors
        d_f, d_g = torch.empty_like(f), torch.empty_like(g)
        columns = (v.split(ctx.sizes, 1) for v in (f, d_f))
        rows = (v.split(ctx.sizes) for v in (g, d_g))
        for grad_sc, f_sn, d_f_sn, g_nc, d_g_nc in zip(grad, *columns, *rows, strict=True):
            a_sn = f_sn.softmax(1)
            torch.mm(a_sn.T, grad_sc, out=d_g_nc)
            d_a = grad_sc @ g_nc.T
            torch.mul(a_sn, d_a - (a_sn * d_a).sum(1, keepdim=True), out=d_f_sn)
        return d_f, d_g, None


def _weights(
    q: Posterior, noise: Noise | None, sizes: Sequence[int], shapes: Shapes
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Yield bag, softmax(f) and noise of each block; the next one overwrites the softmax."""
    memory = q.mean.new_empty(max(s * n for _, s, n in shapes))
    blocks = sample_blocks(q, noise, sizes, shapes)
    for (_, s, n), (bag, f_sn, noise_sn) in zip(shapes, blocks, strict=True):
        yield bag, torch.softmax(f_sn, 1, out=memory.as_strided((s, n), (n, 1))), noise_sn


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
        if g.is_cuda:
            return _pool_at_once(q, g, sizes, eps=eps)
        if factorises(q):
            return _LinearPooling.apply(q, eps, g, list(sizes), *q.parameters)  # pyright: ignore[reportReturnType]
        if isinstance(q, Field):
            f = sample_instances(q, eps, sizes)
            return _SampledPooling.apply(f.T.contiguous(), g, list(sizes))  # pyright: ignore[reportReturnType]
        return _pool_by_autograd(q, g, sizes, eps=eps)


def _pool_at_once(
    q: Posterior, g: Tensor, sizes: Sequence[int], *, eps: Noise | None
) -> Float[Tensor, "bags samples classes"]:
    """Pool with one kernel for all bags: faster than blocks on a GPU."""
    f = sample_instances(q, eps, sizes)
    return segment_sum(segment_softmax(f, sizes)[:, :, None] * g[:, None, :], sizes)


def _pool_by_autograd(
    q: Posterior, g: Tensor, sizes: Sequence[int], *, eps: Noise | None
) -> Float[Tensor, "bags samples classes"]:
    """Pool block by block with autograd, which computes each block again in the backward pass."""
    sample, bag_gs = q.sampler(sizes), g.split(list(sizes))
    blocks = [
        checkpoint(
            _pool_block,
            sample,
            bag,
            noise_sn,
            bag_gs[bag],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for bag, noise_sn in noise_blocks(eps, block_shapes(eps, noise_sizes(q, sizes)))
    ]
    return torch.cat(blocks).unflatten(0, (len(sizes), -1))  # pyright: ignore[reportArgumentType]


def _pool_block(
    sample: Sampler, bag: int, noise_sn: Tensor | None, g_nc: Tensor
) -> Float[Tensor, "s classes"]:
    with _full_precision(g_nc):
        return sample(bag, noise_sn).softmax(1) @ g_nc


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
