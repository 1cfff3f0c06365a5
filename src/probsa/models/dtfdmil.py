"""DTFD-MIL: double-tier feature distillation (Zhang et al., CVPR 2022), arXiv:2203.12081.

A bag is split at random into G pseudo-bags. Tier 1 learns from each with the bag's label and
distils features from it; tier 2 pools the distilled features. As in the authors' code, no gradient
flows from tier 2 to tier 1. Departures: one logit is allowed, there are min(G, N) groups, and
partitions are reproducible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    InstanceCount,
    Limits,
    NonNegativeFloat,
    Rate,
    SampleCount,
    Seed,
    Segments,
    StepCount,
    StepOrNoneCount,
    Width,
    as_segments,
    rows_on,
    segment_mean,
    segment_softmax,
    segment_sum,
    without_autocast,
)
from ..layers import AttentionPosterior, Embed, Widths
from ..variational import Dirac
from ._base import Model, Output, Provenance, bag_rows
from ._registry import register

Distill = Literal["afs", "maxs", "maxmins", "mas"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """S partitions of each bag into G groups, numbered through all bags; some may be empty."""

    of: Int[Tensor, "n samples"]
    """The group of each instance."""
    sizes: Segments
    """Number of instances of each group, in every partition."""

    def softmax(self, e: Float[Tensor, " n"]) -> Float[Tensor, "n samples"]:
        """Return the softmax of e over each group."""
        e_ns = e[:, None].expand_as(self.of)
        empty = e.new_full((len(self.sizes), self.of.shape[1]), -torch.inf)
        # less the group's largest value, so that no exponential overflows
        top = empty.scatter_reduce(0, self.of, e_ns.detach(), "amax").gather(0, self.of)
        w = (e_ns - top).exp()
        total = torch.zeros_like(empty).scatter_add(0, self.of, w)
        return w / total.gather(0, self.of)


def order_within(
    key: Float[Tensor, "n samples"], segment: Int[Tensor, "n samples"]
) -> Int[Tensor, "n samples"]:
    """Sort rows by segment and, within a segment, by ascending key (a stable sort)."""
    by_key = key.argsort(dim=0, stable=True)
    return by_key.gather(0, segment.gather(0, by_key).argsort(dim=0, stable=True))


def partition(noise: Float[Tensor, "n samples"], sizes: Sequence[int], *, n_groups: int) -> Groups:
    """Sort each bag by its noise and cut it into groups, as `numpy.array_split` does.

    The first N mod G groups have one more instance; a bag of N < G instances has N groups.
    """
    group_sizes: list[int] = []
    for n in sizes:
        smaller, remainder = divmod(n, n_groups)
        group_sizes += [smaller + 1] * remainder
        group_sizes += [smaller] * (n_groups - remainder)
    bag = as_segments(sizes, noise.device).bag[:, None].expand(noise.shape)
    order = order_within(noise, bag)
    # the group of each place in that order, brought back to the order of the instances
    groups = Segments.of(group_sizes, noise.device)
    of_place = groups.bag[:, None].expand_as(order)
    return Groups(of=torch.empty_like(order).scatter(0, order, of_place), sizes=groups)


class ResidualBlock(nn.Module):
    """h + ReLU(W₂ ReLU(W₁ h)), without biases."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, dim, bias=False), nn.ReLU(), nn.Linear(dim, dim, bias=False), nn.ReLU()
        )

    def forward(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return h + self.net(h)


@register("dtfdmil", original={"predict_samples": 1})
class DTFDMIL(Model):
    """Attention pooling in two tiers: over random pseudo-bags, then over their distilled features.

    Partition s of a bag sorts its instances by `noise[:, s]` and splits them like
    `numpy.array_split`. If no noise is given, it is drawn from the bag's own stream: in `eval()` a
    bag's partitions depend only on the seed, the bag's name and the order of its instances. The
    logits have one row per partition.

    With one logit, p_n = σ(a_n w·h_n), which equals two logits with W₀ = 0; with two, p_n compares
    the last class with the first. With more, the last class selects the distilled instances, as in
    the authors' code, and scores have one column per class.

    Extras: `attention` (of tier 1, before softmax), `cam` ((W₁ − W₀)·h_n, without attention) and
    `group_logits` (bags, groups, partitions, classes; losses ignore the groups that a small bag
    lacks).

    Args:
        embed: width or widths of the first layers (no bias); None uses the features unchanged.
        res_blocks: number of residual blocks after the first layers.
        dropout: dropout rate before both classifiers.
        attention_dim: width D_f of the attention networks of both tiers.
        trunk: form of the attention networks of both tiers.
        score_bias: whether w has a bias (the original's does); it has no effect on the softmax.
        n_groups: number G of pseudo-bags; a bag with fewer instances has one group per instance.
        distill: input of tier 2 from each group: `afs` its pooled vector, `maxs` the instances with
            the largest p_n, `maxmins` those with the largest and those with the smallest (an
            instance in both sets, as occurs in small groups, is used twice), `mas` those with the
            most attention.
        instances_per_group: number of these instances (at most the group's size); None: all.
        joint: whether gradients of tier 2 reach tier 1 (torchmil).
        clip: norm to which each of four sets of gradients is clipped separately: first layers,
            attention of tier 1, classifier of tier 1, tier 2; None leaves clipping to the run.
        predict_samples: number of partitions over which predicted probabilities are averaged.
    """

    score_kind = "probability"
    without_effect = frozenset({"attention.mean.bias", "bag_attention.mean.bias"})
    needs_classes = True
    provenance = Provenance(
        paper="Zhang et al., DTFD-MIL, CVPR 2022, arXiv:2203.12081",
        code="hrzhang1123/DTFD-MIL",
        licence="MIT",
        follows_paper="Random pseudo-bags with the bag's label, two tiers, and `mas` besides the "
        "authors' three ways to distil. Instance scores weight features by N a_n.",
        follows_code="No bias in the first layer, gated attention, AFS, gradients that stay in "
        "their tier and are clipped separately at 5. Class activations use only a_n within a "
        "group.",
        fair="One linear layer from the features to 512 with ReLU, D_f = 128, one logit; ten "
        "partitions averaged in prediction, where the original draws one.",
    )

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        res_blocks: StepOrNoneCount = 0,
        dropout: Rate = 0.0,
        attention_dim: Width = 128,
        trunk: Literal["tanh", "gated"] = "gated",
        score_bias: bool = True,
        n_groups: StepCount = 4,
        distill: Distill = "afs",
        instances_per_group: InstanceCount | None = 1,
        joint: bool = False,
        clip: Annotated[float | None, Limits(above=0)] = 5.0,
        predict_samples: SampleCount = 10,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.n_groups = n_groups
        self.distill = distill
        self.joint = joint
        self.clip = clip
        self.instances_per_group = instances_per_group
        self.predict_samples = predict_samples
        self.embed = Embed(in_dim, embed, bias=False)
        d = self.embed.out_dim
        self.residual = nn.Sequential(*(ResidualBlock(d) for _ in range(res_blocks)))
        self.dropout = nn.Dropout(dropout)

        def attention() -> AttentionPosterior:
            return AttentionPosterior(
                d, attention_dim, kind="dirac", trunk=trunk, mean_bias=score_bias
            )

        self.attention = attention()
        self.classifier = nn.Linear(d, n_classes)
        self.bag_attention = attention()
        self.bag_classifier = nn.Linear(d, n_classes)

    def parameter_groups(self) -> list[dict[str, Any]]:
        first_layers = nn.ModuleList([self.embed, self.residual])
        tier_2 = nn.ModuleList([self.bag_attention, self.bag_classifier])
        options = {} if self.clip is None else {"clip_norm": self.clip}
        groups: list[dict[str, Any]] = []
        for part in (first_layers, self.attention, self.classifier, tier_2):
            parameters = [p for p in part.parameters() if p.requires_grad]
            if parameters:
                groups.append({"params": parameters, **options})
        return groups

    def instances(self, bags: Bags) -> Float[Tensor, "n d"]:
        """Return the instance vectors h_n, which both tiers read."""
        return self.residual(self.embed(bags.x))

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        groups = self.groups(bags, noise=noise, generator=generator)
        h = self.instances(bags)
        e = self.attention(h).mean
        with without_autocast(e):
            h = h.to(e.dtype)  # half precision is too coarse for sums over 10⁴ instances
            a = groups.softmax(e)
            pooled = self.pool(h, a, groups, bags)
            cam = nn.functional.linear(h.detach(), self.classifier.weight.detach())
            features, sizes = self.distilled(h, a, pooled, cam=cam, e=e, groups=groups)
            logits = self.second_tier(features if self.joint else features.detach(), sizes)
            scores = self.scores(e.detach(), cam, bags)
            group_logits = self.classifier(self.dropout(pooled))
        extras = {
            "attention": e.detach(),
            "cam": self.margin(cam) if cam.shape[1] < 3 else cam,
            "group_logits": group_logits,
        }
        return Output(
            logits=logits, attention=Dirac(scores), likelihood=self.likelihood, extras=extras
        )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll` of tier 2 and `group_nll`, tier 1's mean over groups and partitions."""
        terms = super().losses(out, bags)
        y = self.labels(bags)
        counts = [min(self.n_groups, n) for n in bags.sizes]
        group_logits = zip(out.extras["group_logits"], counts, strict=True)
        # without the empty groups of small bags
        logits = torch.cat([bag_logits[:count] for bag_logits, count in group_logits])
        groups = Segments.of(counts, y.device)
        nll = self.likelihood.nll(logits, groups.spread(y))
        return {**terms, "group_nll": segment_mean(nll, groups).mean()}

    def groups(
        self, bags: Bags, *, noise: Tensor | None, generator: torch.Generator | None
    ) -> Groups:
        """Return the pseudo-bags, from the given noise or from each bag's own stream."""
        if noise is None:
            samples = 1 if self.training else self.predict_samples
            parts = []
            for n, stream in zip(bags.sizes, self.streams(bags, generator), strict=True):
                parts.append(torch.rand(n, samples, generator=stream))
            noise = torch.cat(parts).to(bags.x.device, non_blocking=True)
        return partition(noise, bags.sizes, n_groups=self.n_groups)

    def pool(
        self, h: Float[Tensor, "n d"], a: Float[Tensor, "n samples"], groups: Groups, bags: Bags
    ) -> Float[Tensor, "bags groups samples d"]:
        """Return z_g = Σ_n a_n h_n over each group; 0 for a group that a small bag lacks."""
        n, samples = a.shape
        # one column per group, 0 outside it, avoids a copy of h in the order of the groups
        group = (groups.of % self.n_groups)[..., None]  # within its bag
        a_nsg = a.new_zeros(n, samples, self.n_groups).scatter(2, group, a[..., None])
        rows = [a_nsg[bag].flatten(1).T @ h[bag] for bag in bag_rows(bags)]
        return torch.stack(rows).unflatten(1, (samples, self.n_groups)).transpose(1, 2)

    def distilled(
        self,
        h: Float[Tensor, "n d"],
        a: Float[Tensor, "n samples"],
        pooled: Float[Tensor, "bags groups samples d"],
        *,
        cam: Float[Tensor, "n classes"],
        e: Float[Tensor, " n"],
        groups: Groups,
    ) -> tuple[Float[Tensor, "m samples d"], list[int]]:
        """Return the input of tier 2, and its number of vectors per bag."""
        bag_groups: list[tuple[int, ...]] = []
        for first in range(0, len(groups.sizes), self.n_groups):
            bag_groups.append(groups.sizes[first : first + self.n_groups])
        if self.distill == "afs":
            filled = [group for group, size in enumerate(groups.sizes) if size]
            counts = [sum(size > 0 for size in group_sizes) for group_sizes in bag_groups]
            return pooled.flatten(0, 1).index_select(0, rows_on(h.device, filled)), counts
        with torch.no_grad():
            # a monotone function of p_n that does not saturate
            key = e[:, None] if self.distill == "mas" else self.margin(a[..., None] * cam[:, None])
            # rows of h, group by group and from the largest key down
            ranked = order_within(-key.expand_as(a), groups.of)
        places: list[int] = []  # in `ranked`
        counts: list[int] = []
        start = 0
        for group_sizes in bag_groups:
            bag_places: list[int] = []
            for n in group_sizes:
                end = start + n
                k = min(self.instances_per_group or n, n)
                bag_places += range(start, start + k)
                if self.distill == "maxmins":
                    bag_places += range(end - k, end)
                start = end
            places += bag_places
            counts.append(len(bag_places))
        return h[ranked[rows_on(h.device, places)]], counts

    def second_tier(
        self, features: Float[Tensor, "m samples d"], sizes: list[int]
    ) -> Float[Tensor, "bags samples classes"]:
        """Pool the distilled vectors of each bag by attention, and return the bags' logits."""
        e = self.bag_attention(features.flatten(0, 1)).mean.view(features.shape[:2])
        segments = as_segments(sizes, e.device)
        a = segment_softmax(e, segments)
        return self.bag_classifier(self.dropout(segment_sum(a[..., None] * features, segments)))

    def scores(
        self, e: Float[Tensor, " n"], cam: Float[Tensor, "n classes"], bags: Bags
    ) -> Float[Tensor, "n *classes"]:
        """Return p_n with attention over the whole bag: σ(N a_n (W₁ − W₀)·h_n)."""
        n = bags.segments.counts[bags.bag]
        weighted = (segment_softmax(e, bags.sizes) * n)[:, None] * cam
        return weighted.softmax(1) if cam.shape[1] > 2 else self.margin(weighted).sigmoid()

    @staticmethod
    def margin(logits: Float[Tensor, "*n classes"]) -> Float[Tensor, "*n"]:
        """Return the logit of the last class against the others; a single logit is unchanged."""
        last = logits[..., -1]
        return last if logits.shape[-1] == 1 else last - logits[..., :-1].logsumexp(-1)
