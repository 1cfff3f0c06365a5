"""A dense reference implementation of SETMIL for one bag: `unfold`, t × t tables and masks.

It uses only the weights of the library's model, by name, and none of its layers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from probsa import Bag
from probsa.models.setmil import SETMIL


def g(x: float) -> int:
    """Return the piecewise index of specification 4.4 (Python rounds half to even)."""
    alpha = 1.9
    beta = 3.8
    gamma = 15.2
    if abs(x) <= alpha:
        return round(x)
    size = round(alpha + math.log(abs(x) / alpha) / math.log(gamma / alpha) * (beta - alpha))
    return int(math.copysign(1, x) * min(size, beta))


def bucket(method: str, dr: int, dc: int) -> int:
    """Return the bucket of an offset, by its length (`euc`) or by rows and columns (`product`)."""
    if method == "euc":
        return g(round(math.sqrt(dr**2 + dc**2))) + 3
    return (g(dr) + 3) * 7 + g(dc) + 3


def bucket_matrix(method: str, rows: list[int], cols: list[int], *, first: bool) -> Tensor:
    """Return the buckets of all pairs of tokens; a class token (`first`) has its own bucket."""
    count = {"euc": 7, "product": 49}[method]
    t = len(rows) + first
    matrix = torch.full((t, t), count)
    for i in range(len(rows)):
        for j in range(len(rows)):
            matrix[i + first, j + first] = bucket(method, rows[i] - rows[j], cols[i] - cols[j])
    return matrix


class Dense:
    """The computation of the model on one bag in eval mode."""

    def __init__(self, model: SETMIL, **options) -> None:
        self.s = model.state_dict(keep_vars=True)
        self.o = {"reduction": 1, "layers": 2, **options}

    def linear(self, x: Tensor, key: str) -> Tensor:
        if f"{key}.weight" not in self.s:
            return x
        return F.linear(x, self.s[f"{key}.weight"], self.s.get(f"{key}.bias"))

    def norm(self, x: Tensor, key: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.s[f"{key}.weight"], self.s[f"{key}.bias"])

    def attention(self, q, k, v, *, scale, keep, bias=None):
        """Map (h, t, d) to (output, weights); `keep` marks the tokens that are keys."""
        logits = (q * scale) @ k.transpose(1, 2)
        if bias is not None:
            logits = logits + bias
        a = logits.masked_fill(~keep, -torch.inf).softmax(2)
        return a @ v, a

    def window(self, grid: Tensor, keep: Tensor, key: str, *, size: int, stride: int):
        """Map (C, H, W) to (e, H', W') and a mask of the cells of the new map that exist."""
        u = F.unfold(grid[None], size, padding=size // 2, stride=stride)[0].T
        seen = keep
        if key == "reduce":
            seen = F.max_pool2d(keep[None].double(), size, stride=stride, padding=size // 2)[0] > 0
        if self.o["empty"] == "tokens":
            seen = torch.ones_like(seen)
        q, k, v = self.linear(self.norm(u, f"{key}.norm1"), f"{key}.qkv").chunk(3, 1)
        high, wide = seen.shape
        scale = u.shape[1] ** -0.5
        out, _ = self.attention(q[None], k[None], v[None], scale=scale, keep=seen.flatten())
        x = v + self.linear(out[0], f"{key}.proj")
        x = x + self.linear(
            F.gelu(self.linear(self.norm(x, f"{key}.norm2"), f"{key}.fc1")), f"{key}.fc2"
        )
        if self.o["empty"] == "masked":
            x = x * seen.flatten()[:, None]
        return x.T.unflatten(1, (high, wide)), seen

    def __call__(self, x: Tensor, rows: Tensor, cols: Tensor, *, high: int, wide: int):
        """Return the logits, and the class token's weights of the cells in the last block."""
        h = self.linear(x, "embed.net.0")
        grid = h.new_zeros(h.shape[1], high, wide)
        count = h.new_zeros(high, wide)
        for n in range(len(h)):
            grid = grid.index_put(
                (torch.arange(h.shape[1]), rows[n], cols[n]), h[n], accumulate=True
            )
            count[rows[n], cols[n]] += 1
        keep = count > 0
        grid = grid / count.clamp_min(1)
        k = self.o["reduction"]
        if k == 1:
            grid = self.linear(grid.movedim(0, 2), "reduce").movedim(2, 0)
            if self.o["empty"] == "masked":
                grid = grid * keep
            else:
                keep = torch.ones_like(keep)
        else:
            grid, keep = self.window(grid, keep, "reduce", size=k, stride=max(1, (k - 1) // 2))
        parts = [
            self.window(grid, keep, f"pyramid.{i}", size=size, stride=1)[0]
            for i, size in enumerate((3, 5, 7))
        ]
        high, wide = keep.shape
        tokens = self.linear(torch.cat(parts).flatten(1).T, "widen")
        z = torch.cat([self.s["class_token"][0], tokens])
        d = z.shape[1]
        pe = [
            [(math.cos if i % 2 else math.sin)(p / 10000 ** ((i - i % 2) / d)) for i in range(d)]
            for p in range(len(z))
        ]
        z = z + torch.tensor(pe, dtype=z.dtype)
        keys = torch.cat([torch.ones(1).bool(), keep.flatten()])
        at = torch.arange(high * wide)
        ids = bucket_matrix("euc", (at // wide).tolist(), (at % wide).tolist(), first=True)
        a = None
        for i in range(self.o["layers"]):
            key = f"blocks.{i}"
            heads = self.o["heads"]
            qkv = self.linear(self.norm(z, f"{key}.norm1"), f"{key}.qkv")
            q, k, v = (p.unflatten(1, (heads, -1)).transpose(0, 1) for p in qkv.chunk(3, 1))
            bias = self.s[f"{key}.relative.tables.q.0"][:, ids]
            out, a = self.attention(q, k, v, scale=q.shape[2] ** -0.5, keep=keys, bias=bias)
            z = z + self.linear(out.transpose(0, 1).flatten(1), f"{key}.proj")
            m = F.gelu(self.linear(self.norm(z, f"{key}.norm2"), f"{key}.fc1"))
            z = z + self.linear(m, f"{key}.fc2")
        logits = self.linear(self.norm(z[0], "norm"), "classifier")
        weight = a[:, 0, 1:].mean(0).unflatten(0, (high, wide))
        return logits, weight


def at_cells(weight: Tensor, rows: Tensor, cols: Tensor, *, stride: int) -> Tensor:
    """Interpolate bilinearly between token centres, which lie on every stride-th cell."""
    high, wide = weight.shape
    rows, cols = (v.to(weight.dtype) / stride for v in (rows, cols))
    position = torch.stack([cols / max(wide - 1, 1), rows / max(high - 1, 1)], 1)
    sampled = F.grid_sample(
        weight[None, None],
        (2 * position - 1)[None, None],
        mode="bilinear",
        padding_mode="border",
        align_corners=True,
    )
    return sampled[0, 0, 0]


def cells_of(bag: Bag, *, stride: float = 10.0) -> tuple[Tensor, Tensor, int, int]:
    """Return rows, columns, height and width, by division."""
    c = ((bag.coords - bag.coords.min(0).values) / stride).round().long()
    return c[:, 1], c[:, 0], int(c[:, 1].max()) + 1, int(c[:, 0].max()) + 1
