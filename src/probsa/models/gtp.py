"""GTP: a graph convolution, soft clusters, a transformer over them (Zheng et al., IEEE TMI 2022).

It follows the authors' code, which differs from the paper's equations: A + I without normalisation,
rows of length 1, batch normalisation, no activation. Departures: bags are packed and A is a list of
edges, so nothing is N × N; every class has a GraphCAM; mincut is 0 without edges.
"""

from copy import deepcopy
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    ClusterCount,
    FeatureCount,
    HeadCount,
    Limits,
    NonNegativeFloat,
    Rate,
    Seed,
    Sizes,
    StepCount,
    Width,
    segment_sum,
    without_autocast,
)
from ..layers import Arcs, Embed, TransformerLayer, Widths, both_ways, propagate, row_sum
from ..variational import Dirac, Posterior
from ._base import Model, Output, Provenance, ScoreKind, bag_rows
from ._graphcam import graph_cam
from ._registry import register

Code = Literal["authors", "torchmil"]
BLOCKS: dict[Code, dict[str, Any]] = {
    "authors": {"activation": nn.GELU, "eps": 1e-6},
    "torchmil": {"activation": nn.ReLU, "out_proj": False},
}
ROWS = 4096
"""Number of instances whose features are in float64 at the same time."""


@register("gtp", original={"embed": None, "width": 64, "layers": 3, "unit_init": False})
class GTP(Model):
    """A graph convolution, K soft clusters, and a transformer over clusters and a class token.

    In training, batch normalisation takes its statistics over the instances of all bags of a batch,
    so a bag's output depends on the rest of the batch. A training batch of a single instance has no
    variance; it uses the running statistics and does not update them.

    `forward` gives instance scores of 0; `instance_scores` computes GraphCAM, (n,) for one logit
    (of the positive class) and (n, classes) otherwise.

    Args:
        dropout: dropout rate after each first layer.
        width: width of the graph convolution and the transformer; None: that of their input.
        clusters: number K of clusters; if it exceeds a bag's instances, `ortho` cannot reach 0.
        layers: number of transformer blocks.
        heads: number of attention heads per layer.
        mlp_ratio: ratio of the hidden width of a block's MLP to `width`.
        code: whose form of the layers: the `authors`', or `torchmil`'s (edges have their weights;
            ReLU in place of both normalisations; blocks without a linear map after the heads, with
            ReLU and LayerNorm's usual eps).
        unit_init: whether GraphCAM starts from 1, so that the maps of different bags share a scale;
            the original starts from the logit ℓ_c, and its maps scale with ℓ_c².
    """

    family = "global"
    provenance = Provenance(
        paper="Zheng et al., A graph-transformer for whole slide image classification, IEEE "
        "Transactions on Medical Imaging 41, 2022, arXiv:2205.09671",
        code="vkola-lab/tmi2022",
        licence="MIT; its GraphCAM derives from hila-chefer/Transformer-Explainability, MIT",
        follows_paper="Min-cut pooling into clusters, a ViT over them, GraphCAM.",
        follows_code="(A + I)X without normalisation by degree, rows of length 1, batch "
        "normalisation and no activation, where the paper has a usual GCN with ReLU; GraphCAM "
        "without normalised rows. `unit_init=False` gives its GraphCAM.",
        fair="One linear layer to 512, graph convolution and transformer 512 wide, 2 layers of 8 "
        "heads, one classifier; K = 100 as in the original (the comparison's code had 50).",
    )
    score_kind: ClassVar[ScoreKind] = "relevance"
    needs = frozenset({"edges"})
    couples_bags: ClassVar[bool] = True

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        dropout: Rate = 0.0,
        width: Width | None = None,
        clusters: ClusterCount = 100,
        layers: StepCount = 2,
        heads: HeadCount = 8,
        mlp_ratio: Annotated[float, Limits(above=0, at_most=100)] = 2.0,
        code: Code = "authors",
        unit_init: bool = True,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.weighted = code == "torchmil"
        self.unit_init = unit_init
        self.embed = Embed(in_dim, embed, activation="identity", dropout=dropout)
        d = self.embed.out_dim if width is None else width
        self.gcn = GraphConv(self.embed.out_dim, d, normalise=code == "authors")
        self.assign = nn.Linear(d, clusters)
        self.class_token = nn.Parameter(torch.zeros(1, 1, d))
        self.blocks = nn.ModuleList(
            TransformerLayer(d, d, heads=heads, mlp_ratio=mlp_ratio, **BLOCKS[code])
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d)
        self.classifier = nn.Linear(d, n_classes)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        a = graph(bags, weighted=self.weighted, dtype=self.class_token.dtype)
        h, s = self.nodes(self.embed(bags.x), a)
        with without_autocast(h):
            soft = s.softmax(1)
            pooled, gram = pool_clusters(soft, h, bags.sizes)
            extras = {"mincut": mincut(soft, a), "ortho": ortho(gram)}
        tokens = self.tokens(pooled)
        t = tokens.flatten(0, 1)
        for block in self.blocks:
            t = block(t, [tokens.shape[1]] * len(bags))
        logits = self.classifier(self.norm(t.view_as(tokens)[:, 0])).to(h.dtype)
        # GraphCAM, the instance scores, is computed only where it is asked for
        no_scores = h.new_zeros(len(h) if self.n_classes == 1 else (len(h), self.n_classes))
        return Output(
            logits=logits[:, None],
            attention=Dirac(no_scores),
            likelihood=self.likelihood,
            extras=extras,
        )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll`, `mincut` in [−1, 0] and `ortho`, each averaged over the bags."""
        terms = {k: out.extras[k].mean() for k in ("mincut", "ortho")}
        return {**super().losses(out, bags), **terms}

    def nodes(
        self, x: Float[Tensor, "n i"], a: Arcs
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n clusters"]]:
        """Return H from the first layer's output, and the cluster logits of each instance."""
        with without_autocast(x):
            h = self.gcn(x.to(self.class_token.dtype), a)
            return h, self.assign(h)

    def tokens(self, pooled: Float[Tensor, "bags clusters d"]) -> Float[Tensor, "bags t d"]:
        """Prepend the class token to the clusters, which have no order and so no positions."""
        return torch.cat([self.class_token.expand(len(pooled), -1, -1), pooled], 1)

    def instance_scores(self, bags: Bags, out: Output) -> Posterior:
        """Return GraphCAM: s_n = Σ_k softmax(cluster logits)_nk u_k, u_k the clusters' relevance.

        It costs a few forward passes per bag, even for a small one: there are always K + 1 tokens.
        """
        soft, u = self.relevance(bags)
        bag_scores = [soft[rows] @ u_b.T for rows, u_b in zip(bag_rows(bags), u, strict=True)]
        scores = torch.cat(bag_scores).to(out.attention.mean.device, out.attention.mean.dtype)
        return Dirac(scores[:, 0] if self.n_classes == 1 else scores)

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def relevance(
        self, bags: Bags
    ) -> tuple[Float[Tensor, "n clusters"], Float[Tensor, "bags classes clusters"]]:
        """Return each instance's cluster weights, and GraphCAM's relevance u of each cluster.

        Everything after the features is in float64: where sums nearly cancel, the last digit of a
        float32 (which depends on the processor and the batch) would move a map by several percent.
        """
        # a copy, so that the model keeps its mode and precision
        model = deepcopy(self).eval().requires_grad_(requires_grad=False)
        if bags.x.device.type == "mps":  # MPS has no float64
            bags = bags.to("cpu")
            model = model.cpu()
        model = model.double()
        with without_autocast(bags.x):
            x = torch.cat([model.embed(v.double()) for v in bags.x.split(ROWS)])
            h, s = model.nodes(x, graph(bags, weighted=model.weighted, dtype=x.dtype))
            soft = s.softmax(1)
            tokens = model.tokens(pool_clusters(soft, h, bags.sizes)[0])
            blocks = [block for block in model.blocks if isinstance(block, TransformerLayer)]
            u = []
            for t in tokens:
                cam = graph_cam(t, blocks, model.norm, model.classifier, unit_init=self.unit_init)
                u.append(cam)
        return soft, torch.stack(u)


class GraphConv(nn.Module):
    """h_n = BN(y_n / ‖y_n‖) or ReLU(y_n), y = (A x + x) W + b; W is (in, out) as in theirs."""

    def __init__(self, in_dim: int, width: int, *, normalise: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_dim, width))
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.xavier_normal_(self.weight)
        self.norm = nn.BatchNorm1d(width) if normalise else None

    def forward(self, x: Float[Tensor, "n i"], a: Arcs) -> Float[Tensor, "n d"]:
        y = x @ self.weight  # W narrows, so it comes before the sum over neighbours
        y = y + propagate(a, y) + self.bias
        if self.norm is None:
            return y.relu()
        y = F.normalize(y, dim=1, eps=1e-12)
        n = self.norm
        if self.training and len(y) == 1:
            return F.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps)
        return n(y)


def graph(bags: Bags, *, weighted: bool, dtype: torch.dtype) -> Arcs:
    """Return A, with every edge in both directions and without self-loops."""
    a = both_ways(bags)
    if weighted:
        return a.with_weights(a.weights.to(dtype))
    return a.with_weights(torch.ones_like(a.weights, dtype=dtype))


# min-cut pooling: Bianchi, Grattarola & Alippi, ICML 2020, arXiv:1907.00481


def pool_clusters(
    soft: Float[Tensor, "n clusters"], h: Float[Tensor, "n d"], sizes: Sizes
) -> tuple[Float[Tensor, "bags clusters d"], Float[Tensor, "bags clusters clusters"]]:
    """Return SᵀH and SᵀS of each bag."""
    # one product per bag gives both
    hs = torch.cat([h, soft], 1)
    parts = zip(soft.split(list(sizes)), hs.split(list(sizes)), strict=True)
    products = torch.stack([s_bag.T @ hs_bag for s_bag, hs_bag in parts])
    return products[..., : h.shape[1]], products[..., h.shape[1] :]


def mincut(soft: Float[Tensor, "n clusters"], a: Arcs) -> Float[Tensor, " bags"]:
    """Return −tr(SᵀAS) / tr(SᵀDS) of each bag, in [−1, 0]; 0 for a bag without edges."""
    degrees = row_sum(a, a.weights[:, None])[:, 0]
    # the terms of both traces, instance by instance
    sas = (soft * propagate(a, soft)).sum(1)
    sds = degrees * soft.square().sum(1)
    tr_sas, tr_sds = segment_sum(torch.stack([sas, sds], 1), a.sizes).unbind(1)
    return -tr_sas / torch.where(tr_sds > 0, tr_sds, 1.0)


def ortho(gram: Float[Tensor, "bags clusters clusters"]) -> Float[Tensor, " bags"]:
    """Return ‖SᵀS / ‖SᵀS‖ − I / √K‖ of each bag (Frobenius norms)."""
    k = gram.shape[1]
    even = torch.eye(k, dtype=gram.dtype, device=gram.device) / k**0.5
    return _size(gram / _size(gram)[:, None, None] - even)


def _size(v: Float[Tensor, "bags r c"]) -> Float[Tensor, " bags"]:
    # torch.norm adds the K² squares one by one; in float32 the gradient would lose four digits.
    squares = v.square().flatten(1).sum(1)
    return squares.clamp_min(torch.finfo(v.dtype).tiny).sqrt()
