"""DSMIL: two streams and one critical instance (Li, Li & Eliceiri, CVPR 2021, arXiv:2011.08939).

It follows the authors' code since 2022-09: a two-layer q, the identity as v, scores divided by √d,
and the bag stream as the bag's score. The publication has linear q and v, no √d and the mean of the
two logits; each is an argument. Departures: one class per bag (`labels="independent"` is theirs),
and the ProbSA paper's first layer to 512 (they have none).
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    NonNegativeFloat,
    Rate,
    Seed,
    Width,
    segment_argmax,
    without_autocast,
)
from ..layers import Embed, Widths, full_precision
from ..variational import Categorical, Dirac, Independent
from ._base import Model, Output, Provenance, bag_rows
from ._explanation import Explanation, explain_pooling
from ._registry import register

Query = Literal["mlp", "linear"]
Value = Literal["identity", "linear", "mlp"]
BagScore = Literal["bag", "mean_prob", "mean_logit"]


@register("dsmil", original={"embed": None, "labels": "independent"})
class DSMIL(Model):
    """Attention by similarity to the instance with the highest logit, for each class.

    c_n = W h_n + b;  m_c = argmax_n c_nc;  U_nc = softmax_n(q(h_n)ᵀ q(h_{m_c}) / √d);
    B_c = Σ_n U_nc v(h_n);  b_c = Σ_c' ⟨G_cc', B_c'⟩ + β_c.  Losses: `nll` of b, `instance` of
    max_n c_n.

    Args:
        dropout: dropout rate after each first layer and before v's layer.
        query: form of q: `mlp` tanh(W₂ ReLU(W₁ h)), or `linear`.
        query_dim: width d of q.
        value: form of v: `identity`, `linear`, or `mlp` ReLU(W h).
        scaled: whether to divide by √d; the publication does not.
        bag_score: source of the output's logits: the bag stream, the mean of both streams'
            probabilities, or the mean of their logits (the publication).
        labels: for two or more classes. `exclusive`: one class per bag, softmax in both streams.
            `independent`: a binary label per class, as in the original; the label n_classes then
            means a bag of no class (the original's all-zero negative).
    """

    needs_classes = True
    provenance = Provenance(
        paper="Li, Li & Eliceiri, DSMIL, CVPR 2021, arXiv:2011.08939",
        code="binli123/dsmil-wsi",
        licence="MIT",
        follows_paper="Two streams with losses of weight 0.5 each. `query='linear', "
        "value='linear', scaled=False, bag_score='mean_logit'` gives its formula.",
        follows_code="A two-layer q, the identity as v, scores over √d, the bag stream as the "
        "bag's score, orthogonal initial weights. `labels='independent'` gives its multi-label "
        "loss.",
        fair="One linear layer to 512 with ReLU first, d = 128.",
    )

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        dropout: Rate = 0.0,
        query: Query = "mlp",
        query_dim: Width = 128,
        value: Value = "identity",
        scaled: bool = True,
        bag_score: BagScore = "bag",
        labels: Literal["exclusive", "independent"] = "exclusive",
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        if labels == "independent" and n_classes > 1:
            self.likelihood = Independent(class_weights=class_weights)
        self.bag_score: BagScore = bag_score
        self.scale = 1 / math.sqrt(query_dim) if scaled else 1.0
        self.embed = Embed(in_dim, embed, dropout=dropout)
        d = self.embed.out_dim
        self.instance_classifier = nn.Linear(d, n_classes)
        hidden = [nn.ReLU(), nn.Linear(query_dim, query_dim), nn.Tanh()] if query == "mlp" else []
        self.query = nn.Sequential(nn.Linear(d, query_dim), *hidden)
        self.value = nn.Identity()
        if value != "identity":
            activation = [nn.ReLU()] if value == "mlp" else []
            self.value = nn.Sequential(nn.Dropout(dropout), nn.Linear(d, d), *activation)
        self.classifier = nn.Conv1d(n_classes, n_classes, d)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d):
                nn.init.orthogonal_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"nll": 0.5, "instance": 0.5}

    @property
    def top_label(self) -> int:
        independent = isinstance(self.likelihood, Independent)
        return self.n_classes if independent else super().top_label

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        h = self.embed(bags.x)
        q = full_precision(self.query(h))
        v = full_precision(self.value(h))
        # in bfloat16 logits would tie, and sums over 10⁴ instances would be off by 0.4 %
        with without_autocast(h):
            c = self.instance_classifier(full_precision(h))
            critical = segment_argmax(c.detach(), bags.sizes)
            top = c.gather(0, critical)
            attention, weight, vectors = self._attend(q, v, critical, bags)
            # the convolution has one position; as a product, as a GPU would use TF32 for it
            kernel = self.classifier.weight.flatten(1)
            logits = F.linear(vectors.flatten(1), kernel, self.classifier.bias)
        has_one_column = self.n_classes == 1
        return Output(
            logits=self._score(logits, top)[:, None],
            attention=Dirac(c[:, 0] if has_one_column else c),
            likelihood=self.likelihood,
            extras={
                "attention": attention[:, 0] if has_one_column else attention,
                "weight_mean": (weight[:, 0] if has_one_column else weight).detach(),
                "bag_logits": logits,
                "max_logits": top,
                "critical": critical - bags.offsets[:-1, None].to(critical.device),
                "bag_vectors": vectors.detach(),
            },
            explanation=self._explanation(attention, v, bags),
        )

    def _score(
        self, bag: Float[Tensor, "bags classes"], top: Float[Tensor, "bags classes"]
    ) -> Float[Tensor, "bags classes"]:
        """Return the logits whose probability is the bag's score."""
        if self.bag_score == "bag":
            return bag
        if self.bag_score == "mean_logit":
            return (bag + top) / 2
        if isinstance(self.likelihood, Categorical):
            return torch.logaddexp(bag.log_softmax(1), top.log_softmax(1)) - math.log(2)
        # the log odds of the mean of both probabilities
        log_p = torch.logaddexp(F.logsigmoid(bag), F.logsigmoid(top))
        return log_p - torch.logaddexp(F.logsigmoid(-bag), F.logsigmoid(-top))

    def _explanation(
        self, attention: Float[Tensor, "n classes"], v: Float[Tensor, "n d"], bags: Bags
    ) -> Explanation | None:
        """Explain the bag stream, given the critical instance, which also stays if it is removed.

        None in training, if the score reads the critical instance's logit as well, and with
        several classes, each of which reads the vectors of all of them.
        """
        conv = self.classifier
        is_prediction = not self.training and not torch.is_grad_enabled()
        if not is_prediction or not self.explains:
            return None
        if self.n_classes > 1 or self.bag_score != "bag":
            return None
        assert conv.bias is not None
        with without_autocast(v):
            g = F.linear(v, conv.weight[:, 0])
        scores = attention.T[:, None]
        return explain_pooling(scores, g, bags.sizes, bias=conv.bias, likelihood=self.likelihood)

    def _attend(
        self,
        q: Float[Tensor, "n q"],
        v: Float[Tensor, "n d"],
        critical: Int[Tensor, "bags classes"],
        bags: Bags,
    ) -> tuple[
        Float[Tensor, "n classes"], Float[Tensor, "n classes"], Float[Tensor, "bags classes d"]
    ]:
        """Return the scores before and after the softmax, and B, computed bag by bag."""
        scores: list[Tensor] = []
        weights: list[Tensor] = []
        vectors: list[Tensor] = []
        critical_queries = q[critical] * self.scale  # (bags, classes, q)
        for rows, q_m in zip(bag_rows(bags), critical_queries, strict=True):
            score = q[rows] @ q_m.T
            weight = score.softmax(0)
            scores.append(score)
            weights.append(weight)
            vectors.append(weight.T @ v[rows])
        return torch.cat(scores).detach(), torch.cat(weights), torch.stack(vectors)

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll` of the bag stream and `instance` of the largest logits, means over bags."""
        y = self.labels(bags)
        streams = {"nll": out.extras["bag_logits"], "instance": out.extras["max_logits"]}
        terms: dict[str, Tensor] = {}
        for name, logits in streams.items():
            terms[name] = self.likelihood.nll(logits[:, None], y).mean()
        return terms
