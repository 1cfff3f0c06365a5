"""IIB-MIL: instance and bag labels together (Ren, Zhao, He et al., MICCAI 2023).

A residual transformer, five queries that read each bag, and soft instance labels that prototypes
teach. Departures: no truncation of bags to 500, no padding, and negative bags keep negative labels
(`restrict_negative_bags`). The authors published no training loop: it is written from the paper.
"""

import re
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..core import Bags, segment_mean
from ..errors import BagError, CheckpointError, InputError
from ..layers import Embed, PostNormLayer, QueryLayer, Widths
from ..variational import Dirac
from ._base import Model, Output, Provenance, ScoreKind
from ._originals import Rules, State, original, part, transplant
from ._registry import build, register

ALMOST = 1e-6
"""What a fresh instance label leaves to the other classes in all."""


class Residual(nn.Module):
    """xⁱ = PostNorm(MLP(xⁱ⁻¹)) + ReLU(R e): every block reads the raw features e again.

    MLP: five times Linear, tanh, layer norm, of widths 2z, 4z, 2z, 2z, z.
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


def pulled(
    prototype: Float[Tensor, " z"], x: Float[Tensor, "k z"], *, momentum: float
) -> Float[Tensor, " z"]:
    """μ ← m μ + (1 − m) x_k for one row after another, at once: m^K μ + (1 − m) Σ_k m^(K−k) x_k."""
    steps = torch.arange(len(x) - 1, -1, -1, device=x.device).to(prototype.dtype)
    weights = (1 - momentum) * torch.pow(momentum, steps)
    return momentum ** len(x) * prototype + weights @ x.to(prototype.dtype)


def softened(
    confidence: Float[Tensor, "n c"],
    score: Float[Tensor, "n c"],
    candidates: Bool[Tensor, "n c"],
    *,
    momentum: float,
) -> Float[Tensor, "n c"]:
    """β ← φ β + (1 − φ) ẑ, ẑ the candidate class whose prototype is most like the instance."""
    best = score.masked_fill(~candidates, -torch.inf).argmax(1, keepdim=True)
    onehot = torch.zeros_like(confidence).scatter_(1, best, 1.0)
    return momentum * confidence + (1 - momentum) * onehot


@register(
    "iibmil",
    original={"embed": None, "width": 256, "layers": 3, "heads": 2, "decoder_heads": 4,
              "dropout": 0.1, "bank_epochs": 200, "restrict_negative_bags": False},
)  # fmt: skip
class IIBMIL(Model):
    """Bag labels for queries that read the bag; instance labels that prototypes correct.

    With one logit the instances still have two classes. An instance's label starts as its bag's; it
    is kept by bag name and row, for training bags only, and moves in `after_step` once
    `start_epoch` has ended the warm-up.

    Args:
        in_dim: features of an instance.
        n_classes: 1 (one logit) or the number of classes.
        embed: width(s) of the first layer(s), linear; None passes the features on.
        width: z of encoder and decoder; None: as wide as what comes in.
        layers: blocks of the encoder.
        heads: of each block's self-attention.
        hidden: width inside each block's transformer layer.
        queries: learned vectors that read the bag.
        decoder_layers: layers in which they do.
        decoder_heads: None: as `heads`.
        dropout: of the encoder's and the decoder's transformer layers, in training.
        instance_weight: λ of the instance loss.
        prototype_momentum: m, corrected for how many bags of a batch have the class.
        top_share: of a class's instances in a batch, the surest that move its prototype.
        bank_momentum: φ of the instance labels, at first and at the end.
        bank_epochs: how many epochs φ takes from one to the other; None: all of the run's.
        warmup_epochs: first epochs, in which prototypes move and instance labels do not.
        restrict_negative_bags: an instance is of class 0 or of its bag's class: those of negative
            bags stay negative. Else of any class (the original).
        class_weights: of the likelihood, one a class.
        seed: of everything random in prediction.
    """

    family = "global"
    provenance = Provenance(
        paper="Ren, Zhao, He et al., IIB-MIL: integrated instance-level and bag-level "
        "multiple instances learning with label disambiguation for pathological image analysis, "
        "MICCAI 2023, https://doi.org/10.1007/978-3-031-43987-2_54",
        code="TencentAILabHealthcare/IIB-MIL (no training loop)",
        licence="none stated: written anew from a description, no code and no weights are taken",
        follows_paper="Soft instance labels from momentum prototypes, warm-up of 10 epochs, λ = 5.",
        follows_code="Which momentum is whose (prototypes 0.99, labels 0.95 to 0.8), K as a tenth "
        "of a class's instances in a batch, residuals from the raw features. Layers that the "
        "original never calls are left out.",
        fair="One linear layer to 512, two blocks and two decoder layers with 8 heads, width 512, "
        "no dropout, one logit. Negative bags keep negative instances.",
    )
    score_kind: ClassVar[ScoreKind] = "probability"
    couples_bags = True

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: Widths = 512,
        width: int | None = None,
        layers: int = 2,
        heads: int = 8,
        hidden: int = 2048,
        queries: int = 5,
        decoder_layers: int = 2,
        decoder_heads: int | None = None,
        dropout: float = 0.0,
        instance_weight: float = 5.0,
        prototype_momentum: float = 0.99,
        top_share: float = 0.1,
        bank_momentum: tuple[float, float] = (0.95, 0.8),
        bank_epochs: int | None = None,
        warmup_epochs: int = 10,
        restrict_negative_bags: bool = True,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.embed = Embed(in_dim, embed, activation="identity")
        raw = self.embed.out_dim
        z = raw if width is None else width
        _check(
            {"width": z, "layers": layers, "hidden": hidden, "queries": queries,
             "decoder_layers": decoder_layers, "bank_epochs": bank_epochs},
            {"warmup_epochs": warmup_epochs, "instance_weight": instance_weight},
            {"dropout": dropout, "prototype_momentum": prototype_momentum, "top_share": top_share,
             "bank_momentum, at first,": bank_momentum[0], "bank_momentum": bank_momentum[1]},
        )  # fmt: skip
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
        self.instance_weight, self.top_share = instance_weight, top_share
        self.prototype_momentum = prototype_momentum
        self.bank_momentum, self.bank_epochs = bank_momentum, bank_epochs
        self.warmup_epochs, self.restrict = warmup_epochs, restrict_negative_bags
        self._bank: dict[str, Tensor] = {}
        self.start_epoch(0, 1)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"instance": self.instance_weight}

    def instances(self, bags: Bags) -> Float[Tensor, "n z"]:
        """x: what the encoder makes of each instance in sight of its bag."""
        x = e = self.embed(bags.x)
        for block in self.encoder:
            x = block(x, e, bags.sizes)
        return x

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        del noise, generator  # nothing is drawn
        x = _full(self.instances(bags))
        t = self.queries.expand(len(bags), -1, -1)
        weights = t.new_empty(len(x), t.shape[1])
        for layer in self.decoder:
            t, weights = layer(t, x, bags.sizes)
        with torch.autocast(x.device.type, enabled=False):
            logits = self.classifier(_full(t).flatten(1))
            instance_logits = self.instance_classifier(self.norm(x))
            likeness = self._likeness(x.detach()).softmax(1)
        extras = {
            "instance_logits": instance_logits,
            "prototype_score": _of_positives(likeness),
            "cross_attention": _full(weights),
        }
        if torch.is_grad_enabled():  # for `after_step`; as large as the bag where nobody needs it
            extras["instance_features"] = x.detach()
        return Output(
            logits=logits[:, None],
            attention=Dirac(_of_positives(instance_logits.softmax(1))),
            likelihood=self.likelihood,
            extras=extras,
        )

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """`nll` of the bag and `instance`, −Σ_c β_nc log p_nc: a mean over each bag's instances."""
        terms = super().losses(out, bags)
        log_p = out.extras["instance_logits"].log_softmax(1)
        beta = torch.cat(self.confidence(bags)).to(log_p.dtype)
        each = -(beta * log_p).sum(1)
        return {**terms, "instance": segment_mean(each, bags.sizes).mean()}

    def confidence(self, bags: Bags) -> list[Float[Tensor, "n_b c"]]:
        """β of each bag's instances: remembered, or almost the bag's label where it is new."""
        c = self.instance_classes
        fresh = self.prototypes.new_full((len(bags), c), ALMOST / (c - 1))
        fresh.scatter_(1, self.labels(bags).long()[:, None], 1 - ALMOST)
        found = []
        for name, n, row in zip(bags.names, bags.sizes, fresh, strict=True):
            own = self._bank.get(name)
            if own is None:
                own = row.expand(n, c)
            elif len(own) != n:
                raise BagError(
                    f"bag {name!r} has {n} instances, but {len(own)} instance labels are kept "
                    "under its name: two bags of a training set cannot share a name"
                )
            found.append(own.to(fresh))
        return found

    def start_epoch(self, epoch: int, epochs: int) -> None:
        """Warm-up or not, and φ of this epoch."""
        self._warming = epoch < self.warmup_epochs
        first, last = self.bank_momentum
        share = min(epoch / (self.bank_epochs or max(epochs, 1)), 1.0)
        self._momentum = first + share * (last - first)

    @torch.no_grad()
    def after_step(self, out: Output, bags: Bags) -> None:
        """Instance labels from the prototypes that the step has seen; then the prototypes move."""
        x = out.extras.get("instance_features")
        if x is None:
            raise InputError("after_step() takes an output of forward() with gradients on")
        y = self.labels(bags).long()
        if not self._warming:
            new = softened(
                torch.cat(self.confidence(bags)),
                self._likeness(x),
                self._candidates(y)[bags.bag],
                momentum=self._momentum,
            )
            parts = new.split(list(bags.sizes))
            self._bank |= {k: v.clone() for k, v in zip(bags.names, parts, strict=True)}
        p = out.extras["instance_logits"].softmax(1)
        labels = y.tolist()
        for c in sorted(set(labels)):
            rows = (y == c)[bags.bag].nonzero()[:, 0]
            k = int(self.top_share * len(rows) + 1e-9)
            if k == 0:
                continue
            surest = rows[p[rows, c].topk(k).indices]
            share = labels.count(c) / len(labels)
            # below 0 the sequence would swing ever wider: a rare class in a very large batch
            m = max(1 - (1 - self.prototype_momentum) / share, 0.0)
            self.prototypes[c] = pulled(self.prototypes[c], x[surest], momentum=m)

    def _likeness(self, x: Float[Tensor, "n z"]) -> Float[Tensor, "n c"]:
        return x.to(self.prototypes.dtype) @ self.prototypes.T

    def _candidates(self, y: Int[Tensor, " b"]) -> Bool[Tensor, "b c"]:
        """Classes that the instances of each bag may have."""
        c = self.instance_classes
        if not self.restrict:
            return torch.ones(len(y), c, dtype=torch.bool, device=y.device)
        mine = nn.functional.one_hot(y, c).bool()
        mine[:, 0] = True
        return mine

    def memory(self) -> dict[str, Tensor]:
        return dict(self._bank)

    def restore_memory(self, tensors: dict[str, Tensor]) -> None:
        self._bank = dict(tensors)


