"""Noise, and the blocks of samples that a posterior makes from it.

Noise is standard normal: one number per instance and sample, each bag's from its own generator.
A block holds some samples of one bag, sample-major (s, n): s samples, n instances. Products with
such blocks have n as their contiguous dimension (5 to 8 times as fast as the other way round).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from .posteriors import Posterior, Sampler

BLOCK = 1 << 17
"""Largest number of elements of a block: two blocks and the noise fit a core's level-2 cache."""
AHEAD = 16
"""Number of blocks of noise drawn at a time in streaming: enough to keep every thread busy."""

Noise = Float[Tensor, " n_times_samples"]
"""The noise of all bags, one bag after another, each sample-major (see `sample_major`)."""

Shapes = list[tuple[int, int, int]]
"""Bag, samples and instances of each block."""


def sample_major(noise: Float[Tensor, "n samples"], sizes: Sequence[int]) -> Noise:
    """Bring noise of shape (n, samples) into the order in which blocks read it.

    Raises:
        InputError: there is another number of rows than a sample of all bags takes.
    """
    if len(noise) != sum(sizes):
        raise InputError(
            f"noise has {len(noise)} rows, but a sample of these bags takes {sum(sizes)} numbers: "
            "large bags under a field need one for each instance and each edge. Give a "
            "generator instead"
        )
    return torch.cat([part.T.reshape(-1) for part in noise.split(list(sizes))])


def instance_major(noise: Noise, sizes: Sequence[int]) -> Float[Tensor, "n samples"]:
    """Invert `sample_major`."""
    samples = noise.numel() // sum(sizes)
    parts = noise.split([n * samples for n in sizes])
    return torch.cat([part.view(samples, -1).T for part in parts])


def draw_noise(
    sizes: Sequence[int],
    samples: int,
    *,
    like: Tensor,
    generators: Sequence[torch.Generator],
    least: int = 1,
) -> Noise:
    """Draw noise for all bags: the same numbers that `stream_samples` draws block by block.

    Args:
        sizes: Number of instances of each bag.
        samples: Number of samples per instance.
        like: A tensor whose dtype and device the noise gets.
        generators: One generator per bag.
        least: Smallest number of samples of a block; see `block_samples`.
    """
    noise = like.new_empty(sum(sizes) * samples)
    shapes = _cut(sizes, samples, least=least)
    block_generators: list[torch.Generator] = []
    for n, generator in zip(sizes, generators, strict=True):
        block_generators += _split_generator(generator, len(_cut([n], samples, least=least)))
    _fill(noise.split([s * n for _, s, n in shapes]), block_generators)
    return noise


def noise_sizes(q: Posterior, sizes: Sequence[int]) -> Sequence[int]:
    """Return how many standard normal numbers a sample of each bag takes.

    That is the number of its instances, unless the posterior has a method `noise_sizes`.
    """
    own = getattr(q, "noise_sizes", None)
    return sizes if own is None else own(sizes)


def block_samples(q: Posterior) -> int:
    """Return how many samples of a bag q makes at the cost of a few, its `block_samples`; or 1."""
    return getattr(q, "block_samples", 1)


def stream_samples(
    q: Posterior, sizes: Sequence[int], *, samples: int, generators: Sequence[torch.Generator]
) -> Iterator[Iterator[tuple[slice, Float[Tensor, "s n"]]]]:
    """Yield, per bag, its blocks as pairs of sample numbers and samples, without gradients.

    Noise is drawn as it is needed and overwritten, so nothing of size n x samples is stored.
    """
    sample = q.sampler(sizes)
    counts = noise_sizes(q, sizes)
    for bag, (n, generator) in enumerate(zip(counts, generators, strict=True)):
        blocks = _stream_noise(n, samples, like=q.mean, generator=generator, least=block_samples(q))
        yield _sampled(sample, bag, blocks)


def _sampled(
    sample: Sampler, bag: int, blocks: Iterator[tuple[slice, Float[Tensor, "s n"]]]
) -> Iterator[tuple[slice, Float[Tensor, "s n"]]]:
    for rows, eps in blocks:
        yield rows, sample(bag, eps, out=eps)


def sample_instances(
    q: Posterior, noise: Noise | None, sizes: Sequence[int]
) -> Float[Tensor, "n samples *classes"]:
    """Return all samples of all bags at once, with gradients and in full precision."""
    with torch.autocast(q.mean.device.type, enabled=False):
        if noise is None:
            return q.rsample(1)
        at_once = getattr(q, "samples", None)
        if at_once is not None:
            return at_once(noise)
        eps = instance_major(noise, sizes)
        return q.rsample(eps.shape[1], noise=eps)


def _cut(sizes: Sequence[int], samples: int, *, least: int = 1) -> Shapes:
    """Cut the samples into blocks; how a bag is cut does not depend on its batch."""
    shapes = []
    for bag, n in enumerate(sizes):
        step = max(least, BLOCK // n)
        shapes += [(bag, min(step, samples - s), n) for s in range(0, samples, step)]
    return shapes


def _split_generator(generator: torch.Generator, blocks: int) -> list[torch.Generator]:
    """Return a generator for each block of a bag, so that any thread may draw any block."""
    if blocks == 1:
        return [generator]
    device = generator.device
    seeds = torch.randint(2**62, (blocks,), generator=generator, device=device).tolist()
    return [torch.Generator(device=device).manual_seed(seed) for seed in seeds]


def _fill(parts: Sequence[Tensor], generators: Sequence[torch.Generator]) -> None:
    """Fill each part with noise on several threads; torch itself uses one thread only."""
    threads = torch.get_num_threads()
    small = sum(part.numel() for part in parts) < BLOCK
    if threads == 1 or small or parts[0].is_cuda:
        _fill_each(parts, generators)
        return
    with ThreadPoolExecutor(threads) as pool:
        shares = [(parts[k::threads], generators[k::threads]) for k in range(threads)]
        list(pool.map(lambda share: _fill_each(*share), shares))


def _fill_each(parts: Sequence[Tensor], generators: Sequence[torch.Generator]) -> None:
    for part, generator in zip(parts, generators, strict=True):
        part.normal_(generator=generator)


def _stream_noise(
    n: int, samples: int, *, like: Tensor, generator: torch.Generator, least: int
) -> Iterator[tuple[slice, Float[Tensor, "s n"]]]:
    """Yield the sample numbers and the noise of each block of a bag of n instances.

    Each block's memory is used again `AHEAD` blocks later.
    """
    lengths = [s for _, s, _ in _cut([n], samples, least=least)]
    generators = _split_generator(generator, len(lengths))
    # long blocks take the memory of many, and there is one after another of them
    count = AHEAD if least == 1 else 1
    memory = like.new_empty(sum(lengths[:count]), n)
    start = 0
    for k in range(0, len(lengths), count):
        ahead = lengths[k : k + count]
        parts = memory[: sum(ahead)].split(ahead)
        _fill(parts, generators[k : k + count])
        for part, s in zip(parts, ahead, strict=True):
            yield slice(start, start + s), part
            start += s
