"""TransMIL's layers: each bag is a square of tokens after a class token (arXiv:2106.00908).

The square is filled in the order in which instances are stored, not by their positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import PositiveInt, check_value
from .nystrom import Group, NystromAttention, NystromLayer, attention_row

Duplicates = Literal["drop", "add"]


class PPEG(nn.Module):
    """G + DW₇(G) + DW₅(G) + DW₃(G) on the square of each bag; the class token is unchanged.

    The three depthwise kernels and the identity are first added up to a single kernel.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wide, self.middle, self.narrow = (
            nn.Conv2d(dim, dim, size, padding=size // 2, groups=dim) for size in (7, 5, 3)
        )

    def forward(self, x: Float[Tensor, "t d"], sizes: Sequence[int]) -> Float[Tensor, "t d"]:
        wide, middle, narrow = self.wide, self.middle, self.narrow
        one = torch.zeros_like(wide.weight)
        one[:, :, 3, 3] = 1
        kernel = wide.weight + F.pad(middle.weight, [1] * 4) + F.pad(narrow.weight, [2] * 4) + one
        biases = [conv.bias for conv in (wide, middle, narrow) if conv.bias is not None]
        bias = torch.stack(biases).sum(0)
        parts = []
        for tokens in x.split(list(sizes)):
            side = math.isqrt(len(tokens) - 1)
            g = tokens[1:].T.unflatten(1, (side, side))[None]
            g = F.conv2d(g, kernel, bias, padding=3, groups=len(bias))
            parts += [tokens[:1], g[0].flatten(1).T]
        return torch.cat(parts)


class SquareEncoder(nn.Module):
    """Layers over each bag's class token and its square of instances, with PPEG after the first.

    The first a = M² − N instances are repeated to fill the M = ⌈√N⌉ rows of the square. Further
    arguments are those of `NystromAttention`.
    """

    def __init__(self, dim: int, *, layers: int, **attention: Any) -> None:
        super().__init__()
        check_value("layers", layers, PositiveInt)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.blocks = nn.ModuleList(
            NystromLayer(NystromAttention(dim, **attention)) for _ in range(layers)
        )
        self.ppeg = PPEG(dim)
        self.norm = nn.LayerNorm(dim)

    def tokens(
        self, h: Float[Tensor, "n d"], sizes: Sequence[int]
    ) -> tuple[Float[Tensor, "t d"], list[int]]:
        """Return the tokens [class token; h; h_1..a] of each bag, and their number."""
        parts, counts = [], []
        for rows in h.split(list(sizes)):
            n = len(rows)
            square = (math.isqrt(n - 1) + 1) ** 2
            parts += [self.cls_token[0], rows, rows[: square - n]]
            counts.append(square + 1)
        return torch.cat(parts), counts

    def encode(self, h: Float[Tensor, "n d"], sizes: Sequence[int]) -> "Encoded":
        """Return all tokens after the last layer, before the norm, and that layer's attention."""
        x, counts = self.tokens(h, sizes)
        groups: list[Group] = []
        for k, block in enumerate(self.blocks):
            assert isinstance(block, NystromLayer)
            groups = block.look(x, counts)
            x = x + block.attention.attend(groups)
            if k == 0:
                x = self.ppeg(x, counts)
        return Encoded(x=x, counts=tuple(counts), sizes=tuple(sizes), groups=groups)

    def forward(self, h: Float[Tensor, "n d"], sizes: Sequence[int]) -> Float[Tensor, "n d"]:
        """Return the normalised instances, without class tokens and repeated instances."""
        return self.norm(self.encode(h, sizes).instances)


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """The tokens of a batch after the last layer."""

    x: Float[Tensor, "t d"]
    counts: tuple[int, ...]
    """Number of tokens of each bag."""
    sizes: tuple[int, ...]
    """Number of instances of each bag."""
    groups: list[Group]
    """Attention of the last layer."""

    @property
    def classes(self) -> Float[Tensor, "bags d"]:
        """The class token of each bag."""
        return torch.stack([tokens[0] for tokens in self.x.split(self.counts)])

    @property
    def instances(self) -> Float[Tensor, "n d"]:
        """The first token of each instance."""
        bags = zip(self.x.split(self.counts), self.sizes, strict=True)
        return torch.cat([tokens[1 : n + 1] for tokens, n in bags])

    @torch.no_grad()
    def attended(self, *, duplicates: Duplicates) -> Float[Tensor, "n heads"]:
        """Return the attention of each class token, one column per head.

        Args:
            duplicates: `drop` ignores the attention to repeated instances; `add` adds it.
        """
        rows: dict[int, Tensor] = {}
        for group in self.groups:
            rows |= zip(group.members, attention_row(group, 0), strict=True)
        parts = []
        for b, n in enumerate(self.sizes):
            score = rows[b][1 : n + 1].clone()
            if duplicates == "add":
                repeated = rows[b][n + 1 :]
                score[: len(repeated)] += repeated
            parts.append(score)
        return torch.cat(parts)
