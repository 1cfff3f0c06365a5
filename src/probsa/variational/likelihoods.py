"""Stage 6: the likelihood p(Y | X, f) of a bag's label, given its logits.

The other tasks than classes have modules of their own; `likelihood_spec` chooses among them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core import TaskName
from ..errors import InputError


@dataclass(frozen=True, slots=True)
class Predictive:
    """The prediction of each bag, and its standard deviation over posterior samples."""

    values: Float[Tensor, "bags outputs"]
    """Functionals of the mean over samples of the predictive distributions."""
    spread: Float[Tensor, "bags outputs"]
    """The standard deviation over samples of what each sample predicts; 0 for one sample."""


class Likelihood(nn.Module, ABC):
    """The likelihood of the target of each bag, given the logits of each posterior sample.

    Args:
        class_weights: One weight per class, which multiplies the log-likelihood of its bags (see
            `balanced_weights`); None for no weights.
    """

    task: TaskName
    """What is predicted."""
    of_classes: ClassVar[bool] = False
    """Whether each bag has one of several classes without an order, so that their number alone
    determines the likelihood."""
    couples_bags: ClassVar[bool] = False
    """Whether the loss of a bag depends on the other bags of its batch."""
    class_weights: Tensor | None
    prior_shift: Tensor | None = None
    """What is added to the logits of classes in `probability`, not in the loss: it moves the
    probabilities from the shares of classes in training to others."""

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
        """Return p(Y = c) of each sample; for one logit, p(Y = 1).

        For other tasks than classes, the response that explanations differ, one value per logit.
        """

    def at_least(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch steps"] | None:
        """Return P(Y ≥ k) of each sample for k = 1 … K; None where the target has no grades."""
        del logits
        return None

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns of `predict`.

        Args:
            classes: names of the classes or findings.
        """
        return tuple(classes)

    def predict(self, logits: Float[Tensor, "bags samples columns"]) -> Predictive:
        """Return the mean over samples of the predictive distributions, and their spread."""
        p = self.probability(logits)
        return Predictive(p.mean(1), p.std(1, correction=0))

    def score(
        self, logits: Float[Tensor, "bags samples columns"], y: Tensor
    ) -> dict[str, Float[Tensor, " bags"]]:
        """Return scores of the prediction that need all of its distribution."""
        return {"nll": self.predictive_nll(logits, y)}

    def predictive_nll(
        self, logits: Float[Tensor, "bags samples columns"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        """Return −log of the mean over samples of p(y), at most the term of the ELBO."""
        return -mean_of_logs(-self.sampled_nll(logits, y))

    def sampled_nll(
        self, logits: Float[Tensor, "bags samples columns"], y: Tensor
    ) -> Float[Tensor, "bags samples"]:
        """Return −log p(y) of each sample, in double precision for scores.

        Each sample counts as a bag of its own, so bags must not be coupled.
        """
        bags, samples, columns = logits.shape
        each = logits.double().reshape(bags * samples, 1, columns)
        return self.nll(each, y.repeat_interleave(samples, 0)).view(bags, samples)

    def _moved(self, logits: Tensor) -> Tensor:
        return logits if self.prior_shift is None else logits + self.prior_shift.to(logits)

    def _weigh(self, nll: Tensor, y: Tensor) -> Tensor:
        return nll if self.class_weights is None else nll * self.class_weights[y.long()]


def mean_of_logs(log_p: Float[Tensor, "bags samples"]) -> Float[Tensor, " bags"]:
    """Return the logarithm of the mean over samples of p."""
    return log_p.logsumexp(1) - math.log(log_p.shape[1])


def in_float32(logits: Tensor) -> Tensor:
    """Return logits of half precision in float32, in which losses are computed."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


class Bernoulli(Likelihood):
    """One logit ℓ: p(Y = 1) = σ(ℓ)."""

    task = "binary"
    of_classes = True

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
        return self._moved(logits).sigmoid()


class Categorical(Likelihood):
    """C logits: p(Y = c) = softmax(ℓ)_c."""

    task = "multiclass"
    of_classes = True

    def nll(
        self, logits: Float[Tensor, "bags samples classes"], y: Tensor
    ) -> Float[Tensor, " bags"]:
        target = y.long()[:, None].expand(logits.shape[:2])
        loss = F.cross_entropy(logits.movedim(-1, 1), target, reduction="none")
        return self._weigh(loss.mean(1), y)

    def probability(
        self, logits: Float[Tensor, "*batch classes"]
    ) -> Float[Tensor, "*batch classes"]:
        return self._moved(logits).softmax(-1)


class Independent(Likelihood):
    """C logits of independent binary labels: p(class c is present) = σ(ℓ_c).

    The probabilities need not sum to 1. The loss is the mean of the classes' binary
    cross-entropies. A label y < C means that only class y is present, y = C that no class is.
    """

    task = "multiclass"
    of_classes = True

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