def _of_positives(p: Float[Tensor, "n c"]) -> Tensor:
    """Of two classes the second's; of more, all."""
    return p[:, 1] if p.shape[1] == 2 else p


def _full(v: Tensor) -> Tensor:
    return v.float() if v.dtype in (torch.float16, torch.bfloat16) else v


def _check(
    counts: dict[str, int | None],
    positive: dict[str, int | float],
    shares: dict[str, int | float],
) -> None:
    for name, value in {**counts, **positive}.items():
        least = int(name in counts)
        if value is not None and value < least:
            raise InputError(f"{name} is {value}: at least {least}")
    for name, value in shares.items():
        if not 0 <= value <= 1 or (name == "top_share" and value == 0):
            raise InputError(f"{name} is {value}: a share, from 0 to 1")


def _names() -> Rules:
    """The original's names; both kinds of layer call their parts alike."""
    block = r"patch_encoder\.trans_(\d+)\.layers\.0\."
    layer = r"wsi_aggregator\.decoder\.layers\.(\d+)\."
    rules: list[tuple[str, str | None]] = [
        # made by the original and never called
        (r"patch_encoder\.(patch_to_embedding|transformer_encoder|encode_\d+)\.", None),
        (r"patch_encoder\.res_(\d+)\.", r"encoder.\1.raw."),
        (r"patch_encoder\.mlp_head\.0\.", "norm."),
        (r"patch_encoder\.mlp_head\.1\.", "instance_classifier."),
        (r"query_embed\.weight$", "queries"),
        (r"wsi_classifier\.", "classifier."),
    ]
    for k in range(5):  # theirs are four steps a stage (dropout is the fourth), ours three
        rules.append((rf"patch_encoder\.depth_(\d+)\.{4 * k}\.", rf"encoder.\1.mlp.{3 * k}."))
        rules.append(
            (rf"patch_encoder\.depth_(\d+)\.{4 * k + 2}\.", rf"encoder.\1.mlp.{3 * k + 2}.")
        )
    for at, attention, mine, name in (
        (block, "self_attn", r"encoder.\1.layer.", "attention"),
        (layer, "self_attn", r"decoder.\1.", "queries"),
        (layer, "cross_attn", r"decoder.\1.", "instances"),
    ):
        rules += [
            (rf"{at}{attention}\.in_proj_", f"{mine}{name}.qkv."),
            (rf"{at}{attention}\.out_proj\.", f"{mine}{name}.out."),
            (rf"{at}linear1\.", f"{mine}feed.first."),
            (rf"{at}linear2\.", f"{mine}feed.second."),
            (rf"{at}norm", f"{mine}norm"),
        ]
    return rules


