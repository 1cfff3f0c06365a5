"""SETMIL: windows of three sizes on a slide's map, and a transformer with relative positions.

Zhao et al., MICCAI 2022. The defaults are those of the ProbSA paper's comparison, on each bag's own
map: no cropping or padding, and empty cells are not tokens (windows read 0 there, as beyond the
edge of the map).
Shapes: n instances, t tokens, d the width of the transformer.
"""

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, Limits, PositiveInt, Rate
from ..errors import InputError
from ..layers import (
    BucketMethod,
    Embed,
    Relation,
    RelativeMode,
    RelativeTo,
    SETBlock,
    TokenMap,
    Widths,
    WindowToken,
    lay_out,
    places_of,
    reduced,
    sinusoid,
    with_first,
)
from ..variational import Dirac
from ._base import Model, Output, Provenance
from ._registry import register


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
        "attention_dropout": 0.2,
        "pyramid_dropout": 0.2,
        "pyramid_attention_dropout": 0.2,
        "empty": "tokens",
    },
)
class SETMIL(Model):
    """Windows of three sizes on the slide's map become tokens of a transformer.

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes; the original has 2 or more.
        embed: width or widths of the first layers; None uses the features unchanged.
        reduction: side k of the windows of the first reduction, which are (k − 1) / 2 cells apart;
            1: a linear map of each cell.
        reduced_dim: width after the first reduction.
        windows: sides of the pyramid's windows, which are one cell apart; () omits the pyramid.
        pyramid_dim: width of the tokens of each window size.
        pyramid_dropout: dropout rate in the pyramid.
        pyramid_attention_dropout: dropout rate of the pyramid's attention weights.
        set_dim: width of the transformer, reached by a linear map; None: that of its input.
        layers: number of transformer blocks.
        heads: number of attention heads per layer.
        mlp_ratio: ratio of the hidden width of a block's MLP to its width.
        qkv_bias: whether queries, keys and values have biases.
        dropout: dropout rate of tokens, projections and MLPs.
        attention_dropout: dropout rate of attention weights.
        relative: buckets of relative positions: by distance (`euc`), its square (`quant`), rows and
            columns together (`product`) or separately (`cross`).
        relative_mode: a learned `bias`, or a `contextual` vector that is multiplied with queries,
            keys or values.
        relative_on: to which of these relative positions apply.
        relative_shared: whether all heads share one table.
        pyramid_relative: as `relative`, in the pyramid.
        pyramid_relative_mode: as `relative_mode`, in the pyramid.
        pyramid_relative_on: as `relative_on`, in the pyramid.
        empty: whether cells without an instance are `masked` or (the original) `tokens`.
        layout: whether cells follow the coordinates (`map`) or fill a square (`packed`).
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
    """

    family = "global"
    provenance = Provenance(
        paper="Zhao et al., SETMIL: spatial encoding transformer-based multiple instance learning "
        "for pathological image analysis, MICCAI 2022, "
        "https://doi.org/10.1007/978-3-031-16434-7_7",
        code="TencentAILabHealthcare/SETMIL",
        licence="none stated (parts from T2T-ViT, Clear BSD, and from iRPE, MIT); written from a "
        "description alone",
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

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        reduction: int = 1,
        reduced_dim: PositiveInt = 128,
        windows: tuple[int, ...] = (3, 5, 7),
        pyramid_dim: PositiveInt = 128,
        pyramid_dropout: Rate = 0.0,
        pyramid_attention_dropout: Rate = 0.0,
        set_dim: Annotated[int | None, Limits(at_least=1)] = 512,
        layers: PositiveInt = 2,
        heads: int = 8,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        dropout: Rate = 0.0,
        attention_dropout: Rate = 0.0,
        relative: BucketMethod = "euc",
        relative_mode: RelativeMode = "bias",
        relative_on: RelativeTo = "q",
        relative_shared: bool = False,
        pyramid_relative: BucketMethod = "none",
        pyramid_relative_mode: RelativeMode = "bias",
        pyramid_relative_on: RelativeTo = "q",
        empty: Literal["masked", "tokens"] = "masked",
        layout: Literal["map", "packed"] = "map",
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        rates = (dropout, attention_dropout, pyramid_dropout, pyramid_attention_dropout)
        if even := [side for side in (reduction, *windows) if side < 1 or side % 2 == 0]:
            raise InputError(
                f"a window (reduction, windows) of side {even[0]}; expected an odd side"
            )
        self.whole, self.packed = empty == "tokens", layout == "packed"
        self.windows, self.dropout = windows, dropout
        self.size, self.stride = reduction, max(1, (reduction - 1) // 2)
        self.embed = Embed(in_dim, embed, activation="identity")
        fused = len(windows) * pyramid_dim or reduced_dim
        d = fused if set_dim is None else set_dim
        if int(mlp_ratio * d) < 1:
            raise InputError(f"mlp_ratio {mlp_ratio} of a width of {d} leaves no hidden units")
        near = Relation(method=pyramid_relative, mode=pyramid_relative_mode, on=pyramid_relative_on)
        far = Relation(method=relative, mode=relative_mode, on=relative_on, shared=relative_shared)
        self._build_windows(reduced_dim, pyramid_dim, relative=near, rates=rates[2:])
        self.widen = nn.Identity() if set_dim is None else nn.Linear(fused, d)
        shape = {"heads": heads, "mlp_ratio": mlp_ratio, "qkv_bias": qkv_bias}
        self._build_transformer(d, layers=layers, relative=far, rates=rates[:2], **shape)
        self._start()

    def _build_windows(
        self, reduced_dim: int, dim: int, *, relative: Relation, rates: tuple[float, ...]
    ) -> None:
        wide, (dropout, attention_dropout) = self.embed.out_dim, rates
        self.reduce = (
            nn.Linear(wide, reduced_dim)
            if self.size == 1
            else WindowToken(wide, reduced_dim, size=self.size)
        )
        self.pyramid = nn.ModuleList(
            WindowToken(
                reduced_dim, dim,
                size=size, dropout=dropout, attention_dropout=attention_dropout, relative=relative,
            )
            for size in self.windows
        )  # fmt: skip

    def _build_transformer(
        self, d: int, *, layers: int, heads: int, rates: tuple[float, ...], **more: Any
    ) -> None:
        if heads < 1 or d % heads:
            raise InputError(f"heads is {heads}: give a divisor of the transformer's width, {d}")
        dropout, attention_dropout = rates
        blocks = [
            SETBlock(d, heads=heads, dropout=dropout, attention_dropout=attention_dropout, **more)
            for _ in range(layers)
        ]
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(d)
        self.classifier = nn.Linear(d, self.n_classes)
        self.without_effect = frozenset(f"blocks.{layers - 1}.{k}" for k in blocks[-1].unread())

    def _start(self) -> None:
        """Initialise as the original: truncated normal weights (0.02), biases and tables of 0."""
        nn.init.trunc_normal_(self.class_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def token_map(self, bags: Bags) -> TokenMap:
        """Place the instances on their maps, and apply the first reduction."""
        self.check_coords(bags)
        layout = lay_out(bags, packed=self.packed, whole=self.whole)
        g = layout.scatter(self.embed(bags.x))
        if not isinstance(self.reduce, WindowToken):
            return TokenMap(layout=layout, cells=layout.cells, g=self.reduce(g))
        cells = reduced(layout.cells, size=self.size, stride=self.stride, whole=self.whole)
        index = layout.cells.windows(cells, size=self.size, stride=self.stride)
        g = self.reduce(g, index, sizes=cells.sizes, places=places_of(cells, first=False))
        return TokenMap(layout=layout, cells=cells, g=g)

    def fuse(self, tokens: TokenMap) -> Float[Tensor, "t c"]:
        """Return the tokens of the pyramid's window sizes, concatenated."""
        if not self.windows:
            return tokens.g
        largest = max(self.windows)
        around = tokens.cells.windows(tokens.cells, size=largest)
        around = around.unflatten(1, (largest, largest))
        places, parts = places_of(tokens.cells, first=False), []
        for size, level in zip(self.windows, self.pyramid, strict=True):
            cut = slice((largest - size) // 2, (largest + size) // 2)
            index = around[:, cut, cut].flatten(1)
            parts.append(level(tokens.g, index, sizes=tokens.cells.sizes, places=places))
        return torch.cat(parts, 1)

    def sequence(self, tokens: TokenMap) -> Float[Tensor, "t_plus_bags d"]:
        """Return the first block's input: [class token, tokens] of each bag plus a sinusoid."""
        z = self.widen(self.fuse(tokens))
        cells, dtype = tokens.cells, self.class_token.dtype
        p = 1 + cells.row * cells.width + cells.col
        z = z + sinusoid(p, z.shape[1]).to(dtype)
        head = self.class_token[0] + sinusoid(p.new_zeros(1), z.shape[1]).to(dtype)
        return F.dropout(with_first(z, head, cells), self.dropout, self.training)

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        del noise, generator  # the model is deterministic
        tokens = self.token_map(bags)
        z, places = self.sequence(tokens), places_of(tokens.cells, first=True)
        for block in self.blocks[:-1]:
            z = block(z, places)
        # only the class token of the last block is used, so its other queries are not computed
        last = self.blocks[-1]
        assert isinstance(last, SETBlock)
        head, rows = last.class_rows(z, places)
        with torch.autocast(head.device.type, enabled=False):
            head = head.to(self.class_token.dtype)
            logits = self.classifier(self.norm(head))
        score = self._score(torch.cat([a.mean(0)[1:] for a in rows]), tokens)
        return Output(logits=logits[:, None], attention=Dirac(score), likelihood=self.likelihood)

    def _score(self, weight: Float[Tensor, " t"], tokens: TokenMap) -> Float[Tensor, " n"]:
        """Return the class token's weight of each instance's cell, interpolated bilinearly."""
        cells = tokens.layout.cells
        if self.size > 1:
            corners, fractions = tokens.cells.around(cells, stride=self.stride)
            weight = (F.pad(weight, (0, 1))[corners] * fractions.to(weight.dtype)).sum(1)
        return F.pad(weight, (0, 1))[tokens.layout.place]
