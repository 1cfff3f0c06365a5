"""Relative positions on a grid in self-attention (iRPE: Wu et al., ICCV 2021, arXiv:2107.14222).

Each pair of tokens belongs to a bucket, given by its offset (Δrow, Δcolumn). A bucket has a learned
bias, or a learned vector for queries, keys or values. Ratio 1.9: α 1.9, β 3.8, γ 15.2. Attention is
computed in blocks of queries, and again for gradients, so no t × t tensor is stored.
Shapes: h heads, t tokens of one bag, b queries of a block, d width of a head, k buckets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BucketMethod = Literal["euc", "quant", "product", "cross"]

ALPHA, BETA, GAMMA = 1.9, 3.8, 15.2
CAP = 3
"""⌊β⌋: the buckets of one axis are −3 … 3."""
REACH = 4
"""Distances from here on are all in the last bucket, so clipping offsets to ±4 is exact."""
BLOCK = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Attention logits (heads × queries × tokens) computed at once; on a CPU they fit the cache."""
KEEP = 1 << 24
"""Attention logits of a bag above which gradients compute them again."""


def piecewise(x: Tensor) -> Int[Tensor, "*x"]:
    """Return g(x): round(x) for |x| ≤ α, else logarithmic, at most β, truncated to integers."""
    x = x.double()
    size = x.abs().clamp_min(ALPHA)
    far = ALPHA + (size / ALPHA).log() / math.log(GAMMA / ALPHA) * (BETA - ALPHA)
    far = x.sign() * far.round().clamp_max(BETA)
    return torch.where(x.abs() <= ALPHA, x.round(), far.trunc()).long()


