"""Reductions over the instances of each bag, with gradients, for bags of any size in one batch.

A packed tensor holds one bag after another; `sizes` says how many instances each has. On a CPU a
loop over views is fastest (no scatter, each bag stays in cache); on a GPU one kernel for all bags.
Sums run in the order of the instances, so a bag's result never depends on its batch-mates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Sizes = Sequence[int]


def segment_index(sizes: Sizes, device: torch.device | None = None) -> Int[Tensor, " n"]:
    """The bag number of each instance."""
    counts = torch.tensor(sizes, dtype=torch.long, device=device)
    return torch.repeat_interleave(torch.arange(len(sizes), device=device), counts)


def _each(v: Tensor, sizes: Sizes, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    if not sizes:
        return v[:0]
    return torch.stack([reduce(part) for part in v.split(list(sizes))])


class _SegmentSum(torch.autograd.Function):
    """The gradient of a sum is a copy: one call for all bags instead of one node for each."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, sizes: Sizes) -> Tensor:
        ctx.sizes = sizes
        return _each(v, sizes, lambda part: part.sum(0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        counts = torch.tensor(ctx.sizes, dtype=torch.long, device=grad.device)
        return grad.repeat_interleave(counts, dim=0), None


def segment_sum(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Sum over the instances of each bag; 0 for an empty segment."""
    if v.is_cuda:
        out = v.new_zeros(len(sizes), *v.shape[1:])
        return out.index_add(0, segment_index(sizes, v.device), v)
    return _SegmentSum.apply(v, sizes)  # pyright: ignore[reportReturnType]


def segment_mean(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Mean over the instances of each bag."""
    counts = torch.tensor(sizes, dtype=v.dtype, device=v.device)
    return segment_sum(v, sizes) / counts.view(-1, *[1] * (v.ndim - 1))


def segment_max(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """Largest value of each bag; ties share the gradient."""
    if v.is_cuda:
        bag = segment_index(sizes, v.device)
        out = v.new_full((len(sizes), *v.shape[1:]), -torch.inf)
        index = bag.view(-1, *[1] * (v.ndim - 1)).expand_as(v)
        return out.scatter_reduce(0, index, v, "amax")
    return _each(v, sizes, lambda part: part.amax(0))


def segment_logsumexp(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "bags *d"]:
    """log Σ exp over the instances of each bag."""
    if v.is_cuda:
        top = segment_max(v.detach(), sizes)
        shifted = (v - top[segment_index(sizes, v.device)]).exp()
        return segment_sum(shifted, sizes).log() + top
    return _each(v, sizes, lambda part: part.logsumexp(0))


def segment_softmax(v: Float[Tensor, "n *d"], sizes: Sizes) -> Float[Tensor, "n *d"]:
    """Softmax over the instances of each bag, one for each trailing column."""
    if v.is_cuda:
        bag = segment_index(sizes, v.device)
        e = (v - segment_max(v.detach(), sizes)[bag]).exp()
        return e / segment_sum(e, sizes)[bag]
    if not sizes:
        return v
    return torch.cat([part.softmax(0) for part in v.split(list(sizes))])


def segment_argmax(v: Float[Tensor, "n *d"], sizes: Sizes) -> Int[Tensor, "bags *d"]:
    """Rows of the packed tensor with the largest value of each bag, for each trailing column.

    The first of equal ones, as far as a bag's order goes.
    """
    if v.is_cuda:
        shape = (-1, *[1] * (v.ndim - 1))
        rows = torch.arange(len(v), device=v.device).view(shape).expand_as(v)
        bag = segment_index(sizes, v.device)
        found = rows.where(v == segment_max(v, sizes)[bag], len(v) - 1)
        out = rows.new_full((len(sizes), *v.shape[1:]), len(v) - 1)
        return out.scatter_reduce(0, bag.view(shape).expand_as(v), found, "amin")
    if not sizes:
        return v[:0].long()
    start = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    return torch.stack(
        [part.argmax(0) + s for part, s in zip(v.split(list(sizes)), start, strict=True)]
    )


def segment_topk(
    v: Float[Tensor, " n"], sizes: Sizes, *, k: int, largest: bool = True
) -> list[Int[Tensor, " k_b"]]:
    """Rows of the packed tensor with the k largest (or smallest) values of each bag, best first.

    A bag with fewer than k instances gives all of them: that is why the result is a list.
    """
    start, rows = 0, []
    for size in sizes:
        part = v[start : start + size]
        rows.append(part.topk(min(k, size), largest=largest).indices + start)
        start += size
    return rows
