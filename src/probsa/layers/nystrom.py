"""Nyström attention: self-attention through m landmarks, in linear time and memory.

Xiong et al., AAAI 2021, arXiv:2102.03902, with the convolution of the values of TransMIL's and
CAMIL's code. Departures: nothing is shared between bags (the usual code divides by maxima over the
batch), n < m tokens are their own landmarks, and nothing pads a bag (unless `mask_padding=False`).
F and B are never stored: F W and B V are fused attention calls.
Shapes: n tokens of a bag, r rows with padding, d width of a head, m landmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import ClusterCount, HeadCount, Rate, StepCount, without_autocast
from ..errors import InputError
from .attention import full_precision

TAPS = 33
"""Kernel size of the convolution of the values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NystromOptions:
    """Nyström attention of a model."""

    heads: HeadCount = 8
    """Number of attention heads per layer."""
    landmarks: ClusterCount = 256
    """Largest number of landmarks of a bag."""
    pinv_iterations: StepCount = 6
    """Number of iterations of the pseudo-inverse."""
    convolution: bool = True
    """Whether to add a convolution of 33 taps over the values."""
    out_proj: bool = True
    """Whether a linear map follows the attention heads."""
    mask_padding: bool = True
    """Whether to mask the zeros that pad a bag to a multiple of the landmarks; the original
    attends to them and gives every bag all landmarks (False)."""
    dropout: Rate = 0.0
    """Dropout rate after each Nyström attention (TransMIL: 0.1)."""


def pseudo_inverse(a: Float[Tensor, "heads m m"], *, iterations: int) -> Float[Tensor, "heads m m"]:
    """Return A⁺ by iterating Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))).

    It starts from Aᵀ / (‖A‖₁ ‖A‖_∞), where the norms are maxima over the heads of a bag.
    """
    z = a.mT / (a.abs().sum(-1).amax() * a.abs().sum(-2).amax())
    for _ in range(iterations):
        az = a @ z
        t = torch.baddbmm(az, az, az, beta=7, alpha=-1)
        t = torch.baddbmm(az, az, t, beta=15, alpha=-1)
        z = torch.baddbmm(z, z, t, beta=3.25, alpha=-0.25)
    return z


@dataclass(frozen=True, kw_only=True, slots=True)
class BagAttention:
    """Nyström attention of one bag, in float32 or better; padding comes before the tokens."""

    q: Float[Tensor, "heads r d"]
    k: Float[Tensor, "heads r d"]
    v: Float[Tensor, "heads r d"]
    q_bar: Float[Tensor, "heads m d"]
    """Means of q over windows of consecutive rows; k_bar likewise."""
    k_bar: Float[Tensor, "heads m d"]
    inverse: Float[Tensor, "heads m m"]
    """Z, the pseudo-inverse of softmax(Q̄ K̄ᵀ/√d)."""

    def result(self) -> Float[Tensor, "heads r d"]:
        """Return F Z B V with F = softmax(Q K̄ᵀ/√d) and B = softmax(Q̄ Kᵀ/√d)."""
        w = self.inverse @ _attend(self.q_bar, self.k, self.v)
        return _attend(self.q, self.k_bar, w)

    def row(self, index: int) -> Float[Tensor, "r heads"]:
        """Return one row of F Z B: the attention of that token, without gradients.

        It approximates a row of softmax(Q Kᵀ/√d): entries may be negative, and their sum is not
        exactly 1.
        """
        with torch.no_grad(), without_autocast(self.q):
            scale = self.q.shape[2] ** -0.5
            f = (self.q[:, [index]] @ self.k_bar.mT * scale).softmax(-1)
            weights = f @ self.inverse
            # one head at a time needs m × r numbers
            heads = [
                w @ (q_bar @ k.T * scale).softmax(-1)
                for w, q_bar, k in zip(weights, self.q_bar, self.k, strict=True)
            ]
        return torch.cat(heads).T


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _window_means(t: Float[Tensor, "heads r d"], width: int) -> Float[Tensor, "heads m d"]:
    """Return means over windows of rows; only the first window may be shorter than `width`."""
    first = (t.shape[1] - 1) % width + 1
    first_mean = t[:, :first].mean(1, keepdim=True)
    if t.shape[1] == first:
        return first_mean
    return torch.cat([first_mean, t[:, first:].unflatten(1, (-1, width)).mean(2)], 1)


class NystromLayer(nn.Module):
    """x + attention(LN(x)) within each bag of a packed batch, without an MLP.

    Args:
        dim: Width of a token, a multiple of the number of heads.
        options: Options of the attention.

    Raises:
        InputError: The heads do not divide the width.
    """

    def __init__(self, dim: int, options: NystromOptions) -> None:
        super().__init__()
        heads = options.heads
        if heads < 1 or dim % heads:
            raise InputError(f"heads is {heads}: give a divisor of the attention's width, {dim}")
        self.options = options
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.convolution = None
        if options.convolution:
            self.convolution = nn.Conv2d(
                heads, heads, (TAPS, 1), padding=(TAPS // 2, 0), groups=heads, bias=False
            )
        self.out = nn.Linear(dim, dim) if options.out_proj else nn.Identity()
        self.dropout = nn.Dropout(options.dropout)

    def look(self, x: Float[Tensor, "n dim"], sizes: Sequence[int]) -> list[BagAttention]:
        """Return the attention of each bag."""
        options = self.options
        m = options.landmarks
        qkv = self.qkv(self.norm(x)).unflatten(1, (3, options.heads, -1)).permute(1, 2, 0, 3)
        bags: list[BagAttention] = []
        with without_autocast(x):
            for part, n in zip(full_precision(qkv).split(list(sizes), 2), sizes, strict=True):
                width = -(-n // m)  # rounded up, so that there are at most m windows
                if not options.mask_padding:
                    part = F.pad(part, (0, 0, width * m - n, 0))
                q, k, v = part
                q_bar = _window_means(q, width)
                k_bar = _window_means(k, width)
                a = (q_bar @ k_bar.mT * q.shape[2] ** -0.5).softmax(-1)
                z = pseudo_inverse(a, iterations=options.pinv_iterations)
                bags.append(BagAttention(q=q, k=k, v=v, q_bar=q_bar, k_bar=k_bar, inverse=z))
        return bags

    def attend(self, bags: Sequence[BagAttention], sizes: Sequence[int]) -> Float[Tensor, "n dim"]:
        """Return the update of each token, from the result of `look`."""
        updates = []
        for bag, n in zip(bags, sizes, strict=True):
            with without_autocast(bag.q):
                attended = bag.result()
                if self.convolution:
                    attended = attended + self.convolution(bag.v[None])[0]
            # without the padding, which is in front
            updates.append(attended[:, -n:].transpose(0, 1).flatten(1))
        return self.dropout(self.out(torch.cat(updates)))

    def forward(self, x: Float[Tensor, "n dim"], sizes: Sequence[int]) -> Float[Tensor, "n dim"]:
        return x + self.attend(self.look(x, sizes), sizes)
