"""Attention pooling composed of an encoder H, a posterior q(f | X) and a readout.

| name | encoder | posterior | readout |
|---|---|---|---|
| `abmil`, `tabmil` | MLP, transformer | Dirac, without a prior | Σ softmax(f)_n h_n, then ψ |
| `abmil-probsa-*`, `tabmil-probsa-*` | MLP, transformer | Dirac, diagonal, field | the same |
| `evidence-*` | MLP or transformer | Dirac, diagonal, field | a soft maximum of f itself |
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    NonNegativeFloat,
    without_autocast,
)
from ..errors import InputError
from ..layers import BagExplainer, Readout
from ..variational import Posterior, negative_instances, probability_positive
from ._attention import AttentionModel
from ._base import Output, Provenance, ScoreKind
from ._explanation import Explanation, explain, predicted_alone
from ._registry import register

PARTS = ("encoder", "posterior", "branches")
"""Arguments that names fix."""
TRUNK = ("attention_activation", "attention_dropout", "score_bias")
PRIOR = ("sampling", "prior", "field")
POINT = ("field",)
"""Arguments without effect on a point mass."""
TORCHMIL = ("width", "out_proj", "use_mlp", "final_norm", "add_self")


@register(
    "abmil",
    without=[*PARTS, "network", *PRIOR],
    original={"embed": 500, "score_bias": True},
)
class ABMIL(AttentionModel):
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
class TABMIL(AttentionModel):
    """ABMIL over transformer-contextualised instances.

    A linear layer to 512 without activation, 2 pre-norm layers, 8 heads (ProbSA paper, appendix B).
    It departs from the printed equations in two arguments: `out_proj` and `final_norm` are on
    (7,418,113 parameters at 2048 features). The paper's research code has `out_proj=False,
    use_mlp=False, add_self=True`, and GELU in the pooling.
    """

    family = "global"
    provenance = Provenance(
        paper="Castro-Macías et al., Sm, NeurIPS 2024, arXiv:2410.03276; here as in "
        "arXiv:2507.14932, appendix B",
        code="Franblueee/torchmil",
        licence="Apache-2.0",
        follows_paper="Two pre-norm layers with an MLP of four times the width.",
        follows_code="A final layer norm; heads scaled by 1/√d. `out_proj=False, add_self=True` is "
        "torchmil's encoder.",
        fair="The comparison's own baseline.",
    )


_MLP: dict[str, Any] = {"encoder": "mlp"}
_TRANSFORMER: dict[str, Any] = {"encoder": "transformer", "family": "global", "baseline": "tabmil"}
_PROBSA = ("branches", *TRUNK)


@register("abmil-probsa-dirac", posterior="dirac", without=[*_PROBSA, "network", *POINT], **_MLP)
@register("abmil-probsa-diag", posterior="diag", without=[*_PROBSA, "network", "field"], **_MLP)
@register("abmil-probsa-field", posterior="field", without=[*_PROBSA, "network"], **_MLP)
@register("tabmil-probsa-dirac", posterior="dirac", without=[*_PROBSA, *POINT], **_TRANSFORMER)
@register("tabmil-probsa-diag", posterior="diag", without=[*_PROBSA, "field"], **_TRANSFORMER)
@register("tabmil-probsa-field", posterior="field", without=[*_PROBSA], **_TRANSFORMER)
class ProbSA(AttentionModel):
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
        fair="Its own method. The `field` posterior is an addition of this package.",
    )


_EVIDENCE = ("classifier_hidden", "branches", *TRUNK, *TORCHMIL)


@register("evidence-dirac", posterior="dirac", without=[*_EVIDENCE, *POINT, "negatives"])
@register("evidence-diag", posterior="diag", without=[*_EVIDENCE, "field"])
@register("evidence-field", posterior="field", without=[*_EVIDENCE])
class Evidence(AttentionModel):
    """The bag's logit is ℓ = α Σ_n softmax(β f)_n f_n + b, with f ~ q(f | X) and α, β > 0 learned.

    In attention pooling nothing makes the attention point at the lesion, nor up rather than down.
    Here one quantity is both: f_n > 0 speaks for the class and f_n < 0 against it. Instance n
    contributes α softmax(βf)_n f_n, and the contributions and b add up to ℓ. A bag of instance n
    alone has the logit α f_n + b, so E_q[σ(α f_n + b)] is the probability of the instance. The map
    is the posterior of f: its mean and its standard deviation. With several classes, each has its
    own f, with one κ for all.

    Args:
        negatives: weight of −log P(f_n ≤ 0), averaged over the instances of negative bags, where
            no instance may be positive. For classes: each of several has its own negative bags,
            but for the first, the background, which all instances of its own bags are. Not for a
            point mass, where P(f_n ≤ 0) is 0 or 1.
        level: what is subtracted from f, one number or one per class; predictions stay as they are.
            None: training sets it on the validation bags, so that f > 0 marks what negative bags
            hardly have (`evidence_level`); of several classes, the background keeps 0.
    """

    score_kind: ClassVar[ScoreKind] = "evidence"
    needs = frozenset({"edges"})
    one_field = True
    has_kl = True
    provenance = Provenance(
        paper="none; a method of this package, built on arXiv:2507.14932 (prior and posterior) and "
        "on additive MIL (Javed et al., NeurIPS 2022, arXiv:2206.01794)",
        follows_paper="The prior, the ELBO and the two factorised posteriors of arXiv:2507.14932.",
        follows_code="Written for this package.",
        fair="Not part of it.",
    )

    def __init__(
        self,
        *,
        negatives: NonNegativeFloat = 0.0,
        level: float | tuple[float, ...] | None = None,
        **attention: Any,
    ) -> None:
        super().__init__(**attention)
        if isinstance(level, tuple) and len(level) != self.n_classes:
            raise InputError(
                f"level has {len(level)} numbers: expected one, or {self.n_classes}, one per class"
            )
        self.negatives = negatives
        level = 0.0 if level is None else level
        self.attention.level = level
        self.pooling.level = level

    def pooling_scalars(self) -> Iterator[nn.Parameter]:
        return self.pooling.parameters()

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Also return `negatives`, if its weight is above 0 and the targets are classes."""
        terms = super().losses(out, bags)
        if "negatives" in self.loss_weights:
            bag_terms = negative_instances(out.attention, self.labels(bags), bags)
            terms["negatives"] = bag_terms.mean()
        return terms

    @property
    def loss_weights(self) -> dict[str, float]:
        weights = super().loss_weights
        if self.negatives and self.likelihood.of_classes:
            return weights | {"negatives": self.negatives}
        return weights

    def pooled_scores(self, q: Posterior) -> Float[Tensor, "n *classes"]:
        return self.pooling.log_beta.exp() * q.mean

    def readout(self, h: Float[Tensor, "n d"], like: Tensor) -> Readout:
        del h
        return self.pooling(like)

    def attend(
        self,
        h: Float[Tensor, "n d"],
        bags: Bags,
        *,
        noise: Tensor | None,
        generator: torch.Generator | None,
    ) -> Output:
        """Also state the probability of each instance, in prediction."""
        out = super().attend(h, bags, noise=noise, generator=generator)
        if out.explanation is None:
            return out
        with without_autocast(h):
            q = out.attention
            readout = self.pooling(q.mean)
            bias = readout.bias
            if self.covariates is not None:
                effect = self.covariates(bags.covariates)
                bias = bias + effect[bags.bag].to(bias.dtype)
            probability, at_least = predicted_alone(
                q, self.likelihood, alpha=readout.alpha, bias=bias
            )
        explanation = replace(out.explanation, probability=probability, at_least=at_least)
        return replace(out, explanation=explanation)

    def explained(
        self, q: Posterior, readout: Readout, explainers: Sequence[BagExplainer]
    ) -> Explanation:
        n = len(q.mean)
        explanation = explain(q.mean.view(n, -1), explainers)
        return replace(explanation, positive_mass=probability_positive(q).view(n, -1))
