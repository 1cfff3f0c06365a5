"""Random partitions of each bag into groups of nearly equal size (DTFD-MIL's pseudo-bags)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import segment_index


@dataclass(frozen=True, slots=True)
class Groups:
    """S partitions of each bag, all with the same sizes of groups."""

    order: Int[Tensor, "n samples"]
    """Rows of x in the order of the groups, bag after bag."""
    of: Int[Tensor, "n samples"]
    """The group of each instance, numbered from 0 within its bag."""
    sizes: list[int]
    """Number of instances of each group, bag after bag."""
    counts: list[int]
    """Number of groups of each bag."""

    @property
    def segment(self) -> Int[Tensor, "n samples"]:
        """The group of each instance, numbered through all bags."""
        numbers = segment_index(self.sizes, self.order.device)[:, None]
        return self.unsorted(numbers.expand_as(self.order))

    def unsorted(self, v: Tensor) -> Tensor:
        """Bring values from the order of the groups into the order of x."""
        return torch.empty_like(self.order, dtype=v.dtype).scatter(0, self.order, v)


def draw_uniform_noise(
    sizes: Sequence[int], samples: int, *, generators: Sequence[torch.Generator]
) -> Float[Tensor, "n samples"]:
    """Draw uniform noise, each bag's from its own generator."""
    parts = [
        torch.rand(n, samples, generator=generator, device=generator.device)
        for n, generator in zip(sizes, generators, strict=True)
    ]
    return torch.cat(parts)


def partition(noise: Float[Tensor, "n samples"], sizes: Sequence[int], *, n_groups: int) -> Groups:
    """Sort each bag by its noise and cut it into `n_groups` groups (N groups if it has fewer).

    As in `numpy.array_split`, the first N mod G groups have one more instance.
    """
    counts = group_counts(sizes, n_groups)
    cut = [(k, n // g + (k < n % g)) for n, g in zip(sizes, counts, strict=True) for k in range(g)]
    lengths = [size for _, size in cut]
    bag = segment_index(sizes, noise.device)[:, None]
    order = order_within(noise, bag.expand_as(noise))
    numbers = torch.tensor([k for k, _ in cut], device=noise.device)
    numbers = numbers[segment_index(lengths, noise.device)][:, None].expand_as(order)
    of = torch.empty_like(order).scatter(0, order, numbers)
    return Groups(order=order, of=of, sizes=lengths, counts=counts)


def group_counts(sizes: Sequence[int], n_groups: int) -> list[int]:
    """Return the number of groups of each bag."""
    return [min(n_groups, n) for n in sizes]


def order_within(
    key: Float[Tensor, "n samples"], segment: Int[Tensor, "n samples"]
) -> Int[Tensor, "n samples"]:
    """Sort rows by segment and, within a segment, by ascending key (a stable sort)."""
    by_key = key.argsort(dim=0, stable=True)
    return by_key.gather(0, segment.gather(0, by_key).argsort(dim=0, stable=True))
