"""Attention pooling of S posterior samples for the price of one: specification 5.

A linear classifier commutes with pooling, uᵀ Hᵀ softmax(f_s) = Σ_n softmax(f_s)_n (uᵀh_n), so every
instance is projected once to g_n (C numbers) and S samples cost O(N·S·C), not O(N·D·S).
On a CPU the samples go through in blocks that stay in cache; the backward pass computes the softmax
weights again. Shapes: n instances, s samples, c classes. Blocks are sample-major (s, n): products
with them have n as their contiguous dimension (5 to 8 times as fast as the other way).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import segment_softmax, segment_sum
from ..variational import Dirac, Posterior

BLOCK = 1 << 17
"""Numbers in a block: two blocks and what they are made of fit a core's second-level cache."""
AHEAD = 16
"""Blocks of noise that prediction draws at a time: enough to keep every thread busy."""

Noise = Float[Tensor, " n_times_samples"]
"""ε of all bags, one bag after another, each sample-major (s, n): as `sample_major` stores it."""


def sample_major(noise: Float[Tensor, "n samples"], sizes: Sequence[int]) -> Noise:
    """Noise given as (n, samples), in the order in which the blocks read it."""
    return torch.cat([part.T.reshape(-1) for part in noise.split(list(sizes))])


def draw_noise(
    sizes: Sequence[int], samples: int, *, like: Tensor, generators: Sequence[torch.Generator]
) -> Noise:
    """Standard normal noise, each bag from its own generator: the same as `pool_streamed` draws."""
    eps = like.new_empty(sum(sizes) * samples)
    blocks = _blocks(sizes, samples)
    sources: list[torch.Generator] = []
    for n, generator in zip(sizes, generators, strict=True):
        sources += _sources(generator, len(_blocks([n], samples)))
    _fill(eps.split([s * n for _, s, n in blocks]), sources)
    return eps


