"""TransMIL: a class token and Nyström attention over instances folded into a square.

Shao et al., NeurIPS 2021, arXiv:2106.00908. The square is filled in the order in which instances
are stored, not by their positions. By default, unlike in the original, there is no ReLU after the
first layer, no dropout, and no attention to the zeros that pad the landmarks; each is an argument.
"""

import re
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..core import Bags, PositiveInt
from ..errors import CheckpointError, InputError
from ..layers import Duplicates, Embed, PosteriorKind, SquareEncoder, Trunk, Widths
from ..variational import Dirac, FieldOptions, PosteriorOptions, PriorOptions
from ._attention import POOLING, AttentionModel
from ._base import Model, Output, Provenance, ScoreKind
from ._originals import Rules, State, only, original, part, transplant
from ._registry import build, register

OWN: dict[str, object] = {"activation": "relu", "dropout": 0.1, "mask_padding": False}
"""The original's setting, for its 1024 features; its training settings belong in a run file."""
PROVENANCE = Provenance(
    paper="Shao et al., TransMIL: transformer based correlated multiple instance learning for "
    "whole slide image classification, NeurIPS 2021, arXiv:2106.00908",
    code="szc19990412/TransMIL",
    licence="none (the README says GPLv3 and non-commercial); written from its description, and "
    "its weights are not distributed here",
    follows_paper="A class token and a square of tokens, two Nyström layers of 8 heads with 256 "
    "landmarks, three depthwise convolutions between them.",
    follows_code="A convolution of 33 taps over the values, no MLP in the layers. The pinned "
    "attention package (0.0.9) crops its padding at the wrong end; this follows 0.0.14. Its "
    "training, in a run file and without its Lookahead: `optimizer: radam`, `learning_rate: 2e-4`, "
    "`warmup_epochs: 0`, `weight_decay: 1e-5`, `decay_vectors: false`.",
    fair="One linear layer to 512 without activation, one linear classifier, no dropout.",
)


