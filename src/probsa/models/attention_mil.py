"""Attention pooling composed of an encoder H, a posterior q(f | X) and a readout.

| name | encoder | posterior | readout |
|---|---|---|---|
| `abmil`, `tabmil` | MLP, transformer | Dirac, without a prior | Σ softmax(f)_n h_n, then ψ |
| `abmil-probsa-*`, `tabmil-probsa-*` | MLP, transformer | Dirac, diagonal, field | the same |
| `evidence-*` | MLP or transformer | Dirac, diagonal, field | a soft maximum of f itself |
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn

from ..core import Limits, PositiveInt, Rate
from ..errors import CheckpointError
from ..layers import (
    Activation,
    AttentionPosterior,
    BagExplainer,
    Embed,
    NystromOptions,
    PosteriorKind,
    Readout,
    SoftMaximum,
    Transformer,
    TransformerOptions,
    Trunk,
    Widths,
)
from ..variational import (
    Dirichlet,
    FieldOptions,
    LearnedPrior,
    Posterior,
    PosteriorOptions,
    PriorOptions,
    probability_positive,
)
from . import _torchmil as torchmil
from ._attention import AttentionModel
from ._base import Provenance, ScoreKind
from ._explanation import Explanation, explain
from ._originals import State, only, original, part
from ._registry import register

PARTS = ("encoder", "posterior", "branches")
"""Arguments that names fix."""
TRUNK = ("attention_activation", "attention_dropout", "score_bias")
PRIOR = ("sampling", "prior", "field")
POINT = ("field", "pooling")
"""Arguments without effect on a point mass."""
TORCHMIL = ("width", "out_proj", "use_mlp", "final_norm", "add_self")
QUADRATURE = 20
"""Nodes of the Gauss-Hermite quadrature over one instance's f."""


