"""SETMIL's transformer block for tokens on a grid (Zhao et al., MICCAI 2022).

It is pre-norm, with relative positions in its attention; tokens attend only to those of their bag.
Shapes: t tokens of all bags with their class tokens, d width, h heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .cells import Cells, Layout
from .irpe import Places, Relation, attend, weights


def sinusoid(p: Int[Tensor, " t"], dim: int) -> Float[Tensor, "t d"]:
    """Return PE[p, 2i] = sin(p / 10000^(2i/D)) and PE[p, 2i + 1] = cos(…), in float64."""
    i = torch.arange(0, dim, 2, device=p.device, dtype=torch.float64)
    angle = p[:, None] * 10000.0 ** (-i / dim)
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)[:, :dim]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMap:
    """The tokens of each bag's map, after the first reduction."""

    layout: Layout
    """The cells of the instances."""
    cells: Cells
    """The cells of the tokens."""
    g: Float[Tensor, "t c"]


def places_of(cells: Cells, *, first: bool) -> list[Places]:
    """Return the positions of each bag's tokens; `first`: a class token precedes them."""
    parts = (v.split(list(cells.sizes)) for v in (cells.row, cells.col))
    return [Places(row=row, col=col, first=first) for row, col in zip(*parts, strict=True)]


def with_first(
    z: Float[Tensor, "t d"], head: Float[Tensor, "1 d"], cells: Cells
) -> Float[Tensor, "t_plus_bags d"]:
    """Insert the class token before the tokens of each bag."""
    bags, t = len(cells.sizes), torch.arange(len(z), device=z.device)
    order = z.new_zeros(len(z) + bags, dtype=torch.long)
    order[t + cells.bag + 1] = t + 1
    return torch.cat([head.to(z.dtype), z])[order]


class SETBlock(nn.Module):
    """z ← z + W_o Attn(LN z); z ← z + MLP(LN z), with relative positions in the attention."""

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        mlp_ratio: float,
        qkv_bias: bool,
        dropout: float,
        attention_dropout: float,
        relative: Relation,
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.attention_dropout = heads, dropout, attention_dropout
        self.scale = (dim // heads) ** -0.5
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.relative = relative.layer(dim // heads, heads, class_token=True)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, int(mlp_ratio * dim))
        self.fc2 = nn.Linear(int(mlp_ratio * dim), dim)

    def forward(self, z: Float[Tensor, "t d"], places: Sequence[Places]) -> Float[Tensor, "t d"]:
        """Return the updated tokens of all bags."""
        mixed = [
            attend(
                q, k, v,
                scale=self.scale, relative=self.relative, places=where,
                dropout=self.attention_dropout if self.training else 0.0,
            ).transpose(0, 1).flatten(1)
            for (q, k, v), where in zip(self._split(z, places), places, strict=True)
        ]  # fmt: skip
        return self._rest(z, torch.cat(mixed))

    def class_rows(
        self, z: Float[Tensor, "t d"], places: Sequence[Places]
    ) -> tuple[Float[Tensor, "bags d"], list[Float[Tensor, "h _"]]]:
        """Return the updated class tokens alone, and their attention per head, bag by bag."""
        first, mixed, rows = slice(0, 1), [], []
        for (q, k, v), where in zip(self._split(z, places), places, strict=True):
            a = weights(
                q[:, first], k,
                rows=first, scale=self.scale, relative=self.relative, places=where,
            )  # fmt: skip
            rows.append(a[:, 0])
            a = F.dropout(a, self.attention_dropout, self.training)
            out = a.to(v.dtype) @ v
            if self.relative is not None:
                extra = self.relative.values(a, first, places=where)
                out = out if extra is None else out + extra.to(v.dtype)
            mixed.append(out.flatten())
        starts = torch.tensor([0, *_lengths(places)[:-1]], device=z.device).cumsum(0)
        return self._rest(z[starts], torch.stack(mixed)), rows

    def unread(self) -> list[str]:
        """Return the names of the parameters that `class_rows` does not depend on.

        All pairs of the class token share a bucket, so adding a bias to them has no effect.
        """
        if self.relative is None:
            return []
        kind = self.relative.kind
        dead = [on for on in "qk" if on in kind.on and (on == "k" or kind.mode == "bias")]
        tables = tuple(f"relative.on_{on}." for on in dead)
        return [k for k, _ in self.named_parameters() if k.startswith(tables)]

    def _split(self, z: Tensor, places: Sequence[Places]) -> list[Tensor]:
        """Return queries, keys and values (3, h, t, d) of each bag."""
        qkv = self.qkv(self.norm1(z)).unflatten(1, (3, self.heads, -1))
        return [part.permute(1, 2, 0, 3) for part in qkv.split(_lengths(places))]

    def _rest(self, z: Tensor, mixed: Tensor) -> Tensor:
        z = z + self._drop(self.proj(mixed))
        m = self._drop(F.gelu(self.fc1(self.norm2(z))))
        return z + self._drop(self.fc2(m))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def _lengths(places: Sequence[Places]) -> list[int]:
    return [len(where.row) + where.first for where in places]
