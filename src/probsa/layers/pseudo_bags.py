"""Random partitions of every bag into groups of nearly equal size (DTFD-MIL's pseudo-bags)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import segment_index


@dataclass(frozen=True, slots=True)
class Groups:
    """S partitions of every bag; the sizes of groups are the same in each of them."""

    order: Int[Tensor, "n samples"]
    """Rows of x, one group after another, bag after bag."""
    of: Int[Tensor, "n samples"]
    """The group of each instance, counted from 0 in its bag."""
    sizes: list[int]
    """Instances in each group, bag after bag."""
    counts: list[int]
    """Groups of each bag."""

    @property
    def segment(self) -> Int[Tensor, "n samples"]:
        """The group of each instance, counted through all bags."""
        numbers = segment_index(self.sizes, self.order.device)[:, None]
        return self.unsorted(numbers.expand_as(self.order))

    def unsorted(self, v: Tensor) -> Tensor:
        """Values that come group after group, in the order of x."""
        return torch.empty_like(self.order, dtype=v.dtype).scatter(0, self.order, v)


def draw(
    sizes: Sequence[int], samples: int, *, generators: Sequence[torch.Generator]
) -> Float[Tensor, "n samples"]:
    """Uniform noise, each bag from its own generator."""
    parts = [
        torch.rand(n, samples, generator=source, device=source.device)
        for n, source in zip(sizes, generators, strict=True)
    ]
    return torch.cat(parts)


def partition(noise: Float[Tensor, "n samples"], sizes: Sequence[int], *, n_groups: int) -> Groups:
    """Each bag in the order of its noise, cut into `n_groups` (or N, where it has fewer) groups.

    The first N mod G groups have one instance more, as `numpy.array_split` cuts.
    """
    counts = group_counts(sizes, n_groups)
    cut = [(k, n // g + (k < n % g)) for n, g in zip(sizes, counts, strict=True) for k in range(g)]
    lengths = [size for _, size in cut]
    bag = segment_index(sizes, noise.device)[:, None]
    order = order_within(noise, bag.expand_as(noise))
    own = torch.tensor([k for k, _ in cut], device=noise.device)
    own = own[segment_index(lengths, noise.device)][:, None].expand_as(order)
    of = torch.empty_like(order).scatter(0, order, own)
    return Groups(order=order, of=of, sizes=lengths, counts=counts)


def group_counts(sizes: Sequence[int], n_groups: int) -> list[int]:
    """How many groups each bag has."""
    return [min(n_groups, n) for n in sizes]


def order_within(
    key: Float[Tensor, "n samples"], segment: Int[Tensor, "n samples"]
) -> Int[Tensor, "n samples"]:
    """Rows by segment and, within a segment, by ascending key; ties in the order they come."""
    by_key = key.argsort(dim=0, stable=True)
    return by_key.gather(0, segment.gather(0, by_key).argsort(dim=0, stable=True))
