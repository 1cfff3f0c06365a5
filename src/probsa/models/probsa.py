"""ProbSA: probabilistic smooth attention (Castro-Macías et al., arXiv:2507.14932).

The paper's four variants combine H (MLP or transformer) with q (Dirac or Diag), table 1; `field` is
this package's smooth posterior (`variational.Field`). With λ = 0
and Dirac they are ABMIL and T-ABMIL; with a constant λ, Dirac and the MLP, Smooth Attention (SA).
The KL of a bag is divided by its size unless `kl_reduction="sum"`. The equations sum; the authors'
code divides, because the terms of 10⁴ patches would otherwise outweigh one label.
"""

from typing import Annotated, Any, Literal

from ..core import Limits, PositiveInt, Rate
from ..layers import PosteriorKind, Transformer, Trunk, Widths
from ..variational import FieldOptions, PosteriorOptions, PriorOptions
from . import _torchmil as torchmil
from ._attention import POOLING, AttentionModel
from ._base import Model, Provenance
from ._originals import State, only, original, transplant
from ._registry import build, register

PLAIN: dict[str, Literal["relu", "identity"]] = {"mlp": "relu", "transformer": "identity"}
TRANSFORMER = ("layers", "heads", "width", "out_proj", "use_mlp", "final_norm", "add_self")
FIELD = "field_options"
TABMIL: dict[str, Any] = {"family": "global", "baseline": "tabmil"}


@register(
    "abmil-probsa-dirac",
    encoder="mlp",
    posterior="dirac",
    without=(*TRANSFORMER, FIELD, POOLING),
)
@register("abmil-probsa-diag", encoder="mlp", posterior="diag", without=(*TRANSFORMER, FIELD))
@register("abmil-probsa-field", encoder="mlp", posterior="field", without=(*TRANSFORMER, POOLING))
@register(
    "tabmil-probsa-dirac",
    encoder="transformer",
    posterior="dirac",
    without=[FIELD, POOLING],
    **TABMIL,
)
@register("tabmil-probsa-diag", encoder="transformer", posterior="diag", without=[FIELD], **TABMIL)
@register(
    "tabmil-probsa-field", encoder="transformer", posterior="field", without=[POOLING], **TABMIL
)
class ProbSA(AttentionModel):
    """Attention with a distribution q(f | X) and a smoothness prior on the bag's graph.

    Args:
        in_dim: number of features per instance.
        encoder: network H(X): `mlp` (ABMIL) or `transformer` (T-ABMIL).
        posterior: kind of q(f | X): `dirac` (Σ = 0), `diag` (diagonal Σ) or `field` (smooth on the
            bag's graph).
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer; None: ReLU for the MLP, none before a
            transformer.
        dropout: dropout rate after each first layer and in the transformer.
        layers: number of transformer layers.
        heads: number of attention heads per layer.
        width: width D_qk = D_v of the attention; None: that of the instance vectors.
        out_proj: whether a linear map follows the attention heads.
        use_mlp: whether each layer ends with an MLP of four times the width.
        final_norm: whether a layer norm follows the last layer.
        add_self: whether the transformer's input is added again after every layer (torchmil).
        attention_dim: width D_f of the attention network.
        trunk: form of the network that computes μ and log σ².
        classifier_hidden: width of a hidden layer in ψ; None: ψ is linear, which makes samples
            cheap.
        posterior_options: number of samples, and range of log σ².
        prior_options: parameters of the prior, and reduction of the KL divergence.
        field_options: whether κ is learned, with a field.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
    """

    needs = frozenset({"edges"})
    baseline = "abmil"
    has_kl = True
    provenance = Provenance(
        paper="Castro-Macías et al., Probabilistic smooth attention, 2025, arXiv:2507.14932",
        code="announced, not public; the authors' library is torchmil",
        licence="Apache-2.0 (torchmil)",
        follows_paper="The tanh trunk of ABMIL, D − A, the mean of probabilities over samples.",
        follows_code="The KL of a bag is divided by its size. `trunk='mlp'`, "
        "`laplacian='normalized'` and `ridge=0` give the rest of torchmil's model.",
        fair="Nothing; this is the paper's own method. The `field` posterior is not part of it: it "
        "is an addition of this package.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        encoder: Literal["mlp", "transformer"],
        posterior: PosteriorKind,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] | None = None,
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
        classifier_hidden: Annotated[int | None, Limits(at_least=1)] = None,
        posterior_options: PosteriorOptions,
        prior_options: PriorOptions,
        field_options: FieldOptions,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.build_prior(
            prior_options,
            posterior_options,
            field=field_options if posterior == "field" else None,
        )
        self.build_embed(in_dim, embed, activation=activation or PLAIN[encoder], dropout=dropout)
        parts = {"out_proj": out_proj, "final_norm": final_norm, "add_self": add_self}
        if encoder == "transformer":
            self.encoder = Transformer(
                self.embed.out_dim,
                layers=layers,
                heads=heads,
                width=width,
                use_mlp=use_mlp,
                dropout=dropout,
                **parts,
            )
        self.build_attention(
            attention_dim=attention_dim,
            trunk=trunk,
            posterior=posterior,
            options=posterior_options,
            hidden=classifier_hidden,
        )


@original(
    "torchmil_smoothabmil",
    "torchmil_probsmoothabmil",
    "torchmil_transformerprobsmoothabmil",
    variants=("diag", "zero"),
)
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Convert torchmil's three models: no first layer, normalised Laplacian, κ = 1, no ridge."""
    known = ("in_shape", "att_dim", "pool_att_dim", "covar_mode", *torchmil.ENCODER)
    only(arguments, (*known, "n_samples_train", "n_samples_test"), reference)
    layout = "torchmil's smooth attention"
    hidden, width = torchmil.either(state, torchmil.HIDDEN, layout=layout).shape
    transformer = any(k.startswith("transformer_encoder.") for k in state)
    diag = any(k.startswith("pool.log_diag_Sigma_nn.") for k in state)
    covariance = arguments.get("covar_mode", "diag" if diag else "zero")
    posterior = "diag" if covariance == "diag" else "dirac"
    encoder = torchmil.encoder_arguments(state, arguments, layout=layout) if transformer else {}
    samples = arguments.get("n_samples_train", 1)
    model = build(
        f"{'tabmil' if transformer else 'abmil'}-probsa-{posterior}",
        in_dim=torchmil.in_dim(arguments, width),
        embed=None,
        **encoder,
        attention_dim=arguments.get("att_dim", arguments.get("pool_att_dim", hidden // 2)),
        trunk="mlp",
        log_variance_bounds=None,
        samples=samples,
        predict_samples=arguments.get("n_samples_test", samples),
        laplacian="normalized",
        ridge=0.0,
    )
    if encoder and not encoder["use_mlp"]:
        state = {k: v for k, v in state.items() if ".norm2." not in k}
    return transplant(model, state, torchmil.RULES)
