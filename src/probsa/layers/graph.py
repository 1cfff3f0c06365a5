"""Products with the sparse adjacency matrix of a batch, and softmax over neighbours.

Arcs are sorted by their target, so a product is an `embedding_bag`. This needs memory for N × D
numbers (not arcs × D), is some twenty times as fast on a CPU as `index_add` over arcs, and sums
each row in a fixed order. The backward pass is the same product with Aᵀ, half as long as PyTorch's.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core import Bags, Segments, is_on_cpu, segment_max

BLOCK = 1 << 24
"""Largest number of elements of a temporary tensor with one row per arc: 64 MB in float32."""


@dataclass(frozen=True, kw_only=True)
class Arcs:
    """A sparse matrix A (n × n): row i holds the weights of the arcs into i (see `arcs_of`)."""

    rows: Int[Tensor, " a"]
    """Target of each arc, ascending."""
    columns: Int[Tensor, " a"]
    """Source of each arc."""
    weights: Float[Tensor, " a"]
    starts: Int[Tensor, " n"]
    """Index of the first arc of each row."""
    sizes: Segments
    """Number of instances of each bag."""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def transposed(self) -> "Arcs":
        """The arcs of Aᵀ."""
        return arcs_of(self.columns, self.rows, self.weights, self.sizes)

    def with_weights(self, weights: Float[Tensor, " a"]) -> "Arcs":
        return replace(self, weights=weights)


def arcs_of(
    rows: Int[Tensor, " a"],
    columns: Int[Tensor, " a"],
    weights: Float[Tensor, " a"],
    sizes: Segments,
) -> Arcs:
    """Sort the arcs of a packed batch, given in any order."""
    # 32-bit integers are sorted by radix, which takes a twentieth of the time
    order = torch.sort(rows.int(), stable=True).indices
    counts = rows.new_zeros(len(sizes.bag)).index_add(0, rows, torch.ones_like(rows))
    return Arcs(
        rows=rows[order],
        columns=columns[order],
        weights=weights[order],
        starts=counts.cumsum(0) - counts,
        sizes=sizes,
    )


def both_ways(bags: Bags) -> Arcs:
    """Return two arcs for each undirected edge of the bags, so that A is symmetric."""
    i, j = bags.edges
    w = bags.weights
    return arcs_of(torch.cat([i, j]), torch.cat([j, i]), torch.cat([w, w]), bags.sizes)


def neighbourhoods(bags: Bags) -> Arcs:
    """Return the bags' directed arcs if they have any, else their edges in both directions."""
    if bags.arcs is None:
        return both_ways(bags)
    w = bags.arc_weights
    if w is None:
        w = bags.weights.new_ones(bags.arcs.shape[1])
    return arcs_of(bags.arcs[0], bags.arcs[1], w, bags.sizes)


def normalised(arcs: Arcs) -> Arcs:
    """Return D^-½ A D^-½ with D_i = Σ_j A_ij; the row of an isolated instance stays 0."""
    d = row_sum(arcs, arcs.weights[:, None])[:, 0]
    r = torch.where(d > 0, d, 1).rsqrt()
    return arcs.with_weights(r[arcs.rows] * arcs.weights * r[arcs.columns])


def row_sum(arcs: Arcs, values: Float[Tensor, "a d"]) -> Float[Tensor, "n d"]:
    """Return, for each instance, the sum of the values of its incoming arcs."""
    all_arcs = torch.arange(len(arcs.rows), device=arcs.rows.device)
    return F.embedding_bag(all_arcs, values, arcs.starts, mode="sum")


def propagate(arcs: Arcs, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return A X, with gradients to X alone."""
    return _Product.apply(x, arcs)  # pyright: ignore[reportReturnType]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, arcs: Arcs) -> Tensor:
        ctx.arcs = arcs
        return _product(arcs, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        return _product(ctx.arcs.transposed, grad.contiguous()), None


def _product(arcs: Arcs, x: Tensor) -> Tensor:
    w = arcs.weights.to(x.dtype)
    return F.embedding_bag(arcs.columns, x, arcs.starts, mode="sum", per_sample_weights=w)


def aggregate_softmax(
    arcs: Arcs, m: Float[Tensor, "n d"], t: Float[Tensor, " one"]
) -> Float[Tensor, "n d"]:
    """Return s_i = Σ_j a_ij m_j, with a_ij the softmax of t m_j over the arcs j → i, per channel.

    Instances without incoming arcs get 0; the arcs' weights are not used. With e = exp(t m − c),
    two products suffice: s = A(e ⊙ m) / A e. Here c is the bag's largest t m in each channel. If
    t m varies so much that e could underflow, each target has its own c and arcs need memory.
    """
    tm = t * m
    top = segment_max(tm.detach(), arcs.sizes)
    tm = tm - top[arcs.sizes.bag]
    # exp(−limit), its inverse, and their products with gradients must stay normal numbers.
    limit = 0.45 * math.log(torch.finfo(m.dtype).max)
    # another device is not asked for the smallest value: each target has its own c there
    if not is_on_cpu(tm) or (tm.numel() and bool(tm.detach().numpy().min() < -limit)):
        channels = m.split(max(1, BLOCK // max(1, len(arcs.rows))), 1)
        sums = [checkpoint(_by_arc, arcs, part, t, use_reentrant=False) for part in channels]
        return torch.cat(sums, 1)
    unweighted = arcs.with_weights(torch.ones_like(arcs.weights))
    e = tm.exp()
    return _quotient(propagate(unweighted, e * m), propagate(unweighted, e))


def _by_arc(arcs: Arcs, m: Float[Tensor, "n d"], t: Float[Tensor, " one"]) -> Float[Tensor, "n d"]:
    """Return s of some channels, with a number for each arc."""
    m_a = m[arcs.columns]
    tm = t * m_a
    top = m.new_full(m.shape, -torch.inf)
    top.scatter_reduce_(0, arcs.rows[:, None].expand_as(tm), tm.detach(), "amax")
    e = (tm - top[arcs.rows]).exp()
    return _quotient(row_sum(arcs, e * m_a), row_sum(arcs, e))


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """Return a / b, and 0 where b is 0."""
    return a / torch.where(b > 0, b, 1)
