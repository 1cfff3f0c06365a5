"""Differentiable reductions over the instances of each bag in a batch of bags of any size.

A packed tensor holds one bag after another; `sizes` gives the number of instances in each. On a CPU
a loop over views is fastest (no scatter, each bag stays in cache), and the sum of a bag is the same
number whatever else is in the batch. On a GPU one kernel serves all bags. It adds by atomic
operations, in an order that differs from call to call, so sums there are equal only to rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Sizes = Sequence[int]


def segment_index(sizes: Sizes, device: torch.device | None = None) -> Int[Tensor, " n"]:
    """Return the index of each instance's bag."""
    counts = torch.tensor(sizes, dtype=torch.long, device=device)
    return torch.repeat_interleave(torch.arange(len(sizes), device=device), counts)


def _each(v: Tensor, sizes: Sizes, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    if not sizes:
        return v[:0]
    return torch.stack([reduce(part) for part in v.split(list(sizes))])


class _SegmentSum(torch.autograd.Function):
    """Segment sum whose backward pass is one call, instead of one graph node per bag."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, sizes: Sizes) -> Tensor:
        ctx.sizes = sizes
        return _each(v, sizes, lambda part: part.sum(0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        counts = torch.tensor(ctx.sizes, dtype=torch.long, device=grad.device)
        return grad.repeat_interleave(counts, dim=0), None


def segment_sum(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Return the sum over the instances of each bag; 0 for an empty segment."""
    if v.is_cuda:
        out = v.new_zeros(len(sizes), *v.shape[1:])
        return out.index_add(0, segment_index(sizes, v.device), v)
    return _SegmentSum.apply(v, sizes)  # pyright: ignore[reportReturnType]


def segment_mean(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Return the mean over the instances of each bag."""
    counts = torch.tensor(sizes, dtype=v.dtype, device=v.device)
    return segment_sum(v, sizes) / counts.view(-1, *[1] * (v.ndim - 1))


def segment_max(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Return the largest value of each bag; ties share the gradient."""
    if v.is_cuda:
        bag = segment_index(sizes, v.device)
        maxima = v.new_full((len(sizes), *v.shape[1:]), -torch.inf)
        index = bag.view(-1, *[1] * (v.ndim - 1)).expand_as(v)
        return maxima.scatter_reduce(0, index, v, "amax")
    return _each(v, sizes, lambda part: part.amax(0))


def segment_softmax(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "n *d"]:
    """Return the softmax over the instances of each bag, for each trailing column."""
    if v.is_cuda:
        bag = segment_index(sizes, v.device)
        e = (v - segment_max(v.detach(), sizes)[bag]).exp()
        return e / segment_sum(e, sizes)[bag]
    if not sizes:
        return v
    return torch.cat([part.softmax(0) for part in v.split(list(sizes))])


def segment_argmax(v: Float[Tensor, "n *d"], sizes: Sizes) -> Int[Tensor, "bags *d"]:
    """Return the row of each bag's largest value, for each trailing column; the first of ties.

    Rows are those of the packed tensor.
    """
    if v.is_cuda:
        shape = (-1, *[1] * (v.ndim - 1))
        rows = torch.arange(len(v), device=v.device).view(shape).expand_as(v)
        bag = segment_index(sizes, v.device)
        candidates = rows.where(v == segment_max(v, sizes)[bag], len(v) - 1)
        out = rows.new_full((len(sizes), *v.shape[1:]), len(v) - 1)
        return out.scatter_reduce(0, bag.view(shape).expand_as(v), candidates, "amin")
    if not sizes:
        return v[:0].long()
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    bags = zip(v.split(list(sizes)), starts, strict=True)
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
