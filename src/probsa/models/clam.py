"""CLAM: clustering-constrained attention MIL (Lu et al., Nature BME 2021, arXiv:2004.09666).

ABMIL whose most and least attended instances also train one small classifier a class. Departures:
no first dropout, D_f = 128 and one logit by default; bags smaller than k are legal.
`clam-sb-probsa-diag` is CLAM-SB with another posterior and a prior: neither asks which method.
"""

import re
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import Bags
from ..errors import CheckpointError, InputError
from ..layers import InstanceEvidence, InstanceLoss, PosteriorKind, SmoothSVM, Trunk, Widths
from ..variational import PosteriorOptions, PriorOptions
from ._attention import AttentionModel
from ._base import Model, Output, Provenance
from ._originals import State, only, original, part, transplant
from ._registry import build, register

PROBSA = ("posterior_options", "prior_options")
AUTHORS = {"attention_dim": 256, "dropout": 0.25}


@register(
    "clam-sb", branches="single", posterior="dirac", prior="none", without=PROBSA, original=AUTHORS
)
@register(
    "clam-mb", branches="multi", posterior="dirac", prior="none", without=PROBSA, original=AUTHORS
)
class CLAM(AttentionModel):
    """Attention pooling, with instance classifiers trained on the most and least attended.

    The k most attended instances of a bag are called evidence of its class, the k least attended
    none; a bag of N < k instances gives N of each, one of k ≤ N < 2k some in both, as the original.
    `extras["instance_logits"]` are (n, classes, 2): what each classifier says of each instance.

    Args:
        in_dim: features of an instance.
        branches: `single`: one attention; `multi`: one a class, which pools for that class alone.
        posterior: `dirac` (Σ = 0) or `diag` (Σ = Diag).
        prior: `none`, or `dirichlet` on the bag's graph.
        n_classes: 1 (one logit; instance classifiers for labels 0 and 1) or the number of classes.
        embed: width(s) of the first layer(s); None passes the features on.
        activation: after each first layer.
        dropout: after each first layer, in training.
        attention_dropout: after tanh and σ, in training; None: 0.25 if `dropout`, else none.
        attention_dim: D_f.
        trunk: how attention is computed.
        score_bias: a bias on w, to which softmax is blind.
        k_sample: k.
        subtyping: classes exclude one another: the most attended are no evidence of the others.
        instance_loss: `ce`, or `svm`, the smooth top-1 SVM that the authors recommend.
        bag_loss: likewise for the bag, still named `nll`; probabilities after `svm` are not
            calibrated.
        bag_weight: c of c · nll + (1 − c) · instance.
        init: `default` (of torch), or `xavier_normal` with biases of 0 (the code until 2024).
        posterior_options: number of samples and range of log σ².
        prior_options: prior, and reduction of the KL.
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction.
    """

    without_effect = frozenset({"attention.mean.bias"})
    provenance = Provenance(
        paper="Lu et al., Data-efficient and weakly supervised computational pathology on "
        "whole-slide images, Nature Biomedical Engineering 2021, arXiv:2004.09666",
        code="mahmoodlab/CLAM",
        licence="GPL-3.0, for non-commercial academic purposes by its README: "
        "neither code nor weights of it are in this package",
        follows_paper="Gated attention, one or a branch a class, k = 8, 0.7 and 0.3 as weights.",
        follows_code="Cross-entropy unless `svm` is asked for, `subtyping` off, k instances of "
        "either end even where they overlap. A bag smaller than k, where the code fails, gives "
        "all it has.",
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
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        attention_dim: int = 128,
        trunk: Trunk = "gated",
        score_bias: bool = True,
        k_sample: int = 8,
        subtyping: bool = False,
        instance_loss: InstanceLoss = "ce",
        bag_loss: Literal["ce", "svm"] = "ce",
        bag_weight: float = 0.7,
        init: Literal["default", "xavier_normal"] = "default",
        posterior_options: PosteriorOptions,
        prior_options: PriorOptions,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        _check(bag_loss=bag_loss, bag_weight=bag_weight, init=init, dropout=dropout)
        if bag_loss == "svm":
            self.likelihood = SmoothSVM(n_classes, class_weights=class_weights)
        self.bag_weight = bag_weight
        if prior == "dirichlet":
            self.build_prior(prior_options, posterior_options)
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
        """One logit has two classes of instances all the same."""
        d, classes = self.embed.out_dim, max(self.n_classes, 2)
        self.evidence = InstanceEvidence(d, classes=classes, k=k, others=others, loss=loss)

    def _init_xavier(self, *, apart: bool) -> None:
        """Every layer of the original's; `apart`: its classifiers are one layer a class."""
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
        # of all instances, though the loss reads 2k a bag: few columns beside the D_f of attention
        logits = self.evidence(h).to(out.attention.mean.dtype)
        return replace(out, extras={**out.extras, "instance_logits": logits})

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """`nll`, `instance`, and with a prior `kl`: means over the bags."""
        terms = super().losses(out, bags)
        y = self.labels(bags).long()
        logits = out.extras["instance_logits"]
        each = self.evidence.loss(logits, out.attention.mean, y, bags.sizes)
        return {**terms, "instance": each.mean()}


@register("clam-sb-probsa-diag", branches="single", posterior="diag", prior="dirichlet")
class CLAMProbSA(CLAM):
    """CLAM-SB with q(f | X) = N(μ, diag σ²) and a smoothness prior; instances are chosen by μ."""

    needs = frozenset({"edges"})
    baseline = "clam-sb"
    has_kl = True
    without_effect = frozenset()
    provenance = replace(
        CLAM.provenance,
        paper=f"{CLAM.provenance.paper}; with the posterior and the prior of arXiv:2507.14932",
    )


def _check(*, bag_loss: str, bag_weight: float, init: str, dropout: float) -> None:
    if bag_loss not in ("ce", "svm"):
        raise InputError(f"bag_loss is {bag_loss!r}: 'ce' or 'svm'")
    if not 0 <= bag_weight <= 1:
        raise InputError(f"bag_weight is {bag_weight}: from 0 to 1")
    if init not in ("default", "xavier_normal"):
        raise InputError(f"init is {init!r}: 'default' or 'xavier_normal'")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout is {dropout}: 0 or more, below 1")


BLOCK = r"attention_net\.[23]\."  # 2: trained without dropout, before the layer was always there
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
    "bag_loss": "bag_loss",
    "bag_weight": "bag_weight",
}
"""Arguments of the original's constructor and command line that change what is computed."""
WIDTHS = {"small": 256, "big": 384}