@register("transmil", original=OWN)
class TransMIL(Model):
    """A class token attends to every instance by Nyström attention.

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer (the original: `relu`).
        layers: number of Nyström layers; the convolutions come after the first.
        heads: number of attention heads per layer.
        landmarks: largest number of landmarks of a bag.
        pinv_iterations: number of iterations of the pseudo-inverse.
        convolution: whether to add a convolution of 33 taps over the values.
        out_proj: whether a linear map follows the attention heads.
        mask_padding: whether to mask the zeros that pad a bag to a multiple of the landmarks; the
            original attends to them and gives every bag all landmarks (False).
        dropout: dropout rate after each attention (the original: 0.1).
        score_heads: score of an instance: the `mean` over the heads of the class token's attention
            weights, or their `range` (largest minus smallest).
        score_duplicates: whether to `drop` or `add` the attention to the copies of instances that
            fill the square.
        class_weights: class weights of the likelihood, one per class.
        seed: has no effect; predictions are deterministic.
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
        dropout: float = 0.0,
        score_heads: Literal["mean", "range"] = "mean",
        score_duplicates: Duplicates = "drop",
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.score_heads = score_heads
        self.score_duplicates: Duplicates = score_duplicates
        self.embed = Embed(in_dim, embed, activation=activation)
        self.encoder = SquareEncoder(
            self.embed.out_dim,
            layers=layers,
            heads=heads,
            landmarks=landmarks,
            iterations=pinv_iterations,
            convolution=convolution,
            out_proj=out_proj,
            mask_padding=mask_padding,
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
        del noise, generator  # the model is deterministic
        encoded = self.encoder.encode(self.embed(bags.x), bags.sizes)
        with torch.autocast(bags.x.device.type, enabled=False):
            logits = self.classifier(self.encoder.norm(encoded.classes))
        heads = encoded.attended(duplicates=self.score_duplicates)
        score = heads.mean(1) if self.score_heads == "mean" else heads.amax(1) - heads.amin(1)
        return Output(logits=logits[:, None], attention=Dirac(score), likelihood=self.likelihood)


@register("transmil-probsa-diag", original=OWN, posterior="diag", without=["field_options"])
@register("transmil-probsa-field", original=OWN, posterior="field", without=[POOLING])
class TransMILProbSA(AttentionModel):
    """TransMIL's instance tokens, pooled by ProbSA instead of a class token.

    Args:
        in_dim: number of features per instance.
        posterior: kind of q(f | X): `dirac` (Σ = 0), `diag` (diagonal Σ) or `field` (smooth on the
            bag's graph).
        n_classes: 1 (one logit) or the number of classes.
        embed: width or widths of the first layers; None uses the features unchanged.
        activation: activation after each first layer (TransMIL: `relu`).
        layers: number of Nyström layers; the convolutions come after the first.
        heads: number of attention heads per layer.
        landmarks: largest number of landmarks of a bag.
        pinv_iterations: number of iterations of the pseudo-inverse.
        convolution: whether to add a convolution of 33 taps over the values.
        out_proj: whether a linear map follows the attention heads.
        mask_padding: whether to mask the zeros that pad a bag to a multiple of the landmarks
            (TransMIL: False).
        dropout: dropout rate after each attention (TransMIL: 0.1).
        attention_dim: width D_f of the attention network.
        trunk: form of the network that computes μ and log σ².
        posterior_options: number of samples, and range of log σ².
        prior_options: parameters of the prior, and reduction of the KL divergence.
        field_options: whether κ is learned, with a field.
        class_weights: class weights of the likelihood, one per class.
        seed: seed of all randomness in prediction.
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
        fair="Not part of the comparison. The paper says that ProbSA can be added to any "
        "attention pooling; this adds it to TransMIL.",
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
        attention_dim: PositiveInt = 128,
        trunk: Trunk = "tanh",
        posterior_options: PosteriorOptions,
        prior_options: PriorOptions,
        field_options: FieldOptions,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        field = field_options if posterior == "field" else None
        self.build_prior(prior_options, posterior_options, field=field)
        self.build_embed(in_dim, embed, activation=activation, dropout=0.0)
        self.encoder = SquareEncoder(
            self.embed.out_dim,
            layers=layers,
            heads=heads,
            landmarks=landmarks,
            iterations=pinv_iterations,
            convolution=convolution,
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


@original("transmil", variants=(r"nystrom[\d.]+",))
def _from_original(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    layout = "the authors' TransMIL (_fc1, layer1, pos_layer, layer2, _fc2)"
    only(arguments, ("n_classes", "nystrom_attention"), reference)
    dim, in_dim = part(state, "_fc1.0.weight", layout=layout, ndim=2).shape
    version = arguments.get("nystrom_attention") or reference.partition("_nystrom")[2]
    last = str(version).rpartition(".")[2]
    if not last.isdigit() or int(last) < 14:
        raise InputError(
            f"nystrom_attention is {version or 'not given'!r}: only weights that were trained with "
            "0.0.14 or later can be read. Earlier versions, as the 0.0.9 that TransMIL pins, keep "
            "the wrong rows of a padded bag. If yours is 0.0.14, give nystrom_attention=0.0.14"
        )
    model = build(
        "transmil",
        preset="original",
        in_dim=in_dim,
        n_classes=arguments.get("n_classes", len(part(state, "_fc2.weight", layout=layout))),
        embed=dim,
        heads=len(part(state, "layer1.attn.res_conv.weight", layout=layout)),
        landmarks=dim // 2,
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


@original("torchmil_transmil")
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    layout = "torchmil's TransMIL (layers.0.att_module, pos_layer, classifier)"
    only(arguments, ("in_shape", "att_dim", "n_layers", "n_heads", "n_landmarks",
                     "pinv_iterations", "dropout", "use_mlp"), reference)  # fmt: skip
    if arguments.get("use_mlp"):
        raise CheckpointError(
            f"{reference}: its layers have an MLP (use_mlp), TransMIL's have none"
        )
    dim = part(state, "cls_token", layout=layout).shape[-1]
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
        (r"layers\.(\d+)\.norm2\.", None),  # belongs to the MLP, which is absent
        (r"layers\.(\d+)\.att_module\.qkv_nn\.", r"encoder.blocks.\1.attention.qkv."),
    ]
    return transplant(model, state, rules)
