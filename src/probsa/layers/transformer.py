"""Self-attention among the instances of each bag, pre-norm (appendix B of the paper).

    Z = Y + SA(LN(Y)),   Y' = Z + MLP(LN(Z))

Departures, each an argument: `out_proj` (W_O after the heads) and `final_norm` are on, as in the
usual transformer, but not in the printed equations; `add_self` (adds the input after every layer)
is torchmil's; without `use_mlp` a layer ends at Z, as in the paper's research code.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError

After = Callable[[Tensor], Tensor]


def bag_attention(
    qkv: Float[Tensor, "n three heads d"], sizes: Sequence[int], *, dropout: float = 0.0
) -> Float[Tensor, "n heads d"]:
    """Return softmax(QKᵀ/√d) V within each bag, without a mask or an N×N tensor.

    There is one fused kernel call per bag; on CUDA in half precision, one variable-length call
    serves all bags.
    """
    if qkv.is_cuda and qkv.dtype in (torch.float16, torch.bfloat16) and not dropout:
        return _varlen(qkv, sizes)
    outs = []
    for part in qkv.split(list(sizes)):
        q, k, v = part.permute(1, 2, 0, 3).unsqueeze(1)
        o = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        outs.append(o[0].transpose(0, 1))
    return torch.cat(outs)


def _varlen(qkv: Tensor, sizes: Sequence[int]) -> Tensor:
    try:
        from torch.nn.attention.varlen import varlen_attn  # torch >= 2.10
    except ImportError:
        q, k, v = (
            torch.nested.nested_tensor_from_jagged(
                part.contiguous(), torch.tensor([0, *sizes], device=qkv.device).cumsum(0)
            ).transpose(1, 2)
            for part in qkv.unbind(1)
        )
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).values()
    ends = torch.tensor([0, *sizes], device=qkv.device, dtype=torch.int32).cumsum(0).int()
    q, k, v = (part.contiguous() for part in qkv.unbind(1))
    out = varlen_attn(q, k, v, ends, ends, max(sizes), max(sizes))
    assert isinstance(out, Tensor)
    return out


class TransformerLayer(nn.Module):
    """One pre-norm block; if `in_dim != width`, the skip connection has a linear map."""

    def __init__(
        self,
        in_dim: int,
        width: int,
        *,
        heads: int,
        out_proj: bool = True,
        use_mlp: bool = True,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(in_dim)
        self.qkv = nn.Linear(in_dim, 3 * width, bias=False)
        self.out = nn.Linear(width, width) if out_proj else nn.Identity()
        self.skip = nn.Linear(in_dim, width) if in_dim != width else nn.Identity()
        self.use_mlp = use_mlp
        if use_mlp:
            self.norm2 = nn.LayerNorm(width)
            hidden = int(mlp_ratio * width)
            self.mlp = nn.Sequential(
                nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width)
            )

    def forward(
        self, y: Float[Tensor, "n i"], sizes: Sequence[int], *, after: After | None = None
    ) -> Float[Tensor, "n w"]:
        qkv_n3hd = self.qkv(self.norm1(y)).unflatten(1, (3, self.heads, -1))
        heads = bag_attention(qkv_n3hd, sizes, dropout=self.dropout if self.training else 0.0)
        attended = self.out(heads.flatten(1))
        z = self.skip(y) + (attended if after is None else after(attended))
        return z + self.mlp(self.norm2(z)) if self.use_mlp else z


class Transformer(nn.Module):
    """A stack of blocks, applied to each bag by itself; equivariant to the order of instances.

    Args:
        dim: Width of the input and the output.
        layers: Number of blocks.
        heads: Number of attention heads, a divisor of `width`.
        width: D_qk = D_v, by default `dim`; another width adds linear maps at both ends.
        out_proj: Whether a linear map follows the heads.
        use_mlp: Whether the blocks have an MLP.
        final_norm: Whether a layer norm follows the last block.
        add_self: Whether the input is added after every block.
        dropout: Dropout of the attention weights and in the MLP, in training.

    Raises:
        InputError: If the heads do not divide the width.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        dim: int,
        *,
        layers: int = 2,
        heads: int = 8,
        width: int | None = None,
        out_proj: bool = True,
        use_mlp: bool = True,
        final_norm: bool = True,
        add_self: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        w = dim if width is None else width
        if heads < 1 or w % heads:
            raise InputError(f"heads is {heads}: give a divisor of the transformer's width, {w}")
        self.add_self = add_self
        self.blocks = nn.ModuleList(
            TransformerLayer(
                dim if k == 0 else w,
                w,
                heads=heads,
                out_proj=out_proj,
                use_mlp=use_mlp,
                dropout=dropout,
            )
            for k in range(layers)
        )
        self.back = nn.Linear(w, dim) if w != dim else nn.Identity()
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()

    def forward(
        self, h: Float[Tensor, "n d"], sizes: Sequence[int], *, after: Sequence[After] = ()
    ) -> Float[Tensor, "n d"]:
        """Return the updated instances.

        Args:
            h: Instance vectors.
            sizes: Number of instances of each bag.
            after: Optional functions, one per block, applied to its attention before the sum.
        """
        y = h
        for k, block in enumerate(self.blocks):
            y = block(y, sizes, after=after[k] if after else None)
            if self.add_self:
                y = y + h
        return self.norm(self.back(y))
