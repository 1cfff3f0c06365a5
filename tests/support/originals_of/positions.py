"""The forms of relative positions of SETMIL's original; the package has its default alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from probsa.layers import Places, Relative, RelativeAttention
from probsa.layers.irpe import BUCKETS, CAP, REACH, piecewise
from probsa.models.setmil import Block


def bucket_tables(method: str) -> list[Tensor]:
    """Return the bucket of each offset from (−4, −4) to (4, 4); two tables for `cross`."""
    offsets = torch.arange(-REACH, REACH + 1)
    down, right = torch.meshgrid(offsets, offsets, indexing="ij")
    squares = down.square() + right.square()
    rows = piecewise(down) + CAP
    cols = piecewise(right) + CAP
    return {
        "euc": [piecewise(squares.double().sqrt().round()) + CAP],
        "quant": [piecewise(squares) + CAP],
        "product": [rows * BUCKETS + cols],
        "cross": [rows, cols],
    }[method]


class Form(Relative):
    """Relative positions as the original's settings describe them.

    `tables` holds, for each of q, k and v that depend on the offset, the biases of the buckets
    (g, k), or their vectors: (g, d, k) for queries and keys, (g, k, d) for values. g is the number
    of heads, or 1 if they share one table.
    """

    def __init__(
        self, settings: Mapping[str, Any], *, dim: int, heads: int, class_token: bool
    ) -> None:
        nn.Module.__init__(self)
        self.buckets = bucket_tables(settings["method"])
        k = int(self.buckets[0].max()) + 1 + class_token
        g = 1 if settings["shared_head"] else heads
        of_logits = (g, dim, k) if settings["mode"] == "ctx" else (g, k)
        shapes = {"q": of_logits, "k": of_logits, "v": (g, k, dim)}
        self.tables = nn.ModuleDict()
        for part in settings["rpe_on"]:
            zeros = [nn.Parameter(torch.zeros(shapes[part])) for _ in self.buckets]
            self.tables[part] = nn.ParameterList(zeros)

    def of_logits(self, q: Tensor, k: Tensor, rows: slice, places: Places) -> Tensor:
        """Return the term to add to the logits of the queries in `rows`, from scaled q and k."""
        total = torch.zeros(())
        for part, t in (("k", q), ("q", k)):
            # for tables of q, the pair (i, j) has the bucket of the reversed offset (j, i)
            tables = [b if part == "k" else b.flip(0, 1) for b in self.buckets]
            for weights, ids in self.pairs(part, tables, rows, places):
                if weights.ndim == 2:
                    profile = weights[:, None].expand(*t.shape[:2], -1)
                else:
                    profile = t @ weights
                index = ids if part == "k" else ids.T
                term = profile.gather(2, index.expand(len(t), -1, -1))
                total = total + (term if part == "k" else term.mT)
        return total

    def of_values(self, a: Tensor, rows: slice, places: Places) -> Tensor:
        """Return Σ_j a_ij v_ij, with v_ij the vector of bucket(i, j)."""
        total = torch.zeros(())
        for vectors, ids in self.pairs("v", self.buckets, rows, places):
            sums = a.new_zeros(*a.shape[:2], vectors.shape[1])
            total = total + sums.scatter_add(2, ids.expand_as(a), a) @ vectors
        return total

    def pairs(
        self, part: str, tables: Sequence[Tensor], rows: slice, places: Places
    ) -> list[tuple[Tensor, Tensor]]:
        if part not in self.tables:
            return []
        ids = [places.buckets(table, rows) for table in tables]
        return list(zip(self.tables[part].parameters(), ids, strict=True))


@dataclass(frozen=True)
class FormAttention(RelativeAttention):
    """Attention in any of these forms, without blocks of queries."""

    form: Form = field(kw_only=True)

    def weights(self, rows: slice) -> Tensor:
        q = self.q[:, rows] * self.scale
        terms = self.form.of_logits(q, self.k * self.scale, rows, self.places)
        return (q @ self.k.mT + terms).softmax(2)

    def pooled(self, a: Tensor) -> Tensor:
        # a has the row of the class token, or those of all tokens: both begin at the first query
        return a @ self.v + self.form.of_values(a, slice(0, a.shape[1]), self.places)

    def result(self, *, dropout: float = 0.0) -> Tensor:
        assert not dropout
        return self.pooled(self.weights(slice(0, len(self.places))))


def give_positions(block: Block, settings: Mapping[str, Any], *, class_token: bool) -> None:
    """Replace the relative positions of a block by a form of the original; or take them away."""
    block.relative = None
    if not settings["rpe"]:
        return
    dim = block.proj.in_features // block.heads
    form = Form(settings, dim=dim, heads=block.heads, class_token=class_token)
    block.relative = form
    plain = block.attention

    def attention(qkv: Tensor, places: Sequence[Places]) -> list[RelativeAttention]:
        names = [f.name for f in fields(RelativeAttention)]
        return [
            FormAttention(*(getattr(one, name) for name in names), form=form)
            for one in plain(qkv, places)
        ]

    block.attention = attention