@original("iibmil")
def _from_original(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    of = "the authors' IIBMIL (patch_encoder, wsi_aggregator, prototypes)"
    z, raw = part(state, "patch_encoder.res_0.weight", of=of).shape
    read = {
        "num_classes": len(part(state, "wsi_classifier.weight", of=of)),
        "patch_dim": raw,
        "dim": z,
        "depth": sum(bool(re.fullmatch(r"patch_encoder\.res_\d+\.weight", k)) for k in state),
        "num_queries": len(part(state, "query_embed.weight", of=of)),
    }
    for key, value in read.items():
        if arguments.get(key, value) != value:
            raise CheckpointError(
                f"{reference}: {key} is {arguments[key]}, but the state dict's shapes say {value}"
            )
    layers = r"wsi_aggregator\.decoder\.layers\.\d+\.linear1\.weight"
    hidden = part(state, "patch_encoder.trans_0.layers.0.linear1.weight", of=of)
    model = build(
        "iibmil",
        preset="original",
        in_dim=raw,
        n_classes=read["num_classes"],
        width=z,
        layers=read["depth"],
        hidden=len(hidden),
        queries=read["num_queries"],
        decoder_layers=sum(bool(re.fullmatch(layers, k)) for k in state),
    )
    return transplant(model, state, _names())
