"""What all likelihoods share, and those of classes, of findings and of ordered grades."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core import TaskName, as_record
from ...errors import InputError
from ..options import LikelihoodOptions

Logits = Float[Tensor, "bags samples columns"]
Columns = Float[Tensor, "*batch columns"]
PerBag = Float[Tensor, " bags"]
PerSample = Float[Tensor, "bags samples"]

ADVICE = "train the run again, with this version of probsa"
GAP = 1e-4
"""Smallest distance between two thresholds of grades."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LikelihoodSpec:
    """The likelihood of a target that is not a class, in plain values that a checkpoint states."""

    task: TaskName
    n_classes: int = 0
    """Number of grades or findings."""
    one_logit: bool = False
    """Whether the model gives one logit where several could be used."""
    kind: Literal["", "cumulative", "hazards", "cox"] = ""
    """Which likelihood, for tasks that have several."""
    starts: tuple[float, ...] = ()
    """Initial values, rising: θ of a cumulative link, or the biases of hazards with one logit."""
    noise: Literal["learned", "heteroscedastic"] | float = "learned"
    """`learned` (one variance for all bags), `heteroscedastic` (of each bag, from a second logit),
    or a standard deviation in the user's unit (after the transform, if any)."""
    transform: Literal["none", "log1p"] = "none"
    shift: float = 0.0
    """Mean of the training targets, after the transform."""
    scale: float = 1.0
    """Their standard deviation."""
    times: tuple[float, ...] = ()
    """Ends of the intervals of hazards, or the times at which a Cox model predicts; rising."""
    hazard: tuple[float, ...] = ()
    """The Nelson–Aalen estimate at the times of a Cox model."""
    horizon: float | None = None
    """τ of the risk; None for the last of the times."""
    positive_weights: tuple[float, ...] | None = None
    """Weight of the positive bags of each finding; None for 1."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, from which `from_dict` makes the same specification."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LikelihoodSpec":
        """Return the specification from the values of `as_dict`.

        Raises:
            InputError: a key is unknown, or a value has another type.
        """
        unknown = sorted({*values} - {f.name for f in fields(cls)})
        if unknown:
            raise InputError(f"the likelihood has an unknown key {unknown[0]!r}: {ADVICE}")
        return as_record(cls, dict(values), where="the likelihood", advice=ADVICE)


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

    @staticmethod
    def n_logits(spec: LikelihoodSpec) -> int:
        """Return how many logits a model must give."""
        return 1

    @abstractmethod
    def sampled_nll(self, logits: Logits, y: Tensor) -> Float[Tensor, "bags samples *parts"]:
        """Return −log p(Y | X, f) of each sample, in the precision of the logits."""

    def probability(self, logits: Columns) -> Columns:
        """Return p(Y = c) of each sample, here of independent classes; for one logit, p(Y = 1).

        For other tasks than classes, the response that explanations differ.
        """
        return self._moved(logits).sigmoid()

    def nll(self, logits: Logits, y: Tensor) -> PerBag:
        """Return −E_q[log p(Y | X, f)]: the samples' mean loss, not the loss of their mean."""
        loss = self.sampled_nll(in_float32(logits), y).mean(1)
        if self.class_weights is None:
            return loss
        return loss * F.pad(self.class_weights, (0, 1), value=1.0)[y.long()]  # 1 for no class

    def predictive_nll(self, logits: Logits, y: Tensor) -> PerBag:
        """Return −log of the mean over samples of p(y), at most the term of the ELBO.

        It has no weights and is computed in double precision.
        """
        return -mean_of_logs(-self.sampled_nll(logits.double(), y))

    def score(self, logits: Logits, y: Tensor) -> dict[str, PerBag]:
        """Return scores of the prediction that need all of its distribution."""
        return {"nll": self.predictive_nll(logits, y)}

    def at_least(self, logits: Columns) -> Float[Tensor, "*batch steps"] | None:
        """Return P(Y ≥ k) of each sample for k = 1 … K; None where the target has no grades."""
        return None

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns of `predict`.

        Args:
            classes: names of the classes, grades or findings.
        """
        return tuple(classes)

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch outputs"]:
        """Return what each sample predicts, in the columns of `outputs`."""
        return self.probability(logits)

    def predict(self, logits: Logits) -> Predictive:
        """Return the mean over samples of the predictive distributions, and their spread."""
        each = self.sample_outputs(logits)
        return Predictive(each.mean(1), each.std(1, correction=0))

    def _moved(self, logits: Tensor) -> Tensor:
        return logits if self.prior_shift is None else logits + self.prior_shift.to(logits)


class Bernoulli(Likelihood):
    """One logit ℓ: p(Y = 1) = σ(ℓ)."""

    task = "binary"
    of_classes = True

    def sampled_nll(self, logits: Logits, y: Tensor) -> PerSample:
        return _binary_nll(logits[..., 0], y[:, None])


class Categorical(Likelihood):
    """C logits: p(Y = c) = softmax(ℓ)_c."""

    task = "multiclass"
    of_classes = True

    def sampled_nll(self, logits: Logits, y: Tensor) -> PerSample:
        target = y.long()[:, None].expand(logits.shape[:2])
        return F.cross_entropy(logits.movedim(-1, 1), target, reduction="none")

    def probability(self, logits: Columns) -> Columns:
        return self._moved(logits).softmax(-1)


class Independent(Likelihood):
    """C logits of independent binary labels: p(class c is present) = σ(ℓ_c).

    The probabilities need not sum to 1. The loss is the mean of the classes' binary
    cross-entropies. A label y < C means that only class y is present, y = C that no class is.
    """

    task = "multiclass"
    of_classes = True

    def sampled_nll(self, logits: Logits, y: Tensor) -> PerSample:
        present = y.long()[:, None] == torch.arange(logits.shape[2], device=logits.device)
        return _binary_nll(logits, present[:, None]).mean(2)


class Findings(Likelihood):
    """C logits: finding c is present with probability σ(ℓ_c), independently given f.

    A bag's loss is the mean over the findings that are known of it, so that a bag counts the same
    however much is known. A cell that is NaN has no loss and no gradient.
    """

    task = "multilabel"
    positive_weights: Tensor | None

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__()
        w = spec.positive_weights
        self.register_buffer("positive_weights", None if w is None else torch.tensor(w))

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        for k, finding in enumerate(y.unbind(1)):
            known = finding[finding.isfinite()]
            if len(known.unique()) < 2:
                what = "no bag" if not len(known) else f"only bags with {int(known[0])}"
                raise InputError(
                    f"finding {k} (counted from 0) has {what} in the training part: give bags with "
                    "and without it, or leave its column out"
                )
        return spec

    @staticmethod
    def n_logits(spec: LikelihoodSpec) -> int:
        return spec.n_classes

    def sampled_nll(
        self, logits: Logits, y: Float[Tensor, "bags findings"]
    ) -> Float[Tensor, "bags samples findings"]:
        return F.softplus(torch.where((y == 1)[:, None], -logits, logits))

    def nll(self, logits: Logits, y: Float[Tensor, "bags findings"]) -> PerBag:
        loss = self.sampled_nll(in_float32(logits), y).mean(1)
        if self.positive_weights is not None:
            loss = torch.where(y == 1, loss * self.positive_weights.to(loss.dtype), loss)
        return _mean_of_known(loss, y)

    def predictive_nll(self, logits: Logits, y: Float[Tensor, "bags findings"]) -> PerBag:
        return _mean_of_known(-mean_of_logs(-self.sampled_nll(logits.double(), y)), y)


class CumulativeLink(Likelihood):
    """One logit η and ordered thresholds: P(Y ≥ k) = σ(η − θ_k), for grades 0 … K.

    The model of proportional odds. The order θ_1 < … < θ_K holds by construction: each step is
    softplus(δ) + 1e-4.
    """

    task = "ordinal"

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__()
        theta = torch.tensor(spec.starts)
        steps = (theta.diff() - GAP).clamp_min(1e-3)
        self.first = nn.Parameter(theta[:1].clone())
        self.steps = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus's inverse

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        """Start thresholds at the logits of the cumulative shares, half a bag more per side."""
        steps = torch.arange(1, spec.n_classes)
        reached = (y[:, None] >= steps).double().sum(0)
        starts = -((reached + 0.5) / (len(y) - reached + 0.5)).log()
        starts = starts + 1e-3 * steps  # thresholds between which no bag lies are kept apart
        return replace(spec, kind="cumulative", starts=tuple(starts.tolist()))

    @property
    def thresholds(self) -> Float[Tensor, " k"]:
        """θ_1 … θ_K."""
        return torch.cat([self.first, self.first + (F.softplus(self.steps) + GAP).cumsum(0)])

    def log_grades(self, logits: Columns) -> Float[Tensor, "*batch grades"]:
        """Return log P(Y = k) of each sample."""
        theta = self.thresholds.to(logits.dtype)
        above = logits - theta  # η − θ_k
        at_least, below = F.logsigmoid(above), F.logsigmoid(-above)
        # P(Y = k) = σ(θ_{k+1} − η) σ(η − θ_k) (1 − e^{θ_k − θ_{k+1}}), stable for any η
        between = torch.log(-torch.expm1(-theta.diff()))
        middle = below[..., 1:] + at_least[..., :-1] + between
        return torch.cat([below[..., :1], middle, at_least[..., -1:]], -1)

    def sampled_nll(self, logits: Logits, y: Tensor) -> PerSample:
        return -at_index(self.log_grades(logits), y)

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch grades"]:
        return self.log_grades(in_float32(logits)).exp()

    def at_least(self, logits: Columns) -> Float[Tensor, "*batch steps"]:
        return self.log_grades(logits).exp().flip(-1).cumsum(-1).flip(-1)[..., 1:]

    def probability(self, logits: Columns) -> Columns:
        """Return the expected grade Σ_k k P(Y = k) of each sample, which explanations differ."""
        p = self.log_grades(logits).exp()
        return (p * torch.arange(p.shape[-1], device=p.device)).sum(-1, keepdim=True)


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


def _binary_nll(logits: Float[Tensor, "*batch"], present: Tensor) -> Float[Tensor, "*batch"]:
    """Return log(1 + e^ℓ) − yℓ, the binary cross-entropy in a form that is stable for any ℓ."""
    return F.softplus(logits) - present.to(logits.dtype) * logits


def _mean_of_known(
    losses: Float[Tensor, "bags findings"], y: Float[Tensor, "bags findings"]
) -> PerBag:
    known = y.isfinite()
    return losses.where(known, torch.zeros_like(losses)).sum(1) / known.sum(1).clamp_min(1)


def mean_of_logs(log_p: Float[Tensor, "bags samples *k"]) -> Float[Tensor, "bags *k"]:
    """Return the logarithm of the mean over samples of p."""
    return log_p.logsumexp(1) - math.log(log_p.shape[1])


def at_index(log_p: Float[Tensor, "bags samples k"], index: Tensor) -> PerSample:
    """Return the log-probability of the outcome of each bag, of which `index` is (bags,)."""
    return log_p.gather(2, index.long()[:, None, None].expand(-1, log_p.shape[1], 1))[..., 0]


def in_float32(logits: Tensor) -> Tensor:
    """Return logits of half precision in float32, in which losses are computed."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
