"""PatchGCN: graph convolutions over neighbouring patches, then gated attention (Chen et al., 2021).

The defaults are the ProbSA paper's: one linear layer to 512, three GENConv of that width, attention
of width 128, one linear classifier. `preset="original"` has the authors' widths. Departures:
classes instead of survival times, GENConv's MLP has the biases of the library's old version, and
the first convolution has no layer norm (theirs creates one but never calls it).
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    NonNegativeFloat,
    Rate,
    Seed,
    StepCount,
    Width,
)
from ..errors import InputError
from ..layers import (
    Arcs,
    AttentionPosterior,
    Embed,
    Trunk,
    Widths,
    aggregate_softmax,
    full_precision,
    neighbourhoods,
    normalised,
    propagate,
)
from ..variational import MapOptions
from ._attention import MAP, AttentionModel
from ._base import Model, Provenance
from ._registry import register

EPSILON = 1e-7
"""ε, which GENConv adds to messages."""


class GENConv(nn.Module):
    """GEN(x)_i = MLP(x_i + s_i) (Li et al. 2020, arXiv:2006.07739).

    m_j = ReLU(x_j) + ε; s_i = Σ_j a_ij m_j with a_ij the softmax of t m_j over the arcs into i, for
    each channel (0 without arcs); MLP(x) = W₂ ReLU(LN(W₁ x + b₁)) + b₂ of twice the width.
    """

    def __init__(self, width: int, *, bias: bool = True) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.ones(1))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width, bias=bias),
            nn.LayerNorm(2 * width),
            nn.ReLU(inplace=True),
            nn.Linear(2 * width, width, bias=bias),
        )

    def forward(self, x: Float[Tensor, "n d"], arcs: Arcs) -> Float[Tensor, "n d"]:
        x = full_precision(x)
        return self.mlp(x + aggregate_softmax(arcs, x.relu() + EPSILON, self.t))


class GCNConv(nn.Module):
    """W(Â x + x) + b, with Â = D^-½ A D^-½: the convolution of the ProbSA authors' library."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, width)

    def forward(self, x: Float[Tensor, "n d"], arcs: Arcs) -> Float[Tensor, "n w"]:
        return self.linear(propagate(arcs, x) + x)


class GraphLayer(nn.Module):
    """A bare convolution, or y = [x +] ReLU(LN(conv(x))) followed by dropout."""

    def __init__(
        self, conv: nn.Module, width: int, *, bare: bool, residual: bool, dropout: float
    ) -> None:
        super().__init__()
        self.conv = conv
        self.residual = residual
        self.norm = None if bare else nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "n d"], arcs: Arcs) -> Float[Tensor, "n w"]:
        y = self.conv(x, arcs)
        if self.norm is None:
            return y
        y = self.norm(y).relu()
        return self.dropout(x + y if self.residual else y)


@register(
    "patchgcn",
    original={
        "embed": 128,
        "attention_dim": 512,
        "rho": 512,
        "dropout": 0.25,
        "attention_dropout": 0.25,
    },
)
class PatchGCN(AttentionModel):
    """Graph convolutions, whose outputs are concatenated, then attention pooling.

    x₀ = ReLU(W₀ x + b₀), x₁ = GEN₁(x₀), x_k = x_{k−1} + ReLU(LN(GEN_k(x_{k−1}))),
    h = ReLU(W_φ [x₀ | … | x_L] + b_φ), then gated attention on h and one classifier.

    Neighbourhoods are the bag's directed `arcs` (target, source) if it has some (in the original,
    from sources whose 8 nearest include the target), else its edges in both directions.

    Args:
        layers: number of graph convolutions.
        conv: `gen` (the original) or `gcn` (Kipf & Welling's, as in torchmil).
        width: width of the graph convolutions; None: that of the first layer. Others need `gcn`.
        mlp_bias: whether GENConv's MLP has biases (not in newer versions of the library).
        block: `residual` (the original, with a bare first convolution), or `plain`: norm and ReLU
            after every convolution, without a residual sum.
        hidden: width or widths of the layers after the concatenation.
        rho: width of a hidden layer in the classifier; None: linear.
        attention_dim: width D_f of the attention network.
        trunk: form of the attention network.
        score_bias: whether w has a bias; it has no effect on the softmax.
        dropout: dropout rate after the first layers and after those of the concatenation.
        layer_dropout: dropout rate after each graph layer except a bare one.
        attention_dropout: dropout rate inside the attention network.
        terms: further terms of the objective, which move the map.
    """

    needs = frozenset({"edges"})
    without_effect = frozenset({"attention.mean.bias"})
    provenance = Provenance(
        paper="Chen et al., Patch-GCN, MICCAI 2021, arXiv:2107.13048",
        code="mahmoodlab/Patch-GCN",
        licence="GPL-3.0; non-commercial according to its README",
        follows_paper="GENConv with a learned softmax temperature, residual layers, dense "
        "connections, gated attention.",
        follows_code="A bare first convolution; no dropout in the graph layers (the authors' "
        "version of their library ignored it; `layer_dropout=0.1` is what they intended) and none "
        "after rho (removed in 2024). Of the survival analysis only the network is included.",
        fair="One linear layer to 512, convolutions 512 wide, D_f = 128, no rho, no dropout, "
        "one logit.",
    )

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        layers: StepCount = 3,
        conv: Literal["gen", "gcn"] = "gen",
        width: Width | None = None,
        mlp_bias: bool = True,
        block: Literal["residual", "plain"] = "residual",
        hidden: Width | tuple[Width, ...] = 512,
        rho: Width | None = None,
        attention_dim: Width = 128,
        trunk: Trunk = "gated",
        score_bias: bool = True,
        dropout: Rate = 0.0,
        layer_dropout: Rate = 0.0,
        attention_dropout: Rate = 0.0,
        terms: MapOptions = MAP,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        Model.__init__(self, n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.terms = terms
        self.embed = Embed(in_dim, embed, activation="relu", dropout=dropout)
        dim = self.embed.out_dim
        w = dim if width is None else width
        if conv == "gen" and w != dim:
            raise InputError(
                f"width is {w}, but GENConv keeps the {dim} channels that it is given: leave width "
                "out, or take conv='gcn'"
            )
        self.conv = conv
        self.layers = nn.ModuleList()
        for k in range(layers):
            is_first = k == 0
            if conv == "gen":
                convolution = GENConv(w, bias=mlp_bias)
            else:
                convolution = GCNConv(dim if is_first else w, w)
            layer = GraphLayer(
                convolution,
                w,
                bare=block == "residual" and is_first,
                residual=block == "residual",
                dropout=layer_dropout,
            )
            self.layers.append(layer)
        self.phi = Embed(dim + layers * w, hidden, dropout=dropout)
        d = self.phi.out_dim
        options = {"trunk": trunk, "mean_bias": score_bias, "dropout": attention_dropout}
        self.attention = AttentionPosterior(d, attention_dim, kind="dirac", **options)
        self.classifier = nn.Linear(d, n_classes)
        if rho is not None:
            self.classifier = nn.Sequential(nn.Linear(d, rho), nn.ReLU(), nn.Linear(rho, n_classes))

    def graph(self, bags: Bags) -> list[Tensor]:
        """Return x₀, …, x_L, the input and the outputs of the graph layers."""
        arcs = neighbourhoods(bags)
        if self.conv == "gcn":
            arcs = normalised(arcs)
        x = [self.embed(bags.x)]
        for layer in self.layers:
            x.append(layer(x[-1], arcs))
        return x

    def instances(self, bags: Bags) -> Float[Tensor, "n d"]:
        return self.phi(torch.cat(self.graph(bags), 1))
