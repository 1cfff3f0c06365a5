"""TransMIL: a class token and Nyström attention over instances folded into a square.

Shao et al., NeurIPS 2021, arXiv:2106.00908. The square is filled in the order in which instances
are stored, not by where they lie. Departures of the default, each an argument: no ReLU after the
first layer, no dropout, and the zeros that fill up the landmarks are not attended to.
"""

import re
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..core import Bags
from ..errors import CheckpointError, InputError
from ..layers import Duplicates, Embed, PosteriorKind, SquareEncoder, Trunk, Widths
from ..variational import Dirac, PosteriorOptions, PriorOptions
from ._attention import AttentionModel
from ._base import Model, Output, Provenance, ScoreKind
from ._originals import Rules, State, only, original, part, transplant
from ._registry import build, register

OWN: dict[str, object] = {"activation": "relu", "dropout": 0.1, "mask_padding": False}
"""The original's setting, at its own 1024 features; how it was trained is the run file's."""
PROVENANCE = Provenance(
    paper="Shao et al., TransMIL: transformer based correlated multiple instance learning for "
    "whole slide image classification, NeurIPS 2021, arXiv:2106.00908",
    code="szc19990412/TransMIL",
    licence="none (the README says GPLv3 and non-commercial): written from its description, and "
    "its weights are not distributed here",
    follows_paper="A square of tokens behind a class token, two Nyström layers of 8 heads with "
    "256 landmarks, three depthwise convolutions between them.",
    follows_code="A convolution of 33 taps over the values, no MLP in the layers. The package "
    "that it pins cuts its padding off at the wrong end: `legacy_crop`, for old weights only. Its "
    "training, in a run file: `optimizer: radam`, `lookahead: 6`, `learning_rate: 2e-4`, "
    "`warmup_epochs: 0`, `weight_decay: 1e-5`, `decay_vectors: false`.",
    fair="One linear layer to 512 without activation, one linear classifier, no dropout.",
)


@register("transmil", original=OWN)
class TransMIL(Model):
    """A class token that Nyström attention lets see every instance.

    Args:
        in_dim: features of an instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width(s) of the first layer(s); None passes the features on.
        activation: after each first layer (the original: `relu`).
        layers: Nyström layers; the convolutions come after the first.
        heads: attention heads of each.
        landmarks: the most landmarks that a bag has.
        pinv_iterations: steps of the pseudo-inverse.
        convolution: a convolution of 33 taps over the values.
        out_proj: a linear map after the heads.
        mask_padding: the zeros that fill a bag up to a multiple of the landmarks are not attended
            to (the original does, and gives every bag all its landmarks: False).
        legacy_crop: the shift of nystrom-attention 0.0.9; with `mask_padding=False`, for weights
            that were trained with it.
        dropout: after each attention, in training (the original: 0.1).
        score_heads: an instance's score is the `mean` over the heads of what the class token
            attends to, or their `range` (largest less smallest).
        score_duplicates: what it attends to in the second copy of the instances that fill up the
            square is left out (`drop`) or added (`add`).
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction; there is nothing.
    """

    family = "global"
    score_kind: ClassVar[ScoreKind] = "weight"
    order_matters = True
    provenance = PROVENANCE

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "identity",
        layers: int = 2,
        heads: int = 8,
        landmarks: int = 256,
        pinv_iterations: int = 6,
        convolution: bool = True,
        out_proj: bool = True,
        mask_padding: bool = True,
        legacy_crop: bool = False,
        dropout: float = 0.0,
        score_heads: Literal["mean", "range"] = "mean",
        score_duplicates: Duplicates = "drop",
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        if score_heads not in ("mean", "range"):
            raise InputError(f"score_heads is {score_heads!r}: 'mean' or 'range'")
        if score_duplicates not in ("drop", "add"):
            raise InputError(f"score_duplicates is {score_duplicates!r}: 'drop' or 'add'")
        self.score_heads = score_heads
        self.score_duplicates: Duplicates = score_duplicates
        self.embed = Embed(in_dim, embed, activation=activation)
        self.encoder = SquareEncoder(
            self.embed.out_dim,
            layers=layers,
            heads=heads,
            landmarks=landmarks,
            iterations=pinv_iterations,
            convolution="sequence" if convolution else "none",
            out_proj=out_proj,
            mask_padding=mask_padding,
            legacy_crop=legacy_crop,
            dropout=dropout,
        )
        self.classifier = nn.Linear(self.embed.out_dim, n_classes)

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        del noise, generator  # nothing is random
        encoded = self.encoder.encode(self.embed(bags.x), bags.sizes)
        with torch.autocast(bags.x.device.type, enabled=False):
            logits = self.classifier(self.encoder.norm(encoded.classes))
        heads = encoded.attended(duplicates=self.score_duplicates)
        score = heads.mean(1) if self.score_heads == "mean" else heads.amax(1) - heads.amin(1)
        return Output(logits=logits[:, None], attention=Dirac(score), likelihood=self.likelihood)


