"""CLAM: clustering-constrained attention MIL (Lu et al., Nature BME 2021, arXiv:2004.09666).

ABMIL whose most and least attended instances also train one small classifier per class. Departures:
by default no first dropout, D_f = 128 and one logit; bags smaller than k are allowed.
`clam-sb-probsa-diag` and `-field` are CLAM-SB with a normal posterior and a smoothness prior.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..core import (
    Bags,
    InstanceCount,
    Rate,
    UnitInterval,
)
from ..layers import InstanceEvidence, InstanceLoss, Trunk
from ._attention import AttentionModel
from ._base import Output, Provenance
from ._registry import register
from .attention_mil import PRIOR

HIDDEN = ("encoder", "network", "attention_activation", "attention_dropout", "classifier_hidden")
PLAIN: dict[str, Any] = {
    "posterior": "dirac",
    "without": [*HIDDEN, *PRIOR],
    "original": {"attention_dim": 256, "dropout": 0.25},
}


@register("clam-sb", branches="single", **PLAIN)
@register("clam-mb", branches="multi", **PLAIN)
class CLAM(AttentionModel):
    """Attention pooling, with instance classifiers trained on the most and least attended.

    The k most attended instances of a bag are labelled as evidence of its class, the k least
    attended as no evidence. A bag of N < k instances gives N of each; as in the original, a bag of
    k ≤ N < 2k has some instances in both groups. `extras["instance_logits"]` (n, classes, 2) holds
    the logits of each instance under each classifier.

    Args:
        dropout: dropout rate after each first layer; with one, the attention network has 0.25.
        k_sample: number k of instances at each end.
        subtyping: whether classes are mutually exclusive, so that the most attended instances are
            no evidence of the other classes.
        instance_loss: cross-entropy (`ce`) or the smooth top-1 SVM that the authors recommend.
        bag_weight: weight c in c · nll + (1 − c) · instance.
    """

    without_effect = frozenset({"attention.mean.bias"})
    needs_classes = True
    provenance = Provenance(
        paper="Lu et al., CLAM, Nature Biomedical Engineering 2021, arXiv:2004.09666",
        code="mahmoodlab/CLAM",
        licence="GPL-3.0; non-commercial according to its README",
        follows_paper="Gated attention with one branch or one per class, k = 8, weights 0.7 and "
        "0.3.",
        follows_code="Cross-entropy by default instead of `svm`, no `subtyping`, k instances at "
        "each end even if they overlap. A bag smaller than k gives all its instances.",
        fair="One linear layer to 512 with ReLU and no dropout, D_f = 128, one logit.",
    )

    def __init__(
        self,
        *,
        dropout: Rate = 0.0,
        trunk: Trunk = "gated",
        score_bias: bool = True,
        k_sample: InstanceCount = 8,
        subtyping: bool = False,
        instance_loss: InstanceLoss = "ce",
        bag_weight: UnitInterval = 0.7,
        **attention: Any,
    ) -> None:
        attention |= {"trunk": trunk, "score_bias": score_bias, "dropout": dropout}
        super().__init__(attention_dropout=0.25 if dropout else 0.0, **attention)
        self.bag_weight = bag_weight
        self.evidence = InstanceEvidence(
            self.embed.out_dim,
            classes=max(self.n_classes, 2),
            k=k_sample,
            others=subtyping,
            loss=instance_loss,
        )

    @property
    def loss_weights(self) -> dict[str, float]:
        weights = {"nll": self.bag_weight, "instance": 1 - self.bag_weight}
        return {**super().loss_weights, **weights}

    def attend(self, h: Float[Tensor, "n d"], bags: Bags, **noise: Any) -> Output:
        out = super().attend(h, bags, **noise)
        # for all instances, although the loss reads 2k per bag: cheap beside the attention
        logits = self.evidence(h).to(out.attention.mean.dtype)
        return replace(out, extras={**out.extras, "instance_logits": logits})

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll`, `instance` and, with a prior, `kl`, each averaged over the bags."""
        terms = super().losses(out, bags)
        y = self.labels(bags).long()
        logits = out.extras["instance_logits"]
        instance_loss = self.evidence.loss(logits, out.attention.mean, y, bags.sizes)
        return {**terms, "instance": instance_loss.mean()}


@register("clam-sb-probsa-diag", posterior="diag", without=[*HIDDEN, "branches", "field"])
@register("clam-sb-probsa-field", posterior="field", without=[*HIDDEN, "branches"])
class CLAMProbSA(CLAM):
    """CLAM-SB with a normal q(f | X) and a smoothness prior; its mean selects the instances."""

    needs = frozenset({"edges"})
    baseline = "clam-sb"
    has_kl = True
    without_effect = frozenset()
    provenance = replace(
        CLAM.provenance,
        paper=f"{CLAM.provenance.paper}; with the posterior and the prior of arXiv:2507.14932",
    )
