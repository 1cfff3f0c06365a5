"""CAMIL: a transformer whose instances are weighted by similarity to their neighbours.

Fourkioti, De Vries & Bakal, ICLR 2024, arXiv:2305.05314. It follows the paper's equations, with
layer norm and two Nyström layers; the authors' TensorFlow code differs in six places. Nothing is
N × N: similarities and attention run over the arcs of the bag's graph.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    NonNegativeFloat,
    Seed,
    StepCount,
    Width,
    segment_softmax,
    without_autocast,
)
from ..layers import (
    AttentionPosterior,
    Embed,
    NystromLayer,
    NystromOptions,
    Widths,
    full_precision,
    neighbourhoods,
    pool_vectors,
    propagate,
)
from ._base import Model, Output, Provenance, ScoreKind
from ._registry import register


@register("camil", original={"embed": None, "layers": 1, "query_dim": 256, "mask_padding": False})
class CAMIL(Model):
    """Attention pooling of instances weighted by similarity to their neighbours.

    t = h + Nyström(LN(h)), layer by layer;   e_i = Σ_j A_ij q_iᵀk_j / √d,   w = softmax(e),
    l_i = w_i v_i;   m = σ(l) ⊙ l + (1 − σ(l)) ⊙ t;   z = Σ_i a_i m_i with a = softmax(f(t)).

    A holds the bag's `arcs` if it has some (`nearest_arcs` computes the authors'), else its
    weighted edges in both directions.

    Args:
        layers: number of Nyström layers (the original: 1).
        query_dim: width of q and k; None: that of the instance vectors (the original: 256).
        attention_dim: width D_f of the attention network.
        trunk: form of the attention network.
    """

    family = "global"
    score_kind: ClassVar[ScoreKind] = "logit"
    needs = frozenset({"edges"})
    order_matters = True  # landmarks and the convolution follow the order of storage
    provenance = Provenance(
        paper="Fourkioti, De Vries & Bakal, CAMIL, ICLR 2024, arXiv:2305.05314",
        code="olgarithmics/ICLR_CAMIL",
        licence="none",
        follows_paper="q, k and v from the transformer's output, the fusion by σ(l), gated "
        "attention from t.",
        follows_code="Scores are scaled by 1/√d; `models.nearest_arcs` gives its neighbours. The "
        "rest of the code differs from the paper in its values, fusion, pooling and the axis of a "
        "convolution. Its training, in a run file: "
        "`learning_rate: 2e-4`, `warmup_epochs: 0`, `schedule: plateau`, `epochs: 30`.",
        fair="One linear layer to 512, two Nyström layers of 8 heads with layer norm, D_f = 128, "
        "one linear classifier; the weights of the common graph as similarities.",
    )

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        layers: StepCount = 2,
        nystrom_options: NystromOptions,
        query_dim: Width | None = None,
        attention_dim: Width = 128,
        trunk: Literal["tanh", "gated"] = "gated",
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.embed = Embed(in_dim, embed, activation="identity")
        dim = self.embed.out_dim
        self.layers = nn.ModuleList(NystromLayer(dim, nystrom_options) for _ in range(layers))
        self.queries = nn.Linear(dim, query_dim or dim, bias=False)
        self.keys = nn.Linear(dim, query_dim or dim, bias=False)
        self.values = nn.Linear(dim, dim, bias=False)
        self.attention = AttentionPosterior(dim, attention_dim, kind="dirac", trunk=trunk)
        self.classifier = nn.Linear(dim, n_classes)

    def neighbour_scores(self, t: Float[Tensor, "n d"], bags: Bags) -> Float[Tensor, " n"]:
        """Return e_i = q_iᵀ (A K)_i / √d, which is 0 for an instance without neighbours."""
        q = full_precision(self.queries(t))
        k = full_precision(self.keys(t))
        around = propagate(neighbourhoods(bags), k)
        return (q * around).sum(1) * q.shape[1] ** -0.5

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        t = self.embed(bags.x)
        for layer in self.layers:
            t = layer(t, bags.sizes)
        v = full_precision(self.values(t))
        e = self.neighbour_scores(t, bags)
        t = full_precision(t)
        ell = segment_softmax(e, bags.sizes)[:, None] * v
        m = torch.lerp(t, ell, ell.sigmoid())
        q = self.attention(t)
        z = pool_vectors(q.rsample(1), m, bags.sizes)
        with without_autocast(t):
            logits = self.classifier(z)
        extras = {"neighbour_score": e.detach()}
        return Output(logits=logits, attention=q, likelihood=self.likelihood, extras=extras)
