"""The original transformer, with a layer norm after each sum (Vaswani et al. 2017).

    y' = LN(y + MHA(y)),   y'' = LN(y' + W₂ ReLU(W₁ y'))

These are PyTorch's encoder and decoder layers, for packed bags.
Shapes: b bags, q queries, n instances, h heads of e numbers, d = h e.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .transformer import bag_attention


class MultiHead(nn.Module):
    """Multi-head attention with biases, within bags or from queries to their bag's instances."""

    def __init__(self, dim: int, *, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise InputError(f"heads is {heads}: give a divisor of the transformer's width, {dim}")
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def within(self, y: Float[Tensor, "n d"], sizes: Sequence[int]) -> Float[Tensor, "n d"]:
        """Attend from each instance (or query) to those of its bag."""
        qkv_n3he = self.qkv(y).unflatten(1, (3, self.heads, -1))
        rate = self.dropout if self.training else 0.0
        return self.out(bag_attention(qkv_n3he, sizes, dropout=rate).flatten(1))

    def across(
        self, y: Float[Tensor, "b q d"], x: Float[Tensor, "n d"], sizes: Sequence[int]
    ) -> tuple[Float[Tensor, "b q d"], Float[Tensor, "n q"]]:
        """Attend from each query to the instances of its bag.

        Also return the attention weights, as means over the heads. There are few queries, so keys
        and values are never computed, for O(N q h d) instead of O(N d²) operations:
        qᵀ(W_k x_n) = (W_kᵀ q)ᵀ x_n, and Σ a_n W_v x_n = W_v Σ a_n x_n. The bias of the keys adds
        the same number to all scores of a query, which does not change the softmax.
        """
        split = (self.heads, -1)
        w_q, w_k, w_v = self.qkv.weight.chunk(3)
        b_q, _, b_v = self.qkv.bias.chunk(3)
        q_bqhe = F.linear(y, w_q, b_q).unflatten(2, split)
        folded = torch.einsum("bqhe,hed->bqhd", q_bqhe, w_k.unflatten(0, split))
        folded = folded.flatten(1, 2) * q_bqhe.shape[3] ** -0.5
        pooled = []
        mass = []
        means = []
        for f_sd, x_nd in zip(folded, x.split(list(sizes)), strict=True):
            a_sn = (f_sd @ x_nd.T).softmax(1)
            means.append(a_sn.detach().unflatten(0, (-1, self.heads)).mean(1).T)
            a_sn = F.dropout(a_sn, self.dropout, self.training)
            pooled.append(a_sn @ x_nd)
            mass.append(a_sn.sum(1))
        z_bqhd = torch.stack(pooled).unflatten(1, (-1, self.heads))
        m_bqh = torch.stack(mass).unflatten(1, (-1, self.heads))
        v_bqhe = torch.einsum("bqhd,hed->bqhe", z_bqhd, w_v.unflatten(0, split))
        v_bqhe = v_bqhe + m_bqh[..., None] * b_v.unflatten(0, split)
        return self.out(v_bqhe.flatten(2)), torch.cat(means)


def _feed_forward(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    steps = OrderedDict[str, nn.Module]()
    steps["first"] = nn.Linear(dim, hidden)
    steps["relu"] = nn.ReLU()
    steps["dropout"] = nn.Dropout(dropout)
    steps["second"] = nn.Linear(hidden, dim)
    return nn.Sequential(steps)


class PostNormLayer(nn.Module):
    """An encoder layer, applied to each bag by itself.

    Args:
        dim: Width of the instance vectors.
        heads: Number of attention heads.
        hidden: Width of the MLP's hidden layer.
        dropout: Dropout of attention weights, after the ReLU, and before each sum, in training.
    """

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = MultiHead(dim, heads=heads, dropout=dropout)
        self.feed = _feed_forward(dim, hidden, dropout)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, y: Float[Tensor, "n d"], sizes: Sequence[int]) -> Float[Tensor, "n d"]:
        y = self.norm1(y + self.dropout(self.attention.within(y, sizes)))
        return self.norm2(y + self.dropout(self.feed(y)))


class QueryLayer(nn.Module):
    """A decoder layer without a mask: queries attend to one another, then to their bag's instances.

    The arguments are those of `PostNormLayer`.
    """

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.queries = MultiHead(dim, heads=heads, dropout=dropout)
        self.instances = MultiHead(dim, heads=heads, dropout=dropout)
        self.feed = _feed_forward(dim, hidden, dropout)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, t: Float[Tensor, "b q d"], x: Float[Tensor, "n d"], sizes: Sequence[int]
    ) -> tuple[Float[Tensor, "b q d"], Float[Tensor, "n q"]]:
        """Return the updated queries and their attention weights over the instances."""
        among = self.queries.within(t.flatten(0, 1), [t.shape[1]] * len(t)).view_as(t)
        t = self.norm2(t + self.dropout(among))
        read, weights = self.instances.across(t, x, sizes)
        t = self.norm1(t + self.dropout(read))
        return self.norm3(t + self.dropout(self.feed(t))), weights
