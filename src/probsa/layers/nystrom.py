"""Nyström attention: self-attention through m landmarks, in linear time and memory.

Xiong et al., AAAI 2021, arXiv:2102.03902, with the convolution of the values of TransMIL's and
CAMIL's code. Departures: nothing is shared between bags (the usual code divides by maxima over the
batch), n < m tokens are their own landmarks, and padding rows are masked (unless
`mask_padding=False`). F and B are never stored: F W and B V are fused attention calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..core import PositiveInt, Rate, check_value
from ..errors import InputError

TAPS = 33
"""Kernel size of the convolution of the values."""
ALIKE = 16
"""Bags whose numbers of landmarks differ by less are processed together, padded with zeros."""


def pseudo_inverse(
    a: Float[Tensor, "bags heads m m"], *, iterations: int
) -> Float[Tensor, "bags heads m m"]:
    """Return A⁺ by iterating Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))).

    It starts from Aᵀ / (‖A‖₁ ‖A‖_∞), where the norms are maxima over the heads of a bag. Rows and
    columns of zeros stay zero.
    """
    norms = a.abs().sum(-1).amax((1, 2)) * a.abs().sum(-2).amax((1, 2))
    z = (a.mT / norms[:, None, None, None]).flatten(0, 1)
    a = a.flatten(0, 1)
    for _ in range(iterations):
        az = a @ z
        t = torch.baddbmm(az, az, az, beta=7, alpha=-1)
        t = torch.baddbmm(az, az, t, beta=15, alpha=-1)
        z = torch.baddbmm(z, z, t, beta=3.25, alpha=-0.25)
    return z.unflatten(0, (*norms.shape, -1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Bags that are processed together: each fills the end of its r rows, after zeros."""

    members: tuple[int, ...]
    """Positions of the bags in the batch."""
    sizes: tuple[int, ...]
    q: Float[Tensor, "bags heads r d"]
    k: Float[Tensor, "bags heads r d"]
    v: Float[Tensor, "bags heads r d"]
    seen: Bool[Tensor, "bags 1 1 r"] | None
    """Rows that are not padding; None if there is no padding."""
    landmarks: Float[Tensor, "two bags heads m d"]
    """Q̄ and K̄, the means of Q and of K over windows of consecutive rows."""
    valid: Bool[Tensor, "bags 1 1 m"] | None
    """Windows that are not all padding; None if there are no such windows."""
    inverse: Float[Tensor, "bags heads m m"]
    """Z, the pseudo-inverse of softmax(Q̄ K̄ᵀ/√d)."""


def update(g: Group) -> Float[Tensor, "bags heads r d"]:
    """Return F Z B V with F = softmax(Q K̄ᵀ/√d) and B = softmax(Q̄ Kᵀ/√d)."""
    q_bar, k_bar = g.landmarks
    w = g.inverse @ F.scaled_dot_product_attention(q_bar, g.k, g.v, attn_mask=g.seen)
    return F.scaled_dot_product_attention(g.q, k_bar, w, attn_mask=g.valid)


def attention_row(g: Group, row: int) -> list[Float[Tensor, "n heads"]]:
    """Return, for each bag, row number `row` of F Z B: the attention of that token.

    It approximates a row of softmax(Q Kᵀ/√d): entries may be negative, and their sum is not
    exactly 1.
    """
    with torch.autocast(g.q.device.type, enabled=False):
        rows = _rows(g, row)
    return [rows[b, -n:] for b, n in enumerate(g.sizes)]


def _rows(g: Group, row: int) -> Float[Tensor, "bags r heads"]:
    q_bar, k_bar = g.landmarks
    scale = q_bar.shape[3] ** -0.5
    indices = [g.q.shape[2] - n + row for n in g.sizes]
    q = torch.stack([g.q[b, :, i] for b, i in enumerate(indices)])
    f = _masked((q[:, :, None] @ k_bar.mT) * scale, g.valid).softmax(-1)
    weights = (f @ g.inverse)[:, :, 0]
    heads = []
    for h in range(q.shape[1]):  # one head at a time needs m × r numbers
        b = _masked((q_bar[:, h] @ g.k[:, h].mT) * scale, _headless(g.seen)).softmax(-1)
        heads.append((weights[:, h, None] @ b)[:, 0])
    return torch.stack(heads, 2)


def _headless(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, 0]


def _masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)


