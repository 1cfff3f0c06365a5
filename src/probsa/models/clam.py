"""CLAM: clustering-constrained attention MIL (Lu et al., Nature BME 2021, arXiv:2004.09666).

ABMIL whose most and least attended instances also train one small classifier per class. Departures:
by default no first dropout, D_f = 128 and one logit; bags smaller than k are allowed.
`clam-sb-probsa-diag` and `-field` are CLAM-SB with a normal posterior and a smoothness prior.
"""

import re
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Bags, Rate, UnitInterval
from ..errors import CheckpointError
from ..layers import InstanceEvidence, InstanceLoss, Trunk
from ._base import Output, Provenance
from ._originals import State, original, part
from ._registry import register
from .attention_mil import PRIOR, AttentionMIL

HIDDEN = ("encoder", "network", "attention_activation", "attention_dropout", "classifier_hidden")
PLAIN: dict[str, Any] = {
    "posterior": "dirac",
    "without": [*HIDDEN, *PRIOR],
    "original": {"attention_dim": 256, "dropout": 0.25},
}


@register("clam-sb", branches="single", **PLAIN)
@register("clam-mb", branches="multi", **PLAIN)
class CLAM(AttentionMIL):
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
        paper="Lu et al., Data-efficient and weakly supervised computational pathology on "
        "whole-slide images, Nature Biomedical Engineering 2021, arXiv:2004.09666",
        code="mahmoodlab/CLAM",
        licence="GPL-3.0, for non-commercial academic purposes according to its README; this "
        "package contains neither its code nor its weights",
        follows_paper="Gated attention with one branch or one per class, k = 8, weights 0.7 and "
        "0.3.",
        follows_code="Cross-entropy by default instead of `svm`, no `subtyping`, k instances at "
        "each end even if they overlap. A bag smaller than k, for which the code fails, gives all "
        "its instances.",
        fair="One linear layer to 512 with ReLU and no dropout, D_f = 128, one logit.",
    )

    def __init__(
        self,
        *,
        dropout: Rate = 0.0,
        trunk: Trunk = "gated",
        score_bias: bool = True,
        k_sample: int = 8,
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
        return {"nll": self.bag_weight, "instance": 1 - self.bag_weight}

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
        each = self.evidence.loss(logits, out.attention.mean, y, bags.sizes)
        return {**terms, "instance": each.mean()}


@register("clam-sb-probsa-diag", posterior="diag", without=[*HIDDEN, "branches", "field"])
@register("clam-sb-probsa-field", posterior="field", without=[*HIDDEN, "branches", "pooling"])
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


BLOCK = r"attention_net\.[23]\."  # 2 in older versions trained without dropout
THEIRS = {
    "k_sample": "k_sample",
    "B": "k_sample",
    "subtyping": "subtyping",
    "dropout": "dropout",
    "drop_out": "dropout",
    "inst_loss": "instance_loss",
    "instance_loss": "instance_loss",
    "bag_weight": "bag_weight",
}
"""The original's arguments that change what is computed, with our names."""
WIDTHS = {"small": 256, "big": 384}


@original(
    *("clam_sb", "clam_mb", "ckpt_clam_sb", "ckpt_clam_mb"),
    variants=("gated", "plain"),
    model="clam-sb",
    # what their bags' loss was has no effect on predictions
    takes=(*THEIRS, "gate", "n_classes", "embed_dim", "size_arg", "bag_loss"),
    names=[
        (r".*instance_loss_fn", None),
        (r"attention_net\.0\.", "embed.net.0."),
        (rf"{BLOCK}attention_a\.0\.|{BLOCK}module\.0\.", "attention.trunk.first."),
        (rf"{BLOCK}attention_b\.0\.", "attention.trunk.gate."),
        (rf"{BLOCK}attention_c\.|{BLOCK}module\.[23]\.", "attention.mean."),
        (r"classifiers\.", "classifier."),
        (r"instance_classifiers\.", "evidence.classifiers."),
    ],
)
def _from_clam(reference: str, state: State, arguments: dict[str, Any]) -> dict[str, Any]:
    multi = "clam_mb" in reference
    layout = "CLAM_MB" if multi else "CLAM_SB"
    for key in [k for k in state if k.startswith("attention_net.module.")]:
        # DataParallel wrapped only the attention net
        state[key.replace("attention_net.module.", "attention_net.")] = state.pop(key)
    gated = any("attention_b" in k for k in state)
    block = 3 if any(k.startswith("attention_net.3.") for k in state) else 2
    inner = f"attention_net.{block}.{'attention_a' if gated else 'module'}.0.weight"
    width, features = part(state, "attention_net.0.weight", layout=layout).shape
    attention = part(state, inner, layout=layout)
    if multi:
        _stack_classifiers(state, d=width)
    classes = part(state, "classifiers.weight", layout=layout).shape[0]
    size = next((k for k, w in WIDTHS.items() if w == attention.shape[0]), None)
    widths = "its rows: " + ", ".join(f"{w} for {k!r}" for k, w in WIDTHS.items())
    for argument, value, key, meaning in (
        ("gate", gated, f"attention_net.{block}.attention_b.0.weight", ""),
        ("n_classes", classes, "classifiers.weight", "its rows, in CLAM_MB one layer each"),
        ("embed_dim", features, "attention_net.0.weight", "its columns"),
        ("size_arg", size, inner, widths),
    ):
        if (given := arguments.get(argument, value)) != value:
            seen = (
                f"{key} has shape {tuple(state[key].shape)}"
                if key in state
                else f"there is no {key}"
            )
            fits = "which fits no value of it" if value is None else f"so it is {value!r}"
            raise CheckpointError(
                f"{reference}: {argument} is {given!r}, but {seen}, {fits}"
                + (f" ({meaning})" if meaning else "")
            )
    stem, _, variant = reference.rpartition("_")
    if variant in ("gated", "plain") and variant != ("gated" if gated else "plain"):
        raise CheckpointError(
            f"{reference}: these weights are {'gated' if gated else 'plain'}, as attention_net "
            f"{'has' if gated else 'lacks'} attention_b: give {stem}"
        )
    options = {THEIRS[k]: v for k, v in arguments.items() if k in THEIRS and v is not None}
    if isinstance(options.get("dropout"), bool):  # a flag until 2024
        options["dropout"] = 0.25 if options["dropout"] else 0.0
    return {
        "name": "clam-mb" if multi else "clam-sb",
        "in_dim": features,
        "embed": width,
        "n_classes": classes,
        "attention_dim": attention.shape[0],
        "trunk": "gated" if gated else "tanh",
        **options,
    }


def _stack_classifiers(state: State, *, d: int) -> None:
    """Stack CLAM_MB's classifiers, one layer per class, as the rows of one layer."""
    if "classifiers.weight" in state:
        raise CheckpointError(
            f"classifiers.weight has shape {tuple(state['classifiers.weight'].shape)}, where "
            f"CLAM_MB has a classifiers.<class>.weight of shape {(1, d)} for each class: the code "
            "of April 2024 made C × C logits from it, which no model here supports"
        )
    count = sum(re.fullmatch(r"classifiers\.\d+\.weight", k) is not None for k in state)
    for name, shape in (("weight", (1, d)), ("bias", (1,))):
        keys = [f"classifiers.{c}.{name}" for c in range(max(count, 1))]
        for key in keys:
            if part(state, key, layout="CLAM_MB").shape != shape:
                raise CheckpointError(
                    f"{key} has shape {tuple(state[key].shape)} where {shape} is expected"
                )
        state[f"classifiers.{name}"] = torch.cat([state.pop(key) for key in keys])
