"""CLAM: clustering-constrained attention MIL (Lu et al., Nature BME 2021, arXiv:2004.09666).

ABMIL whose most and least attended instances also train one small classifier per class. Departures:
by default no first dropout, D_f = 128 and one logit; bags smaller than k are allowed.
`clam-sb-probsa-diag` and `-field` are CLAM-SB with a normal posterior and a smoothness prior.
"""

import re
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import Bags, PositiveInt, Rate, UnitInterval
from ..errors import CheckpointError
from ..layers import InstanceEvidence, InstanceLoss, PosteriorKind, Trunk, Widths
from ..variational import FieldOptions, PosteriorOptions, PriorOptions
from ._attention import POOLING, AttentionModel
from ._base import Model, Output, Provenance
from ._originals import ReadOff, State, agree, only, original, part, transplant
from ._registry import build, register

PROBSA = ("posterior_options", "prior_options", "field_options")
AUTHORS = {"attention_dim": 256, "dropout": 0.25}


@register(
    "clam-sb", branches="single", posterior="dirac", prior="none", without=PROBSA, original=AUTHORS
)
@register(
    "clam-mb", branches="multi", posterior="dirac", prior="none", without=PROBSA, original=AUTHORS
)
class CLAM(AttentionModel):
    """Attention pooling, with instance classifiers trained on the most and least attended.

    The k most attended instances of a bag are labelled as evidence of its class, the k least
    attended as no evidence. A bag of N < k instances gives N of each; as in the original, a bag of
    k ≤ N < 2k has some instances in both groups. `extras["instance_logits"]` (n, classes, 2) holds
    the logits of each instance under each classifier.

    Args:
        in_dim: number of features per instance.
        branches: `single`: one attention map; `multi`: one per class, which pools for that class.
        posterior: kind of q(f | X): `dirac` (Σ = 0), `diag` (diagonal Σ) or `field` (smooth on the
            bag's graph).
        prior: kind of p(f | A): `none`, or `dirichlet` on the bag's graph.
        n_classes: 1 (one logit, instance classifiers for labels 0 and 1) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer.
        dropout: dropout rate after each first layer.
        attention_dropout: dropout rate after tanh and σ; None: 0.25 if `dropout` is set, else 0.
        attention_dim: width D_f of the attention network.
        trunk: form of the attention network.
        score_bias: whether w has a bias; it has no effect on the softmax.
        k_sample: number k of instances at each end.
        subtyping: whether classes are mutually exclusive, so that the most attended instances are
            no evidence of the other classes.
        instance_loss: cross-entropy (`ce`) or the smooth top-1 SVM that the authors recommend.
        bag_weight: weight c in c · nll + (1 − c) · instance.
        init: PyTorch's `default`, or `xavier_normal` with zero biases (the code until 2024).
        posterior_options: number of samples, and range of log σ².
        prior_options: parameters of the prior, and reduction of the KL divergence.
        field_options: whether κ is learned, with a field.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
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
        in_dim: int,
        branches: Literal["single", "multi"],
        posterior: PosteriorKind,
        prior: Literal["none", "dirichlet"],
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "relu",
        dropout: Rate = 0.0,
        attention_dropout: float | None = None,
        attention_dim: PositiveInt = 128,
        trunk: Trunk = "gated",
        score_bias: bool = True,
        k_sample: int = 8,
        subtyping: bool = False,
        instance_loss: InstanceLoss = "ce",
        bag_weight: UnitInterval = 0.7,
        init: Literal["default", "xavier_normal"] = "default",
        posterior_options: PosteriorOptions,
        prior_options: PriorOptions,
        field_options: FieldOptions,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.bag_weight = bag_weight
        if prior == "dirichlet":
            field = field_options if posterior == "field" else None
            self.build_prior(prior_options, posterior_options, field=field)
        self.build_embed(in_dim, embed, activation=activation, dropout=dropout)
        self.build_attention(
            attention_dim=attention_dim,
            trunk=trunk,
            score_bias=score_bias,
            posterior=posterior,
            options=posterior_options,
            columns=n_classes if branches == "multi" else None,
            dropout=(0.25 if dropout else 0.0) if attention_dropout is None else attention_dropout,
        )
        self._build_evidence(k=k_sample, others=subtyping, loss=instance_loss)
        if init == "xavier_normal":
            self._init_xavier(apart=branches == "multi")

    def _build_evidence(self, *, k: int, others: bool, loss: InstanceLoss) -> None:
        """Build the instance classifiers; a model with one logit has two of them."""
        d, classes = self.embed.out_dim, max(self.n_classes, 2)
        self.evidence = InstanceEvidence(d, classes=classes, k=k, others=others, loss=loss)

    def _init_xavier(self, *, apart: bool) -> None:
        """Initialise the original's layers; `apart`: its classifiers are one layer per class."""
        for name, m in self.named_modules():
            if isinstance(m, nn.Linear) and not name.endswith("log_variance"):
                w = m.weight.detach()
                for block in w.split(1) if apart and m is self.classifier else [w]:
                    nn.init.xavier_normal_(block)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"nll": self.bag_weight, "instance": 1 - self.bag_weight}

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        h = self.instances(bags)
        out = self.attend(h, bags, noise=noise, generator=generator)
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


