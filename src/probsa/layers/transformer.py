"""Self-attention among the instances of each bag, pre-norm (appendix B of the paper).

    Z = Y + SA(LN(Y)),   Y' = Z + MLP(LN(Z))

Departures, each an argument: `out_proj` (W_O after the heads) and `final_norm` are on, as in the
usual transformer, but not in the printed equations; `add_self` (adds the input after every layer)
is torchmil's; without `use_mlp` a layer ends at Z, as in the paper's research code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import HeadCount, StepCount, Width, as_segments
from ..errors import InputError

After = Callable[[Tensor], Tensor]


@cache
def _varlen_attention() -> Callable[..., Any] | None:
    """Return PyTorch's attention of variable lengths; None where PyTorch has none.

    It is imported when a GPU first needs it, because that takes more than a second.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # torch < 2.10
        return None
    return varlen_attn


def bag_attention(
    qkv: Float[Tensor, "n three heads d"], sizes: Sequence[int], *, dropout: float = 0.0
) -> Float[Tensor, "n heads d"]:
    """Return softmax(QKᵀ/√d) V within each bag, without a mask or an N×N tensor.

    There is one fused kernel call per bag, or one for all bags if they have equal sizes or, on
    CUDA in half precision, where variable lengths are supported.
    """
    half = qkv.dtype in (torch.float16, torch.bfloat16)
    varlen = _varlen_attention() if qkv.is_cuda and half and not dropout else None
    if varlen is not None:
        ends = as_segments(sizes, qkv.device).offsets.int()
        q, k, v = (part.contiguous() for part in qkv.unbind(1))  # as the kernel needs them
        out = varlen(q, k, v, ends, ends, max(sizes), max(sizes))
        assert isinstance(out, Tensor)
        return out
    have_equal_sizes = len(set(sizes)) == 1
    parts = [qkv.unflatten(0, (-1, sizes[0]))] if have_equal_sizes else qkv.split(list(sizes))
    results = []
    for part in parts:
        # (bags, n, 3, heads, d) to three of (bags, heads, n, d)
        q, k, v = part.view(-1, *part.shape[-4:]).permute(2, 0, 3, 1, 4)
        result = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        results.append(result.transpose(1, 2).flatten(0, 1))
    return torch.cat(results)


class TransformerLayer(nn.Module):
    """One pre-norm block; if `in_dim != width`, the skip connection has a linear map.

    Raises:
        InputError: If the heads do not divide the width, or the MLP has no hidden unit.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        in_dim: int,
        width: int,
        *,
        heads: int,
        out_proj: bool = True,
        use_mlp: bool = True,
        mlp_ratio: float = 4.0,
        activation: type[nn.Module] = nn.GELU,
        eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise InputError(
                f"heads is {heads}: give a divisor of the transformer's width, {width}"
            )
        hidden = round(mlp_ratio * width)
        if hidden < 1:
            raise InputError(f"mlp_ratio is {mlp_ratio}: the MLP needs at least one hidden unit")
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(in_dim, eps=eps)
        self.qkv = nn.Linear(in_dim, 3 * width, bias=False)
        self.out = nn.Linear(width, width) if out_proj else nn.Identity()
        self.skip = nn.Linear(in_dim, width) if in_dim != width else nn.Identity()
        self.use_mlp = use_mlp
        if use_mlp:
            self.norm2 = nn.LayerNorm(width, eps=eps)
            self.mlp = nn.Sequential(
                nn.Linear(width, hidden),
                activation(),
                nn.Dropout(dropout),
                nn.Linear(hidden, width),
            )

    def forward(
        self, y: Float[Tensor, "n i"], sizes: Sequence[int], *, after: After | None = None
    ) -> Float[Tensor, "n w"]:
        qkv_n3hd = self.qkv(self.norm1(y)).unflatten(1, (3, self.heads, -1))
        heads = bag_attention(qkv_n3hd, sizes, dropout=self.dropout if self.training else 0.0)
        attended = self.out(heads.flatten(1))
        if after is not None:
            attended = after(attended)
        z = self.skip(y) + attended
        return z + self.mlp(self.norm2(z)) if self.use_mlp else z


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerOptions:
    """A stack of pre-norm blocks."""

    layers: StepCount = 2
    """Number of transformer layers."""
    heads: HeadCount = 8
    """Number of attention heads per layer, a divisor of the width."""
    width: Width | None = None
    """Width D_qk = D_v of the attention; None: that of the instance vectors. Another width adds
    linear maps at both ends."""
    out_proj: bool = True
    """Whether a linear map follows the attention heads."""
    use_mlp: bool = True
    """Whether each layer ends with an MLP of four times the width."""
    final_norm: bool = True
    """Whether a layer norm follows the last layer."""
    add_self: bool = False
    """Whether the transformer's input is added again after every layer (torchmil)."""


class Transformer(nn.Module):
    """A stack of blocks, applied to each bag by itself; equivariant to the order of instances.

    Args:
        dim: Width of the input and the output.
        dropout: Dropout of the attention weights and in the MLP, in training.
        **options: Fields of `TransformerOptions`.

    Raises:
        InputError: The heads do not divide the width, or another width should be added to `dim`.
    """

    def __init__(self, dim: int, *, dropout: float = 0.0, **options: Any) -> None:
        super().__init__()
        network = TransformerOptions(**options)
        width = dim if network.width is None else network.width
        if network.add_self and width != dim:
            raise InputError(
                f"width is {width}: add_self adds the input, of width {dim}, after every layer; "
                "leave one of them out"
            )
        self.add_self = network.add_self
        self.blocks = nn.ModuleList(
            TransformerLayer(
                dim if k == 0 else width,
                width,
                heads=network.heads,
                out_proj=network.out_proj,
                use_mlp=network.use_mlp,
                dropout=dropout,
            )
            for k in range(network.layers)
        )
        self.back = nn.Linear(width, dim) if width != dim else nn.Identity()
        self.norm = nn.LayerNorm(dim) if network.final_norm else nn.Identity()

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
