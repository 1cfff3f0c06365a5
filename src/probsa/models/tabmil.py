"""T-ABMIL: a transformer over the bag, then attention pooling (ProbSA paper, appendix B).

Linear to 512 without activation, 2 pre-norm layers, 8 heads. Departures from the printed equations,
each an argument: `out_proj` and `final_norm` are on (7,418,113 parameters at 2048 features).
"""

from typing import Literal

from ..layers.attention import Trunk
from ..layers.embed import Widths
from ..layers.transformer import Transformer
from ._attention import AttentionModel
from ._base import Source
from ._registry import register


@register("tabmil")
class TABMIL(AttentionModel):
    """ABMIL on instance vectors that a transformer has let see their bag.

    Args:
        in_dim: features of an instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width(s) of the first layer(s); None passes the features on.
        activation: after each first layer.
        dropout: after each first layer and in the transformer, in training.
        layers: transformer layers.
        heads: attention heads of each.
        width: D_qk = D_v; None: as wide as the instance vectors.
        out_proj: a linear map after the heads.
        final_norm: a layer norm after the last layer.
        add_self: the transformer's input is added again after every layer (torchmil).
        attention_dim: D_f of the pooling.
        trunk: how attention is computed.
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction.
    """

    source = Source(
        paper="Castro-Macías et al., Sm: enhanced localization in multiple instance learning, "
        "NeurIPS 2024, arXiv:2410.03276; here as in arXiv:2507.14932, appendix B",
        code="Franblueee/torchmil",
        licence="Apache-2.0",
        follows_paper="Two pre-norm layers with an MLP of four times the width.",
        follows_code="A final layer norm; heads scaled by 1/√d. `out_proj=False, add_self=True` is "
        "torchmil's encoder.",
        fair="Nothing: the comparison's own baseline.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "identity",
        dropout: float = 0.0,
        layers: int = 2,
        heads: int = 8,
        width: int | None = None,
        out_proj: bool = True,
        final_norm: bool = True,
        add_self: bool = False,
        attention_dim: int = 128,
        trunk: Trunk = "tanh",
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.build_embed(in_dim, embed, activation=activation, dropout=dropout)
        self.encoder = Transformer(
            self.embed.out_dim,
            layers=layers,
            heads=heads,
            width=width,
            out_proj=out_proj,
            final_norm=final_norm,
            add_self=add_self,
            dropout=dropout,
        )
        self.build_attention(attention_dim=attention_dim, trunk=trunk)
