"""SETMIL: windows of three sizes on a slide's map, and a transformer with relative positions.

Zhao et al., MICCAI 2022. The defaults are those of the ProbSA paper's comparison, on each bag's own
map: no cropping or padding, and empty cells are not tokens (windows read 0 there, as beyond the
edge of the map).
Shapes: n instances, t tokens of one bag, d the width of the transformer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    HeadCount,
    NonNegativeFloat,
    Rate,
    Seed,
    StepCount,
    Width,
    without_autocast,
)
from ..errors import InputError
from ..layers import (
    Cells,
    Embed,
    Places,
    Relative,
    RelativeAttention,
    Widths,
    grid_cells,
    recomputed,
)
from ..variational import Dirac
from ._base import Model, Output, Provenance
from ._registry import register

WINDOWS = (3, 5, 7)
"""Sides of the pyramid's windows, which are one cell apart."""
GATHERED = 1 << 25
"""Numbers of windows gathered at once: 5,349 windows of 49 cells with 128 features."""


class Block(nn.Module):
    """y = x + W_p Attn(q, k, v), z = y + W₂ GELU(W₁ LN(y)), with q, k, v = W LN(u).

    Dropout acts on attention weights, and after W_p and both layers of the MLP.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        *,
        heads: int = 1,
        hidden: int,
        scale: float,
        dropout: float = 0.0,
        relative: Relative | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.scale = scale
        self.norm1 = nn.LayerNorm(in_dim)
        self.qkv = nn.Linear(in_dim, 3 * dim, bias=False)
        self.relative = relative
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def attention(
        self, qkv: Float[Tensor, "t _"], places: Sequence[Places]
    ) -> list[RelativeAttention]:
        """Return the attention of each bag."""
        counts = [len(bag_places) for bag_places in places]
        bag_qkv = qkv.unflatten(1, (3, self.heads, -1)).split(counts)
        attentions = []
        for part, bag_places in zip(bag_qkv, places, strict=True):
            q, k, v = part.permute(1, 2, 0, 3)  # (heads, t, width of a head) each
            attentions.append(RelativeAttention(q, k, v, self.scale, self.relative, bag_places))
        return attentions

    def attend(self, qkv: Float[Tensor, "t _"], places: Sequence[Places]) -> Float[Tensor, "t d"]:
        """Return the attention's result, with the heads concatenated."""
        rate = self.dropout.p if self.training else 0.0
        mixed = []
        for attention in self.attention(qkv, places):
            heads = attention.result(dropout=rate)
            mixed.append(heads.transpose(0, 1).flatten(1))
        return torch.cat(mixed)

    def rest(self, x: Float[Tensor, "t d"], mixed: Float[Tensor, "t d"]) -> Float[Tensor, "t d"]:
        """Return z from the attention's result."""
        y = x + self.dropout(self.proj(mixed))
        m = self.dropout(F.gelu(self.fc1(self.norm2(y))))
        return y + self.dropout(self.fc2(m))

    def forward(self, z: Float[Tensor, "t d"], places: Sequence[Places]) -> Float[Tensor, "t d"]:
        return self.rest(z, self.attend(self.qkv(self.norm1(z)), places))

    def class_rows(
        self, z: Float[Tensor, "t d"], places: Sequence[Places]
    ) -> tuple[Float[Tensor, "bags d"], list[Float[Tensor, "h _"]]]:
        """Return the updated class tokens alone, and the attention of each."""
        mixed = []
        rows = []
        for attention in self.attention(self.qkv(self.norm1(z)), places):
            a = attention.weights(slice(0, 1))  # the class token is the first one
            rows.append(a[:, 0])
            mixed.append(attention.pooled(self.dropout(a)).flatten())
        bag_tokens = z.split([len(bag_places) for bag_places in places])
        class_tokens = torch.stack([tokens[0] for tokens in bag_tokens])
        return self.rest(class_tokens, torch.stack(mixed)), rows


