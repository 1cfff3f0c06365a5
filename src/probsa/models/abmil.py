"""ABMIL: attention pooling followed by a classifier (Ilse, Tomczak & Welling, ICML 2018).

The defaults are those of the ProbSA paper's comparison: one linear layer to 512 with ReLU,
f_n = wᵀ tanh(V h_n) without a bias on w, one linear classifier. `preset="original"` is the authors'
plain form without their convolutions (500 wide, a bias on w); `trunk="gated"` is their gated form.
"""

from typing import Annotated, Any, Literal

from ..core import Limits, PositiveInt, Rate
from ..errors import CheckpointError
from ..layers import Activation, Trunk, Widths
from . import _torchmil as torchmil
from ._attention import AttentionModel
from ._base import Model, Provenance
from ._originals import State, number, only, original, part, transplant
from ._registry import build, register


@register("abmil", original={"embed": 500, "score_bias": True})
class ABMIL(AttentionModel):
    """Attention pooling: z = Hᵀ softmax(f), with f_n = wᵀ tanh(V h_n).

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer.
        dropout: dropout rate after each first layer and after the classifier's hidden layer.
        attention_dim: width D_f of the attention network.
        trunk: form of the attention network.
        attention_activation: activation that replaces tanh in the plain and the gated trunk.
        attention_dropout: dropout rate after each activation of the attention network.
        score_bias: whether w has a bias (the original's does), which has no effect on the softmax;
            None: only with the `mlp` trunk.
        classifier_hidden: width of a hidden layer with ReLU in the classifier; None: linear.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
    """

    provenance = Provenance(
        paper="Ilse, Tomczak & Welling, Attention-based deep multiple instance learning, "
        "ICML 2018, arXiv:1802.04712",
        code="AMLab-Amsterdam/AttentionDeepMIL",
        licence="MIT",
        follows_paper="Attention pooling, plain or gated, with one classifier.",
        follows_code="V, U and (with `score_bias`) w have biases; probabilities are not clamped.",
        fair="One linear layer to 512 with ReLU, D_f = 128, the plain form without a bias on w.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "relu",
        dropout: Rate = 0.0,
        attention_dim: PositiveInt = 128,
        trunk: Trunk = "tanh",
        attention_activation: Activation = "tanh",
        attention_dropout: Rate = 0.0,
        score_bias: bool | None = None,
        classifier_hidden: Annotated[int | None, Limits(at_least=1)] = None,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.build_embed(in_dim, embed, activation=activation, dropout=dropout)
        self.build_attention(
            attention_dim=attention_dim,
            trunk=trunk,
            activation=attention_activation,
            dropout=attention_dropout,
            score_bias=score_bias,
            hidden=classifier_hidden,
            hidden_dropout=dropout,
        )


AUTHORS_KEYS = [
    (r"feature_extractor_part[12]\.", None),  # bags hold the features that it extracts
    (r"attention(?:_V)?\.0\.", "attention.trunk.first."),
    (r"attention_U\.0\.", "attention.trunk.gate."),
    (r"attention(?:\.2|_w)\.", "attention.mean."),
    (r"classifier\.0\.", "classifier."),
]
AMIL_KEYS = [
    (r"attention_net\.0\.", "embed.net.0."),
    (r"attention_net\.3\.attention_a\.0\.", "attention.trunk.first."),
    (r"attention_net\.3\.attention_b\.0\.", "attention.trunk.gate."),
    (r"attention_net\.3\.attention_c\.", "attention.mean."),
    (r"rho\.0\.", "classifier.0."),
    (r"classifier\.", "classifier.2."),
]


@original("abmil", variants=("gated", "plain"))
def _from_authors(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Convert `Attention` or `GatedAttention` of AttentionDeepMIL, after the feature extractor."""
    only(arguments, (), reference)
    gated = "attention_V.0.weight" in state
    key = "attention_V.0.weight" if gated else "attention.0.weight"
    first = part(state, key, layout="an ABMIL (AMLab-Amsterdam/AttentionDeepMIL)")
    last = "attention_w.weight" if gated else "attention.2.weight"
    branches = part(state, last, layout="an ABMIL").shape
    if branches[0] != 1:
        raise CheckpointError(
            f"{last} has shape {tuple(branches)}: {branches[0]} branches of attention, but the "
            f"original's classifier takes {(1, *branches[1:])}, one only"
        )
    model = build(
        "abmil",
        in_dim=first.shape[1],
        embed=None,
        attention_dim=first.shape[0],
        trunk="gated" if gated else "tanh",
        score_bias=True,
    )
    return transplant(model, state, AUTHORS_KEYS)


@original("ckpt_patchgcn_repo_amil", "patchgcn_repo_amil", variants=(r"[a-z]+\d",))
def _from_amil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Convert `MIL_Attention_FC_surv` of mahmoodlab/Patch-GCN: gated ABMIL with a layer rho.

    Its hazards are σ of our logits, and its survival is S_t = Π_{s ≤ t} (1 − hazard_s).
    """
    only(arguments, ("size_arg", "dropout", "n_classes"), reference)
    state = {k.replace(".module.", "."): v for k, v in state.items()}
    layout = "an AMIL (mahmoodlab/Patch-GCN)"
    width, features = part(state, "attention_net.0.weight", layout=layout, ndim=2).shape
    inner = part(state, "attention_net.3.attention_a.0.weight", layout=layout).shape[0]
    bins, hidden = part(state, "classifier.weight", layout=layout, ndim=2).shape
    drop = number(arguments, "dropout", 0.25)
    model = build(
        "abmil",
        in_dim=features,
        n_classes=arguments.get("n_classes", bins),
        embed=width,
        dropout=drop,
        attention_dim=inner,
        trunk="gated",
        # as in CLAM: always 0.25, but only if there is dropout elsewhere
        attention_dropout=0.25 if drop else 0.0,
        score_bias=True,
        classifier_hidden=hidden,
    )
    return transplant(model, state, AMIL_KEYS)


@original("torchmil_abmil", variants=("gated",))
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Convert torchmil's ABMIL, which has no first layer and no bias on w."""
    only(arguments, ("in_shape", "att_dim", "att_act", "gated"), reference)
    first = torchmil.either(state, torchmil.FIRST, layout="torchmil's ABMIL")
    gated = any(k.startswith("pool.fc_gated.") for k in state)
    model = build(
        "abmil",
        in_dim=torchmil.in_dim(arguments, first.shape[1]),
        embed=None,
        attention_dim=arguments.get("att_dim", first.shape[0]),
        trunk="gated" if arguments.get("gated", gated) else "tanh",
        attention_activation=arguments.get("att_act", "tanh"),
    )
    return transplant(model, state, torchmil.RULES)
