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
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core import check_options
from ..errors import InputError

A = TypeVar("A")
BucketMethod = Literal["none", "euc", "quant", "product", "cross"]
RelativeMode = Literal["bias", "contextual"]
RelativeTo = Literal["q", "k", "v", "qk", "qv", "kv", "qkv"]

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
    if method == "euc":
        return piecewise(squares.double().sqrt().round())[None] + CAP
    if method == "quant":
        return piecewise(squares)[None] + CAP
    rows, cols = piecewise(dr) + CAP, piecewise(dc) + CAP
    if method == "product":
        return (rows * (2 * CAP + 1) + cols)[None]
    return torch.stack([rows, cols])


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Positions of the tokens of one bag; `first`: a class token without position precedes them."""

    row: Int[Tensor, " t"]
    col: Int[Tensor, " t"]
    first: bool = False

    def buckets(self, tables: Tensor, rows: slice) -> Int[Tensor, "tables b t"]:
        """Return bucket(i, j) for the queries i in `rows`; the class token has its own bucket."""
        row, col = self.row, self.col
        if self.first:
            row, col = F.pad(row, (1, 0)), F.pad(col, (1, 0))
        down = (row[rows, None] - row).clamp_(-REACH, REACH)
        right = (col[rows, None] - col).clamp_(-REACH, REACH)
        side = 2 * REACH + 1
        buckets = tables.flatten(1)[:, (down + REACH) * side + right + REACH]
        if self.first:
            extra = _count(tables)
            buckets[:, :, 0] = extra
            if rows.start == 0:
                buckets[:, 0] = extra
        return buckets


def _count(tables: Tensor) -> int:
    """Return the number of buckets of a method, without that of the class token."""
    return 2 * CAP + 1 if len(tables) == 2 else int(tables.max()) + 1


class Tables(nn.Module):
    """Biases of the buckets (g, k), or vectors for queries or keys (g, d, k) or values (g, k, d).

    g is the number of heads, or 1 if they share one table.
    """

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def profiles(self, t: Float[Tensor, "h t d"]) -> list[Float[Tensor, "h t k"]]:
        """Return what each bucket adds to the logits of each token."""
        h, n, _ = t.shape
        return [
            table[:, None].expand(h, n, -1) if table.ndim == 2 else t @ table
            for table in self.tables
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Relation:
    """The kind of relative positions of an attention layer.

    Raises:
        InputError: If a choice is unknown, or values should have a bias.
    """

    method: BucketMethod
    """Buckets by distance, squared distance, rows and columns jointly, or each separately."""
    mode: RelativeMode
    on: RelativeTo
    """Which of queries, keys and values depend on the offset."""
    shared: bool = False
    """Whether all heads share one table."""

    def __post_init__(self) -> None:
        check_options(self)
        if "v" in self.on and self.mode == "bias":
            raise InputError(
                f"relative positions on {self.on!r} with mode 'bias': values take vectors, so give "
                "mode 'contextual'"
            )

    def layer(self, dim: int, heads: int, *, class_token: bool) -> "Relative | None":
        """Return the module for heads of this width; None for the method `none`."""
        if self.method == "none":
            return None
        return Relative(self, dim, heads=heads, class_token=class_token)


class Relative(nn.Module):
    """Relative positions of an attention layer.

    Args:
        kind: The kind of relative positions.
        dim: Width of a head.
        heads: Number of heads.
        class_token: Whether there is a further bucket, for pairs with the class token.
    """

    buckets: Tensor

    def __init__(self, kind: Relation, dim: int, *, heads: int, class_token: bool) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("buckets", bucket_tables(kind.method), persistent=False)
        k, g = _count(self.buckets) + class_token, 1 if kind.shared else heads
        shape = (g, k) if kind.mode == "bias" else (g, dim, k)
        many = len(self.buckets)
        self.on_q = Tables(*[shape] * many) if "q" in kind.on else None
        self.on_k = Tables(*[shape] * many) if "k" in kind.on else None
        self.on_v = Tables(*[(g, k, dim)] * many) if "v" in kind.on else None

    def bias(
        self, q: Tensor, rows: slice, *, keys: list[Tensor], places: Places
    ) -> Float[Tensor, "h b t"] | None:
        """Return the term to add to the logits of the queries in `rows`.

        Args:
            q: The queries of these rows, scaled.
            rows: The rows.
            keys: The result of `key_profiles`, which is the same for every block.
            places: The tokens' positions.
        """
        total = None
        if self.on_k is not None:
            for p, ids in zip(
                self.on_k.profiles(q), places.buckets(self.buckets, rows), strict=True
            ):
                term = p.gather(2, ids.expand(len(q), -1, -1))
                total = term if total is None else total + term
        if self.on_q is not None:  # the pair (i, j) has the bucket of the reversed offset (j, i)
            turned = places.buckets(self.buckets.flip(1, 2), rows)
            for p, ids in zip(keys, turned, strict=True):
                term = p.gather(2, ids.T.expand(len(q), -1, -1)).transpose(1, 2)
                total = term if total is None else total + term
        return total

    def key_profiles(self, k: Float[Tensor, "h t d"]) -> list[Tensor]:
        """Return what each bucket adds to the logits, from the scaled keys."""
        return [] if self.on_q is None else self.on_q.profiles(k)

    def values(
        self, a: Float[Tensor, "h b t"], rows: slice, *, places: Places
    ) -> Float[Tensor, "h b d"] | None:
        """Return Σ_j a_ij v_ij, with v_ij the vector of bucket(i, j)."""
        if self.on_v is None:
            return None
        total = None
        for table, ids in zip(self.on_v.tables, places.buckets(self.buckets, rows), strict=True):
            sums = a.new_zeros(*a.shape[:2], table.shape[1])
            term = sums.scatter_add(2, ids.expand_as(a), a) @ table.to(a.dtype)
            total = term if total is None else total + term
        return total


def recomputed(block: Callable[[A], Tensor]) -> Callable[[A], Tensor]:
    """Wrap a function so that gradients recompute its intermediate results, not store them."""
    if not torch.is_grad_enabled():
        return block
    return partial(checkpoint, block, use_reentrant=False)


def attend(
    q: Float[Tensor, "h t d"],
    k: Float[Tensor, "h t d"],
    v: Float[Tensor, "h t d"],
    *,
    scale: float,
    relative: Relative | None,
    places: Places,
    dropout: float = 0.0,
) -> Float[Tensor, "h t d"]:
    """Return softmax(scale · qkᵀ + bias) v with relative positions, in blocks of queries."""
    h, t, _ = q.shape
    if t == 0:
        return v
    step = max(1, BLOCK.get(q.device.type, KEEP) // (h * t))
    if relative is None and (not dropout or step >= t):
        return _fused(q, k, v, bias=None, scale=scale, dropout=dropout)
    keys = [] if relative is None else relative.key_profiles(k * scale)

    def block(rows: slice) -> Tensor:
        q_hbd = q[:, rows]
        if relative is None or relative.on_v is None:
            bias = relative and relative.bias(q_hbd * scale, rows, keys=keys, places=places)
            return _fused(q_hbd, k, v, bias=bias, scale=scale, dropout=dropout)
        a = weights(q_hbd, k, rows=rows, scale=scale, relative=relative, places=places, keys=keys)
        a = F.dropout(a, dropout)
        extra = relative.values(a, rows, places=places)
        assert extra is not None
        return a.to(v.dtype) @ v + extra.to(v.dtype)

    if step >= t:
        return block(slice(0, t))
    run = recomputed(block) if h * t * t > KEEP else block
    return torch.cat([run(slice(s, min(s + step, t))) for s in range(0, t, step)], 1)


def weights(
    q: Float[Tensor, "h b d"],
    k: Float[Tensor, "h t d"],
    *,
    rows: slice,
    scale: float,
    relative: Relative | None,
    places: Places,
    keys: list[Tensor] | None = None,
) -> Float[Tensor, "h b t"]:
    """Return softmax(scale · qkᵀ + bias) of these queries, in float32 or better."""
    with torch.autocast(q.device.type, enabled=False):
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide) * scale, k.to(wide)
        logits = q @ k.transpose(1, 2)
        if relative is not None:
            profiles = relative.key_profiles(k * scale) if keys is None else keys
            bias = relative.bias(q, rows, keys=profiles, places=places)
            logits = logits if bias is None else logits + bias
        return logits.softmax(2)


def _fused(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None, scale: float, dropout: float
) -> Tensor:
    mask = None if bias is None else bias[None].to(q.dtype)
    out = F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, dropout_p=dropout, scale=scale
    )
    return out[0]
