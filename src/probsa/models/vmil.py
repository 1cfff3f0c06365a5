"""VMIL: variational MIL with embedding correlation modelling (Yang et al., IEEE TNNLS 2024).

The instance labels z are latent: a classifier p(z | x) of single instances and a posterior
q(z | bag) with a transformer over the bag are trained alternately (E and M epochs). It follows the
authors' code; the bag's probability, and features instead of spectra, are our reconstruction.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..core import (
    Bags,
    ClassCount,
    FeatureCount,
    HeadCount,
    NonNegativeFloat,
    Rate,
    Seed,
    Sizes,
    StepCount,
    Width,
    segment_max,
    segment_mean,
    segment_sum,
    without_autocast,
)
from ..layers import Embed, PostNormLayer
from ..variational import Dirac
from ._base import Model, Output, Provenance
from ._registry import register

WARMUP_BLOCK = 2
"""Number of epochs between changes of the step in the warm-up."""
BLOCK = 5
"""Number of epochs between changes of the step after the warm-up."""


@register("vmil", original={"embed": 256, "layers": 5, "feedforward": 64, "reduction": "sum"})
class VMIL(Model):
    """Instance labels by expectation-maximisation; no loss uses the bag's own probability.

    With p_n = σ(p-branch(x_n)), q_n = σ(q-branch(X)_n), the bag's label Y and the stop-gradient sg:

        E epochs   `e_step`  BCE(q_n, Y sg[p_n])
        M epochs   `m_step`  BCE(p_n, Y) in the warm-up,  then  BCE(p_n, Y·1[sg[q_n] > τ]),
                             τ = min q + γ (max q − min q) of the bag

    Training starts with M. The step changes at every epoch, counted from 1, that is divisible by 2
    in the warm-up, by 5 after it. Before the first `start_epoch`, it is M in the warm-up.

    Extras: `p_logit`, and `q_logit` and `q` (in training only if the step reads them).

    If few instances of a positive bag are positive, γ = 0.15 marks most of them, and training can
    end with the same prediction for every bag; check `val_auroc` and the notes of the training.

    Args:
        embed: width of both branches, which have separate first layers, so that an E step leaves p
            unchanged and an M step q.
        dropout: dropout rate after those layers and in the transformer.
        layers: number of transformer layers of q, with layer norms after the sums.
        heads: number of attention heads per layer.
        feedforward: hidden width of each layer.
        gamma: position γ of the threshold τ.
        warmup: fraction of the epochs in the warm-up, which always lasts until q has been trained.
        reduction: reduction over a bag's instances.
    """

    family = "global"
    score_kind = "probability"
    binary = True
    weighted_term = "m_step"
    needs_classes = True
    provenance = Provenance(
        paper="Yang, Jiao, Wu & Li, VMIL-ECM, IEEE TNNLS 2024, "
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
        in_dim: FeatureCount,
        n_classes: ClassCount = 1,
        embed: Width = 512,
        dropout: Rate = 0.0,
        layers: StepCount = 2,
        heads: HeadCount = 8,
        feedforward: Width = 2048,
        gamma: Rate = 0.15,
        warmup: Rate = 0.25,
        reduction: Literal["mean", "sum"] = "mean",
        class_weights: tuple[NonNegativeFloat, ...] | None = None,
        seed: Seed = 0,
    ) -> None:
        super().__init__(n_classes=n_classes, class_weights=class_weights, seed=seed)
        self.gamma = gamma
        self.reduction = reduction
        self.warmup = warmup
        self.step = "m"
        self.warming = True

        first = Embed(in_dim, embed, dropout=dropout)
        self.p_branch = nn.Sequential(first, nn.Linear(first.out_dim, embed), nn.ReLU())
        self.p_head = nn.Linear(embed, 1)
        self.q_embed = Embed(in_dim, embed, dropout=dropout)
        self.q_layers = nn.ModuleList(
            PostNormLayer(embed, heads=heads, hidden=feedforward, dropout=dropout)
            for _ in range(layers)
        )
        self.q_head = nn.Linear(embed, 1)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        number = epoch + 1
        # covers the first M and E epochs: pseudo-labels of an untrained q are noise
        warmup = max(round(self.warmup * epochs), WARMUP_BLOCK + 1)
        self.warming = number <= warmup
        self.step = schedule(number, warmup)

    def forward(self, bags: Bags, **unused: object) -> Output:
        del unused  # the model is deterministic
        gradients = torch.is_grad_enabled()
        with torch.set_grad_enabled(gradients and self.step == "m"):
            p = _logit(self.p_head, self.p_branch(bags.x))
        extras = {"p_logit": p}
        if not self.training or self.step == "e" or not self.warming:
            with torch.set_grad_enabled(gradients and self.step == "e"):
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
        """Return `e_step` or `m_step`, as `start_epoch` determined."""
        y = self.labels(bags).to(out.logits.dtype)
        target = y[bags.bag]
        if self.step == "e":
            # q learns p's probabilities, in positive bags
            logit = out.extras["q_logit"]
            target = target * out.extras["p_logit"].detach().sigmoid()
        else:
            logit = out.extras["p_logit"]
            if not self.warming:
                # after the warm-up, only instances above τ are positive
                q = out.extras["q"]
                tau = threshold(q, bags.sizes, gamma=self.gamma)[bags.bag]
                target = target * (q > tau)
        cross_entropy = F.softplus(logit) - target * logit
        reduce = segment_mean if self.reduction == "mean" else segment_sum
        terms = reduce(cross_entropy, bags.sizes)
        weights = self.likelihood.class_weights
        if weights is not None:
            terms = terms * weights.to(y.dtype)[y.long()]
        return {f"{self.step}_step": terms.mean()}


def schedule(epoch: int, warmup: int) -> Literal["e", "m"]:
    """Return the step of an epoch (from 1): M first, then changes at multiples of the block."""
    changes = min(epoch, warmup) // WARMUP_BLOCK
    if epoch > warmup:
        changes += epoch // BLOCK - warmup // BLOCK
    return "e" if changes % 2 else "m"


def threshold(q: Float[Tensor, " n"], sizes: Sizes, *, gamma: float) -> Float[Tensor, " bags"]:
    """Return τ = min q + γ (max q − min q) of each bag."""
    low = -segment_max(-q, sizes)
    high = segment_max(q, sizes)
    return low + gamma * (high - low)


def _logit(head: nn.Linear, h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Apply the head in full precision: log-odds rounded to 8 bits would tie."""
    with without_autocast(h):
        return head(h.to(head.weight.dtype))[:, 0]
