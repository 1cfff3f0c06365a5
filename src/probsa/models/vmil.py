"""VMIL: variational MIL with embedding correlation modelling (Yang et al., IEEE TNNLS 2024).

Latent instance labels z: a classifier p(z | x) of single instances and a posterior q(z | bag) with
a transformer over the bag, trained in turns (E and M epochs). From the authors' code; what they
have no word on is a reconstruction: the bag's probability and features in the place of spectra.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..core import Bags, segment_logsumexp, segment_max, segment_mean, segment_sum, segment_topk
from ..errors import InputError
from ..layers import Embed, PostNormLayer
from ..variational import Dirac
from ._base import Model, Output, Provenance
from ._originals import State, original, part, transplant
from ._registry import build, register

Aggregation = Literal["max", "noisy-or", "top-k", "linear-softmax"]
Turn = Literal["e", "m"]


class SpectralCNN(nn.Module):
    """Three times conv(3), PReLU, maxpool(2) along the features, then flat, channel by channel.

    Fewer than 22 features leave nothing after the third: zeros are added at the end.
    """

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        self.length = length = max(in_dim, 22)
        for a, b in ((1, 20), (20, 128), (128, 64)):
            steps += [nn.Conv2d(a, b, (1, 3)), nn.PReLU(), nn.MaxPool2d((1, 2))]
            length = (length - 2) // 2
        self.net = nn.Sequential(*steps)
        self.out_dim = 64 * length

    def forward(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n d"]:
        # one picture with a row for each instance, which no kernel crosses
        rows = F.pad(x, (0, self.length - x.shape[1]))[None, None]
        return self.net(rows)[0].transpose(0, 1).flatten(1)


@register(
    "vmil",
    original={
        "branch": "cnn",
        "embed": 256,
        "layers": 5,
        "feedforward": 64,
        "reduction": "sum",
    },
)
class VMIL(Model):
    """Instance labels by expectation and maximisation; no loss reads the bag's own probability.

    p_n = σ(p-branch(x_n)),  q_n = σ(q-branch(X)_n),  Y the bag's label, sg[·] without gradient:

        E epochs   `e_step`  BCE(q_n, Y sg[p_n])
        M epochs   `m_step`  BCE(p_n, Y) in the warm-up,  then  BCE(p_n, Y·1[sg[q_n] > τ]),
                             τ = min q + γ (max q − min q) of the bag

    Training starts with M. The step changes at every epoch (from 1) that `warmup_block`, after the
    warm-up `block`, divides. Before the first `start_epoch` it is M in the warm-up.

    Extras: `p_logit`, and `q_logit` and `q` (in training only where the step reads them).

    Where few instances of a positive bag are positive, γ = 0.15 marks most of them, and training
    can end with the same prediction for every bag: look at `val_auroc` and the training's notes.

    Args:
        in_dim: features of an instance.
        n_classes: 1: the method tells two classes apart.
        branch: p's, `mlp`, or `cnn` along the features (the original's, for spectra; on deep
            features their order means nothing, and an instance costs 20 numbers a feature).
        embed: width of both branches; each has first layers of its own, so that an E step leaves
            p as it is and an M step q.
        activation: after q's first layer and the one of `mlp`.
        dropout: after those, and in the transformer, in training.
        layers: transformer layers of q, each with its layer norms after the sums.
        heads: attention heads of each.
        feedforward: width of the hidden layer of each.
        gamma: γ.
        warmup: the share of the epochs that is warm-up; never so few that q is used untrained.
        warmup_block: epochs between E and M in the warm-up.
        block: and after it.
        alternate: `epochs`, or `steps`: every step takes both, which share no parameter.
        reduction: over a bag's instances, `mean` or `sum`.
        aggregation: the bag's probability from its p_n: `max`, `noisy-or` 1 − Π(1 − p_n), `top-k`
            (the mean of the largest), `linear-softmax` Σ p_n² / Σ p_n.
        top_k: how many `top-k` takes; a smaller bag gives all.
        class_weights: of a bag's terms, one a class.
        seed: not used: nothing is random in prediction.
    """

    family = "global"
    score_kind = "probability"
    binary = True
    weighed_term = "m_step"
    provenance = Provenance(
        paper="Yang, Jiao, Wu & Li, Variational multiple-instance learning with embedding "
        "correlation modeling for hyperspectral target detection, IEEE TNNLS 2024, "
        "https://ieeexplore.ieee.org/document/10803098",
        code="BoYangXDU/VMIL-ECM",
        licence="MIT",
        follows_paper="Instance labels are latent; E and M steps in turns by blocks of epochs.",
        follows_code="Both branches, the objectives, γ and the schedule, with layer norms after "
        "the sums (its figure shows them before). q's first layer is trained (the original's "
        "optimiser leaves it out), and weights are not chosen by instance labels.",
        fair="A reconstruction: one linear layer to 512 with ReLU in each branch, an MLP for the "
        "CNN, 2 layers of 8 heads, means over a bag's instances, the largest p_n as the bag's "
        "probability, two optimisers made one with parts that rest in turns.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        branch: Literal["mlp", "cnn"] = "mlp",
        embed: int = 512,
        activation: Literal["relu", "identity"] = "relu",
        dropout: float = 0.0,
        layers: int = 2,
        heads: int = 8,
        feedforward: int = 2048,
        gamma: float = 0.15,
        warmup: float = 0.25,
        warmup_block: int = 2,
        block: int = 5,
        alternate: Literal["epochs", "steps"] = "epochs",
        reduction: Literal["mean", "sum"] = "mean",
        aggregation: Aggregation = "max",
        top_k: int = 10,
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        _check_choice("branch", branch, ("mlp", "cnn"))
        _check_choice("alternate", alternate, ("epochs", "steps"))
        _check_choice("reduction", reduction, ("mean", "sum"))
        _check_choice("aggregation", aggregation, tuple(AGGREGATIONS))
        counts = {"layers": layers, "feedforward": feedforward, "top_k": top_k}
        for name, value in {**counts, "warmup_block": warmup_block, "block": block}.items():
            if value < 1:
                raise InputError(f"{name} is {value}: at least 1")
        for name, value in {"gamma": gamma, "warmup": warmup, "dropout": dropout}.items():
            if not 0 <= value < 1:
                raise InputError(f"{name} is {value}: from 0 up to, not including, 1")
        self.gamma, self.reduction = gamma, reduction
        self.aggregation, self.top_k = aggregation, top_k
        self.warmup, self.warmup_block, self.block = warmup, warmup_block, block
        self.alternate = alternate
        self.turns: tuple[Turn, ...] = ("m",) if alternate == "epochs" else ("e", "m")
        self.warming = True

        first: Embed | SpectralCNN
        if branch == "cnn":
            first = SpectralCNN(in_dim)
        else:
            first = Embed(in_dim, embed, activation=activation, dropout=dropout)
        self.p_branch = nn.Sequential(first, nn.Linear(first.out_dim, embed), nn.ReLU())
        self.p_head = nn.Linear(embed, 1)
        self.q_embed = Embed(in_dim, embed, activation=activation, dropout=dropout)
        self.q_layers = nn.ModuleList(
            PostNormLayer(embed, heads=heads, hidden=feedforward, dropout=dropout)
            for _ in range(layers)
        )
        self.q_head = nn.Linear(embed, 1)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        number = epoch + 1
        # as long as M, then the first E epochs last: pseudo-labels of an untrained q are noise
        warmup = max(round(self.warmup * epochs), self.warmup_block + 1)
        self.warming = number <= warmup
        if self.alternate == "epochs":
            turn = schedule(number, warmup, warmup_block=self.warmup_block, block=self.block)
            self.turns = (turn,)

    def forward(
        self,
        bags: Bags,
        *,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Output:
        del noise, generator  # nothing is drawn
        gradients = torch.is_grad_enabled()
        with torch.set_grad_enabled(gradients and "m" in self.turns):
            p = _logit(self.p_head, self.p_branch(bags.x))
        extras = {"p_logit": p}
        if not self.training or "e" in self.turns or not self.warming:
            with torch.set_grad_enabled(gradients and "e" in self.turns):
                extras["q_logit"] = _logit(self.q_head, self.instances_in_context(bags))
            extras["q"] = extras["q_logit"].detach().sigmoid()
        logits = self.bag_logit(p, bags.sizes)
        return Output(
            logits=logits[:, None, None],
            attention=Dirac(p.detach().sigmoid()),
            likelihood=self.likelihood,
            extras=extras,
        )

    def instances_in_context(self, bags: Bags) -> Float[Tensor, "n d"]:
        """What q's head reads: each instance in sight of its bag."""
        y = self.q_embed(bags.x)
        for layer in self.q_layers:
            y = layer(y, bags.sizes)
        return y

    def bag_logit(
        self, p_logit: Float[Tensor, " n"], sizes: Sequence[int]
    ) -> Float[Tensor, " bags"]:
        """Log-odds of the bag's probability, from the log-odds of its instances'."""
        if self.aggregation == "top-k":
            rows = segment_topk(p_logit, sizes, k=self.top_k)
            return _of_mean(p_logit[torch.cat(rows)], [len(r) for r in rows])
        return AGGREGATIONS[self.aggregation](p_logit, sizes)

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """`e_step`, `m_step` or both, by what `start_epoch` said."""
        p, q = out.extras["p_logit"], out.extras.get("q_logit")
        y = self.labels(bags).to(p.dtype)
        label = y[bags.bag]
        terms: dict[str, Tensor] = {}
        if "e" in self.turns:
            assert q is not None, "an E step computes q"
            terms["e_step"] = _cross_entropy(q, label * p.detach().sigmoid())
        if "m" in self.turns:
            target = label
            if not self.warming:
                assert q is not None, "an M step after the warm-up computes q"
                target = label * self.marked(q.detach().sigmoid(), bags)
            terms["m_step"] = _cross_entropy(p, target)
        reduce = segment_mean if self.reduction == "mean" else segment_sum
        weights = self.likelihood.class_weights
        by_bag = 1.0 if weights is None else weights.to(p.dtype)[y.long()]
        return {k: (reduce(v, bags.sizes) * by_bag).mean() for k, v in terms.items()}

    def marked(self, q: Float[Tensor, " n"], bags: Bags) -> Bool[Tensor, " n"]:
        """q_n > τ: what an M step takes as positive in a positive bag; none where all q are one."""
        return q > threshold(q, bags.sizes, gamma=self.gamma)[bags.bag]


