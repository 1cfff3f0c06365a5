"""Differentiable reductions over the instances of each bag in a batch of bags of any size.

A packed tensor holds one bag after another; `Segments` says where each begins and ends. On a CPU a
loop over views is fastest (no scatter, each bag stays in cache), and the sum of a bag is the same
number whatever else is in the batch. On a GPU one kernel serves all bags. It adds by atomic
operations, in an order that differs from call to call, so sums there are equal only to rounding.
Neither asks a GPU for a value: what the host must know of a batch are the sizes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


class Segments(tuple[int, ...]):
    """The number of instances of each bag of a packed batch, with tensors that say the same.

    A plain tuple of sizes serves everywhere, too; what is made of it is then brought to the device
    again in each call.
    """

    offsets: Int[Tensor, " bags_plus_1"]
    """Bag b has the rows `offsets[b]` to `offsets[b + 1]`."""
    bag: Int[Tensor, " n"]
    """The index of each instance's bag, ascending."""
    counts: Int[Tensor, " bags"]
    """The numbers of instances."""

    @classmethod
    def of(cls, sizes: Sequence[int], device: torch.device | str | None = None) -> "Segments":
        """Return the segments of bags with these numbers of instances, made on the host."""
        counts = torch.tensor(sizes, dtype=torch.long)
        offsets = torch.zeros(len(sizes) + 1, dtype=torch.long)
        offsets[1:] = counts.cumsum(0)
        bag = torch.arange(len(sizes)).repeat_interleave(counts, output_size=sum(sizes))
        segments = cls._with(sizes, offsets=offsets, bag=bag, counts=counts)
        # what was only now made is copied at once, and the host does not wait for a GPU
        return segments if device is None else segments.to(device, non_blocking=True)

    @classmethod
    def _with(cls, sizes: Iterable[int], **tensors: Tensor) -> "Segments":
        segments = cls(sizes)
        segments.__dict__.update(tensors)
        return segments

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Segments":
        """Return the segments with their tensors on another device."""
        moved: dict[str, Tensor] = {}
        for name, tensor in self.__dict__.items():
            moved[name] = tensor.to(device, non_blocking=non_blocking)
        return self._with(self, **moved)

    def pin_memory(self) -> "Segments":
        """Return the segments in memory from which a GPU reads while the host goes on."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.__dict__.items()}
        return self._with(self, **pinned)

    def repeated(self, copies: int) -> "Segments":
        """Return the segments of some copies of the batch, one after another."""
        n = len(self.bag)
        copy = torch.arange(copies, device=self.bag.device)[:, None]
        last = self.offsets.new_full((1,), n * copies)
        return self._with(
            tuple(self) * copies,
            offsets=torch.cat([(self.offsets[:-1] + n * copy).flatten(), last]),
            bag=(self.bag + len(self) * copy).flatten(),
            counts=self.counts.repeat(copies),
        )

    def spread(self, values: Shaped[Tensor, "bags *d"]) -> Shaped[Tensor, "n *d"]:
        """Return the value of each instance's bag."""
        return values.index_select(0, self.bag)


def is_on_cpu(v: Tensor) -> bool:
    """Return whether a loop over bags is faster than one kernel that serves all bags."""
    return v.device.type == "cpu" and not v.is_cuda  # tests have tensors that only say the latter


Sizes = Sequence[int]
"""The number of instances of each bag of a packed batch: `Segments`, or plain numbers."""


def as_segments(sizes: Sizes, device: torch.device | str | None = None) -> Segments:
    """Return the segments of a batch on a device; plain numbers are brought there."""
    return sizes if isinstance(sizes, Segments) else Segments.of(sizes, device)


def rows_on(device: torch.device, rows: Sequence[int]) -> Int[Tensor, " rows"]:
    """Return row numbers that the host has made, on a device, without waiting for it."""
    return torch.tensor(rows, dtype=torch.long).to(device, non_blocking=True)


def _each(v: Tensor, segments: Segments, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    if not segments:
        return v[:0]
    return torch.stack([reduce(part) for part in v.split(list(segments))])


class _SegmentSum(torch.autograd.Function):
    """Segment sum whose backward pass is one call, instead of one graph node per bag."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, segments: Segments) -> Tensor:
        ctx.segments = segments
        return _each(v, segments, lambda part: part.sum(0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        return ctx.segments.spread(grad), None


def segment_sum(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Return the sum over the instances of each bag; 0 for an empty segment."""
    segments = as_segments(sizes, v.device)
    if not is_on_cpu(v):
        out = v.new_zeros(len(segments), *v.shape[1:])
        return out.index_add(0, segments.bag, v)
    return _SegmentSum.apply(v, segments)  # pyright: ignore[reportReturnType]


def segment_mean(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Return the mean over the instances of each bag."""
    segments = as_segments(sizes, v.device)
    counts = segments.counts.to(v.dtype)
    return segment_sum(v, segments) / counts.view(-1, *[1] * (v.ndim - 1))


def segment_max(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Return the largest value of each bag; ties share the gradient."""
    segments = as_segments(sizes, v.device)
    if not is_on_cpu(v):
        maxima = v.new_full((len(segments), *v.shape[1:]), -torch.inf)
        index = segments.bag.view(-1, *[1] * (v.ndim - 1)).expand_as(v)
        return maxima.scatter_reduce(0, index, v, "amax")
    return _each(v, segments, lambda part: part.amax(0))


def segment_softmax(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "n *d"]:
    """Return the softmax over the instances of each bag, for each trailing column."""
    segments = as_segments(sizes, v.device)
    if not is_on_cpu(v):
        e = (v - segments.spread(segment_max(v.detach(), segments))).exp()
        return e / segments.spread(segment_sum(e, segments))
    if not segments:
        return v
    return torch.cat([part.softmax(0) for part in v.split(list(segments))])


def segment_argmax(v: Float[Tensor, "n *d"], sizes: Sizes) -> Int[Tensor, "bags *d"]:
    """Return the row of each bag's largest value, for each trailing column; the first of ties.

    Rows are those of the packed tensor.
    """
    segments = as_segments(sizes, v.device)
    if not is_on_cpu(v):
        shape = (-1, *[1] * (v.ndim - 1))
        rows = torch.arange(len(v), device=v.device).view(shape).expand_as(v)
        is_largest = v == segments.spread(segment_max(v, segments))
        candidates = rows.where(is_largest, len(v) - 1)
        out = rows.new_full((len(segments), *v.shape[1:]), len(v) - 1)
        return out.scatter_reduce(0, segments.bag.view(shape).expand_as(v), candidates, "amin")
    if not segments:
        return v[:0].long()
    bags = zip(v.split(list(segments)), segments.offsets[:-1], strict=True)
    return torch.stack([part.argmax(0) + start for part, start in bags])


def segment_topk(
    v: Float[Tensor, " n"], sizes: Sizes, *, k: int, largest: bool = True
) -> list[Int[Tensor, " k_b"]]:
    """Return, per bag, the packed rows of its k largest (or smallest) values, best first.

    A bag with fewer than k instances returns all of them, so the result is a list.
    """
    start = 0
    rows = []
    for size in sizes:
        part = v[start : start + size]
        rows.append(part.topk(min(k, size), largest=largest).indices + start)
        start += size
    return rows
