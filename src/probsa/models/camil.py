"""CAMIL: a transformer whose instances are weighted by similarity to their neighbours.

Fourkioti, De Vries & Bakal, ICLR 2024, arXiv:2305.05314. The default follows the paper's equations,
with layer norm and two Nyström layers; `variant="tf-code"` follows the authors' code, which differs
in six places. Nothing is N × N: similarities and attention run over the arcs of the bag's graph.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import Bags, Limits, PositiveInt, segment_softmax
from ..errors import CheckpointError
from ..layers import (
    AttentionPosterior,
    Embed,
    NystromAttention,
    NystromLayer,
    Widths,
    neighbourhoods,
    pool_vectors,
    propagate,
)
from ._base import Model, Output, Provenance, ScoreKind
from ._originals import ReadOff, Rules, State, agree, only, original, part, transplant
from ._registry import build, register

EPSILON = 1e-7
"""Keras's fuzz factor ε."""
OWN: dict[str, object] = {
    "variant": "tf-code",
    "embed": None,
    "layers": 1,
    "query_dim": 256,
    "mask_padding": False,
}


@register("camil", original=OWN)
class CAMIL(Model):
    """Attention pooling of instances weighted by similarity to their neighbours.

    t = h + Nyström(LN(h)), layer by layer;   e_i = Σ_j A_ij q_iᵀk_j / √d,   w = softmax(e),
    l_i = w_i v_i;   m = σ(l) ⊙ l + (1 − σ(l)) ⊙ t;   z = Σ_i a_i m_i with a = softmax(f(t)).

    A holds the bag's `arcs` if it has some (`nearest_arcs` computes the authors'), else its
    weighted edges in both directions.

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes.
        variant: `paper`, or `tf-code`: no layer norm, the convolution over the heads axis, v from h
            with a bias, m = 2 l ⊙ g + 2 t ⊙ (1 − g) with g = σ(−l)², attention from m without
            biases, Keras's initial values.
        embed: width or widths of the first, linear layers; None (the original) uses the features
            unchanged.
        layers: number of Nyström layers (the original: 1).
        heads: number of attention heads per layer.
        landmarks: largest number of landmarks of a bag.
        pinv_iterations: number of iterations of the pseudo-inverse.
        convolution: whether to add a convolution of 33 taps over the values.
        out_proj: whether a linear map follows the attention heads.
        mask_padding: whether to mask the zeros that pad a bag to a multiple of the landmarks; the
            original attends to them and gives every bag all landmarks (False).
        query_dim: width of q and k; None: that of the instance vectors (the original: 256).
        attention_dim: width D_f of the attention network.
        trunk: form of the attention network.
        dropout: dropout rate after each Nyström attention.
        class_weights: class weights of the likelihood, one per class.
        seed: has no effect; predictions are deterministic.
    """

    family = "global"
    score_kind: ClassVar[ScoreKind] = "logit"
    needs = frozenset({"edges"})
    order_matters = True  # landmarks and the convolution follow the order of storage
    provenance = Provenance(
        paper="Fourkioti, De Vries & Bakal, CAMIL: context-aware multiple instance learning for "
        "cancer detection and subtyping in whole slide images, ICLR 2024, arXiv:2305.05314",
        code="olgarithmics/ICLR_CAMIL",
        licence="none; written from its description",
        follows_paper="q, k and v from the transformer's output, the fusion by σ(l), gated "
        "attention from t.",
        follows_code="Scores are scaled by 1/√d. `variant='tf-code'` and `models.nearest_arcs` "
        "give the rest of the code, which differs from the paper in its values, fusion, pooling, "
        "similarities, number of neighbours and the axis of a convolution. Its training, in a run "
        "file: `learning_rate: 2e-4`, `warmup_epochs: 0`, `schedule: plateau`, `epochs: 30`.",
        fair="One linear layer to 512, two Nyström layers of 8 heads with layer norm, D_f = 128, "
        "one linear classifier; the weights of the common graph as similarities.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        variant: Literal["paper", "tf-code"] = "paper",
        embed: Widths = 512,
        layers: PositiveInt = 2,
        heads: int = 8,
        landmarks: int = 256,
        pinv_iterations: int = 6,
        convolution: bool = True,
        out_proj: bool = True,
        mask_padding: bool = True,
        query_dim: Annotated[int | None, Limits(at_least=1)] = None,
        attention_dim: PositiveInt = 128,
        trunk: Literal["tanh", "gated"] = "gated",
        dropout: float = 0.0,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.as_code = variant == "tf-code"
        self.embed = Embed(in_dim, embed, activation="identity")
        dim = self.embed.out_dim
        axis: Literal["heads", "sequence"] = "heads" if self.as_code else "sequence"
        self.layers = nn.ModuleList(
            NystromLayer(
                NystromAttention(
                    dim,
                    heads=heads,
                    landmarks=landmarks,
                    iterations=pinv_iterations,
                    convolution=axis if convolution else "none",
                    out_proj=out_proj,
                    mask_padding=mask_padding,
                    dropout=dropout,
                ),
                norm=not self.as_code,
            )
            for _ in range(layers)
        )
        self.queries = nn.Linear(dim, query_dim or dim, bias=False)
        self.keys = nn.Linear(dim, query_dim or dim, bias=False)
        self.values = nn.Linear(dim, dim, bias=self.as_code)
        self.attention = AttentionPosterior(
            dim, attention_dim, kind="dirac", trunk=trunk, trunk_bias=not self.as_code
        )
        self.classifier = nn.Linear(dim, n_classes)
        if self.as_code:
            _start_as_keras(self)

    def neighbour_scores(self, t: Float[Tensor, "n d"], bags: Bags) -> Float[Tensor, " n"]:
        """Return e_i = q_iᵀ (A K)_i / √d, which is 0 for an instance without neighbours."""
        q, k = _full(self.queries(t)), _full(self.keys(t))
        around = propagate(neighbourhoods(bags), k)
        return (q * around).sum(1) * q.shape[1] ** -0.5

    def fused(
        self, w: Float[Tensor, " n"], v: Float[Tensor, "n d"], t: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """Return m: the weighted values l and the transformer's output t, gated by l."""
        ell = w[:, None] * v
        if self.as_code:
            g = torch.sigmoid(-ell).square()
            return 2 * (ell * g + t * (1 - g))
        return torch.lerp(t, ell, torch.sigmoid(ell))

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        del noise, generator  # the model is deterministic
        h = self.embed(bags.x)
        t = h
        for layer in self.layers:
            t = layer(t, bags.sizes)
        v = _full(self.values(h if self.as_code else t))
        e = self.neighbour_scores(t, bags)
        t = _full(t)
        m = self.fused(segment_softmax(e, bags.sizes), v, t)
        q = self.attention(m if self.as_code else t)
        z = pool_vectors(q.rsample(1), m, bags.sizes)
        with torch.autocast(h.device.type, enabled=False):
            logits = self.classifier(z)
        return Output(
            logits=logits,
            attention=q,
            likelihood=self.likelihood,
            extras={"neighbour_score": e.detach()},
        )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll`; for the code's one logit, with the ε that Keras adds to probabilities."""
        if self.as_code and self.n_classes == 1:
            out = replace(out, logits=_as_keras(out.logits))
        return super().losses(out, bags)


def _as_keras(ell: Tensor) -> Tensor:
    """Return the logit log((p + ε) / (1 − p + ε)), p clamped to [ε, 1 − ε].

    Its cross-entropy is Keras's, up to the constant log(1 + 2 ε) = 2·10⁻⁷.
    """
    p, not_p = (v.sigmoid().clamp(EPSILON, 1 - EPSILON) for v in (ell, -ell))
    return ((p + EPSILON) / (not_p + EPSILON)).log()


def _full(v: Tensor) -> Tensor:
    """Return float32 for half precision: the softmax over a bag would magnify rounding errors."""
    return v.float() if v.dtype in (torch.float16, torch.bfloat16) else v


def _start_as_keras(model: nn.Module) -> None:
    """Initialise weights by Glorot's uniform distribution and biases with 0."""
    for p in model.parameters():
        if p.ndim > 1:
            nn.init.xavier_uniform_(p)
        else:
            nn.init.zeros_(p)


@original("camil_tf", variants=("binary", "subtyping"))
def _from_original(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    layout = "the authors' CAMIL (encoder.nyst_att, encoder.custom_att, attcls, class_fc)"
    steps = {"num_landmarks", "pinv_iterations"}
    kernels = {"encoder.nyst_att.res_conv.0.kernel": 4, "encoder.custom_att.wq_weight_params": 2,
               "attcls.v_weight_params": 2, "class_fc.kernel": 2}  # fmt: skip
    shapes = [part(state, key, layout=layout, ndim=n).shape for key, n in kernels.items()]
    convolution, query, attention, last = kernels
    (_, _, inner, width), (dim, query_dim), (_, attention_dim), (_, classes) = shapes
    heads = width // inner
    read = {
        "dim": ReadOff(dim, query),
        "heads": ReadOff(heads, convolution, "its last dimension by the one before"),
        "dim_head": ReadOff(width, convolution),
        "weight_params_dim_custom_att": ReadOff(query_dim, query),
        "weight_params_dim_mil": ReadOff(attention_dim, attention),
        "subtyping": ReadOff(classes > 1, last, "more than one column"),
    }
    only(arguments, steps | set(read), reference)
    agree(arguments, read, state, reference=reference)
    model = build(
        "camil",
        preset="original",
        in_dim=dim,
        n_classes=classes,
        heads=heads,
        landmarks=arguments.get("num_landmarks", 256),
        pinv_iterations=arguments.get("pinv_iterations", 6),
        query_dim=query_dim,
        attention_dim=attention_dim,
    )
    return transplant(model, {k: _transposed(v) for k, v in state.items()}, _TF_NAMES)


_TF_NAMES: Rules = [
    (r"encoder\.nyst_att\.to_qkv\.kernel$", "layers.0.attention.qkv.weight"),
    (r"encoder\.nyst_att\.to_out\.0\.kernel$", "layers.0.attention.out.weight"),
    (r"encoder\.nyst_att\.to_out\.0\.", "layers.0.attention.out."),
    (r"encoder\.nyst_att\.res_conv\.0\.kernel$", "layers.0.attention.convolution.weight"),
    (r"encoder\.custom_att\.wq_weight_params$", "queries.weight"),
    (r"encoder\.custom_att\.wk_weight_params$", "keys.weight"),
    (r"encoder\.wv\.kernel$", "values.weight"),
    (r"encoder\.wv\.", "values."),
    (r"attcls\.v_weight_params$", "attention.trunk.first.weight"),
    (r"attcls\.u_weight_params$", "attention.trunk.gate.weight"),
    (r"attcls\.w_weight_params$", "attention.mean.weight"),
    (r"class_fc\.kernel$", "classifier.weight"),
    (r"class_fc\.", "classifier."),
]


def _transposed(v: Tensor) -> Tensor:
    """Return a Keras kernel (in, out) or (33, 1, in, out) in PyTorch's layout."""
    if v.ndim == 4:
        return v[:, 0].permute(2, 1, 0).contiguous()
    return v.T.contiguous() if v.ndim == 2 else v


@original("torchmil_camil")
def _from_torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    layout = "torchmil's CAMIL (nystrom_transformer_layer, camil_self_attention, camil_att_pool)"
    known = ("in_shape", "nystrom_att_dim", "pool_att_dim", "gated_pool", "n_heads", "n_landmarks",
             "pinv_iterations", "dropout", "use_mlp")  # fmt: skip
    only(arguments, known, reference)
    if arguments.get("use_mlp"):
        raise CheckpointError(f"{reference}: its layer has an MLP (use_mlp); CAMIL has none")
    qk = part(state, "camil_self_attention.qk_nn.weight", layout=layout)
    dim, first = qk.shape[1], state.get("fc1.weight")
    model = build(
        "camil",
        in_dim=dim if first is None else first.shape[1],
        embed=None if first is None else dim,
        layers=1,
        heads=arguments.get("n_heads", 4),
        landmarks=arguments.get("n_landmarks") or 256,
        pinv_iterations=arguments.get("pinv_iterations", 6),
        convolution=False,
        out_proj=False,
        mask_padding=False,
        query_dim=len(qk) // 2,
        attention_dim=len(part(state, "camil_att_pool.fc1.weight", layout=layout)),
        trunk="gated" if "camil_att_pool.fc_gated.weight" in state else "tanh",
    )
    queries, keys = qk.split(len(qk) // 2)[:2]
    converted = {k: v for k, v in state.items() if not k.endswith("qk_nn.weight")}
    converted |= {"queries.weight": queries, "keys.weight": keys}
    return transplant(model, converted, _TORCHMIL_NAMES)


_TORCHMIL_NAMES: Rules = [
    (r"fc1\.", "embed.net.0."),
    (r"nystrom_transformer_layer\.att_module\.qkv_nn\.", "layers.0.attention.qkv."),
    (r"nystrom_transformer_layer\.norm1\.", "layers.0.norm."),
    (r"nystrom_transformer_layer\.norm2\.", None),  # belongs to the MLP, which is absent
    (r"camil_self_attention\.v_nn\.", "values."),
    (r"camil_att_pool\.fc1\.", "attention.trunk.first."),
    (r"camil_att_pool\.fc_gated\.", "attention.trunk.gate."),
    (r"camil_att_pool\.fc2\.", "attention.mean."),
]