@register("transmil-probsa-diag", original=OWN, posterior="diag")
class TransMILProbSA(AttentionModel):
    """ProbSA over TransMIL's instance tokens: attention pooling in the class token's place.

    Args:
        in_dim: features of an instance.
        posterior: `dirac` (Σ = 0) or `diag` (Σ = Diag).
        n_classes: 1 (one logit) or the number of classes.
        embed: width(s) of the first layer(s); None passes the features on.
        activation: after each first layer (TransMIL's own: `relu`).
        layers: Nyström layers; the convolutions come after the first.
        heads: attention heads of each.
        landmarks: the most landmarks that a bag has.
        pinv_iterations: steps of the pseudo-inverse.
        convolution: a convolution of 33 taps over the values.
        out_proj: a linear map after the heads.
        mask_padding: the zeros that fill a bag up to a multiple of the landmarks are not attended
            to (TransMIL's own: False).
        dropout: after each attention, in training (TransMIL's own: 0.1).
        attention_dim: D_f.
        trunk: how μ and log σ² are computed.
        posterior_options: number of samples and range of log σ².
        prior_options: prior, and reduction of the KL.
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction.
    """

    family = "global"
    baseline = "transmil"
    has_kl = True
    needs = frozenset({"edges"})
    order_matters = True
    provenance = replace(
        PROVENANCE,
        paper=f"{PROVENANCE.paper}; pooling of Castro-Macías et al., Probabilistic smooth "
        "attention, 2025, arXiv:2507.14932",
        fair="Not in the comparison: the paper says that ProbSA can join any attention pooling, "
        "and this is TransMIL with one.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        posterior: PosteriorKind,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "identity",
        layers: int = 2,
        heads: int = 8,
        landmarks: int = 256,
        pinv_iterations: int = 6,
        convolution: bool = True,
        out_proj: bool = True,
        mask_padding: bool = True,
        dropout: float = 0.0,
        attention_dim: int = 128,
        trunk: Trunk = "tanh",
        posterior_options: PosteriorOptions,
        prior_options: PriorOptions,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.build_prior(prior_options, posterior_options)
        self.build_embed(in_dim, embed, activation=activation, dropout=0.0)
        self.encoder = SquareEncoder(
            self.embed.out_dim,
            layers=layers,
            heads=heads,
            landmarks=landmarks,
            iterations=pinv_iterations,
            convolution="sequence" if convolution else "none",
            out_proj=out_proj,
            mask_padding=mask_padding,
            dropout=dropout,
        )
        self.build_attention(
            attention_dim=attention_dim,
            trunk=trunk,
            posterior=posterior,
            options=posterior_options,
        )


_TOKENS: Rules = [
    (r"cls_token$", "encoder.cls_token"),
    (r"pos_layer\.proj\.", "encoder.ppeg.wide."),
    (r"pos_layer\.proj1\.", "encoder.ppeg.middle."),
    (r"pos_layer\.proj2\.", "encoder.ppeg.narrow."),
    (r"norm\.", "encoder.norm."),
]


@original("transmil")
def _from_original(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    of = "the authors' TransMIL (_fc1, layer1, pos_layer, layer2, _fc2)"
    only(arguments, ("n_classes", "nystrom_attention"), reference)
    dim, in_dim = part(state, "_fc1.0.weight", of=of).shape
    stated = arguments.get("nystrom_attention") or reference.partition("_nystrom")[2]
    model = build(
        "transmil",
        preset="original",
        in_dim=in_dim,
        n_classes=arguments.get("n_classes", len(part(state, "_fc2.weight", of=of))),
        embed=dim,
        heads=len(part(state, "layer1.attn.res_conv.weight", of=of)),
        landmarks=dim // 2,
        legacy_crop=_cuts_the_end(str(stated or "0.0.9")),
    )
    rules = [*_TOKENS, (r"_fc1\.0\.", "embed.net.0."), (r"_fc2\.", "classifier.")]
    for theirs, ours in (("layer1", "encoder.blocks.0"), ("layer2", "encoder.blocks.1")):
        rules += [
            (rf"{theirs}\.norm\.", f"{ours}.norm."),
            (rf"{theirs}\.attn\.to_qkv\.", f"{ours}.attention.qkv."),
            (rf"{theirs}\.attn\.to_out\.0\.", f"{ours}.attention.out."),
            (rf"{theirs}\.attn\.res_conv\.", f"{ours}.attention.convolution."),
        ]
    return transplant(model, state, rules)


def _cuts_the_end(version: str) -> bool:
    """Whether this nystrom-attention keeps the first rows; TransMIL's requirements pin 0.0.9."""
    last = version.rpartition(".")[2]
    if not last.isdigit() or 9 < int(last) < 14:
        raise InputError(
            f"nystrom_attention is {version!r}: give '0.0.9' (it keeps the first rows, though its "
            "padding comes first) or '0.0.14' (it keeps the last)"
        )
    return int(last) <= 9


@original("torchmil_transmil")
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    of = "torchmil's TransMIL (layers.0.att_module, pos_layer, classifier)"
    only(arguments, ("in_shape", "att_dim", "n_layers", "n_heads", "n_landmarks",
                     "pinv_iterations", "dropout", "use_mlp"), reference)  # fmt: skip
    if arguments.get("use_mlp"):
        raise CheckpointError(
            f"{reference}: its layers have an MLP (use_mlp), TransMIL's have none"
        )
    dim = part(state, "cls_token", of=of).shape[-1]
    first = state.get("fc1.weight")
    landmarks = arguments.get("n_landmarks")
    model = build(
        "transmil",
        in_dim=dim if first is None else first.shape[1],
        embed=None if first is None else dim,
        layers=sum(bool(re.fullmatch(r"layers\.\d+\.norm1\.weight", k)) for k in state),
        heads=arguments.get("n_heads", 4),
        landmarks=dim // 2 if landmarks is None else landmarks,
        pinv_iterations=arguments.get("pinv_iterations", 6),
        convolution=False,
        out_proj=False,
        mask_padding=False,
    )
    rules: Rules = [
        *_TOKENS,
        (r"fc1\.", "embed.net.0."),
        (r"layers\.(\d+)\.norm1\.", r"encoder.blocks.\1.norm."),
        (r"layers\.(\d+)\.norm2\.", None),  # of the MLP that is not there
        (r"layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.attention.qkv."),
    ]
    return transplant(model, state, rules)
