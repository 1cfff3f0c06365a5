"""IIB-MIL: joint learning from instance and bag labels (Ren, Zhao, He et al., MICCAI 2023).

A residual transformer, five queries that attend to each bag, and soft instance labels derived from
prototypes. Departures: no truncation of bags to 500, no padding, and instances of negative bags
stay negative (`restrict_negative_bags`). The authors published no training loop; ours follows the
paper.
"""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    ClusterCount,
    EpochCount,
    FeatureCount,
    HeadCount,
    Limits,
    NonNegativeFloat,
    Rate,
    Seed,
    StepCount,
    Width,
    segment_mean,
    without_autocast,
)
from ..errors import BagError
from ..layers import Embed, PostNormLayer, QueryLayer, Widths, full_precision
from ..variational import Dirac
from ._base import Model, Output, Provenance, ScoreKind
from ._registry import register

ALMOST = 1e-6
"""Total probability that a new instance label gives to the other classes."""
PROTOTYPE_MOMENTUM = 0.99
"""Momentum m of the prototypes, if all bags of a batch have the prototype's class."""
BANK_MOMENTUM = 0.95, 0.8
"""Momentum φ of the instance labels, at the start and at the end."""
TOP_SHARE = 0.1
"""Fraction of a class's instances in a batch, the most confident ones, that update a prototype."""