def schedule(epoch: int, warmup: int, *, warmup_block: int = 2, block: int = 5) -> Turn:
    """The step of an epoch, counted from 1: M, then a change wherever a block's length divides."""
    changes = min(epoch, warmup) // warmup_block
    if epoch > warmup:
        changes += epoch // block - warmup // block
    return "e" if changes % 2 else "m"


def threshold(
    q: Float[Tensor, " n"], sizes: Sequence[int], *, gamma: float
) -> Float[Tensor, " bags"]:
    """τ = min q + γ (max q − min q) of each bag."""
    low, high = -segment_max(-q, sizes), segment_max(q, sizes)
    return low + gamma * (high - low)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}: one of {', '.join(known)}")


def _logit(head: nn.Linear, h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The head in full precision, also under autocast: log-odds rounded to 8 bits would tie."""
    with torch.autocast(h.device.type, enabled=False):
        return head(h.to(head.weight.dtype))[:, 0]


def _cross_entropy(logit: Float[Tensor, " n"], target: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return F.softplus(logit) - target * logit


def _of_any(logit: Float[Tensor, " n"], sizes: Sequence[int]) -> Float[Tensor, " bags"]:
    """1 − Π(1 − p_n) = 1 − e^{−A} with A = Σ log(1 + e^ℓ_n), so its log-odds are log(e^A − 1)."""
    a = segment_sum(F.softplus(logit), sizes).clamp_min(torch.finfo(logit.dtype).tiny)
    return a + (-torch.expm1(-a)).log()


def _of_mean(logit: Float[Tensor, " n"], sizes: Sequence[int]) -> Float[Tensor, " bags"]:
    """log Σ p_n − log Σ (1 − p_n)."""
    return segment_logsumexp(F.logsigmoid(logit), sizes) - segment_logsumexp(
        F.logsigmoid(-logit), sizes
    )


def _linear_softmax(logit: Float[Tensor, " n"], sizes: Sequence[int]) -> Float[Tensor, " bags"]:
    """log Σ p_n² − log Σ p_n (1 − p_n): the denominators cancel."""
    log_p, log_rest = F.logsigmoid(logit), F.logsigmoid(-logit)
    return segment_logsumexp(2 * log_p, sizes) - segment_logsumexp(log_p + log_rest, sizes)


AGGREGATIONS = {
    "max": segment_max,
    "noisy-or": _of_any,
    "top-k": _of_mean,
    "linear-softmax": _linear_softmax,
}
LAYER = r"transformer_encoder\.layers\.(\d+)\."
NAMES = [
    (r"encoder_layer\.", None),  # never used
    (r"fe_1dcnn\.(\d)\.", r"p_branch.0.net.\1."),
    (r"fe_fc\.0\.", "p_branch.1."),
    (r"inst_classifier\.0\.", "p_head."),
    (r"trans_dim\.0\.", "q_embed.net.0."),
    (LAYER + r"self_attn\.in_proj_", r"q_layers.\1.attention.qkv."),
    (LAYER + r"self_attn\.out_proj\.", r"q_layers.\1.attention.out."),
    (LAYER + r"linear1\.", r"q_layers.\1.feed.first."),
    (LAYER + r"linear2\.", r"q_layers.\1.feed.second."),
    (LAYER + "norm", r"q_layers.\1.norm"),
    (r"bag_classifier\.0\.", "q_head."),
]


@original("vmil")
def _vmil(reference: str, state: State, arguments: dict[str, Any]) -> Model:
    """Without the template that the transformer's layers were copied from."""
    del reference
    first = part(state, "trans_dim.0.weight", of="VMIL")
    hidden = part(state, "transformer_encoder.layers.0.linear1.weight", of="VMIL")
    model = build(
        "vmil",
        preset="original",
        in_dim=first.shape[1],
        embed=first.shape[0],
        layers=sum(k.endswith(".norm1.weight") for k in state if k.startswith("transformer_")),
        feedforward=hidden.shape[0],
        gamma=float(arguments.get("_gamma", 0.15)),
    )
    return transplant(model, state, NAMES)