@register(
    "clam-sb-probsa-diag",
    branches="single",
    posterior="diag",
    prior="dirichlet",
    without=["field_options"],
)
@register(
    "clam-sb-probsa-field",
    branches="single",
    posterior="field",
    prior="dirichlet",
    without=[POOLING],
)
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
RULES = [
    (r".*instance_loss_fn", None),
    (r"attention_net\.0\.", "embed.net.0."),
    (rf"{BLOCK}attention_a\.0\.|{BLOCK}module\.0\.", "attention.trunk.first."),
    (rf"{BLOCK}attention_b\.0\.", "attention.trunk.gate."),
    (rf"{BLOCK}attention_c\.|{BLOCK}module\.[23]\.", "attention.mean."),
    (r"classifiers\.", "classifier."),
    (r"instance_classifiers\.", "evidence.classifiers."),
]
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


@original("clam_sb", "clam_mb", "ckpt_clam_sb", "ckpt_clam_mb", variants=("gated", "plain"))
def _from_clam(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    multi = "clam_mb" in reference
    layout = "CLAM_MB" if multi else "CLAM_SB"
    # DataParallel wrapped only the attention net
    state = {re.sub(r"^attention_net\.module\.", "attention_net.", k): v for k, v in state.items()}
    gated = any("attention_b" in k for k in state)
    block = 3 if any(k.startswith("attention_net.3.") for k in state) else 2
    inside = "attention_a.0" if gated else "module.0"
    first = part(state, "attention_net.0.weight", layout=layout)
    attention = part(state, f"attention_net.{block}.{inside}.weight", layout=layout)
    if multi:
        state = _stacked(state, d=first.shape[0])
    classes = part(state, "classifiers.weight", layout=layout).shape[0]
    size = next((k for k, w in WIDTHS.items() if w == attention.shape[0]), None)
    widths = "its rows: " + ", ".join(f"{w} for {k!r}" for k, w in WIDTHS.items())
    read = {
        "gate": ReadOff(gated, f"attention_net.{block}.attention_b.0.weight"),
        "n_classes": ReadOff(classes, "classifiers.weight", "its rows, in CLAM_MB one layer each"),
        "embed_dim": ReadOff(first.shape[1], "attention_net.0.weight", "its columns"),
        "size_arg": ReadOff(size, f"attention_net.{block}.{inside}.weight", widths),
    }
    # what their bags' loss was has no effect on predictions
    only(arguments, [*THEIRS, *read, "bag_loss"], layout)
    agree(arguments, read, state, reference=reference)
    _check_variant(reference, gated=gated)
    options = {THEIRS[k]: v for k, v in arguments.items() if k in THEIRS and v is not None}
    if isinstance(options.get("dropout"), bool):  # a flag until 2024
        options["dropout"] = 0.25 if options["dropout"] else 0.0
    model = build(
        "clam-mb" if multi else "clam-sb",
        in_dim=first.shape[1],
        embed=first.shape[0],
        n_classes=classes,
        attention_dim=attention.shape[0],
        trunk="gated" if gated else "tanh",
        **options,
    )
    return transplant(model, state, RULES)


def _check_variant(reference: str, *, gated: bool) -> None:
    variant = reference.rpartition("_")[2]
    stored = "gated" if gated else "plain"
    if variant in ("gated", "plain") and variant != stored:
        raise CheckpointError(
            f"{reference}: these weights are {stored}, as attention_net "
            f"{'has' if gated else 'lacks'} attention_b: give {reference.rpartition('_')[0]}"
        )


def _stacked(state: State, *, d: int) -> State:
    """Stack CLAM_MB's classifiers, one layer per class, as the rows of one layer."""
    if "classifiers.weight" in state:
        raise CheckpointError(
            f"classifiers.weight has shape {tuple(state['classifiers.weight'].shape)}, where "
            f"CLAM_MB has a classifiers.<class>.weight of shape {(1, d)} for each class: the code "
            "of April 2024 made C × C logits from it, which no model here supports"
        )
    weight_names = [k for k in state if re.fullmatch(r"classifiers\.\d+\.weight", k)]
    rest = {k: v for k, v in state.items() if not k.startswith("classifiers.")}
    for name, shape in (("weight", (1, d)), ("bias", (1,))):
        rows = []
        for c in range(max(len(weight_names), 1)):
            row = part(state, f"classifiers.{c}.{name}", layout="CLAM_MB")
            if row.shape != shape:
                raise CheckpointError(
                    f"classifiers.{c}.{name} has shape {tuple(row.shape)} where {shape} is expected"
                )
            rows.append(row)
        rest[f"classifiers.{name}"] = torch.cat(rows)
    return rest


TORCHMIL = [
    (r"pool\.fc1\.(module\.)?", "attention.trunk.first."),
    (r"pool\.fc_gated\.(module\.)?", "attention.trunk.gate."),
    (r"pool\.fc2\.(module\.)?", "attention.mean."),
    (r"classifier\.(module\.)?", "classifier."),
    (r"inst_classifiers\.(\d+)\.(module\.)?", r"evidence.classifiers.\1."),
]
TORCHMIL_ARGUMENTS = ("in_shape", "att_dim", "att_act", "k_sample", "gated", "inst_loss_name")


@original("torchmil_clam_sb")
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Convert torchmil's CLAM_SB; its instance term, a sum over two classes, is twice ours."""
    del reference
    layout = "torchmil's CLAM_SB"
    only(arguments, TORCHMIL_ARGUMENTS, layout)
    for key, known in (("att_act", "tanh"), ("inst_loss_name", "SmoothTop1SVM")):
        if arguments.get(key, known) != known:
            raise CheckpointError(f"{key} is {arguments[key]!r}: only {known!r} can be read")
    gated = any(k.startswith("pool.fc_gated.") for k in state)
    wrapped = "module." if "pool.fc1.module.weight" in state else ""
    first = part(state, f"pool.fc1.{wrapped}weight", layout=layout)
    model = build(
        "clam-sb",
        in_dim=first.shape[1],
        embed=None,
        attention_dim=first.shape[0],
        trunk="gated" if gated else "tanh",
        score_bias="pool.fc2.bias" in state,
        k_sample=arguments.get("k_sample", 10),
        instance_loss="svm",
        subtyping=True,
    )
    return transplant(model, state, TORCHMIL)
