"""ABMIL: attention-based deep MIL (Ilse, Tomczak & Welling, ICML 2018), arXiv:1802.04712.

As the paper sets it for its comparison: one linear layer to 512 with ReLU, f_n = wᵀ tanh(V h_n)
with no bias on w, one linear classifier. `trunk="gated"` is the original's gate.
"""

from typing import Literal

from ..layers.attention import Trunk
from ..layers.embed import Widths
from ._attention import AttentionModel
from ._base import Source
from ._registry import register


@register("abmil")
class ABMIL(AttentionModel):
    """Attention pooling: z = Hᵀ softmax(f), with f_n = wᵀ tanh(V h_n).

    Args:
        in_dim: features of an instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width(s) of the first layer(s); None passes the features on.
        activation: after each first layer.
        dropout: after each first layer, in training.
        attention_dim: D_f.
        trunk: how attention is computed.
        score_bias: a bias on w, to which softmax is blind (the original has one); None: with `mlp`.
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction.
    """

    source = Source(
        paper="Ilse, Tomczak & Welling, Attention-based deep multiple instance learning, "
        "ICML 2018, arXiv:1802.04712",
        code="AMLab-Amsterdam/AttentionDeepMIL",
        licence="MIT",
        follows_paper="Attention pooling, plain or gated, and one classifier.",
        follows_code="Biases in V, U and (`score_bias`) w; without the clamp of probabilities.",
        fair="One linear layer to 512 with ReLU, D_f = 128, the plain form without a bias on w.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "relu",
        dropout: float = 0.0,
        attention_dim: int = 128,
        trunk: Trunk = "tanh",
        score_bias: bool | None = None,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.build_embed(in_dim, embed, activation=activation, dropout=dropout)
        self.build_attention(attention_dim=attention_dim, trunk=trunk, score_bias=score_bias)