def _window_sums(t: Float[Tensor, "bags r *rest"], width: int) -> Float[Tensor, "bags m *rest"]:
    """Return sums over windows of rows; only the first window may be shorter than `width`."""
    windows = -(-t.shape[1] // width)
    first = t.shape[1] - (windows - 1) * width
    rest = t[:, first:].unflatten(1, (windows - 1, width)).sum(2)
    return torch.cat([t[:, :first].sum(1, keepdim=True), rest], 1)


class NystromAttention(nn.Module):
    """Self-attention within each bag of a packed batch.

    Args:
        dim: Width of a token, a multiple of `heads`.
        heads: Number of attention heads.
        landmarks: Largest number m of landmarks of a bag.
        iterations: Number of iterations of the pseudo-inverse.
        convolution: Whether to add a convolution of the values along the sequence (33 taps, one
            kernel per head) to the attention's result.
        out_proj: Whether a linear map follows the heads.
        mask_padding: Whether to mask the zero rows that pad a bag. If not, as in the usual code,
            they are attended to and every bag has m landmarks.
        dropout: Dropout of the result, in training.

    Raises:
        InputError: If the numbers are not compatible.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        landmarks: int = 256,
        iterations: int = 6,
        convolution: bool = True,
        out_proj: bool = True,
        mask_padding: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise InputError(f"heads is {heads}: give a divisor of the attention's width, {dim}")
        check_value("landmarks", landmarks, PositiveInt)
        check_value("iterations", iterations, PositiveInt)
        check_value("dropout", dropout, Rate)
        self.heads, self.landmarks, self.iterations = heads, landmarks, iterations
        self.mask_padding = mask_padding
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.convolution = None
        if convolution:
            taps, middle = (TAPS, 1), (TAPS // 2, 0)
            self.convolution = nn.Conv2d(
                heads, heads, taps, padding=middle, groups=heads, bias=False
            )
        self.out = nn.Linear(dim, dim) if out_proj else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def look(self, x: Float[Tensor, "n dim"], sizes: Sequence[int]) -> list[Group]:
        """Return queries, keys, values, landmarks and pseudo-inverses, in float32 or better."""
        qkv = self.qkv(x).unflatten(1, (3, self.heads, -1))
        if qkv.dtype in (torch.float16, torch.bfloat16):
            qkv = qkv.float()
        parts = qkv.split(list(sizes))
        with torch.autocast(x.device.type, enabled=False):
            return [
                self._group(members, [parts[b] for b in members], width=width)
                for (width, _), members in self._alike(sizes).items()
            ]

    def attend(self, groups: list[Group]) -> Float[Tensor, "n dim"]:
        """Return the update of each token, from the result of `look`."""
        updates: dict[int, Tensor] = {}
        for g in groups:
            with torch.autocast(g.q.device.type, enabled=False):
                o = update(g)
                o = o + self.convolution(g.v) if self.convolution else o
            o = o.transpose(1, 2).flatten(2)
            for b, (place, n) in enumerate(zip(g.members, g.sizes, strict=True)):
                updates[place] = o[b, -n:]
        return self.dropout(self.out(torch.cat([updates[b] for b in range(len(updates))])))

    def forward(self, x: Float[Tensor, "n dim"], sizes: Sequence[int]) -> Float[Tensor, "n dim"]:
        return self.attend(self.look(x, sizes))

    def _alike(self, sizes: Sequence[int]) -> dict[tuple[int, int], tuple[int, ...]]:
        """Group the bags by the width and the (approximate) number of their windows."""
        groups: dict[tuple[int, int], tuple[int, ...]] = {}
        for b, n in enumerate(sizes):
            width = -(-n // self.landmarks)
            windows = -(-n // width) if self.mask_padding else 0
            key = width, -(-windows // ALIKE)
            groups[key] = (*groups.get(key, ()), b)
        return groups

    def _group(self, members: tuple[int, ...], parts: list[Tensor], *, width: int) -> Group:
        sizes = tuple(len(part) for part in parts)
        rows = max(sizes) if self.mask_padding else width * self.landmarks
        x = torch.stack([F.pad(p, (0, 0, 0, 0, 0, 0, rows - len(p), 0)) for p in parts])
        counted = torch.ones(len(parts), rows, dtype=x.dtype, device=x.device)
        if self.mask_padding:
            for b, n in enumerate(sizes):
                counted[b, : rows - n] = 0
        counts = _window_sums(counted, width)
        filled = self.mask_padding and min(sizes) < rows
        means = _window_sums(x[:, :, :2], width) / counts.clamp_min(1)[:, :, None, None, None]
        landmarks = means.permute(2, 0, 3, 1, 4)
        valid = (counts > 0)[:, None, None] if filled else None
        q, k, v = x.permute(2, 0, 3, 1, 4)
        return Group(
            members=members,
            sizes=sizes,
            q=q,
            k=k,
            v=v,
            seen=(counted > 0)[:, None, None] if filled else None,
            landmarks=landmarks,
            valid=valid,
            inverse=self._inverse(landmarks[0], landmarks[1], valid),
        )

    def _inverse(self, q_bar: Tensor, k_bar: Tensor, valid: Tensor | None) -> Tensor:
        a = _masked(q_bar @ k_bar.mT * q_bar.shape[3] ** -0.5, valid).softmax(-1)
        if valid is not None:
            a = a * valid.mT
        return pseudo_inverse(a, iterations=self.iterations)


class NystromLayer(nn.Module):
    """x + attention(LN(x)), without an MLP."""

    def __init__(self, attention: NystromAttention) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(attention.qkv.in_features)
        self.attention = attention

    def look(self, x: Float[Tensor, "n dim"], sizes: Sequence[int]) -> list[Group]:
        """Return `NystromAttention.look` of the normalised tokens."""
        return self.attention.look(self.norm(x), sizes)

    def forward(self, x: Float[Tensor, "n dim"], sizes: Sequence[int]) -> Float[Tensor, "n dim"]:
        return x + self.attention.attend(self.look(x, sizes))
