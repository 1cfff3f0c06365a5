"""Layers that turn windows of a map into tokens (T2T-ViT: Yuan et al., arXiv:2101.11986).

As in SETMIL, there is one head, its values are the skip connection, and logits are scaled by the
width of the window instead of the head. Windows are gathered in blocks; the map is never unfolded.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .irpe import Places, Relation, attend, recomputed

BLOCK = 1 << 25
"""Numbers gathered at once: 5,349 windows of 49 cells with 128 features."""


class WindowToken(nn.Module):
    """y = x + W₂ GELU(W₁ LN(x)), x = v + W_p softmax(qkᵀ / √(C K²)) v, [q, k, v] = LN(U) W.

    U are the windows, flattened from (C, K, K) as in the original.

    Args:
        in_dim: Number of features C of a cell.
        dim: Width e of a token.
        size: Side K of a window, in cells.
        dropout: Dropout after W_p and both layers of the MLP, in training.
        attention_dropout: Dropout of the attention weights, in training.
        relative: Kind of relative positions, or None.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        *,
        size: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        relative: Relation | None = None,
    ) -> None:
        super().__init__()
        wide = in_dim * size * size
        self.in_dim, self.dropout, self.attention_dropout = in_dim, dropout, attention_dropout
        self.norm1 = nn.LayerNorm(wide)
        self.qkv = nn.Linear(wide, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.relative = relative and relative.layer(dim, 1, class_token=False)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)

    def forward(
        self,
        g: Float[Tensor, "t c"],
        index: Int[Tensor, "o k2"],
        *,
        sizes: Sequence[int],
        places: Sequence[Places],
    ) -> Float[Tensor, "o e"]:
        """Return the tokens of all bags.

        Args:
            g: Features of the cells.
            index: The cells of each window; len(g) stands for an empty cell, with features 0.
            sizes: Number of tokens of each bag.
            places: Positions of the tokens of each bag.
        """
        q, k, v = self.project(g, index).chunk(3, 1)
        scale = self.norm1.weight.numel() ** -0.5
        drop = self.attention_dropout if self.training else 0.0
        parts = [p.split(list(sizes)) for p in (q, k, v)]
        mixed = [
            attend(
                q_b[None], k_b[None], v_b[None],
                scale=scale, relative=self.relative, places=where, dropout=drop,
            )[0]
            for q_b, k_b, v_b, where in zip(*parts, places, strict=True)
        ]  # fmt: skip
        x = v + self._drop(self.proj(torch.cat(mixed)))
        m = self._drop(F.gelu(self.fc1(self.norm2(x))))
        return x + self._drop(self.fc2(m))

    def project(self, g: Float[Tensor, "t c"], index: Tensor) -> Float[Tensor, "o qkv"]:
        """Return LN(U) W, with γ, β and W reordered cell by cell, as windows are gathered."""
        c, k2 = self.in_dim, index.shape[1]
        gamma, beta = (p.view(c, k2).T.flatten() for p in (self.norm1.weight, self.norm1.bias))
        w = self.qkv.weight.view(-1, c, k2).transpose(1, 2).flatten(1)
        padded = F.pad(g, (0, 0, 0, 1))

        def block(index: Tensor) -> Tensor:
            u = padded.index_select(0, index.flatten()).view(len(index), k2 * c)
            return F.linear(F.layer_norm(u, (k2 * c,), gamma, beta, self.norm1.eps), w)

        step = max(1, BLOCK // (k2 * c))
        if len(index) <= step:
            return block(index)
        run = recomputed(block)
        return torch.cat([run(part) for part in index.split(step)])

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)