class Residual(nn.Module):
    """xⁱ = PostNorm(MLP(xⁱ⁻¹)) + ReLU(R e); every block reads the raw features e again.

    The MLP repeats linear layer, tanh and layer norm five times, with widths 2z, 4z, 2z, 2z, z.
    """

    def __init__(
        self, in_dim: int, raw_dim: int, width: int, *, heads: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for out_dim in (2 * width, 4 * width, 2 * width, 2 * width, width):
            steps += [nn.Linear(in_dim, out_dim), nn.Tanh(), nn.LayerNorm(out_dim)]
            in_dim = out_dim
        self.mlp = nn.Sequential(*steps)
        self.layer = PostNormLayer(width, heads=heads, hidden=hidden, dropout=dropout)
        self.raw = nn.Linear(raw_dim, width)

    def forward(
        self, x: Float[Tensor, "n i"], e: Float[Tensor, "n raw"], sizes: tuple[int, ...]
    ) -> Float[Tensor, "n z"]:
        return self.layer(self.mlp(x), sizes) + self.raw(e).relu()


def softened(
    confidence: Float[Tensor, "n c"],
    score: Float[Tensor, "n c"],
    candidates: Bool[Tensor, "n c"],
    *,
    momentum: float,
) -> Float[Tensor, "n c"]:
    """Return φ β + (1 − φ) ẑ, ẑ the candidate class with the most similar prototype."""
    best = score.masked_fill(~candidates, -torch.inf).argmax(1, keepdim=True)
    onehot = torch.zeros_like(confidence).scatter_(1, best, 1.0)
    return momentum * confidence + (1 - momentum) * onehot


@register(
    "iibmil",
    original={
        "embed": None,
        "width": 256,
        "layers": 3,
        "heads": 2,
        "decoder_heads": 4,
        "dropout": 0.1,
        "bank_epochs": 200,
        "restrict_negative_bags": False,
    },
)
class IIBMIL(Model):
    """Queries predict the bag's label; prototypes refine the labels of its instances.

    With one logit, the instances still have two classes. The label of an instance starts as that of
    its bag, is stored by bag name and row for training bags only, and is updated in `after_step`
    after the warm-up.

    Args:
        width: width z of the encoder and the decoder; None: that of their input.
        layers: number of encoder blocks.
        heads: number of attention heads per block.
        hidden: hidden width of each block's transformer layer.
        queries: number of learned vectors that attend to the bag.
        decoder_layers: number of layers in which they do.
        decoder_heads: number of attention heads of these layers; None: as `heads`.
        dropout: dropout rate of the transformer layers of encoder and decoder.
        instance_weight: weight λ of the instance loss.
        bank_epochs: number of epochs in which the momentum φ of the instance labels goes from 0.95
            to 0.8; None: all epochs of the run.
        warmup_epochs: number of first epochs that update prototypes but no instance labels.
        restrict_negative_bags: whether an instance has class 0 or its bag's class, so that
            instances of negative bags stay negative; otherwise (the original) it has any class.
    """

    family = "global"
    needs_classes = True
    provenance = Provenance(
        paper="Ren et al., IIB-MIL, MICCAI 2023, https://doi.org/10.1007/978-3-031-43987-2_54",
        code="TencentAILabHealthcare/IIB-MIL (no training loop)",
        licence="none stated",
        follows_paper="Soft instance labels from momentum prototypes, a warm-up of 10 epochs, λ = "
        "5.",
        follows_code="The assignment of the momenta (prototypes 0.99, labels 0.95 to 0.8), K as a "
        "tenth of a class's instances in a batch, residuals from the raw features. Layers that "
        "the original never calls are omitted.",
        fair="One linear layer to 512, two blocks and two decoder layers with 8 heads, width 512, "
        "no dropout, one logit. Instances of negative bags stay negative.",
    )
    score_kind: ClassVar[ScoreKind] = "probability"
    couples_bags = True
    needs_whole_bags = True  # instance labels are stored by bag name and row

    def __init__(
        self,
        *,
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Widths = 512,
        width: Width | None = None,
        layers: StepCount = 2,
        heads: HeadCount = 8,
        hidden: Width = 2048,
        queries: ClusterCount = 5,
        decoder_layers: StepCount = 2,
        decoder_heads: HeadCount | None = None,
        dropout: Rate = 0.0,
        instance_weight: NonNegativeFloat = 5.0,
        bank_epochs: Annotated[int | None, Limits(at_least=1, at_most=1_000_000)] = None,
        warmup_epochs: EpochCount = 10,
        restrict_negative_bags: bool = True,
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.embed = Embed(in_dim, embed, activation="identity")
        raw = self.embed.out_dim
        z = raw if width is None else width
        self.encoder = nn.ModuleList(
            Residual(raw if k == 0 else z, raw, z, heads=heads, hidden=hidden, dropout=dropout)
            for k in range(layers)
        )
        self.norm = nn.LayerNorm(z)
        self.instance_classes = max(n_classes, 2)
        self.instance_classifier = nn.Linear(z, self.instance_classes)
        self.queries = nn.Parameter(torch.randn(queries, z))
        per_query = heads if decoder_heads is None else decoder_heads
        self.decoder = nn.ModuleList(
            QueryLayer(z, heads=per_query, hidden=2 * z, dropout=dropout)
            for _ in range(decoder_layers)
        )
        self.classifier = nn.Linear(queries * z, n_classes)
        self.prototypes: Tensor
        self.register_buffer("prototypes", torch.zeros(self.instance_classes, z))
        self.instance_weight = instance_weight
        self.bank_epochs = bank_epochs
        self.warmup_epochs = warmup_epochs
        self.restrict = restrict_negative_bags
        self._bank: dict[str, Tensor] = {}
        self.start_epoch(0, 1)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"instance": self.instance_weight}

    def instances(self, bags: Bags) -> Float[Tensor, "n z"]:
        """Return the encoder's output x, the contextualised instance vectors."""
        x = e = self.embed(bags.x)
        for block in self.encoder:
            x = block(x, e, bags.sizes)
        return x

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        x = full_precision(self.instances(bags))
        t = self.queries.expand(len(bags), -1, -1)
        weights = t.new_empty(len(x), t.shape[1])
        for layer in self.decoder:
            t, weights = layer(t, x, bags.sizes)
        with without_autocast(x):
            logits = self.classifier(full_precision(t).flatten(1))
            instance_logits = self.instance_classifier(self.norm(x))
            similarity = (x.detach().to(self.prototypes.dtype) @ self.prototypes.T).softmax(1)
        extras = {
            "instance_logits": instance_logits,
            "prototype_score": _positive_columns(similarity),
            "cross_attention": full_precision(weights),
        }
        if torch.is_grad_enabled():  # as large as the bag, and only `after_step` needs it
            extras["instance_features"] = x.detach()
        return Output(
            logits=logits[:, None],
            attention=Dirac(_positive_columns(instance_logits.softmax(1))),
            likelihood=self.likelihood,
            extras=extras,
        )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `nll` and `instance`, −Σ_c β_nc log p_nc averaged over each bag's instances."""
        terms = super().losses(out, bags)
        log_p = out.extras["instance_logits"].log_softmax(1)
        beta = torch.cat(self.confidence(bags)).to(log_p.dtype)
        cross_entropy = -(beta * log_p).sum(1)
        return {**terms, "instance": segment_mean(cross_entropy, bags.sizes).mean()}

    def confidence(self, bags: Bags) -> list[Float[Tensor, "n_b c"]]:
        """Return the stored β of each bag's instances, or nearly the label of a new bag."""
        c = self.instance_classes
        fresh = self.prototypes.new_full((len(bags), c), ALMOST / (c - 1))
        fresh.scatter_(1, self.labels(bags).long()[:, None], 1 - ALMOST)
        labels = []
        for name, n, row in zip(bags.names, bags.sizes, fresh, strict=True):
            stored = self._bank.get(name)
            if stored is None:
                stored = row.expand(n, c)
            elif len(stored) != n:
                raise BagError(
                    f"bag {name!r} has {n} instances, but {len(stored)} instance labels are stored "
                    "under its name: two bags of a training set cannot share a name"
                )
            labels.append(stored.to(fresh))
        return labels

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Set whether this epoch is part of the warm-up, and its φ."""
        self._warming = epoch < self.warmup_epochs
        first, last = BANK_MOMENTUM
        share = min(epoch / (self.bank_epochs or max(epochs, 1)), 1.0)
        self._momentum = first + share * (last - first)

    @torch.no_grad()
    def after_step(self, out: Output, bags: Bags) -> None:
        """Update the instance labels from the step's prototypes, then the prototypes."""
        x = out.extras["instance_features"].to(self.prototypes.dtype)
        y = self.labels(bags).long()
        if not self._warming:
            old = torch.cat(self.confidence(bags))
            allowed = self._candidates(y)[bags.bag]
            new = softened(old, x @ self.prototypes.T, allowed, momentum=self._momentum)
            for name, labels in zip(bags.names, new.split(list(bags.sizes)), strict=True):
                self._bank[name] = labels.clone()
        p = out.extras["instance_logits"].softmax(1)
        for c in y.unique().tolist():
            rows = (y == c)[bags.bag].nonzero()[:, 0]
            k = int(TOP_SHARE * len(rows) + 1e-9)
            most_confident = rows[p[rows, c].topk(k).indices]
            share = int((y == c).sum()) / len(y)
            # a rare class in a very large batch would have a momentum below 0 and diverge
            m = max(1 - (1 - PROTOTYPE_MOMENTUM) / share, 0.0)
            # μ ← m μ + (1 − m) x_k for each of them: m^K μ + (1 − m) Σ_k m^(K−k) x_k
            decay = torch.pow(m, torch.arange(k - 1, -1, -1, device=x.device).to(x.dtype))
            weights = (1 - m) * decay
            self.prototypes[c] = m**k * self.prototypes[c] + weights @ x[most_confident]

    def _candidates(self, y: Int[Tensor, " b"]) -> Bool[Tensor, "b c"]:
        """Return a mask of the classes that the instances of each bag may have."""
        allowed = nn.functional.one_hot(y, self.instance_classes).bool()
        allowed[:, 0] = True
        return allowed if self.restrict else torch.ones_like(allowed)

    def memory(self) -> dict[str, Tensor]:
        return dict(self._bank)

    def restore_memory(self, tensors: dict[str, Tensor]) -> None:
        self._bank = dict(tensors)


def _positive_columns(p: Float[Tensor, "n c"]) -> Tensor:
    """Return the second of two columns, or all of more."""
    return p[:, 1] if p.shape[1] == 2 else p
