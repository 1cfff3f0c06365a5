"""Stage 6: the likelihood p(Y | X, f) of a bag's label, given its logits."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError


class Likelihood(nn.Module, ABC):
    """The likelihood of one label per bag, given the logits of each posterior sample.

    Args:
        class_weights: One weight per class, which multiplies the log-likelihood of its bags (see
            `balanced_weights`); None for no weights.
    """

    class_weights: Tensor | None
    shared_buffers: ClassVar[tuple[str, ...]] = ("class_weights",)
    """Buffers that all models of a stack share, since they follow from the data."""

    def __init__(self, *, class_weights: tuple[float, ...] | None = None) -> None:
        super().__init__()
        w = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", w)

    @abstractmethod
    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        """Return −E_q[log p(Y | X, f)]: the samples' mean loss, not the loss of their mean."""

    @abstractmethod
    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        """Return p(Y = c) of each sample; for one logit, p(Y = 1)."""

    def _weigh(self, nll: Tensor, y: Tensor) -> Tensor:
        return nll if self.class_weights is None else nll * self.class_weights[y.long()]


class Bernoulli(Likelihood):
    """One logit ℓ: p(Y = 1) = σ(ℓ)."""

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        ell = logits[..., 0].float() if logits.dtype == torch.bfloat16 else logits[..., 0]
        # The binary cross-entropy log(1 + e^ℓ) − yℓ, in a form that is stable for any ℓ.
        loss = F.softplus(ell) - y.to(ell.dtype)[:, None] * ell
        return self._weigh(loss.mean(1), y)

    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        return logits.sigmoid()


class Categorical(Likelihood):
    """C logits: p(Y = c) = softmax(ℓ)_c."""

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        target = y.long()[:, None].expand(logits.shape[:2])
        loss = F.cross_entropy(logits.movedim(-1, 1), target, reduction="none")
        return self._weigh(loss.mean(1), y)

    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        return logits.softmax(-1)


class Independent(Likelihood):
    """C logits of independent binary labels: p(class c is present) = σ(ℓ_c).

    The probabilities need not sum to 1. The loss is the mean of the classes' binary
    cross-entropies. A label y < C means that only class y is present, y = C that no class is.
    """

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        ell = logits.float() if logits.dtype == torch.bfloat16 else logits
        present = y.long()[:, None] == torch.arange(ell.shape[2], device=ell.device)
        loss = F.softplus(ell) - present.to(ell.dtype)[:, None] * ell
        return self._weigh(loss.mean((1, 2)), y)

    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        return logits.sigmoid()

    def _weigh(self, nll: Tensor, y: Tensor) -> Tensor:
        if self.class_weights is None:
            return nll
        with_none = torch.cat([self.class_weights, self.class_weights.new_ones(1)])
        return nll * with_none[y.long()]


def likelihood_of(n_classes: int, *, class_weights: tuple[float, ...] | None = None) -> Likelihood:
    """Return a Bernoulli likelihood for one logit, a Categorical one for two or more."""
    if n_classes < 1:
        raise InputError(f"n_classes is {n_classes}: give 1 (one logit) or the number of classes")
    kind = Bernoulli if n_classes == 1 else Categorical
    return kind(class_weights=class_weights)


def balanced_weights(y: Int[Tensor, " bags"], n_classes: int) -> tuple[float, ...]:
    """Return weights w_c = n / (C n_c).

    Their mean over the bags is 1, so L_LL keeps its scale relative to λ L_KL.

    Raises:
        InputError: If a class has no bag.
    """
    classes = max(n_classes, 2)
    counts = torch.bincount(y.long(), minlength=classes)
    if bool((counts == 0).any()):
        missing = (counts == 0).nonzero().flatten().tolist()
        raise InputError(
            f"class weights need a bag of every class; there is none of class {missing}"
        )
    return tuple((len(y) / (classes * counts)).tolist())
