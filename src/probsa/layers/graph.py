"""Products with the sparse adjacency matrix of a batch, and softmax over neighbours.

Arcs are sorted by their target, so a product is an `embedding_bag`. This needs memory for N × D
numbers (not arcs × D), is some twenty times as fast on a CPU as `index_add` over arcs, and sums
each row in a fixed order. Backward passes are the same products with Aᵀ.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..core import Bags, segment_index, segment_max

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
    sizes: tuple[int, ...]
    """Number of instances of each bag."""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def turn(self) -> Int[Tensor, " a"]:
        """Indices of the arcs in the order of their sources, which are the rows of Aᵀ."""
        return _order(self.columns)

    @cached_property
    def turned(self) -> tuple[Int[Tensor, " a"], Int[Tensor, " n"]]:
        """Columns and starts of Aᵀ."""
        return self.rows[self.turn], _starts(self.columns, len(self))

    def with_weights(self, weights: Float[Tensor, " a"]) -> "Arcs":
        """Return the same arcs with other weights."""
        return replace(self, weights=weights)


def _order(keys: Tensor) -> Tensor:
    # 32-bit integers are sorted by radix, which takes a twentieth of the time.
    return torch.sort(keys.int(), stable=True).indices


def _starts(keys: Tensor, n: int) -> Tensor:
    counts = torch.bincount(keys, minlength=n)
    return counts.cumsum(0) - counts


def arcs_of(
    rows: Int[Tensor, " a"],
    columns: Int[Tensor, " a"],
    weights: Float[Tensor, " a"],
    sizes: tuple[int, ...],
) -> Arcs:
    """Sort the arcs of a packed batch, given in any order."""
    order = _order(rows)
    return Arcs(
        rows=rows[order],
        columns=columns[order],
        weights=weights[order],
        starts=_starts(rows, sum(sizes)),
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
        w = torch.ones(bags.arcs.shape[1], dtype=bags.weights.dtype, device=bags.arcs.device)
    return arcs_of(bags.arcs[0], bags.arcs[1], w, bags.sizes)


def normalised(arcs: Arcs) -> Arcs:
    """Return D^-½ A D^-½ with D_i = Σ_j A_ij; the row of an isolated instance stays 0."""
    d = row_sum(arcs, arcs.weights[:, None])[:, 0]
    r = torch.where(d > 0, d, torch.ones_like(d)).rsqrt()
    return arcs.with_weights(r[arcs.rows] * arcs.weights * r[arcs.columns])


def row_sum(arcs: Arcs, values: Float[Tensor, "a d"]) -> Float[Tensor, "n d"]:
    """Return, for each instance, the sum of the values of its incoming arcs, without gradients."""
    every = torch.arange(len(arcs.rows), device=arcs.rows.device)
    return _gather(values.detach(), every, arcs.starts, None)


def propagate(arcs: Arcs, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return A X, with gradients to X and, if they require them, to the weights."""
    return _Propagate.apply(x, arcs.weights.to(x.dtype), arcs)  # pyright: ignore[reportReturnType]