def bucket_tables(method: BucketMethod) -> Int[Tensor, "tables 9 9"]:
    """Return the bucket of each offset from (−4, −4) to (4, 4); two tables for `cross`."""
    offsets = torch.arange(-REACH, REACH + 1, device="cpu")  # read below, even of a meta model
    dr, dc = torch.meshgrid(offsets, offsets, indexing="ij")
    squares = dr.square() + dc.square()
    rows, cols = piecewise(dr) + CAP, piecewise(dc) + CAP
    tables = {
        "euc": [piecewise(squares.double().sqrt().round()) + CAP],
        "quant": [piecewise(squares) + CAP],
        "product": [rows * (2 * CAP + 1) + cols],
        "cross": [rows, cols],
    }
    return torch.stack(tables[method])


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Positions of the tokens of one bag; `first`: a class token without position precedes them."""

    row: Int[Tensor, " t"]
    col: Int[Tensor, " t"]
    first: bool = False

    def __len__(self) -> int:
        return len(self.row) + self.first

    def buckets(self, tables: Tensor, rows: slice) -> Int[Tensor, "tables b t"]:
        """Return bucket(i, j) for the queries i in `rows`; the class token has its own bucket."""
        row, col = (F.pad(v, (int(self.first), 0)) for v in (self.row, self.col))
        down, right = ((v[rows, None] - v).clamp_(-REACH, REACH) + REACH for v in (row, col))
        buckets = tables.flatten(1)[:, down * tables.shape[2] + right]
        if self.first:
            buckets[:, :, 0] = bucket_count(tables)
            if rows.start == 0:
                buckets[:, 0] = bucket_count(tables)
        return buckets


def bucket_count(tables: Tensor) -> int:
    """Return the number of buckets of a method, without that of the class token."""
    return 2 * CAP + 1 if len(tables) == 2 else int(tables.max()) + 1


class Relative(nn.Module):
    """Relative positions of an attention layer, by default the biases of SETMIL.

    `tables` holds, for each of q, k and v that depend on the offset, the biases of the buckets
    (g, k), or their vectors: (g, d, k) for queries and keys, (g, k, d) for values. g is the number
    of heads, or 1 if they share one table.

    Args:
        dim: Width of a head.
        heads: Number of heads.
        method: Buckets by distance, its square, rows and columns jointly, or each separately.
        contextual: Whether buckets have vectors; otherwise they have biases (not for values).
        on: Which of queries, keys and values depend on the offset: letters of "qkv".
        shared: Whether all heads share one table.
        class_token: Whether there is a further bucket, for pairs with the class token.
    """

    buckets: Tensor

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        method: BucketMethod = "euc",
        contextual: bool = False,
        on: str = "q",
        shared: bool = False,
        class_token: bool = False,
    ) -> None:
        super().__init__()
        self.register_buffer("buckets", bucket_tables(method), persistent=False)
        k, g = bucket_count(self.buckets) + class_token, 1 if shared else heads
        of_logits = (g, dim, k) if contextual else (g, k)
        shapes = {"q": of_logits, "k": of_logits, "v": (g, k, dim)}
        self.tables = nn.ModuleDict(
            {
                part: nn.ParameterList(
                    nn.Parameter(torch.zeros(shapes[part])) for _ in self.buckets
                )
                for part in on
            }
        )

    def bias(
        self, q: Float[Tensor, "h b d"], k: Float[Tensor, "h t d"], rows: slice, places: Places
    ) -> Float[Tensor, "h b t"] | float:
        """Return the term to add to the logits of the queries in `rows`, from scaled q and k."""
        total = 0.0
        for part, t in (("k", q), ("q", k)):
            # for tables of q, the pair (i, j) has the bucket of the reversed offset (j, i)
            buckets = self.buckets if part == "k" else self.buckets.flip(1, 2)
            for table, ids in self._pairs(part, buckets, rows, places):
                flat = table.ndim == 2
                profile = table[:, None].expand(*t.shape[:2], -1) if flat else t @ table
                index = ids if part == "k" else ids.T
                term = profile.gather(2, index.expand(len(t), -1, -1))
                total = total + (term if part == "k" else term.mT)
        return total

    def values(
        self, a: Float[Tensor, "h b t"], rows: slice, places: Places
    ) -> Float[Tensor, "h b d"] | float:
        """Return Σ_j a_ij v_ij, with v_ij the vector of bucket(i, j)."""
        total = 0.0
        for table, ids in self._pairs("v", self.buckets, rows, places):
            sums = a.new_zeros(*a.shape[:2], table.shape[1])
            total = total + sums.scatter_add(2, ids.expand_as(a), a) @ table.to(a.dtype)
        return total

    def _pairs(
        self, part: str, buckets: Tensor, rows: slice, places: Places
    ) -> list[tuple[Tensor, Tensor]]:
        if part not in self.tables:
            return []
        tables = self.tables[part]
        assert isinstance(tables, nn.ParameterList)
        return list(zip(tables, places.buckets(buckets, rows), strict=True))


@dataclass(frozen=True, slots=True)
class RelativeAttention:
    """Attention of one bag's tokens with relative positions (or none, without `relative`)."""

    q: Float[Tensor, "h t d"]
    k: Float[Tensor, "h t d"]
    v: Float[Tensor, "h t d"]
    scale: float
    relative: Relative | None
    places: Places

    def weights(self, rows: slice) -> Float[Tensor, "h b t"]:
        """Return softmax(scale · qkᵀ + bias) of these queries, in float32 or better."""
        with torch.autocast(self.q.device.type, enabled=False):
            wide = torch.promote_types(self.q.dtype, torch.float32)
            q, k = self.q[:, rows].to(wide) * self.scale, self.k.to(wide)
            logits = q @ k.mT
            if self.relative is not None:
                logits = logits + self.relative.bias(q, k * self.scale, rows, self.places)
            return logits.softmax(2)

    def pooled(self, a: Float[Tensor, "h b t"], rows: slice) -> Float[Tensor, "h b d"]:
        """Return the values weighted by a, which belongs to the queries in `rows`."""
        out = a.to(self.v.dtype) @ self.v
        if self.relative is not None:
            extra = self.relative.values(a, rows, self.places)
            out = out + (extra.to(out.dtype) if isinstance(extra, Tensor) else extra)
        return out

    def result(self, *, dropout: float = 0.0) -> Float[Tensor, "h t d"]:
        """Return the weighted values of all queries, in blocks of queries."""
        h, t, _ = self.q.shape
        if self.relative is None and not dropout:
            q, k, v = (part[None] for part in (self.q, self.k, self.v))
            return F.scaled_dot_product_attention(q, k, v, scale=self.scale)[0]

        def block(rows: slice) -> Tensor:
            return self.pooled(F.dropout(self.weights(rows), dropout), rows)

        step = max(1, BLOCK.get(self.q.device.type, KEEP) // (h * t))
        run = recomputed(block) if h * t * t > KEEP else block
        return torch.cat([run(slice(s, min(s + step, t))) for s in range(0, t, step)], 1)


def recomputed(block: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Wrap a function so that gradients recompute its intermediate results, not store them."""
    if not torch.is_grad_enabled():
        return block
    return partial(checkpoint, block, use_reentrant=False)
