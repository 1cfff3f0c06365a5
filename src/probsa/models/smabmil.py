"""SmABMIL: attention pooling with the Sm operator (Castro-Macías et al., NeurIPS 2024).

Over the bag's graph, Sm smooths the instance vectors (`early`), the hidden layer of the attention
(`mid`) or the attention itself (`late`); with a transformer, also the output of each layer's
attention. The defaults are those of the ProbSA authors' runs: mid, trained α, 10 steps, spectral
norm. Departure: α has the same meaning in both modes of Sm (their approximate mode uses 1 − α).
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    NonNegativeFloat,
    Rate,
    Seed,
    StepCount,
    UnitInterval,
    Width,
    without_autocast,
)
from ..layers import (
    ACTIVATIONS,
    Activation,
    Arcs,
    Embed,
    Sm,
    SmMode,
    Transformer,
    TransformerOptions,
    Widths,
    both_ways,
    normalised,
    pool,
)
from ..variational import Dirac
from ._base import Model, Output, Provenance
from ._explanation import explain_pooling
from ._registry import register

Where = Literal["early", "mid", "late"]


class SmAttention(nn.Module):
    """f_n = wᵀ act(V h_n), with Sm on h, on V h or on f.

    With `normed`, the linear maps after Sm have spectral norm 1 (there is none after `late`).
    """

    def __init__(
        self,
        dim: int,
        attention_dim: int,
        *,
        sm: Sm,
        where: Where,
        activation: Callable[[Tensor], Tensor],
        normed: bool,
    ) -> None:
        super().__init__()
        self.sm = sm
        self.where = where
        self.activation = activation
        self.first = nn.Linear(dim, attention_dim)
        self.last = nn.Linear(attention_dim, 1, bias=False)
        if normed and where == "early":
            spectral_norm(self.first)
        if normed and where != "late":
            spectral_norm(self.last)

    def forward(
        self, h: Float[Tensor, "n d"], arcs: Arcs
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
        """Return the instance vectors, smoothed if `early`, and f."""
        # in half precision the spectral norm would be off by 0.4 %
        with without_autocast(h):
            first, last = self.first.weight, self.last.weight
        if self.where == "early":
            h = self.sm(h, arcs)
        v = F.linear(h, first, self.first.bias)
        if self.where == "mid":
            v = self.sm(v, arcs)
        t = self.activation(v).to(last.dtype)
        with without_autocast(t):
            f = F.linear(t, last)
        return h, (self.sm(f, arcs) if self.where == "late" else f)[:, 0]


@register("smabmil", original={"embed": None, "where": "early", "spectral_norm": False})
class SmABMIL(Model):
    """Attention pooling that is smooth over the bag's graph by construction, not by a prior.

    Sm(U) = (I + γL)⁻¹U with γ = α/(1 − α) and L = I − D^-½ A D^-½.

    Args:
        encoder: `mlp`, or `transformer` with Sm after the attention of each layer; the options of a
            transformer have no effect on the other.
        dropout: dropout rate after each first layer and in the transformer.
        where: where Sm acts: on instance vectors (`early`), after V (`mid`) or on the attention
            (`late`).
        alpha: strength α of Sm, from 0 to 1; its initial value if it is trained.
        train_alpha: whether each Sm trains its α.
        mode: whether Sm is `approximate` or `exact`.
        steps: number of iterations of the approximate mode.
        spectral_norm: whether the attention's linear maps after Sm have spectral norm 1.
        attention_dim: width D_f of the attention network.
        attention_activation: activation between V and w.
    """

    needs = frozenset({"edges"})
    provenance = Provenance(
        paper="Castro-Macías et al., Sm, NeurIPS 2024, arXiv:2410.03276",
        code="Franblueee/SmMIL is announced but empty; the authors' library is Franblueee/torchmil",
        licence="Apache-2.0",
        follows_paper="The operator in its exact and its approximate mode; early, mid and late; α "
        "between 0 and 1.",
        follows_code="Mid, spectral norm, trained α and 10 steps, as the authors ran it; "
        "`preset='original'` has their library's defaults. In that library the approximate mode "
        "uses 1 − α; here α has the same meaning in both modes.",
        fair="One linear layer to 512 with ReLU, D_f = 128.",
    )

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        encoder: Literal["mlp", "transformer"] = "mlp",
        embed: Widths = 512,
        dropout: Rate = 0.0,
        where: Where = "mid",
        alpha: UnitInterval = 0.5,
        train_alpha: bool = True,
        mode: SmMode = "approximate",
        steps: StepCount = 10,
        spectral_norm: bool = True,
        attention_dim: Width = 128,
        attention_activation: Activation = "tanh",
        transformer_options: TransformerOptions,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)

        def sm() -> Sm:
            return Sm(alpha=alpha, trainable=train_alpha, mode=mode, steps=steps)

        activation = "relu" if encoder == "mlp" else "identity"
        self.embed = Embed(in_dim, embed, activation=activation, dropout=dropout)
        d = self.embed.out_dim
        self.encoder: Transformer | None = None
        if encoder == "transformer":
            self.encoder = Transformer(d, dropout=dropout, **asdict(transformer_options))
            self.smooths = nn.ModuleList(sm() for _ in self.encoder.blocks)
        act = ACTIVATIONS[attention_activation]
        self.attention = SmAttention(
            d, attention_dim, sm=sm(), where=where, activation=act, normed=spectral_norm
        )
        self.classifier = nn.Linear(d, n_classes)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        arcs = normalised(both_ways(bags))
        h = self.embed(bags.x)
        if self.encoder is not None:
            after = [lambda v, sm=sm: sm(v, arcs) for sm in self.smooths]
            h = self.encoder(h, bags.sizes, after=after)
        h, f = self.attention(h, arcs)
        bias = self.classifier.bias
        likelihood = self.likelihood
        g = F.linear(h, self.classifier.weight).to(f.dtype)
        explanation = None
        if self.explains and not (self.training or torch.is_grad_enabled()):
            explanation = explain_pooling(f[None], g, bags.sizes, bias=bias, likelihood=likelihood)
        return Output(
            logits=pool(f[None], g.T, bags.sizes) + bias,
            attention=Dirac(f),
            likelihood=likelihood,
            explanation=explanation,
        )