class WindowBlock(Block):
    """A block whose u are windows of size² cells, and whose x are its values (T2T-ViT, 2101.11986).

    As in the original, logits are scaled by the width of the window instead of the head's, and
    windows are flattened from (C, K, K). They are gathered in blocks; the map is never unfolded.
    """

    def __init__(self, cell_dim: int, dim: int, *, size: int, dropout: float = 0.0) -> None:
        wide = cell_dim * size**2
        super().__init__(wide, dim, hidden=dim, scale=wide**-0.5, dropout=dropout)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, g: Float[Tensor, "t c"], index: Int[Tensor, "o k2"], places: Sequence[Places]
    ) -> Float[Tensor, "o d"]:
        """Return the tokens; index len(g) stands for an empty cell, with features 0."""
        qkv = self.project(g, index)
        return self.rest(qkv.chunk(3, 1)[2], self.attend(qkv, places))

    def project(self, g: Float[Tensor, "t c"], index: Tensor) -> Float[Tensor, "o qkv"]:
        """Return LN(u) W, with γ, β and W reordered cell by cell, as windows are gathered."""
        c = g.shape[1]
        k2 = index.shape[1]
        # parameters are stored channel by channel, and windows are gathered cell by cell
        gamma = self.norm1.weight.view(c, k2).T.flatten()
        beta = self.norm1.bias.view(c, k2).T.flatten()
        w = self.qkv.weight.view(-1, c, k2).transpose(1, 2).flatten(1)
        padded = F.pad(g, (0, 0, 0, 1))  # a last row of zeros: the empty cell

        def block(index: Tensor) -> Tensor:
            u = padded.index_select(0, index.flatten()).view(len(index), k2 * c)
            return F.linear(F.layer_norm(u, (k2 * c,), gamma, beta, self.norm1.eps), w)

        parts = index.split(max(1, GATHERED // (k2 * c)))
        # several blocks are computed anew in the backward pass: their windows take much memory
        project_block = recomputed(block) if len(parts) > 1 else block
        return torch.cat([project_block(part) for part in parts])


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMap:
    """The map of one bag: the cells of its instances and of its tokens, after the reduction."""

    cells: Cells
    place: Int[Tensor, " n"]
    """Index of each instance's cell."""
    tokens: Cells

    def places(self, *, first: bool) -> Places:
        return Places(row=self.tokens.row, col=self.tokens.col, has_class_token=first)


def numbered(indices: Sequence[Tensor], cells: Sequence[Cells]) -> Tensor:
    """Number the cells of all maps in one sequence, at whose end is the empty cell of each."""
    total = sum(map(len, cells))
    start = 0
    parts = []
    for index, bag_cells in zip(indices, cells, strict=True):
        is_empty = index == len(bag_cells)
        parts.append(torch.where(is_empty, total, index + start))
        start += len(bag_cells)
    return torch.cat(parts)


def sinusoid(p: Int[Tensor, " t"], dim: int) -> Float[Tensor, "t d"]:
    """Return PE[p, 2i] = sin(p / 10000^(2i/D)) and PE[p, 2i + 1] = cos(…), in float64."""
    i = torch.arange(0, dim, 2, device=p.device, dtype=torch.float64)
    angle = p[:, None] * 10000.0 ** (-i / dim)
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1)[:, :dim]


def cell_means(h: Float[Tensor, "n d"], place: Tensor, count: int) -> Float[Tensor, "t d"]:
    """Return the mean of the instances in each of so many cells; 0 in an empty cell."""
    total = h.new_zeros(count, h.shape[1]).index_add(0, place, h)
    shared = place.new_zeros(count).index_add(0, place, torch.ones_like(place)).clamp_min(1)
    return total / shared[:, None].to(h.dtype)


@register(
    "setmil",
    original={
        "embed": None,
        "reduction": 5,
        "pyramid_dim": 64,
        "set_dim": None,
        "layers": 6,
        "heads": 16,
        "dropout": 0.2,
        "empty": "tokens",
    },
)
class SETMIL(Model):
    """Windows of three sizes on the slide's map become tokens of a transformer.

    In the transformer, each bucket of distances between tokens has a learned bias of the keys.

    Args:
        reduction: side k of the windows of the first reduction, which are (k − 1) / 2 cells apart;
            1: a linear map of each cell.
        reduced_dim: width after the first reduction.
        pyramid_dim: width of the tokens of each window size.
        set_dim: width of the transformer, reached by a linear map; None: that of its input.
        layers: number of transformer blocks.
        heads: number of attention heads per layer.
        dropout: dropout rate of tokens, attention weights, projections and MLPs, except in the
            first reduction.
        empty: whether cells without an instance are `masked` or (the original) `tokens`.
    """

    family = "global"
    provenance = Provenance(
        paper="Zhao et al., SETMIL, MICCAI 2022, https://doi.org/10.1007/978-3-031-16434-7_7",
        code="TencentAILabHealthcare/SETMIL",
        licence="none stated (parts from T2T-ViT, Clear BSD, and from iRPE, MIT)",
        follows_paper="Pyramid of windows, class token, transformer with relative positions, "
        "cross-entropy.",
        follows_code="The attention logits of a window are scaled by its width, its values are "
        "the skip connection, and distance buckets end at 3. `preset='original'` takes empty cells "
        "as tokens, but neither pads and crops maps to 48 × 48 nor augments them.",
        fair="A linear layer to 512 first; each bag on its own map, empty cells masked; a linear "
        "map to 128 instead of the 5 × 5 reduction; 2 blocks, 512 wide, 8 heads, no dropout.",
    )
    score_kind = "weight"
    needs = frozenset({"coords"})
    needs_whole_bags = True  # the map of a slide has an edge, where its windows read 0

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        reduction: StepCount = 1,
        reduced_dim: Width = 128,
        pyramid_dim: Width = 128,
        set_dim: Width | None = 512,
        layers: StepCount = 2,
        heads: HeadCount = 8,
        dropout: Rate = 0.0,
        empty: Literal["masked", "tokens"] = "masked",
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        if reduction < 1 or reduction % 2 == 0:
            raise InputError(f"reduction is {reduction}: expected the odd side of a window")
        fused = len(WINDOWS) * pyramid_dim
        d = fused if set_dim is None else set_dim
        if heads < 1 or d % heads:
            raise InputError(f"heads is {heads}: give a divisor of the transformer's width, {d}")
        self.whole = empty == "tokens"
        self.size = reduction
        self.stride = max(1, (reduction - 1) // 2)
        self.embed = Embed(in_dim, embed, activation="identity")
        wide = self.embed.out_dim
        self.reduce = (
            nn.Linear(wide, reduced_dim)
            if reduction == 1
            else WindowBlock(wide, reduced_dim, size=reduction)
        )
        self.pyramid = nn.ModuleList(
            WindowBlock(reduced_dim, pyramid_dim, size=size, dropout=dropout) for size in WINDOWS
        )
        self.widen = nn.Identity() if set_dim is None else nn.Linear(fused, d)
        self.dropout = nn.Dropout(dropout)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.blocks = nn.ModuleList(
            Block(
                d,
                d,
                heads=heads,
                hidden=4 * d,
                scale=(d // heads) ** -0.5,
                dropout=dropout,
                relative=Relative(heads),
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d)
        self.classifier = nn.Linear(d, n_classes)
        # all pairs of the class token share a bucket, so adding a bias to them has no effect
        self.without_effect = frozenset({f"blocks.{layers - 1}.relative.tables.q.0"})
        # as the original: truncated normal weights (0.02), biases and tables of 0
        nn.init.trunc_normal_(self.class_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def lay_out(self, bags: Bags) -> list[TokenMap]:
        """Place the instances of each bag on its map."""
        device = self.check_coords(bags).device
        maps = []
        for row, col in grid_cells(bags):
            height = int(row.max()) + 1
            width = int(col.max()) + 1
            cells = Cells.among(row, col, height=height, width=width, whole=self.whole)
            tokens = cells.reduced(size=self.size, stride=self.stride, whole=self.whole)
            place = cells.find(row, col).to(device, non_blocking=True)
            maps.append(TokenMap(cells=cells.to(device), place=place, tokens=tokens.to(device)))
        return maps

    def reduced(self, h: Float[Tensor, "n c"], maps: Sequence[TokenMap]) -> Float[Tensor, "t r"]:
        """Return the features of the tokens, after the first reduction."""
        cells = [bag_map.cells for bag_map in maps]
        place = numbered([bag_map.place for bag_map in maps], cells)
        g = cell_means(h, place, sum(map(len, cells)))
        if not isinstance(self.reduce, WindowBlock):
            return self.reduce(g)
        windows = []
        for bag_map in maps:
            index = bag_map.cells.windows(bag_map.tokens, size=self.size, stride=self.stride)
            windows.append(index)
        places = [bag_map.places(first=False) for bag_map in maps]
        return self.reduce(g, numbered(windows, cells), places)

    def fuse(self, g: Float[Tensor, "t r"], maps: Sequence[TokenMap]) -> Float[Tensor, "t e"]:
        """Return the tokens of the pyramid's window sizes, concatenated."""
        tokens = [bag_map.tokens for bag_map in maps]
        places = [bag_map.places(first=False) for bag_map in maps]
        levels = []
        for size, level in zip(WINDOWS, self.pyramid, strict=True):
            windows = [bag_tokens.windows(bag_tokens, size=size) for bag_tokens in tokens]
            levels.append(level(g, numbered(windows, tokens), places))
        return torch.cat(levels, 1)

    def sequence(self, z: Float[Tensor, "t e"], maps: Sequence[TokenMap]) -> Float[Tensor, "s d"]:
        """Return the first block's input: [class token, tokens] of each bag plus a sinusoid."""
        z = self.widen(z)
        tokens: list[Tensor] = []
        positions: list[Tensor] = []
        bag_tokens = z.split([len(bag_map.tokens) for bag_map in maps])
        for bag_map, part in zip(maps, bag_tokens, strict=True):
            tokens += [self.class_token[0].to(z.dtype), part]
            # cells are counted from 1 along the rows of the map, and 0 is the class token
            cells = bag_map.tokens
            number = 1 + cells.row * cells.width + cells.col
            positions.append(F.pad(number, (1, 0)))
        p = torch.cat(positions)
        encoding = sinusoid(p, self.class_token.shape[2]).to(self.class_token.dtype)
        return self.dropout(torch.cat(tokens) + encoding)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        maps = self.lay_out(bags)
        g = self.reduced(self.embed(bags.x), maps)
        z = self.sequence(self.fuse(g, maps), maps)
        places = [bag_map.places(first=True) for bag_map in maps]
        for block in self.blocks[:-1]:
            z = block(z, places)
        # only the class token of the last block is used, so its other queries are not computed
        last = self.blocks[-1]
        assert isinstance(last, Block)
        head, rows = last.class_rows(z, places)
        with without_autocast(head):
            logits = self.classifier(self.norm(head.to(self.class_token.dtype)))
        scores = []  # the class token's weights of the instances' cells
        for a, bag_map in zip(rows, maps, strict=True):
            # the mean over heads, without the weight of the class token itself
            token_weights = a.mean(0)[1:]
            weights = bag_map.tokens.interpolated(token_weights, bag_map.cells, stride=self.stride)
            scores.append(weights[bag_map.place])
        attention = Dirac(torch.cat(scores))
        return Output(logits=logits[:, None], attention=attention, likelihood=self.likelihood)
