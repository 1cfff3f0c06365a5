"""A transformer block for bags with the same few tokens each: clusters and a class token.

It is pre-norm, as in a ViT:  z = x + SA(LN(x)),   x' = z + MLP(LN(z)).
Attention is not fused: a bag has about a hundred tokens, and relevance propagation
(`models/_graphcam.py`) reads every intermediate result.
"""

from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from ..core import check_value
from ..errors import InputError

BlockKind = Literal["vit", "torchmil"]


class BlockTrace(NamedTuple):
    """The intermediate results of a block, in order."""

    x: Float[Tensor, "*bags t d"]
    normed: Float[Tensor, "*bags t d"]
    q: Float[Tensor, "*bags heads t e"]
    k: Float[Tensor, "*bags heads t e"]
    v: Float[Tensor, "*bags heads t e"]
    attention: Float[Tensor, "*bags heads t t"]
    """Attention weights, after the softmax."""
    mixed: Float[Tensor, "*bags t d"]
    """Attention times values, with the heads concatenated."""
    attended: Float[Tensor, "*bags t d"]
    z: Float[Tensor, "*bags t d"]
    normed_z: Float[Tensor, "*bags t d"]
    active: Float[Tensor, "*bags t hidden"]
    """The MLP's hidden layer after its activation."""
    mlp: Float[Tensor, "*bags t d"]

    @property
    def out(self) -> Float[Tensor, "*bags t d"]:
        return self.z + self.mlp


class TokenBlock(nn.Module):
    """One pre-norm block.

    Args:
        width: Width of a token.
        heads: Number of attention heads, a divisor of `width`.
        mlp_ratio: Ratio of the MLP's hidden width to `width`.
        kind: `vit` (a linear map after the heads, GELU, layer norms with eps 1e-6) or `torchmil`
            (no such map, ReLU, eps 1e-5).

    Raises:
        InputError: If the heads do not divide the width, or the MLP has no hidden unit.
    """

    def __init__(
        self, width: int, *, heads: int, mlp_ratio: float = 2.0, kind: BlockKind = "vit"
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise InputError(
                f"heads is {heads}: give a divisor of the transformer's width, {width}"
            )
        hidden = round(mlp_ratio * width)
        if hidden < 1:
            raise InputError(f"mlp_ratio is {mlp_ratio}: the MLP needs at least one hidden unit")
        check_value("blocks", kind, BlockKind)
        vit = kind == "vit"
        eps = 1e-6 if vit else 1e-5
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width) if vit else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.first = nn.Linear(width, hidden)
        self.activation = nn.GELU() if vit else nn.ReLU()
        self.second = nn.Linear(hidden, width)

    def trace(self, x: Float[Tensor, "*bags t d"]) -> BlockTrace:
        """Return the block's result together with all intermediate results."""
        normed = self.norm1(x)
        q, k, v = self.qkv(normed).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).unbind(0)
        q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
        attention = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        mixed = (attention.to(v.dtype) @ v).transpose(-3, -2).flatten(-2)
        attended = self.out(mixed)
        z = x + attended
        normed_z = self.norm2(z)
        active = self.activation(self.first(normed_z))
        mlp = self.second(active)
        return BlockTrace(
            x, normed, q, k, v, attention, mixed, attended, z, normed_z, active, mlp
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "*bags t d"]) -> Float[Tensor, "*bags t d"]:
        return self.trace(x).out
