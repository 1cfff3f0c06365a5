"""VMIL: variational MIL with embedding correlation modelling (Yang et al., IEEE TNNLS 2024).

The instance labels z are latent: a classifier p(z | x) of single instances and a posterior
q(z | bag) with a transformer over the bag are trained alternately (E and M epochs). It follows the
authors' code; the bag's probability, and features instead of spectra, are our reconstruction.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..core import (
    Bags,
    PositiveInt,
    Rate,
    segment_max,
    segment_mean,
    segment_sum,
)
from ..layers import Embed, PostNormLayer
from ..variational import Dirac
from ._base import Model, Output, Provenance
from ._registry import register

Turn = Literal["e", "m"]


@register(
    "vmil",
    original={
        "embed": 256,
        "layers": 5,
        "feedforward": 64,
        "reduction": "sum",
    },
)
class VMIL(Model):
    """Instance labels by expectation-maximisation; no loss uses the bag's own probability.

    With p_n = σ(p-branch(x_n)), q_n = σ(q-branch(X)_n), the bag's label Y and the stop-gradient sg:

        E epochs   `e_step`  BCE(q_n, Y sg[p_n])
        M epochs   `m_step`  BCE(p_n, Y) in the warm-up,  then  BCE(p_n, Y·1[sg[q_n] > τ]),
                             τ = min q + γ (max q − min q) of the bag

    Training starts with M. The step changes at every epoch, counted from 1, that is divisible by
    `warmup_block`, or by `block` after the warm-up. Before the first `start_epoch`, it is M in the
    warm-up.

    Extras: `p_logit`, and `q_logit` and `q` (in training only if the step reads them).

    If few instances of a positive bag are positive, γ = 0.15 marks most of them, and training can
    end with the same prediction for every bag; check `val_auroc` and the notes of the training.

    Args:
        embed: width of both branches, which have separate first layers, so that an E step leaves p
            unchanged and an M step q.
        activation: activation after q's first layer and after p's.
        dropout: dropout rate after those layers and in the transformer.
        layers: number of transformer layers of q, with layer norms after the sums.
        heads: number of attention heads per layer.
        feedforward: hidden width of each layer.
        gamma: position γ of the threshold τ.
        warmup: fraction of the epochs in the warm-up, which always lasts until q has been trained.
        warmup_block: number of epochs between changes of the step in the warm-up.
        block: number of epochs between changes of the step after the warm-up.
        alternate: whether E and M alternate by `epochs`, or each of the `steps` takes both.
        reduction: reduction over a bag's instances.
    """

    family = "global"
    score_kind = "probability"
    binary = True
    weighted_term = "m_step"
    needs_classes = True
    provenance = Provenance(
        paper="Yang, Jiao, Wu & Li, Variational multiple-instance learning with embedding "
        "correlation modeling for hyperspectral target detection, IEEE TNNLS 2024, "
        "https://ieeexplore.ieee.org/document/10803098",
        code="BoYangXDU/VMIL-ECM",
        licence="MIT",
        follows_paper="Latent instance labels; E and M steps alternate in blocks of epochs.",
        follows_code="Both branches, the objectives, γ and the schedule, with layer norms after "
        "the sums (its figure shows them before). q's first layer is trained (the original's "
        "optimiser omits it), and instance labels do not select the weights.",
        fair="A reconstruction: one linear layer to 512 with ReLU in each branch, an MLP instead "
        "of the CNN, 2 layers of 8 heads, means over a bag's instances, the largest p_n as the "
        "bag's probability, one optimiser whose parts alternate instead of two.",
    )

    def __init__(
        self,
        *,
        in_dim: int,
        n_classes: int = 1,
        embed: int = 512,
        activation: Literal["relu", "identity"] = "relu",
        dropout: Rate = 0.0,
        layers: PositiveInt = 2,
        heads: int = 8,
        feedforward: PositiveInt = 2048,
        gamma: Rate = 0.15,
        warmup: Rate = 0.25,
        warmup_block: PositiveInt = 2,
        block: PositiveInt = 5,
        alternate: Literal["epochs", "steps"] = "epochs",
        reduction: Literal["mean", "sum"] = "mean",
        class_weights: tuple[float, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.gamma, self.reduction = gamma, reduction
        self.warmup, self.warmup_block, self.block = warmup, warmup_block, block
        self.alternate = alternate
        self.turns: tuple[Turn, ...] = ("m",) if alternate == "epochs" else ("e", "m")
        self.warming = True

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
        # covers the first M and E epochs: pseudo-labels of an untrained q are noise
        warmup = max(round(self.warmup * epochs), self.warmup_block + 1)
        self.warming = number <= warmup
        if self.alternate == "epochs":
            turn = schedule(number, warmup, warmup_block=self.warmup_block, block=self.block)
            self.turns = (turn,)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        gradients = torch.is_grad_enabled()
        with torch.set_grad_enabled(gradients and "m" in self.turns):
            p = _logit(self.p_head, self.p_branch(bags.x))
        extras = {"p_logit": p}
        if not self.training or "e" in self.turns or not self.warming:
            with torch.set_grad_enabled(gradients and "e" in self.turns):
                extras["q_logit"] = _logit(self.q_head, self.instances_in_context(bags))
            extras["q"] = extras["q_logit"].detach().sigmoid()
        logits = segment_max(p, bags.sizes)  # the log-odds of the largest p_n
        return Output(
            logits=logits[:, None, None],
            attention=Dirac(p.detach().sigmoid()),
            likelihood=self.likelihood,
            extras=extras,
        )

    def instances_in_context(self, bags: Bags) -> Float[Tensor, "n d"]:
        """Return the contextualised instance vectors, the input of q's head."""
        y = self.q_embed(bags.x)
        for layer in self.q_layers:
            y = layer(y, bags.sizes)
        return y

    def losses(self, out: Output, bags: Bags) -> dict[str, Tensor]:
        """Return `e_step`, `m_step` or both, as `start_epoch` determined."""
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
        """Return q_n > τ, the positives of an M step in a positive bag; none if all q are equal."""
        return q > threshold(q, bags.sizes, gamma=self.gamma)[bags.bag]


def schedule(epoch: int, warmup: int, *, warmup_block: int = 2, block: int = 5) -> Turn:
    """Return the step of an epoch (from 1): M first, then changes at multiples of the block."""
    changes = min(epoch, warmup) // warmup_block
    if epoch > warmup:
        changes += epoch // block - warmup // block
    return "e" if changes % 2 else "m"


def threshold(
    q: Float[Tensor, " n"], sizes: Sequence[int], *, gamma: float
) -> Float[Tensor, " bags"]:
    """Return τ = min q + γ (max q − min q) of each bag."""
    low, high = -segment_max(-q, sizes), segment_max(q, sizes)
    return low + gamma * (high - low)


def _logit(head: nn.Linear, h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Apply the head in full precision: log-odds rounded to 8 bits would tie."""
    with torch.autocast(h.device.type, enabled=False):
        return head(h.to(head.weight.dtype))[:, 0]


def _cross_entropy(logit: Float[Tensor, " n"], target: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return F.softplus(logit) - target * logit