def _gather(x: Tensor, columns: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of the (weighted) rows of x in each segment; 0 for an empty one."""
    return F.embedding_bag(columns, x, starts, mode="sum", per_sample_weights=weights)


def _back(arcs: Arcs, g: Tensor, weights: Tensor | None) -> Tensor:
    """Return Aᵀ G."""
    columns, starts = arcs.turned
    w = None if weights is None else weights[arcs.turn]
    return _gather(g, columns, starts, w)


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, arcs: Arcs) -> Tensor:
        needs_x = ctx.needs_input_grad[1]
        ctx.save_for_backward(weights, *([x] if needs_x else []))
        ctx.arcs = arcs
        return _gather(x, arcs.columns, arcs.starts, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        weights, *saved = ctx.saved_tensors
        arcs = ctx.arcs
        g = grad.contiguous()
        d_x = _back(arcs, g, weights) if ctx.needs_input_grad[0] else None
        d_weights = None
        if saved:
            d_weights = torch.empty_like(weights)
            step = max(1, BLOCK // g.shape[1])
            for part in torch.arange(len(weights), device=g.device).split(step):
                pair = g[arcs.rows[part]], saved[0][arcs.columns[part]]
                d_weights[part] = (pair[0] * pair[1]).sum(1)
        return d_x, d_weights, None


def aggregate_softmax(
    arcs: Arcs, m: Float[Tensor, "n d"], t: Float[Tensor, " one"]
) -> Float[Tensor, "n d"]:
    """Return s_i = Σ_j a_ij m_j, with a_ij the softmax of t m_j over the arcs j → i, per channel.

    Instances without incoming arcs get 0; the arcs' weights are not used. With e = exp(t m − c),
    two products suffice: s = A(e ⊙ m) / A e. Here c is the bag's largest t m in each channel. If
    t m varies so much that e could underflow, each target has its own c and arcs need memory.
    """
    tm = t.detach() * m.detach()
    top = segment_max(tm, arcs.sizes)
    tm.sub_(top[segment_index(arcs.sizes, m.device)])
    # exp(−limit), its inverse, and their products with gradients must stay normal numbers.
    limit = 0.45 * math.log(torch.finfo(m.dtype).max)
    if tm.numel() and bool(tm.min() < -limit):
        return _OwnShift.apply(m, t, arcs)  # pyright: ignore[reportReturnType]
    return _SharedShift.apply(m, t, arcs, tm.exp_())  # pyright: ignore[reportReturnType]


class _SharedShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, t: Tensor, arcs: Arcs, e: Tensor) -> Tensor:  # noqa: PLR0917
        den = _gather(e, arcs.columns, arcs.starts, None)
        s = _gather(e * m, arcs.columns, arcs.starts, None)
        inverse = torch.where(den > 0, den, torch.ones_like(den)).reciprocal_()
        s.mul_(inverse)
        ctx.save_for_backward(m, t, e, inverse, s)
        ctx.arcs = arcs
        return s

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        # ds_i/dm_j = a_ij (1 + t (m_j − s_i)) and ds_i/dt = Σ_j a_ij (m_j − s_i) m_j
        m, t, e, inverse, s = ctx.saved_tensors
        u = grad * inverse
        p = _back(ctx.arcs, u, None)
        q = _back(ctx.arcs, u.mul_(s), None)
        off = (m * p).sub_(q)  # Σ_i (m_j − s_i) u_i
        d_t = (e * m).mul_(off).sum() if ctx.needs_input_grad[1] else None
        d_m = off.mul_(t).add_(p).mul_(e)
        return d_m, None if d_t is None else d_t.reshape(t.shape), None, None


class _OwnShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, t: Tensor, arcs: Arcs) -> Tensor:
        ctx.save_for_backward(m, t)
        ctx.arcs = arcs
        s = torch.empty_like(m)
        for part in _channels(arcs, m):
            a, m_a = _shares(arcs, m[:, part], t)
            s[:, part] = row_sum(arcs, a.mul_(m_a))
        return s

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        m, t = ctx.saved_tensors
        arcs = ctx.arcs
        d_m, d_t = torch.empty_like(m), torch.zeros_like(t)
        for part in _channels(arcs, m):
            a, m_a = _shares(arcs, m[:, part], t)
            s = row_sum(arcs, a * m_a)
            ag = a.mul_(grad[:, part][arcs.rows])
            off = (m_a - s[arcs.rows]).mul_(ag)
            d_t += (off * m_a).sum()
            _, starts = arcs.turned
            d_m[:, part] = _gather(ag.add_(off.mul_(t)), arcs.turn, starts, None)
        return d_m, d_t, None


def _channels(arcs: Arcs, m: Tensor) -> list[slice]:
    step = max(1, BLOCK // max(1, len(arcs.rows)))
    return [slice(k, k + step) for k in range(0, m.shape[1], step)]


def _shares(arcs: Arcs, m: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and m of each arc, for some channels."""
    m_a = m.index_select(0, arcs.columns)
    tm = t * m_a
    top = tm.new_full((len(arcs), m.shape[1]), -torch.inf)
    top.scatter_reduce_(0, arcs.rows[:, None].expand_as(tm), tm, "amax")
    a = tm.sub_(top[arcs.rows]).exp_()
    return a.div_(row_sum(arcs, a)[arcs.rows]), m_a
