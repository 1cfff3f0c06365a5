"""A window of a map becomes a token (T2T-ViT: Yuan et al., ICCV 2021, arXiv:2101.11986).

As SETMIL has it: one head whose values are the skip connection, logits scaled by the width of the
window and not of the head. Windows are gathered, never a whole unfolded map; large ones blockwise.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .irpe import Kind, Places, attend, recomputed

BLOCK = 1 << 25
"""Numbers gathered at once: at 49 cells of 128 features, 5,349 windows."""


class WindowToken(nn.Module):
    """y = x + W₂ GELU(W₁ LN(x)), x = v + W_p softmax(qkᵀ / √(C K²)) v, [q, k, v] = LN(U) W.

    U are the windows, laid out channel by channel as the original's are (C, K, K).

    Args:
        in_dim: C, features of a cell.
        dim: e, width of a token.
        size: K, cells of a window's side.
        dropout: after W_p and both layers of the MLP.
        attention_dropout: on the attention weights.
        relative: relative positions, or None.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        *,
        size: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        relative: Kind | None = None,
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
        """Tokens of all bags at once; attention bag by bag.

        Args:
            index: the cells of each window; len(g) is a cell that is none, and reads 0.
            sizes: tokens of each bag.
            places: where they are.
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
        """LN(U) W. A gathered window is cell by cell, so γ, β and W are put in that order."""
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
