"""Random generators seeded by numbers and names, never by a clock.

A generator is named after its purpose (the run's seed, the step, the bag). What is drawn for a bag
therefore does not depend on the order of bags, the number of processes, or an interruption.
"""

import hashlib

import torch


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
    return int(torch.randint(2**62, (1,), generator=generator, device=device))