def _blocks(sizes: Sequence[int], samples: int) -> list[tuple[int, int, int]]:
    """(bag, samples, instances) of each block; how a bag is cut does not depend on its batch."""
    blocks = []
    for b, n in enumerate(sizes):
        step = max(1, BLOCK // n)
        blocks += [(b, min(step, samples - s), n) for s in range(0, samples, step)]
    return blocks


def _sources(generator: torch.Generator, blocks: int) -> list[torch.Generator]:
    """A generator for each block of a bag, so that any thread may draw any block."""
    if blocks == 1:
        return [generator]
    device = generator.device
    seeds = torch.randint(2**62, (blocks,), generator=generator, device=device).tolist()
    return [torch.Generator(device=device).manual_seed(seed) for seed in seeds]


def _fill(parts: Sequence[Tensor], sources: Sequence[torch.Generator]) -> None:
    """Normal noise into each part; torch itself draws with one thread only."""
    threads = torch.get_num_threads()
    small = sum(part.numel() for part in parts) < BLOCK
    if threads == 1 or small or parts[0].is_cuda:
        _fill_each(parts, sources)
        return
    with ThreadPoolExecutor(threads) as pool:
        shares = [(parts[k::threads], sources[k::threads]) for k in range(threads)]
        list(pool.map(lambda share: _fill_each(*share), shares))


def _fill_each(parts: Sequence[Tensor], sources: Sequence[torch.Generator]) -> None:
    for part, source in zip(parts, sources, strict=True):
        part.normal_(generator=source)


class _LinearPooling(torch.autograd.Function):
    """ℓ_sc = Σ_n softmax(f_s)_n g_nc for every bag, f = μ + σ ε (ε = None: f = μ, one sample)."""

    @staticmethod
    def forward(  # noqa: PLR0917 - apply() takes no names
        ctx: Any, mean: Tensor, sd: Tensor | None, eps: Tensor | None, g: Tensor, sizes: list[int]
    ) -> Tensor:
        samples = 1 if eps is None else eps.numel() // mean.numel()
        logits = g.new_empty(len(sizes), samples, g.shape[1])
        blocks = _blocks(sizes, samples)
        gs = g.T.contiguous().split(sizes, 1)
        rows = logits.flatten(0, 1).split([s for _, s, _ in blocks])
        weights = _weights(mean, sd, eps=eps, blocks=blocks)
        for ell_sc, (b, a_sn, _) in zip(rows, weights, strict=True):
            torch.mm(a_sn, gs[b].T, out=ell_sc)
        ctx.save_for_backward(mean, sd, eps, g, logits)
        ctx.sizes, ctx.blocks = sizes, blocks
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        mean, sd, eps, g, logits = ctx.saved_tensors
        # dℓ_sc/df_ns = a_ns (g_nc − ℓ_sc), so all three gradients are sums over samples of a_ns
        # (and of a_ns ε_ns) with the columns of `d`: dL/dℓ_sc and Σ_c ℓ_sc dL/dℓ_sc.
        d = torch.cat([grad, (grad * logits).sum(2, keepdim=True)], 2).flatten(0, 1)
        sums_cn = g.new_zeros(d.shape[1], g.shape[0])
        sums_eps_cn = torch.zeros_like(sums_cn)
        sums, sums_eps = sums_cn.split(ctx.sizes, 1), sums_eps_cn.split(ctx.sizes, 1)
        rows = d.split([s for _, s, _ in ctx.blocks])
        weights = _weights(mean, sd, eps=eps, blocks=ctx.blocks)
        for d_sc, (b, a_sn, eps_sn) in zip(rows, weights, strict=True):
            sums[b].addmm_(d_sc.T, a_sn)
            if eps_sn is not None:
                sums_eps[b].addmm_(d_sc.T, a_sn.mul_(eps_sn))
        d_mean = (g.T * sums_cn[:-1]).sum(0) - sums_cn[-1]
        d_sd = None if sd is None else (g.T * sums_eps_cn[:-1]).sum(0) - sums_eps_cn[-1]
        return d_mean, d_sd, None, sums_cn[:-1].T, None


def _weights(
    mean: Tensor, sd: Tensor | None, *, eps: Tensor | None, blocks: list[tuple[int, int, int]]
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Bag, softmax(f) and noise of each block; the next one overwrites the softmax.

    (Fresh memory for every block would cost more than what is computed in it.)
    """
    sizes = list({b: n for b, _, n in blocks}.values())
    means = mean[None].split(sizes, 1)
    if eps is None or sd is None:
        yield from ((b, means[b].softmax(1), None) for b, _, _ in blocks)
        return
    sds = sd.split(sizes)
    room = max(s * n for _, s, n in blocks)
    work, result = eps.new_empty(room), eps.new_empty(room)
    noise = eps.split([s * n for _, s, n in blocks])
    for (b, s, n), own in zip(blocks, noise, strict=True):
        eps_sn = own.view(s, n)
        f_sn, a_sn = work.as_strided((s, n), (n, 1)), result.as_strided((s, n), (n, 1))
        torch.addcmul(means[b], sds[b], eps_sn, out=f_sn)
        yield b, torch.softmax(f_sn, 1, out=a_sn), eps_sn


def pool_linear(
    q: Posterior, g: Float[Tensor, "n classes"], sizes: Sequence[int], *, eps: Noise | None = None
) -> Float[Tensor, "bags samples classes"]:
    """Logits of each posterior sample, from every instance's class scores g (without the bias).

    Args:
        q: attention; a Dirac gives one sample. A mean (n, classes) pools each class by its own.
        g: uᵀh_n for each class.
        sizes: instances in each bag.
        eps: ε of each instance and sample (`sample_major`); not used for a Dirac.
    """
    mean = q.mean.to(g.dtype)
    if mean.ndim == 2:
        return segment_sum(segment_softmax(mean, sizes) * g, sizes)[:, None]
    if isinstance(q, Dirac) or eps is None:
        sd = eps = None
    else:
        sd = q.variance.sqrt().to(g.dtype)
    if not g.is_cuda:
        with _full_precision(g):
            return _LinearPooling.apply(mean, sd, eps, g, list(sizes))  # pyright: ignore[reportReturnType]
    # one kernel for all bags beats blocks there: the plain formula
    f = mean[:, None] if eps is None or sd is None else reparameterise(mean, sd, eps, sizes)
    return segment_sum(segment_softmax(f, sizes)[:, :, None] * g[:, None, :], sizes)


def reparameterise(
    mean: Float[Tensor, " n"], sd: Float[Tensor, " n"], eps: Noise, sizes: Sequence[int]
) -> Float[Tensor, "n samples"]:
    """f = μ + σ ε for every instance and sample."""
    samples = eps.numel() // mean.numel()
    parts = eps.split([n * samples for n in sizes])
    noise = torch.cat([own.view(samples, -1).T for own in parts])
    return mean[:, None] + sd[:, None] * noise


def pool_vectors(
    f: Float[Tensor, "n samples"], h: Float[Tensor, "n d"], sizes: Sequence[int]
) -> Float[Tensor, "bags samples d"]:
    """z = Hᵀ softmax(f_s) of each sample: for a classifier that is not linear. O(N·D·S)."""
    parts = zip(f.split(list(sizes)), h.split(list(sizes)), strict=True)
    with _full_precision(h):
        return torch.stack([f_b.softmax(0).T @ h_b for f_b, h_b in parts])


def _full_precision(like: Tensor) -> torch.autocast:
    """No autocast: a normaliser summed over 10⁴ instances in bfloat16 would be off by 0.4 %."""
    return torch.autocast(like.device.type, enabled=False)


@dataclass(frozen=True, slots=True)
class Pooled:
    """What prediction keeps of S samples: nothing of size n × S."""

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
) -> Pooled:
    """As `pool_linear` without gradients, noise drawn a block at a time from each bag's generator.

    Also the mean and variance over samples of the normalised weights softmax(f)_n.
    """
    mean, sd = q.mean.to(g.dtype), q.variance.sqrt().to(g.dtype)
    logits = g.new_empty(len(sizes), samples, g.shape[1])
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    bags = [v.split(list(sizes)) for v in (mean, sd, g, first, second)]
    for b, (mean_n, sd_n, g_nc, first_n, second_n) in enumerate(zip(*bags, strict=True)):
        # Sums of differences from softmax(μ): a variance of small numbers survives float32.
        centre_n = mean_n.softmax(0)
        for s, eps_sn, a_sn in _stream(mean_n, samples, generators[b]):
            f_sn = torch.addcmul(mean_n, sd_n, eps_sn, out=eps_sn)
            torch.mm(torch.softmax(f_sn, 1, out=a_sn), g_nc, out=logits[b, s])
            first_n += a_sn.sub_(centre_n).sum(0)
            second_n += a_sn.square_().sum(0)
        first_n /= samples
        second_n.div_(samples).sub_(first_n.square()).clamp_min_(0)
        first_n += centre_n
    return Pooled(logits, first, second)


def _stream(
    like: Tensor, samples: int, generator: torch.Generator
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Which samples, their noise, and room for their weights: one bag block by block.

    The memory is used again, `AHEAD` blocks later for the noise.
    """
    n = like.numel()
    lengths = [s for _, s, _ in _blocks([n], samples)]
    sources = _sources(generator, len(lengths))
    noise, room = like.new_empty(sum(lengths[:AHEAD]), n), like.new_empty(lengths[0], n)
    start = 0
    for k in range(0, len(lengths), AHEAD):
        ahead = lengths[k : k + AHEAD]
        parts = noise[: sum(ahead)].split(ahead)
        _fill(parts, sources[k : k + AHEAD])
        for part, s in zip(parts, ahead, strict=True):
            yield slice(start, start + s), part, room[:s]
            start += s
