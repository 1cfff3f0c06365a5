"""CAMIL: a transformer whose instances are weighted by similarity to their neighbours.

Fourkioti, De Vries & Bakal, ICLR 2024, arXiv:2305.05314. It follows the paper's equations, with
layer norm and two Nyström layers; the authors' TensorFlow code differs in six places. Nothing is
N × N: similarities and attention run over the arcs of the bag's graph.
"""

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
from ._originals import Rules, State, only, original, part, transplant
from ._registry import build, register


@register("camil", original={"embed": None, "layers": 1, "query_dim": 256, "mask_padding": False})
class CAMIL(Model):
    """Attention pooling of instances weighted by similarity to their neighbours.

    t = h + Nyström(LN(h)), layer by layer;   e_i = Σ_j A_ij q_iᵀk_j / √d,   w = softmax(e),
    l_i = w_i v_i;   m = σ(l) ⊙ l + (1 − σ(l)) ⊙ t;   z = Σ_i a_i m_i with a = softmax(f(t)).

    A holds the bag's `arcs` if it has some (`nearest_arcs` computes the authors'), else its
    weighted edges in both directions.

    Args:
        in_dim: number of features per instance.
        n_classes: 1 (one logit) or the number of classes.
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
        follows_code="Scores are scaled by 1/√d; `models.nearest_arcs` gives its neighbours. The "
        "rest of the code differs from the paper in its values, fusion, pooling and the axis of a "
        "convolution. Its training, in a run file: `learning_rate: 2e-4`, `warmup_epochs: 0`, "
        "`schedule: plateau`, `epochs: 30`.",
        fair="One linear layer to 512, two Nyström layers of 8 heads with layer norm, D_f = 128, "
        "one linear classifier; the weights of the common graph as similarities.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
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
        self.embed = Embed(in_dim, embed, activation="identity")
        dim = self.embed.out_dim
        self.layers = nn.ModuleList(
            NystromLayer(
                NystromAttention(
                    dim,
                    heads=heads,
                    landmarks=landmarks,
                    iterations=pinv_iterations,
                    convolution=convolution,
                    out_proj=out_proj,
                    mask_padding=mask_padding,
                    dropout=dropout,
                )
            )
            for _ in range(layers)
        )
        self.queries = nn.Linear(dim, query_dim or dim, bias=False)
        self.keys = nn.Linear(dim, query_dim or dim, bias=False)
        self.values = nn.Linear(dim, dim, bias=False)
        self.attention = AttentionPosterior(dim, attention_dim, kind="dirac", trunk=trunk)
        self.classifier = nn.Linear(dim, n_classes)

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
        v = _full(self.values(t))
        e = self.neighbour_scores(t, bags)
        t = _full(t)
        m = self.fused(segment_softmax(e, bags.sizes), v, t)
        q = self.attention(t)
        z = pool_vectors(q.rsample(1), m, bags.sizes)
        with torch.autocast(h.device.type, enabled=False):
            logits = self.classifier(z)
        return Output(
            logits=logits,
            attention=q,
            likelihood=self.likelihood,
            extras={"neighbour_score": e.detach()},
        )


def _full(v: Tensor) -> Tensor:
    """Return float32 for half precision: the softmax over a bag would magnify rounding errors."""
    return v.float() if v.dtype in (torch.float16, torch.bfloat16) else v


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
