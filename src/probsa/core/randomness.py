"""Random generators seeded by numbers and names, never by a clock.

A generator is named after its purpose (the run's seed, the step, the bag). What is drawn for a bag
therefore does not depend on the order of bags, the number of processes, or an interruption.
"""

import hashlib

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .segments import Segments

WORD = 1 << 64
STEP = 0x9E3779B97F4A7C15
"""The step of a counter per instance, 2⁶⁴ over the golden ratio (SplitMix64)."""
SAMPLE_STEP = 0xD1B54A32D192ED03
"""The step per sample, odd as well."""
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Those of the mixing function of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)."""


def seed_of(*names: int | str) -> int:
    """Return a 63-bit seed from numbers and names, the same on every machine."""
    text = "\x1f".join(str(n) for n in names).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def random_stream(*names: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by these numbers and names."""
    return torch.Generator(device=device).manual_seed(seed_of(*names))


def on_the_cpu(generator: torch.Generator) -> torch.Generator:
    """Return a generator of the CPU: the same one, or one with the seed of another device's."""
    if generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(generator.initial_seed())


def draw_key(generator: torch.Generator | None) -> int:
    """Draw a number to seed other generators with; None uses torch's global generator."""
    device = "cpu" if generator is None else generator.device
    drawn = torch.randint(2**62, (1,), generator=generator, device=device)
    # on the host, NumPy reads the memory, which is no operation of PyTorch
    return int(drawn.cpu().numpy()[0])


def counted_normal(
    seeds: list[int], segments: Segments, samples: int, *, first: int, like: Tensor
) -> Float[Tensor, "samples n"]:
    """Return standard normal numbers of which each is a function of its bag's seed and its place.

    A few operations make those of all bags, on the device of `like` and in its dtype. The number of
    an instance and a sample does not depend on other bags, or on how many samples are drawn at a
    time.

    Args:
        seeds: The seed of each bag.
        segments: The bags.
        samples: Number of samples.
        first: Number of samples that were drawn before.
        like: A tensor on the device.
    """
    device = like.device
    starts = np.cumsum([0, *segments], dtype=np.int64)[:-1].tolist()
    # so that the counter of packed row r is base + r · STEP, modulo 2⁶⁴
    bases = [
        _signed(seed - start * STEP + first * SAMPLE_STEP)
        for seed, start in zip(seeds, starts, strict=True)
    ]
    base = torch.tensor(bases, dtype=torch.int64).to(device, non_blocking=True)
    row = torch.arange(len(segments.bag), device=device)
    sample = torch.arange(samples, device=device)[:, None]
    counter = segments.spread(base) + row * _signed(STEP)
    bits = counter + sample * _signed(SAMPLE_STEP)
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        bits ^= (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        bits *= _signed(multiplier)
    bits ^= (bits >> 31).bitwise_and_((1 << 33) - 1)
    # 31 bits are a number in (0, ½), which float32 resolves down to 0; the highest bit is a sign
    half = (bits & 0x7FFFFFFF).to(like.dtype).add_(0.5).mul_(2.0**-32)
    sign = (bits >> 63).to(like.dtype).mul_(2).add_(1)
    return torch.special.ndtri(half).mul_(sign)


def _signed(number: int) -> int:
    """Return a number modulo 2⁶⁴ as a signed integer of 64 bits."""
    number %= WORD
    return number - WORD if number >= WORD // 2 else number