@original("clam_sb", "clam_mb", "ckpt_clam_sb", "ckpt_clam_mb")
def _from_clam(reference: str, state: State, given: dict[str, Any]) -> Model:
    multi = "clam_mb" in reference
    of = "CLAM_MB" if multi else "CLAM_SB"
    # DataParallel was put around the attention net alone
    state = {re.sub(r"^attention_net\.module\.", "attention_net.", k): v for k, v in state.items()}
    gated = any("attention_b" in k for k in state)
    block = 3 if any(k.startswith("attention_net.3.") for k in state) else 2
    inside = "attention_a.0" if gated else "module.0"
    first = part(state, "attention_net.0.weight", of=of)
    attention = part(state, f"attention_net.{block}.{inside}.weight", of=of)
    if multi:
        state = _stacked(state, d=first.shape[0])
    classes = part(state, "classifiers.weight", of=of).shape[0]
    told = {
        "gate": gated,
        "n_classes": classes,
        "embed_dim": first.shape[1],
        "size_arg": next((k for k, w in WIDTHS.items() if w == attention.shape[0]), None),
    }
    only(given, [*THEIRS, *told], of)
    for key, value in given.items():
        if key in told and value != told[key]:
            raise CheckpointError(f"{key} is {value!r}, but these weights have {told[key]!r}")
    options = {THEIRS[k]: v for k, v in given.items() if k in THEIRS and v is not None}
    if isinstance(options.get("dropout"), bool):  # a switch until 2024
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


def _stacked(state: State, *, d: int) -> State:
    """CLAM_MB's classifiers, one layer a class, as the rows of one."""
    if "classifiers.weight" in state:
        raise CheckpointError(
            f"classifiers.weight has shape {tuple(state['classifiers.weight'].shape)}, where "
            f"CLAM_MB has a classifiers.<class>.weight of shape {(1, d)} for each class: the code "
            "of April 2024 made C × C logits of it, which no model here does"
        )
    own = [k for k in state if re.fullmatch(r"classifiers\.\d+\.weight", k)]
    rest = {k: v for k, v in state.items() if not k.startswith("classifiers.")}
    for name, shape in (("weight", (1, d)), ("bias", (1,))):
        rows = []
        for c in range(max(len(own), 1)):
            row = part(state, f"classifiers.{c}.{name}", of="CLAM_MB")
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
def _from_torchmil(reference: str, state: State, given: dict[str, Any]) -> Model:
    """Its instance term is twice ours (a sum over two classes), with its SVM put right."""
    del reference
    of = "torchmil's CLAM_SB"
    only(given, TORCHMIL_ARGUMENTS, of)
    for key, known in (("att_act", "tanh"), ("inst_loss_name", "SmoothTop1SVM")):
        if given.get(key, known) != known:
            raise CheckpointError(f"{key} is {given[key]!r}: only {known!r} can be read")
    gated = any(k.startswith("pool.fc_gated.") for k in state)
    wrapped = "module." if "pool.fc1.module.weight" in state else ""
    first = part(state, f"pool.fc1.{wrapped}weight", of=of)
    model = build(
        "clam-sb",
        in_dim=first.shape[1],
        embed=None,
        attention_dim=first.shape[0],
        trunk="gated" if gated else "tanh",
        score_bias="pool.fc2.bias" in state,
        k_sample=given.get("k_sample", 10),
        instance_loss="svm",
        subtyping=True,
    )
    return transplant(model, state, TORCHMIL)
