"""The likelihood of several findings per bag, each present, absent or not known."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .likelihoods import Likelihood, in_float32, mean_of_logs


class Findings(Likelihood):
    """C logits: finding c is present with probability σ(ℓ_c), independently given f.

    A bag's loss is the mean over the findings that are known of it, so that a bag counts the same
    however much is known. A cell that is NaN has no loss and no gradient.

    Args:
        positive_weights: weight of the positive bags of each finding; None for 1.
    """

    task = "multilabel"
    positive_weights: Tensor | None

    def __init__(self, *, positive_weights: Sequence[float] | None = None) -> None:
        super().__init__()
        w = None if positive_weights is None else torch.tensor(positive_weights)
        self.register_buffer("positive_weights", w)

    def nll(
        self, logits: Float[Tensor, "bags samples findings"], y: Float[Tensor, "bags findings"]
    ) -> Float[Tensor, " bags"]:
        known = y.isfinite()
        return _mean_of_known(self._losses(in_float32(logits), y).mean(1), known)

    def predictive_nll(
        self, logits: Float[Tensor, "bags samples findings"], y: Float[Tensor, "bags findings"]
    ) -> Float[Tensor, " bags"]:
        losses = self._losses(logits.double(), y, weighted=False)
        of_mean = torch.stack([-mean_of_logs(-one) for one in losses.unbind(2)], 1)
        return _mean_of_known(of_mean, y.isfinite())

    def probability(
        self, logits: Float[Tensor, "*batch findings"]
    ) -> Float[Tensor, "*batch findings"]:
        return self._moved(logits).sigmoid()

    def _losses(
        self,
        ell: Float[Tensor, "bags samples findings"],
        y: Float[Tensor, "bags findings"],
        *,
        weighted: bool = True,
    ) -> Float[Tensor, "bags samples findings"]:
        target = y.nan_to_num(0.0).to(ell.dtype)[:, None, :]
        positive, negative = F.softplus(-ell), F.softplus(ell)
        if weighted and self.positive_weights is not None:
            positive = positive * self.positive_weights.to(ell.dtype)
        return target * positive + (1 - target) * negative


def _mean_of_known(
    losses: Float[Tensor, "bags findings"], known: Bool[Tensor, "bags findings"]
) -> Float[Tensor, " bags"]:
    counted = torch.where(known, losses, torch.zeros_like(losses))
    return counted.sum(1) / known.sum(1).clamp_min(1)
