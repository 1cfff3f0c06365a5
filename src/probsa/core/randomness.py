"""Randomness is handed in: every stream follows from numbers and names, never from a clock.

A stream is named by what it is for (a run's seed, a step, a bag), so what a bag draws does not
depend on which bags are drawn before it, in which order, on how many processes, or after a resume.
"""

import hashlib

import torch


def seed_of(*names: int | str) -> int:
    """A 63-bit seed from numbers and names, the same on every machine."""
    text = "\x1f".join(str(n) for n in names).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def stream(*names: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by these names."""
    return torch.Generator(device=device).manual_seed(seed_of(*names))


def draw_key(generator: torch.Generator | None) -> int:
    """One number from a generator (None: torch's own), to seed streams with."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (1,), generator=generator, device=device))
