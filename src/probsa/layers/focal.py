"""The focal loss (Lin et al., ICCV 2017, arXiv:1708.02002), as in SETMIL's configuration.

It gives a small weight to bags that are already classified well. Unlike in Lin et al., α is the
weight of class 0, and all other classes have 1 − α.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core import check_value
from ..errors import InputError
from ..variational import Likelihood, likelihood_of


def focal_loss(
    scores: Float[Tensor, "m classes"], y: Int[Tensor, " m"], *, alpha: float, gamma: float
) -> Float[Tensor, " m"]:
    """Return −α_y (1 − p_y)^γ log p_y with p = softmax(s), α_0 = α and α_c = 1 − α otherwise."""
    s = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    log_p = s.log_softmax(1).gather(1, y[:, None])[:, 0]
    # At p = 1, the derivative of a power below 1 would be infinite.
    off = (-log_p.expm1()).clamp_min(torch.finfo(s.dtype).tiny)
    weight = torch.where(y == 0, alpha, 1 - alpha).to(s.dtype)
    return -weight * off.pow(gamma) * log_p


class Focal(Likelihood):
    """The focal loss in place of −log p(Y | X, f). One logit ℓ stands for the scores 0 and ℓ.

    Raises:
        InputError: If α is outside [0, 1], or γ is negative or infinite.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        alpha: float,
        gamma: float,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(class_weights=class_weights)
        if not 0 <= alpha <= 1 or not 0 <= gamma < math.inf:
            raise InputError(
                f"focal is ({alpha}, {gamma}); expected a weight from 0 to 1, and a power >= 0"
            )
        self.plain = likelihood_of(n_classes)
        self.task = self.plain.task
        self.alpha, self.gamma = alpha, gamma

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        if logits.shape[2] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 2)
        target = y.long()[:, None].expand(logits.shape[:2])
        loss = focal_loss(
            logits.flatten(0, 1), target.flatten(), alpha=self.alpha, gamma=self.gamma
        )
        return self._weigh(loss.view(target.shape).mean(1), y)

    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        return self.plain.probability(logits)


def bag_loss(
    loss: Literal["ce", "focal"],
    n_classes: int,
    *,
    focal: tuple[float, float],
    class_weights: tuple[float, ...] | None = None,
) -> Likelihood:
    """Return the usual likelihood, or the focal loss with these α and γ.

    Raises:
        InputError: If the name is unknown, or `Focal` rejects the numbers.
    """
    check_value("loss", loss, Literal["ce", "focal"])
    alpha, gamma = focal
    other = Focal(n_classes, alpha=alpha, gamma=gamma, class_weights=class_weights)
    return other if loss == "focal" else likelihood_of(n_classes, class_weights=class_weights)
