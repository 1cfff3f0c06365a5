"""Stage 6: p(Y | X, f): how a bag's label follows from its logits."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError


class Likelihood(nn.Module, ABC):
    """One label a bag, given logits for each posterior sample.

    `class_weights` w_c multiply the log-likelihood of bags of class c (see `balanced_weights`).
    """

    class_weights: Tensor | None

    def __init__(self, *, class_weights: tuple[float, ...] | None = None) -> None:
        super().__init__()
        w = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", w)

    @abstractmethod
    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        """−E_q[log p(Y | X, f)]: the mean over samples of losses, not the loss of a mean."""

    @abstractmethod
    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        """p(Y = c) of each sample; for one logit, p(Y = 1)."""

    def _weigh(self, nll: Tensor, y: Tensor) -> Tensor:
        return nll if self.class_weights is None else nll * self.class_weights[y.long()]


class Bernoulli(Likelihood):
    """One logit ℓ: p(Y = 1) = σ(ℓ)."""

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        ell = logits[..., 0].float() if logits.dtype == torch.bfloat16 else logits[..., 0]
        # log(1 + e^ℓ) − yℓ: the binary cross-entropy, stable for any ℓ
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
    """C logits, a yes or no each: p(class c is there) = σ(ℓ_c). Probabilities need not sum to 1.

    The loss is the mean over classes of binary cross-entropies. A label y < C says that class y is
    there and no other; y = C says that none is.
    """

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        ell = logits.float() if logits.dtype == torch.bfloat16 else logits
        there = y.long()[:, None] == torch.arange(ell.shape[2], device=ell.device)
        loss = F.softplus(ell) - there.to(ell.dtype)[:, None] * ell
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
    """Bernoulli for one logit, Categorical for two and more."""
    if n_classes < 1:
        raise InputError(f"n_classes is {n_classes}: give 1 (one logit) or the number of classes")
    kind = Bernoulli if n_classes == 1 else Categorical
    return kind(class_weights=class_weights)


def balanced_weights(y: Int[Tensor, " bags"], n_classes: int) -> tuple[float, ...]:
    """w_c = n / (C n_c): mean weight 1 over the bags, so L_LL keeps its scale against λ L_KL.

    Raises:
        InputError: a class has no bag.
    """
    classes = max(n_classes, 2)
    counts = torch.bincount(y.long(), minlength=classes)
    if bool((counts == 0).any()):
        missing = (counts == 0).nonzero().flatten().tolist()
        raise InputError(f"class weights need a bag of every class; none of class {missing}")
    return tuple((len(y) / (classes * counts)).tolist())