class AttentionMIL(AttentionModel):
    """Attention pooling of instance vectors, or of evidence.

    Args:
        encoder: network H(X): `mlp` (ABMIL), or `transformer` (T-ABMIL).
        posterior: kind of q(f | X): `dirac` (Σ = 0), `diag` (diagonal Σ) or `field` (smooth on the
            bag's graph).
        branches: `single`: one attention map; `multi`: one per class, which pools for that class.
        activation: activation after each first layer; None: none before an encoder of attention
            models, ReLU elsewhere.
        dropout: dropout rate after each first layer, in the transformer, and after the classifier's
            hidden layer.
        attention_dim: width D_f of the network that computes f.
        trunk: form of the network that computes f, and log σ² or the precision with it.
        attention_activation: activation that replaces tanh in the plain and the gated trunk.
        attention_dropout: dropout rate after each activation of the attention network.
        score_bias: whether w has a bias (the original's does), which has no effect on the softmax;
            None: only with the `mlp` trunk.
        classifier_hidden: width of a hidden layer with ReLU in the classifier ψ; None: ψ is linear,
            which makes samples cheap.
        network: the encoder.
        sampling: number of samples, and range of log σ².
        prior: parameters of the prior, and reduction of the KL divergence.
        field: whether κ is learned, with a field.
    """

    encoder_type: ClassVar[Callable[..., nn.Module]] = Transformer

    def __init__(
        self,
        *,
        in_dim: int,
        encoder: Literal["mlp", "transformer"] = "mlp",
        posterior: PosteriorKind = "dirac",
        branches: Literal["single", "multi"] = "single",
        embed: Widths = 512,
        activation: Literal["relu", "identity"] | None = None,
        dropout: Rate = 0.0,
        network: TransformerOptions | NystromOptions,
        attention_dim: PositiveInt = 128,
        trunk: Trunk = "tanh",
        attention_activation: Activation = "tanh",
        attention_dropout: Rate = 0.0,
        score_bias: bool | None = None,
        classifier_hidden: Annotated[int | None, Limits(at_least=1)] = None,
        sampling: PosteriorOptions,
        prior: PriorOptions,
        field: FieldOptions,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.has_kl:
            self.samples, self.predict_samples = sampling.samples, sampling.predict_samples
            self.closed_form = sampling.pooling == "closed_form"
            self.kl_reduction = prior.kl_reduction
            self.prior = Dirichlet(kappa=prior.kappa, ridge=prior.ridge, laplacian=prior.laplacian)
        evidence = self.score_kind == "evidence"
        plain = "identity" if encoder == "transformer" and not evidence else "relu"
        self.embed = Embed(in_dim, embed, activation=activation or plain, dropout=dropout)
        d = self.embed.out_dim
        options = {"dropout": dropout, **asdict(network)}
        self.encoder = self.encoder_type(d, **options) if encoder == "transformer" else None
        by_class = self.n_classes > 1 if evidence else branches == "multi"
        self.attention = AttentionPosterior(
            d,
            attention_dim,
            kind=posterior,
            trunk=trunk,
            mean_bias=evidence or score_bias,
            log_variance_bounds=sampling.log_variance_bounds,
            initial_log_variance=sampling.initial_log_variance,
            columns=self.n_classes if by_class else None,
            activation=attention_activation,
            dropout=attention_dropout,
            prior=LearnedPrior(prior, field) if posterior == "field" else None,
        )
        if evidence:
            self.pooling = SoftMaximum(self.n_classes)
        elif classifier_hidden is None:
            self.classifier = nn.Linear(d, self.n_classes)
        else:
            self.classifier = nn.Sequential(
                nn.Linear(d, classifier_hidden),
                nn.Sequential(nn.ReLU(), nn.Dropout(dropout)),
                nn.Linear(classifier_hidden, self.n_classes),
            )


@register(
    "abmil",
    without=[*PARTS, "network", *PRIOR],
    original={"embed": 500, "score_bias": True},
)
class ABMIL(AttentionMIL):
    """Attention pooling: z = Hᵀ softmax(f), with f_n = wᵀ tanh(V h_n).

    The defaults are those of the ProbSA paper's comparison; `preset="original"` is the authors'
    plain form without their convolutions, and `trunk="gated"` their gated form.
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


@register(
    "tabmil",
    encoder="transformer",
    without=[*PARTS, "attention_dropout", "score_bias", "classifier_hidden", *PRIOR],
)
class TABMIL(AttentionMIL):
    """ABMIL over transformer-contextualised instances.

    A linear layer to 512 without activation, 2 pre-norm layers, 8 heads (ProbSA paper, appendix B).
    It departs from the printed equations in two arguments: `out_proj` and `final_norm` are on
    (7,418,113 parameters at 2048 features). The paper's research code has `out_proj=False,
    use_mlp=False, add_self=True`, and GELU in the pooling.
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


_MLP: dict[str, Any] = {"encoder": "mlp"}
_TRANSFORMER: dict[str, Any] = {"encoder": "transformer", "family": "global", "baseline": "tabmil"}
_PROBSA = ("branches", *TRUNK)


@register("abmil-probsa-dirac", posterior="dirac", without=[*_PROBSA, "network", *POINT], **_MLP)
@register("abmil-probsa-diag", posterior="diag", without=[*_PROBSA, "network", "field"], **_MLP)
@register("abmil-probsa-field", posterior="field", without=[*_PROBSA, "network", "pooling"], **_MLP)
@register("tabmil-probsa-dirac", posterior="dirac", without=[*_PROBSA, *POINT], **_TRANSFORMER)
@register("tabmil-probsa-diag", posterior="diag", without=[*_PROBSA, "field"], **_TRANSFORMER)
@register("tabmil-probsa-field", posterior="field", without=[*_PROBSA, "pooling"], **_TRANSFORMER)
class ProbSA(AttentionMIL):
    """Attention with a distribution q(f | X) and a smoothness prior on the bag's graph.

    The paper's four variants combine H with q (Dirac or Diag), table 1; `field` is this package's
    smooth posterior. With λ = 0 and Dirac they are ABMIL and T-ABMIL; with a constant λ, Dirac and
    the MLP, Smooth Attention (SA). The KL of a bag is divided by its size unless
    `kl_reduction="sum"`. The equations sum; the authors' code divides, because the terms of 10⁴
    patches would otherwise outweigh one label.
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


_EVIDENCE = ("classifier_hidden", "branches", *TRUNK, *TORCHMIL)


@register("evidence-dirac", posterior="dirac", without=[*_EVIDENCE, *POINT])
@register("evidence-diag", posterior="diag", without=[*_EVIDENCE, "field"])
@register("evidence-field", posterior="field", without=[*_EVIDENCE, "pooling"])
class Evidence(AttentionMIL):
    """The bag's logit is ℓ = α Σ_n softmax(β f)_n f_n + b, with f ~ q(f | X) and α, β > 0 learned.

    In attention pooling nothing makes the attention point at the lesion, nor up rather than down.
    Here one quantity is both: f_n > 0 speaks for the class and f_n < 0 against it. Instance n
    contributes α softmax(βf)_n f_n, and the contributions and b add up to ℓ. The map is the
    posterior of f: its mean, its standard deviation and P(f_n > 0). With several classes, each has
    its own f, with one κ for all.
    """

    score_kind: ClassVar[ScoreKind] = "evidence"
    needs = frozenset({"edges"})
    one_field = True
    has_kl = True
    provenance = Provenance(
        paper="none; a method of this package, built on arXiv:2507.14932 (prior and posterior) and "
        "on additive MIL (Javed et al., NeurIPS 2022, arXiv:2206.01794)",
        follows_paper="The prior, the ELBO and the two factorised posteriors of arXiv:2507.14932.",
        follows_code="Nothing.",
        fair="Not part of the comparison.",
    )

    def pooling_scalars(self) -> Iterator[nn.Parameter]:
        return self.pooling.parameters()

    def readout(self, h: Float[Tensor, "n d"], like: Tensor) -> Readout:
        del h
        return self.pooling(like)

    def explained(
        self, q: Posterior, readout: Readout, explainers: Sequence[BagExplainer]
    ) -> Explanation:
        scores, probability = (
            v if v.ndim == 2 else v[:, None] for v in (q.mean, probability_positive(q))
        )
        of_grades = self._at_least(q, readout) if self.n_classes == 1 else None
        return replace(explain(scores, explainers), probability=probability, at_least=of_grades)

    def _at_least(self, q: Posterior, readout: Readout) -> Float[Tensor, "n steps"] | None:
        """Return E_q[P(Y ≥ k | ℓ = α f_n + b)] of each instance, for grades."""
        assert readout.alpha is not None
        nodes, weights = hermegauss(QUADRATURE)
        total: Tensor | None = None
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            f = q.mean + node * q.variance.sqrt()
            p = self.likelihood.at_least((readout.alpha * f + readout.bias)[:, None])
            if p is None:
                return None
            total = weight * p if total is None else total + weight * p
        return total


AUTHORS_KEYS = [
    (r"feature_extractor_part[12]\.", None),  # bags hold the features that it extracts
    (r"attention(?:_V)?\.0\.", "attention.trunk.first."),
    (r"attention_U\.0\.", "attention.trunk.gate."),
    (r"attention(?:\.2|_w)\.", "attention.mean."),
    (r"classifier\.0\.", "classifier."),
]


@original("abmil", variants=("gated", "plain"), model="abmil", takes=(), names=AUTHORS_KEYS)
def _from_authors(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Read `Attention` or `GatedAttention` of AttentionDeepMIL, after the feature extractor."""
    del reference, arguments
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
    return {
        "in_dim": first.shape[1],
        "embed": None,
        "attention_dim": first.shape[0],
        "trunk": "gated" if gated else "tanh",
        "score_bias": True,
    }


def _torchmil_encoder(state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return our arguments of torchmil's encoder, without the norms that it does not use."""
    encoder = torchmil.encoder_arguments(state, arguments, layout="torchmil's transformer")
    for key in [k for k in state if ".norm2." in k and not encoder["use_mlp"]]:
        del state[key]
    return encoder


@original("torchmil_abmil", variants=("gated",), model="abmil", names=torchmil.RULES)
@original("torchmil_transformerabmil", variants=("noself",), model="tabmil", names=torchmil.RULES)
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    """Read torchmil's ABMIL or TransformerABMIL: no first layer and no bias on w."""
    transformer = reference.startswith("torchmil_transformer")
    dim, act, gated = (
        ("pool_att_dim", "pool_act", "pool_gated")
        if transformer
        else ("att_dim", "att_act", "gated")
    )
    only(arguments, ("in_shape", dim, act, gated, *torchmil.ENCODER * transformer), reference)
    first = torchmil.either(state, torchmil.FIRST, layout="torchmil's ABMIL")
    is_gated = arguments.get(gated, any(k.startswith("pool.fc_gated.") for k in state))
    return {
        "in_dim": torchmil.in_dim(arguments, first.shape[1]),
        "embed": None,
        "attention_dim": arguments.get(dim, first.shape[0]),
        "trunk": "gated" if is_gated else "tanh",
        "attention_activation": arguments.get(act, "tanh"),
        **(_torchmil_encoder(state, arguments) if transformer else {}),
    }


@original(
    "torchmil_smoothabmil",
    "torchmil_probsmoothabmil",
    "torchmil_transformerprobsmoothabmil",
    variants=("diag", "zero"),
    model="abmil-probsa-diag",
    takes=(
        *("in_shape", "att_dim", "pool_att_dim", "covar_mode"),
        *("n_samples_train", "n_samples_test", *torchmil.ENCODER),
    ),
    names=torchmil.RULES,
)
def _from_torchmil_probsa(
    reference: str, state: State, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Read torchmil's three models: no first layer, normalised Laplacian, κ = 1, no ridge."""
    transformer = "transformer" in reference
    layout = "torchmil's smooth attention"
    hidden, width = torchmil.either(state, torchmil.HIDDEN, layout=layout).shape
    diag = any(k.startswith("pool.log_diag_Sigma_nn.") for k in state)
    posterior = {"diag": "diag", "zero": "dirac"}[
        arguments.get("covar_mode", "diag" if diag else "zero")
    ]
    samples = arguments.get("n_samples_train", 1)
    return {
        "name": f"{'tabmil' if transformer else 'abmil'}-probsa-{posterior}",
        "in_dim": torchmil.in_dim(arguments, width),
        "embed": None,
        "attention_dim": arguments.get("att_dim", arguments.get("pool_att_dim", hidden // 2)),
        "trunk": "mlp",
        "log_variance_bounds": None,
        "samples": samples,
        "predict_samples": arguments.get("n_samples_test", samples),
        "laplacian": "normalized",
        "ridge": 0.0,
        **(_torchmil_encoder(state, arguments) if transformer else {}),
    }
