"""Relative positions on a grid in self-attention (iRPE: Wu et al., ICCV 2021, arXiv:2107.14222).

Each pair of tokens belongs to a bucket, given by the length of its offset (Δrow, Δcolumn). A bucket
has a learned bias. α, β and γ are 1, 2 and 8 times the authors' ratio of 1.9. Attention is computed
in blocks of queries, and again for gradients, so no t × t tensor is stored.
Shapes: h heads, t tokens of one bag, b queries of a block, d width of a head, k buckets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core import without_autocast

ALPHA = 1.9
BETA = 3.8
GAMMA = 15.2
CAP = 3
"""⌊β⌋: the values of g are −3 … 3."""
BUCKETS = 2 * CAP + 1
"""Number of values of g. Lengths are not negative, so buckets 0 to 2 are never used; stored models
have biases for them."""
REACH = 4
"""Distances from here on are all in the last bucket, so clipping offsets to ±4 is exact."""
BLOCK = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Attention logits (heads × queries × tokens) computed at once; on a CPU they fit the cache."""
OTHER_BLOCK = 1 << 24
"""The same on other devices."""
KEEP = 1 << 24
"""Attention logits of a bag above which gradients compute them again."""


def piecewise(x: Tensor) -> Int[Tensor, "*x"]:
    """Return g(x): round(x) for |x| ≤ α, else logarithmic, at most β, truncated to integers."""
    x = x.double()
    size = x.abs().clamp_min(ALPHA)
    far = ALPHA + (size / ALPHA).log() / math.log(GAMMA / ALPHA) * (BETA - ALPHA)
    # rounded, then capped at β, which is no integer: truncation makes the cap ⌊β⌋
    far = x.sign() * far.round().clamp_max(BETA)
    return torch.where(x.abs() <= ALPHA, x.round(), far.trunc()).long()


def distance_buckets() -> Int[Tensor, "9 9"]:
    """Return the bucket of the length of each offset from (−4, −4) to (4, 4)."""
    offsets = torch.arange(-REACH, REACH + 1, device="cpu")  # also while a model is on `meta`
    down, right = torch.meshgrid(offsets, offsets, indexing="ij")
    lengths = (down.square() + right.square()).double().sqrt()
    return piecewise(lengths.round()) + CAP


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Positions of the tokens of one bag."""

    row: Int[Tensor, " t"]
    col: Int[Tensor, " t"]
    has_class_token: bool = False
    """Whether a class token, which has no position, precedes them."""

    def __len__(self) -> int:
        return len(self.row) + self.has_class_token

    def buckets(self, table: Int[Tensor, "9 9"], rows: slice) -> Int[Tensor, "b t"]:
        """Return bucket(i, j) for the queries i in `rows`; the class token has its own bucket."""
        # any position of the class token: its buckets are replaced below
        padding = (int(self.has_class_token), 0)
        token_rows = F.pad(self.row, padding)
        token_cols = F.pad(self.col, padding)
        # offsets, clipped to the reach of the table and counted from 0
        down = (token_rows[rows, None] - token_rows).clamp_(-REACH, REACH) + REACH
        right = (token_cols[rows, None] - token_cols).clamp_(-REACH, REACH) + REACH
        buckets = table.flatten()[down * table.shape[1] + right]
        if self.has_class_token:
            class_bucket = table.max() + 1
            buckets[:, 0] = class_bucket
            if rows.start == 0:
                buckets[0] = class_bucket
        return buckets


class Relative(nn.Module):
    """Biases of SETMIL's attention logits, by the distance between two tokens.

    `tables["q"][0]` has one for each head and bucket, (h, k); the last bucket is that of all pairs
    with the class token.
    """

    distances: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("distances", distance_buckets(), persistent=False)
        biases = nn.Parameter(torch.zeros(heads, BUCKETS + 1))
        # stored models name the weight so
        self.tables = nn.ModuleDict({"q": nn.ParameterList([biases])})

    def bias(self, rows: slice, places: Places) -> Float[Tensor, "h b t"]:
        """Return the term to add to the logits of the queries in `rows`."""
        (biases,) = self.tables["q"].parameters()
        # the values of biases[:, buckets], but gradients are summed in another order, which the
        # weights of trained models depend on in their last digits
        buckets_of_keys = places.buckets(self.distances, rows).T  # (keys, queries)
        keys = len(buckets_of_keys)
        biases_of_keys = biases[:, None].expand(-1, keys, -1)
        buckets_of_heads = buckets_of_keys.expand(len(biases), -1, -1)
        return biases_of_keys.gather(2, buckets_of_heads).mT


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
        with without_autocast(self.q):
            wide = torch.promote_types(self.q.dtype, torch.float32)
            q, k = self.q[:, rows].to(wide) * self.scale, self.k.to(wide)
            logits = q @ k.mT
            if self.relative is not None:
                logits = logits + self.relative.bias(rows, self.places)
            return logits.softmax(2)

    def pooled(self, a: Float[Tensor, "h b t"]) -> Float[Tensor, "h b d"]:
        """Return the values weighted by a."""
        return a.to(self.v.dtype) @ self.v

    def result(self, *, dropout: float = 0.0) -> Float[Tensor, "h t d"]:
        """Return the weighted values of all queries, in blocks of queries."""
        h, t, _ = self.q.shape
        if self.relative is None and not dropout:
            # a batch of one, as the fused kernels need it
            q = self.q[None]
            k = self.k[None]
            v = self.v[None]
            return F.scaled_dot_product_attention(q, k, v, scale=self.scale)[0]

        def block(rows: slice) -> Tensor:
            return self.pooled(F.dropout(self.weights(rows), dropout))

        step = max(1, BLOCK.get(self.q.device.type, OTHER_BLOCK) // (h * t))
        compute = recomputed(block) if h * t * t > KEEP else block
        starts = range(0, t, step)
        return torch.cat([compute(slice(start, min(start + step, t))) for start in starts], 1)


def recomputed(block: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Wrap a function so that gradients recompute its intermediate results, not store them."""
    if not torch.is_grad_enabled():
        return block
    return partial(checkpoint, block, use_reentrant=False)
