"""T-ABMIL: a transformer over the bag, then attention pooling (ProbSA paper, appendix B).

A linear layer to 512 without activation, 2 pre-norm layers, 8 heads. It departs from the printed
equations in two arguments: `out_proj` and `final_norm` are on (7,418,113 parameters at 2048
features). The paper's research code has `out_proj=False, use_mlp=False, add_self=True`, and GELU in
the pooling.
"""

from typing import Any, Literal

from ..core import PositiveInt, Rate
from ..layers import Activation, Transformer, Trunk, Widths
from . import _torchmil as torchmil
from ._attention import AttentionModel
from ._base import Model, Provenance
from ._originals import State, only, original, transplant
from ._registry import build, register


@register("tabmil")
class TABMIL(AttentionModel):
    """ABMIL over transformer-contextualised instances.

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer.
        dropout: dropout rate after each first layer and in the transformer.
        layers: number of transformer layers.
        heads: number of attention heads per layer.
        width: width D_qk = D_v of the attention; None: that of the instance vectors.
        out_proj: whether a linear map follows the attention heads.
        use_mlp: whether each layer ends with an MLP of four times the width.
        final_norm: whether a layer norm follows the last layer.
        add_self: whether the transformer's input is added again after every layer (torchmil).
        attention_dim: width D_f of the attention network.
        trunk: form of the attention network.
        attention_activation: activation that replaces tanh in the plain and the gated trunk.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
    """

    family = "global"
    provenance = Provenance(
        paper="Castro-Macías et al., Sm: enhanced localization in multiple instance learning, "
        "NeurIPS 2024, arXiv:2410.03276; here as in arXiv:2507.14932, appendix B",
        code="Franblueee/torchmil",
        licence="Apache-2.0",
        follows_paper="Two pre-norm layers with an MLP of four times the width.",
        follows_code="A final layer norm; heads scaled by 1/√d. `out_proj=False, add_self=True` is "
        "torchmil's encoder.",
        fair="Nothing; this is the comparison's own baseline.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "identity",
        dropout: Rate = 0.0,
        layers: int = 2,
        heads: int = 8,
        width: int | None = None,
        out_proj: bool = True,
        use_mlp: bool = True,
        final_norm: bool = True,
        add_self: bool = False,
        attention_dim: PositiveInt = 128,
        trunk: Trunk = "tanh",
        attention_activation: Activation = "tanh",
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
            use_mlp=use_mlp,
            final_norm=final_norm,
            add_self=add_self,
            dropout=dropout,
        )
        self.build_attention(
            attention_dim=attention_dim, trunk=trunk, activation=attention_activation
        )


@original("torchmil_transformerabmil", variants=("noself",))
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Convert torchmil's TransformerABMIL, without first layer.

    Its second norm is unused if the layers have no MLP.
    """
    known = ("in_shape", "pool_att_dim", "pool_act", "pool_gated", *torchmil.ENCODER)
    only(arguments, known, reference)
    layout = "torchmil's TransformerABMIL"
    first = torchmil.either(state, torchmil.FIRST, layout=layout)
    encoder = torchmil.encoder_arguments(state, arguments, layout=layout)
    gated = any(k.startswith("pool.fc_gated.") for k in state)
    model = build(
        "tabmil",
        in_dim=torchmil.in_dim(arguments, first.shape[1]),
        embed=None,
        **encoder,
        attention_dim=arguments.get("pool_att_dim", first.shape[0]),
        trunk="gated" if arguments.get("pool_gated", gated) else "tanh",
        attention_activation=arguments.get("pool_act", "tanh"),
    )
    if not encoder["use_mlp"]:
        state = {k: v for k, v in state.items() if ".norm2." not in k}
    return transplant(model, state, torchmil.RULES)
