"""DTFD-MIL: double-tier feature distillation (Zhang et al., CVPR 2022), arXiv:2203.12081.

A bag is cut at random into G pseudo-bags. Tier 1 learns from each of them with the bag's label and
distils them; tier 2 pools what is distilled. As in the authors' code no gradient goes from tier 2
to tier 1. Departures: one logit is allowed, min(G, N) groups, partitions that are reproducible.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import Bags, segment_index, segment_mean, segment_softmax, segment_sum
from ..errors import CheckpointError, InputError
from ..layers import (
    AttentionPosterior,
    Embed,
    Groups,
    Widths,
    draw,
    group_counts,
    order_within,
    partition,
)
from ..variational import Dirac
from ._base import Model, Output, Provenance, each_bag
from ._originals import State, original, part, transplant
from ._registry import build, register

Distill = Literal["afs", "maxs", "maxmins", "mas"]


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
    """Attention pooling in two tiers, over random pseudo-bags and over what is distilled of them.

    The order of a bag's instances is that of its noise: `noise[:, s]`, sorted, gives partition s,
    cut like `numpy.array_split`. Noise that is not given is drawn from the bag's own stream: in
    `eval()` a bag's partitions are always the same (they follow its seed and its name, and the
    order in which its instances are stored), and logits have a row for each of them.

    For one logit p_n = σ(a_n w·h_n), which is two logits with W₀ = 0; for two the last class
    against the first. With more the last class decides what is distilled, as in the authors' code,
    and scores have a column a class.

    Extras: `attention` (tier 1's, before softmax), `cam` ((W₁ − W₀)·h_n, without attention) and
    `group_logits` (bags, groups, partitions, classes; no loss reads those that a small bag lacks).

    Args:
        in_dim: features of an instance.
        n_classes: 1 (one logit) or the number of classes; the original has 2 logits.
        embed: width(s) of the first layer(s), without bias; None passes the features on.
        activation: after each first layer.
        res_blocks: residual blocks after the first layers.
        dropout: before both classifiers, in training.
        attention_dim: D_f of both tiers.
        trunk: how attention is computed, in both tiers.
        score_bias: a bias on w, to which softmax is blind (the original has one).
        n_groups: G, pseudo-bags of a bag; a bag with fewer instances has one group for each.
        distill: what tier 2 is given of a group: `afs` its pooled vector, `maxs` the instances
            with the largest p_n, `maxmins` those and the ones with the smallest (an instance that
            is among both comes twice, so in every group with fewer than two times as many),
            `mas` those with the most attention.
        instances_per_group: how many instances those are (a smaller group gives all it has);
            None: all.
        joint: tier 2's gradient reaches tier 1 too (torchmil).
        clip: the norm to which each of four sets of gradients is clipped by itself: first layers,
            tier 1's attention and classifier, tier 2; None leaves it to the run.
        predict_samples: partitions in prediction, over which probabilities are averaged.
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction.
    """

    score_kind = "probability"
    without_effect = frozenset({"attention.mean.bias", "bag_attention.mean.bias"})
    provenance = Provenance(
        paper="Zhang et al., DTFD-MIL: double-tier feature distillation multiple instance learning "
        "for histopathology whole slide image classification, CVPR 2022, arXiv:2203.12081",
        code="hrzhang1123/DTFD-MIL",
        licence="MIT",
        follows_paper="Random pseudo-bags with the bag's label, two tiers, `mas` beside the "
        "authors' three ways to distil; scores of instances weigh features by N a_n.",
        follows_code="No bias in the first layer, gated attention, AFS, gradients that stay in "
        "their tier and are clipped by parts at 5; class activations by a_n alone inside a group.",
        fair="One linear layer from the features to 512 with ReLU, D_f = 128, one logit; "
        "ten partitions averaged in prediction where the original draws one.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        activation: Literal["relu", "identity"] = "relu",
        res_blocks: int = 0,
        dropout: float = 0.0,
        attention_dim: int = 128,
        trunk: Literal["tanh", "gated"] = "gated",
        score_bias: bool = True,
        n_groups: int = 4,
        distill: Distill = "afs",
        instances_per_group: int | None = 1,
        joint: bool = False,
        clip: float | None = 5.0,
        predict_samples: int = 10,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        _check_choices(distill=distill, trunk=trunk, dropout=dropout, clip=clip)
        wanted = {"n_groups": n_groups, "predict_samples": predict_samples}
        for name, value in {**wanted, "instances_per_group": instances_per_group}.items():
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}: at least 1")
        if res_blocks < 0:
            raise InputError(f"res_blocks is {res_blocks}: at least 0")
        self.n_groups, self.distill, self.joint, self.clip = n_groups, distill, joint, clip
        self.instances_per_group, self.predict_samples = instances_per_group, predict_samples
        self.embed = Embed(in_dim, embed, activation=activation, bias=False)
        d = self.embed.out_dim
        self.residual = nn.Sequential(*(ResidualBlock(d) for _ in range(res_blocks)))
        self.dropout = nn.Dropout(dropout)

        def attention() -> AttentionPosterior:
            return AttentionPosterior(
                d, attention_dim, kind="dirac", trunk=trunk, mean_bias=score_bias
            )

        self.attention, self.classifier = attention(), nn.Linear(d, n_classes)
        self.bag_attention, self.bag_classifier = attention(), nn.Linear(d, n_classes)

    def parameter_groups(self) -> list[dict[str, Any]]:
        parts = (
            [self.embed, self.residual],
            [self.attention],
            [self.classifier],
            [self.bag_attention, self.bag_classifier],
        )
        own = {} if self.clip is None else {"clip_norm": self.clip}
        groups = [[p for m in part for p in m.parameters() if p.requires_grad] for part in parts]
        return [{"params": params, **own} for params in groups if params]

    def instances(self, bags: Bags) -> Float[Tensor, "n d"]:
        """h_n, which both tiers read."""
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
        with torch.autocast(e.device.type, enabled=False):
            h = h.to(e.dtype)  # sums over 10⁴ instances are not for half precision
            a = groups.unsorted(segment_softmax(e[groups.order], groups.sizes))
            pooled = self.pool(h, a, groups, bags)
            cam = nn.functional.linear(h.detach(), self.classifier.weight.detach())
            features, sizes = self.distilled(h, a, pooled, cam=cam, e=e, groups=groups)
            logits = self.second_tier(features, sizes)
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
        """`nll` of tier 2 and `group_nll`, the mean over groups (and partitions) of tier 1's."""
        terms = super().losses(out, bags)
        counts = group_counts(bags.sizes, self.n_groups)
        logits = out.extras["group_logits"].flatten(0, 1)[self._kept(counts, bags.x.device)]
        y = self.labels(bags)[segment_index(counts, bags.x.device)]
        return {**terms, "group_nll": segment_mean(self.likelihood.nll(logits, y), counts).mean()}

    def groups(
        self, bags: Bags, *, noise: Tensor | None, generator: torch.Generator | None
    ) -> Groups:
        """Pseudo-bags, from the noise given or from each bag's own stream."""
        if noise is None:
            draws = 1 if self.training else self.predict_samples
            noise = draw(bags.sizes, draws, generators=self.streams(bags, generator))
        return partition(noise, bags.sizes, n_groups=self.n_groups)

    def pool(
        self, h: Float[Tensor, "n d"], a: Float[Tensor, "n samples"], groups: Groups, bags: Bags
    ) -> Float[Tensor, "bags groups samples d"]:
        """z_g = Σ_n a_n h_n over the instances of each group; 0 for one that a small bag lacks."""
        n, samples = a.shape
        # a column for each group, 0 outside of it: no copy of h in the order of the groups
        a_nsg = a.new_zeros(n, samples, self.n_groups).scatter(
            2, groups.of[..., None], a[..., None]
        )
        rows = [a_nsg[own].flatten(1).T @ h[own] for own in each_bag(bags)]
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
        """What tier 2 is given, and how many vectors of each bag."""
        if self.distill == "afs":
            features = pooled.flatten(0, 1)[self._kept(groups.counts, h.device)]
            return (features if self.joint else features.detach()), groups.counts
        with torch.no_grad():
            # a monotone function of p_n that does not saturate
            by = self.margin(a[..., None] * cam[:, None]) if self.distill != "mas" else e[:, None]
            best_first = order_within(-by.expand_as(a), groups.segment)
        places, sizes = self._places(groups)
        rows = best_first[torch.tensor(places, device=h.device)]
        return (h if self.joint else h.detach())[rows], sizes

    def second_tier(
        self, features: Float[Tensor, "m samples d"], sizes: list[int]
    ) -> Float[Tensor, "bags samples classes"]:
        """Attention pooling of the distilled vectors of each bag, and the bag's logits."""
        e = self.bag_attention(features.flatten(0, 1)).mean.view(features.shape[:2])
        a = segment_softmax(e, sizes)
        return self.bag_classifier(self.dropout(segment_sum(a[..., None] * features, sizes)))

    def scores(
        self, e: Float[Tensor, " n"], cam: Float[Tensor, "n classes"], bags: Bags
    ) -> Float[Tensor, "n *classes"]:
        """p_n with attention over the whole bag: σ(N a_n (W₁ − W₀)·h_n)."""
        n = bags.offsets.diff()[bags.bag]
        weighed = (segment_softmax(e, bags.sizes) * n)[:, None] * cam
        return weighed.softmax(1) if cam.shape[1] > 2 else self.margin(weighed).sigmoid()

    @staticmethod
    def margin(logits: Float[Tensor, "*n classes"]) -> Float[Tensor, "*n"]:
        """The last class against the others, logit p; the one logit as it is."""
        last = logits[..., -1]
        return last if logits.shape[-1] == 1 else last - logits[..., :-1].logsumexp(-1)

    def _kept(self, counts: Sequence[int], device: torch.device) -> Int[Tensor, " m"]:
        """Where the groups that there are lie among `n_groups` of every bag."""
        places = [b * self.n_groups + g for b, count in enumerate(counts) for g in range(count)]
        return torch.tensor(places, device=device)

    def _places(self, groups: Groups) -> tuple[list[int], list[int]]:
        """Which places of each group's ranking are distilled, and how many of each bag."""
        places: list[int] = []
        each: list[int] = []
        start = 0
        for n in groups.sizes:
            k = n if self.instances_per_group is None else min(self.instances_per_group, n)
            last = range(start + n - k, start + n) if self.distill == "maxmins" else ()
            places += [*range(start, start + k), *last]
            each.append(len(places))
            start += n
        ends = torch.tensor(groups.counts).cumsum(0).tolist()
        total = [0, *(each[end - 1] for end in ends)]
        return places, [b - a for a, b in pairwise(total)]


def _check_choices(*, distill: str, trunk: str, dropout: float, clip: float | None) -> None:
    if distill not in ("afs", "maxs", "maxmins", "mas"):
        raise InputError(f"distill is {distill!r}: 'afs', 'maxs', 'maxmins' or 'mas'")
    if trunk not in ("tanh", "gated"):
        raise InputError(f"trunk is {trunk!r}: 'tanh' or 'gated'")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout is {dropout}: from 0 up to, not including, 1")
    if clip is not None and clip <= 0:
        raise InputError(f"clip is {clip}: a norm above 0, or None")


TIERS = [
    (r"dim_reduction\.fc1\.", "embed.net.0."),
    (r"dim_reduction\.resBlocks\.(\d+)\.block\.", r"residual.\1.net."),
    (r"att_classifier\.attention\.attention_V\.0\.", "bag_attention.trunk.first."),
    (r"att_classifier\.attention\.attention_U\.0\.", "bag_attention.trunk.gate."),
    (r"att_classifier\.attention\.attention_weights\.", "bag_attention.mean."),
    (r"att_classifier\.classifier\.fc\.", "bag_classifier."),
    (r"attention\.attention_V\.0\.", "attention.trunk.first."),
    (r"attention\.attention_U\.0\.", "attention.trunk.gate."),
    (r"attention\.attention_weights\.", "attention.mean."),
    (r"classifier\.fc\.", "classifier."),
]
TORCHMIL = [
    (r"attention_pool\.fc1\.module\.", "attention.trunk.first."),
    (r"attention_pool\.fc2\.", "attention.mean."),
    (r"classifier\.module\.", "classifier."),
    (r"u_attention_pool\.fc1\.module\.", "bag_attention.trunk.first."),
    (r"u_attention_pool\.fc2\.", "bag_attention.mean."),
    (r"u_classifier\.module\.", "bag_classifier."),
]
TORCHMIL_MODES = {"afs": "afs", "max": "maxs", "maxmin": "maxmins"}


@original("dtfd", "ckpt_dtfd")
def _dtfd(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Four modules' state dicts, each name behind its module's."""
    del reference
    state = {k.replace(".module.", "."): v for k, v in state.items()}
    first = part(state, "dim_reduction.fc1.weight", of="DTFD-MIL")
    groups = int(arguments.get("numGroup", 4))
    total = int(arguments.get("total_instance", groups))
    given = str(arguments.get("distill", arguments.get("distill_type", "AFS")))
    distill = given.lower()
    if distill not in ("afs", "maxs", "maxmins"):
        raise CheckpointError(f"distill is {given!r}: the original has AFS, MaxS and MaxMinS")
    if distill != "afs" and total < groups:
        raise CheckpointError(
            f"total_instance={total} over numGroup={groups} leaves no instance for a group"
        )
    model = build(
        "dtfdmil",
        in_dim=first.shape[1],
        embed=first.shape[0],
        n_classes=len(part(state, "classifier.fc.weight", of="DTFD-MIL")),
        attention_dim=len(part(state, "attention.attention_V.0.weight", of="DTFD-MIL")),
        res_blocks=sum(k.endswith(".block.0.weight") for k in state),
        dropout=float(arguments.get("droprate", 0.0)),
        n_groups=groups,
        distill=distill,
        instances_per_group=max(total // groups, 1),
        predict_samples=int(arguments.get("num_MeanInference", 1)),
    )
    return transplant(model, state, TIERS)


@original("torchmil_dtfdmil")
def _torchmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """torchmil trains both tiers jointly, and its `max` and `maxmin` take every instance."""
    suffix = reference.rpartition("_")[2]
    mode = str(arguments.get("distill_mode", suffix if suffix in TORCHMIL_MODES else "maxmin"))
    if mode not in TORCHMIL_MODES:
        raise CheckpointError(f"distill_mode is {mode!r}: {', '.join(TORCHMIL_MODES)}")
    first = part(state, "attention_pool.fc1.module.weight", of="torchmil's DTFDMIL")
    model = build(
        "dtfdmil",
        in_dim=first.shape[1],
        embed=None,
        attention_dim=first.shape[0],
        trunk="tanh",
        score_bias=False,
        n_groups=int(arguments.get("n_groups", 8)),
        distill=TORCHMIL_MODES[mode],
        instances_per_group=None,
        joint=True,
        clip=None,
        predict_samples=1,
    )
    return transplant(model, state, TORCHMIL)
