"""Stage 6: the likelihoods p(Y | X, f) of a bag's target, given its logits: one class for each.

Those of classes follow from the number of logits. The others are fitted on the training bags: their
`LikelihoodSpec` holds the constants, from which a checkpoint builds them again.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributions import LogNormal, Normal

from ..core import (
    FiniteFloat,
    Limits,
    Outputs,
    PositiveFloat,
    TaskName,
    as_record,
)
from ..errors import InputError
from ..removed import instead_of
from .options import LikelihoodOptions

Logits = Float[Tensor, "bags samples columns"]
Columns = Float[Tensor, "*batch columns"]
PerBag = Float[Tensor, " bags"]
PerSample = Float[Tensor, "bags samples"]

ADVICE = "train the run again, with this version of probsa"
GAP = 1e-4
"""Smallest distance between two thresholds of grades."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles of a number that are predicted."""
LEAST_VARIANCE = 1e-4
"""Smallest variance that a second logit can give, in standardised units."""
UNIT = math.log(math.expm1(1 - LEAST_VARIANCE))
"""The second logit is relative to this value, so that 0 means a variance of 1."""
BISECTIONS = 60
SMALL = 1e-6
OF_0_2 = ("kind", "hazard")
"""Keys of stored specifications of version 0.2 that follow from the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LikelihoodSpec:
    """The likelihood of a target that is not a class, in plain values that a checkpoint states."""

    task: TaskName
    n_classes: Annotated[int, Limits(at_least=0, at_most=10_000)] = 0
    """Number of grades or findings."""
    one_logit: bool = False
    """Whether the model gives one logit where several could be used."""
    starts: tuple[FiniteFloat, ...] = ()
    """Initial values, rising: θ of a cumulative link, or the biases of hazards with one logit."""
    noise: Literal["learned", "heteroscedastic"] | PositiveFloat = "learned"
    """`learned` (one variance for all bags), `heteroscedastic` (of each bag, from a second logit),
    or a standard deviation in the user's unit (after the transform, if any)."""
    transform: Literal["none", "log1p"] = "none"
    shift: FiniteFloat = 0.0
    """Mean of the training targets, after the transform."""
    scale: PositiveFloat = 1.0
    """Their standard deviation."""
    times: tuple[FiniteFloat, ...] = ()
    """Ends of the intervals of hazards, rising."""
    horizon: PositiveFloat | None = None
    """τ of the risk; None for the last of the times."""
    positive_weights: tuple[float, ...] | None = None
    """Weight of the positive bags of each finding; None for 1."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LikelihoodSpec":
        """Return the specification, or raise if a key is unknown or a value has another type."""
        if values.get("kind") == "cox":
            raise InputError(f"the likelihood is of the kind 'cox'.{instead_of('cox')}")
        values = {key: value for key, value in values.items() if key not in OF_0_2}
        unknown = sorted({*values} - {f.name for f in fields(cls)})
        if unknown:
            raise InputError(f"the likelihood has an unknown key {unknown[0]!r}: {ADVICE}")
        return as_record(cls, values, where="the likelihood", advice=ADVICE)


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
    class_weights: Tensor | None
    prior_shift: Tensor | None = None
    """What is added to the logits of classes in `probability`, not in the loss: it moves the
    probabilities from the shares of classes in training to others."""

    def __init__(self, *, class_weights: tuple[float, ...] | None = None) -> None:
        super().__init__()
        weights = None if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights)

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
        loss = self.sampled_nll(full_precision(logits), y).mean(1)
        if self.class_weights is None:
            return loss
        return loss * F.pad(self.class_weights, (0, 1), value=1.0)[y.long()]  # 1 for no class

    def predictive_nll(self, logits: Logits, y: Tensor) -> PerBag:
        """Return −log of the mean over samples of p(y), at most the term of the ELBO.

        It has no weights and is computed in double precision.
        """
        log_p = -self.sampled_nll(logits.double(), y)
        return self._over_parts(math.log(log_p.shape[1]) - log_p.logsumexp(1), y)

    def _over_parts(self, loss: Float[Tensor, "bags *parts"], y: Tensor) -> PerBag:
        """Return the loss of each bag from those of its parts."""
        del y
        return loss

    def score(self, logits: Logits, y: Tensor) -> dict[str, PerBag]:
        """Return scores of the prediction that need all of its distribution."""
        return {"nll": self.predictive_nll(logits, y)}

    def at_least(self, logits: Columns) -> Float[Tensor, "*batch steps"] | None:
        """Return P(Y ≥ k) of each sample for k = 1 … K; None where the target has no grades."""
        return None

    def outputs(self, classes: Sequence[str]) -> Outputs:
        """Return the columns of `predict`, given the names of classes or findings."""
        return Outputs(tuple(classes))

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch outputs"]:
        """Return what each sample predicts, in the columns of `outputs`."""
        return self.probability(logits)

    def predict(self, logits: Logits) -> Predictive:
        """Return the mean over samples of the predictive distributions, and their spread."""
        samples = self.sample_outputs(logits)
        return Predictive(samples.mean(1), samples.std(1, correction=0))

    def _moved(self, logits: Tensor) -> Tensor:
        return logits if self.prior_shift is None else logits + self.prior_shift.to(logits)


class Bernoulli(Likelihood):
    """One logit ℓ: p(Y = 1) = σ(ℓ)."""

    task = "binary"
    of_classes = True

    def sampled_nll(self, logits: Logits, y: Tensor) -> PerSample:
        return F.softplus(logits[..., 0]) - y[:, None].to(logits.dtype) * logits[..., 0]


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
        return (F.softplus(logits) - present[:, None].to(logits.dtype) * logits).mean(2)


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
        """Check that each of the findings (bags, findings) is present in a bag and absent in one.

        Raises:
            InputError: The training bags lack one of the two.
        """
        for k, finding in enumerate(y.unbind(1)):
            labels = finding[finding.isfinite()]
            if len(labels.unique()) < 2:
                bags = f"only bags with {int(labels[0])}" if len(labels) else "no bag"
                raise InputError(
                    f"finding {k} (counted from 0) has {bags} in the training part: give bags with "
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
        loss = self.sampled_nll(full_precision(logits), y).mean(1)
        if self.positive_weights is not None:
            loss = torch.where(y == 1, loss * self.positive_weights.to(loss.dtype), loss)
        return self._over_parts(loss, y)

    def _over_parts(self, loss: Float[Tensor, "bags findings"], y: Tensor) -> PerBag:
        is_labelled = y.isfinite()
        total = loss.where(is_labelled, torch.zeros_like(loss)).sum(1)
        return total / is_labelled.sum(1).clamp_min(1)


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
        grades = torch.arange(1, spec.n_classes)
        reached = (y[:, None] >= grades).double().sum(0)
        starts = -((reached + 0.5) / (len(y) - reached + 0.5)).log()
        starts = starts + 1e-3 * grades  # thresholds between which no bag lies are kept apart
        return replace(spec, starts=tuple(starts.tolist()))

    @property
    def thresholds(self) -> Float[Tensor, " k"]:
        """θ_1 … θ_K."""
        return torch.cat([self.first, self.first + (F.softplus(self.steps) + GAP).cumsum(0)])

    def log_grades(self, logits: Columns) -> Float[Tensor, "*batch grades"]:
        """Return log P(Y = k) of each sample."""
        theta = self.thresholds.to(logits.dtype)
        above = logits - theta  # η − θ_k
        at_least = F.logsigmoid(above)
        below = F.logsigmoid(-above)
        # P(Y = k) = σ(θ_{k+1} − η) σ(η − θ_k) (1 − e^{θ_k − θ_{k+1}}), stable for any η
        between = torch.log(-torch.expm1(-theta.diff()))
        middle = below[..., 1:] + at_least[..., :-1] + between
        return torch.cat([below[..., :1], middle, at_least[..., -1:]], -1)

    def sampled_nll(self, logits: Logits, y: Tensor) -> PerSample:
        return -at_index(self.log_grades(logits), y)

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch grades"]:
        return self.log_grades(full_precision(logits)).exp()

    def at_least(self, logits: Columns) -> Float[Tensor, "*batch steps"]:
        return self.log_grades(logits).exp().flip(-1).cumsum(-1).flip(-1)[..., 1:]

    def probability(self, logits: Columns) -> Columns:
        """Return the expected grade Σ_k k P(Y = k) of each sample, which explanations differ."""
        p = self.log_grades(logits).exp()
        return (p * torch.arange(p.shape[-1], device=p.device)).sum(-1, keepdim=True)


class Gaussian(Likelihood):
    """p(y | ℓ) = N(μ, v) in standardised units: μ is the first logit, v as `spec.noise` says."""

    task = "regression"
    fixed_log_variance: Tensor

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__()
        self.shift = spec.shift
        self.scale = spec.scale
        self.log = spec.transform == "log1p"
        self.two_logits = spec.noise == "heteroscedastic"
        self.log_variance: Tensor | None = None
        if spec.noise == "learned":
            self.log_variance = nn.Parameter(torch.zeros(1))
        elif not isinstance(spec.noise, str):
            fixed = torch.tensor([2 * math.log(spec.noise / spec.scale)])
            self.register_buffer("fixed_log_variance", fixed)

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        """Standardise the targets (bags,), in the user's unit, after the transform.

        Raises:
            InputError: The targets are all equal, or outside the transform's domain.
        """
        y = y.double()
        if options.target_transform == "log1p":
            if bool((y <= -1).any()):
                raise InputError(
                    f"target_transform is log1p, but the smallest training target is "
                    f"{float(y.min()):g}: expected values above -1"
                )
            y = torch.log1p(y)
        scale = float(y.std(correction=0))
        if scale == 0 or len(y) < 2:
            raise InputError(
                f"all {len(y)} training targets are {float(y[0]):g}, but a regression needs values "
                "that differ: choose another column"
            )
        spec = replace(spec, noise=options.noise, transform=options.target_transform)
        return replace(spec, shift=float(y.mean()), scale=scale)

    @staticmethod
    def n_logits(spec: LikelihoodSpec) -> int:
        return 2 if spec.noise == "heteroscedastic" else 1

    def outputs(self, classes: Sequence[str]) -> Outputs:
        return Outputs.of_number(LEVELS)

    def sampled_nll(self, logits: Logits, y: PerBag) -> PerSample:
        """Return −log N(y; μ, v) of each sample, in standardised units."""
        mu, v = self._moments(logits)
        z = self._standardised(y.to(mu.dtype))[:, None]
        return 0.5 * (math.log(2 * math.pi) + v.log() + (z - mu).square() / v)

    def predictive_nll(self, logits: Logits, y: PerBag) -> PerBag:
        """Return −log of the density of the mixture, in the user's unit."""
        change = math.log(self.scale) + (torch.log1p(y.double()) if self.log else 0.0)
        return change + super().predictive_nll(logits, y.double())

    def score(self, logits: Logits, y: PerBag) -> dict[str, PerBag]:
        """Return `nll` of the mixture in the user's unit and, without a transform, its `crps`."""
        scores = super().score(logits, y)
        if not self.log:
            mu, v = self._moments(logits.double())
            # ⟨A(z − μ_s, v_s)⟩ − ½ ⟨⟨A(μ_s − μ_t, v_s + v_t)⟩⟩ (Grimit et al. 2006)
            z = self._standardised(y.double())
            to_target = _expected_distance(z[:, None] - mu, v).mean(1)
            # bag by bag: the pairs of samples of all bags would need much memory
            within = []
            for mu_s, v_s in zip(mu, v, strict=True):
                pairs = _expected_distance(mu_s[:, None] - mu_s, v_s[:, None] + v_s)
                within.append(pairs.mean())
            scores["crps"] = self.scale * (to_target - 0.5 * torch.stack(within))
        return scores

    def predict(self, logits: Logits) -> Predictive:
        """Return mean, total standard deviation and quantiles of the mixture, in the user's unit.

        Its variance is that of the noise plus that of the means over samples. Its quantiles are
        bisected, between the smallest and the largest of the samples.
        """
        # the normal of each sample, in the user's unit or, with a transform, of log(y + 1)
        mu, v = self._moments(logits.double())
        loc = (self.shift + self.scale * mu)[..., None]
        sd = (self.scale * v.sqrt())[..., None]
        normal = Normal(loc, sd, validate_args=False)
        if self.log:
            log_normal = LogNormal(loc, sd, validate_args=False)  # of y + 1
            mean = log_normal.mean - 1
            noise = log_normal.variance
        else:
            mean = normal.mean
            noise = normal.variance
        # the law of total variance
        variance = noise.mean(1) + mean.var(1, correction=0)
        levels = torch.tensor(LEVELS, dtype=loc.dtype, device=loc.device)
        quantiles = normal.icdf(levels)
        # a quantile of the mixture lies between those of its components
        low = quantiles.amin(1)
        high = quantiles.amax(1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            is_below = normal.cdf(middle[:, None]).mean(1) < levels
            low = torch.where(is_below, middle, low)
            high = torch.where(is_below, high, middle)
        mixture_quantiles = self._in_unit((low + high) / 2)
        values = torch.cat([mean.mean(1), variance.sqrt(), mixture_quantiles], 1)
        samples = torch.cat([mean, noise.sqrt(), self._in_unit(quantiles)], 2)
        spread = samples.std(1, correction=0)
        return Predictive(values.to(logits.dtype), spread.to(logits.dtype))

    def probability(self, logits: Columns) -> Columns:
        """Return μ in the user's unit and, of two logits, v, which explanations differ."""
        mu, v = self._moments(logits)
        columns = [self._in_unit(self.shift + self.scale * mu)]
        if self.two_logits:
            columns.append(self.scale**2 * v)
        return torch.stack(columns, -1).to(logits.dtype)

    def _moments(self, logits: Columns) -> tuple[Tensor, Tensor]:
        """Return μ and v of each sample, in standardised units: two tensors (*batch)."""
        ell = full_precision(logits)
        mu = ell[..., 0]
        if self.two_logits:
            return mu, F.softplus(ell[..., 1] + UNIT) + LEAST_VARIANCE
        log_v = self.fixed_log_variance if self.log_variance is None else self.log_variance
        return mu, log_v.to(mu.dtype).exp().expand_as(mu)

    def _standardised(self, y: Tensor) -> Tensor:
        transformed = torch.log1p(y) if self.log else y
        return (transformed - self.shift) / self.scale

    def _in_unit(self, value: Tensor) -> Tensor:
        return torch.expm1(value) if self.log else value


class Hazards(Likelihood):
    """Targets are times with 1 for an event and 0 for censoring: (bags, 2).

    The hazard of interval k is h_k = σ(ℓ_k), with K logits, or σ(η + b_k) with one.

    Interval k is (c_k, c_{k+1}], and the first one begins at 0. An event has the index of its
    interval, beyond the last cut that of the last. A censored bag counts the intervals that it has
    left behind.
    """

    task = "survival"
    cuts: Tensor

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__()
        self.horizon = spec.times[-1] if spec.horizon is None else spec.horizon
        self.times = spec.times
        self.register_buffer("cuts", torch.tensor(spec.times, dtype=torch.float64))
        self.biases = nn.Parameter(torch.tensor(spec.starts)) if spec.one_logit else None

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        """Cut at quantiles of the events; biases start at the logits of the bags' hazards.

        Raises:
            InputError: Too few of the training bags have the event.
        """
        time = y[:, :1].double().numpy()
        event = y[:, 1:].numpy() > 0
        events = time[event]
        if len(events) < options.bins:
            remedy = "lower bins" if len(events) else "give more bags"
            raise InputError(
                f"{len(events)} of {len(y)} training bags have the event, but hazards need "
                f"{options.bins}: {remedy}"
            )
        levels = np.arange(1, options.bins + 1) / options.bins
        cuts = np.unique(np.quantile(events, levels))
        if options.horizon is not None and options.horizon > cuts[-1]:
            raise InputError(
                f"horizon is {options.horizon:g}, but the last training event is at {cuts[-1]:g}: "
                "nothing is known beyond it"
            )
        has_begun = time > np.concatenate([[0.0], cuts[:-1]])
        has_passed = time > cuts
        deaths = (event & has_begun & ~has_passed).sum(0)
        # half a bag more on each side keeps the logits finite
        starts = np.log((deaths + 0.5) / (has_passed.sum(0) + 0.5))
        return replace(
            spec,
            starts=tuple(starts.tolist()),
            times=tuple(cuts.tolist()),
            horizon=options.horizon,
        )

    def outputs(self, classes: Sequence[str]) -> Outputs:
        return Outputs.of_time(self.times)

    @staticmethod
    def n_logits(spec: LikelihoodSpec) -> int:
        return 1 if spec.one_logit else len(spec.times)

    def sampled_nll(self, logits: Logits, y: Float[Tensor, "bags 2"]) -> PerSample:
        """Return −Σ_{j<k} log(1 − h_j) − log h_k for events, without the last term if censored."""
        stop, survival = self._hazards(logits)
        log_p = torch.cat([survival[..., :-1] + F.logsigmoid(stop), survival], -1)
        time = y[:, 0].double().contiguous()
        event = y[:, 1] > 0
        within = torch.searchsorted(self.cuts, time).clamp(max=len(self.cuts) - 1)
        passed = torch.searchsorted(self.cuts, time, right=True)
        return -at_index(log_p, torch.where(event, within, len(self.cuts) + passed))

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch outputs"]:
        """Return the risk τ − ∫_0^τ S(t) dt, and S at the cuts."""
        _, log_s = self._hazards(full_precision(logits))
        ends = torch.cat([self.cuts.new_zeros(1), self.cuts])
        # the part of each interval that lies before τ
        widths = (self.horizon - ends[:-1]).clamp_min(0).minimum(ends.diff())
        # log S is linear within an interval: S falls at the rate −diff(log S) / width
        fall = -log_s.diff() * (widths / ends.diff()).to(log_s.dtype)
        # the mean of S over that part, relative to its start: (1 − e^−x) / x, near 0 its series
        mean = torch.where(fall > SMALL, -torch.expm1(-fall) / fall.clamp_min(SMALL), 1 - fall / 2)
        survival = log_s.exp()
        area = (survival[..., :-1] * mean * widths.to(log_s.dtype)).sum(-1, keepdim=True)
        return torch.cat([self.horizon - area, survival[..., 1:]], -1)

    def probability(self, logits: Columns) -> Columns:
        """Return the hazards of the intervals; of a model with one logit, the risk."""
        return logits.sigmoid() if self.biases is None else self.sample_outputs(logits)[..., :1]

    def _hazards(
        self, logits: Columns
    ) -> tuple[Float[Tensor, "*batch k"], Float[Tensor, "*batch k_plus_1"]]:
        """Return the logits of h_k, and log Π_{j ≤ k} (1 − h_j) from k = 0 on, where it is 0."""
        stop = logits if self.biases is None else logits + self.biases.to(logits.dtype)
        return stop, F.pad(F.logsigmoid(-stop).cumsum(-1), (1, 0))


FittedLikelihood = CumulativeLink | Findings | Gaussian | Hazards
LIKELIHOODS: dict[str, type[FittedLikelihood]] = {
    cls.task: cls for cls in (CumulativeLink, Findings, Gaussian, Hazards)
}
"""By task."""


def build_likelihood(spec: LikelihoodSpec) -> Likelihood:
    """Return the likelihood of a specification."""
    return _likelihood(spec.task)(spec)


def logits_of(spec: LikelihoodSpec) -> int:
    """Return how many logits a model must give for a likelihood."""
    return _likelihood(spec.task).n_logits(spec)


def fit_spec(
    task: TaskName,
    y: Tensor,
    *,
    n_classes: int,
    options: LikelihoodOptions,
    one_logit: bool = False,
) -> LikelihoodSpec:
    """Return the likelihood of a task, with the constants that follow from training targets.

    Args:
        task: The task, other than classes.
        y: Targets of the training bags: (bags,) grades, (bags, findings) with NaN where unknown,
            (bags,) numbers in the user's unit, or (bags, 2) times and events.
        n_classes: Number of grades or findings.
        options: The options of the run.
        one_logit: Whether the model gives one logit where several could be used.

    Raises:
        InputError: The training bags do not determine the likelihood, or an option does not fit.
    """
    spec = LikelihoodSpec(task=task, n_classes=n_classes, one_logit=one_logit)
    return _likelihood(task).fit(spec, y, options)


def _likelihood(task: TaskName) -> type[FittedLikelihood]:
    if task not in LIKELIHOODS:
        raise InputError(
            f"the likelihood states the task {task}; expected one of {', '.join(LIKELIHOODS)}"
        )
    return LIKELIHOODS[task]


def likelihood_of(n_classes: int, *, class_weights: tuple[float, ...] | None = None) -> Likelihood:
    """Return a Bernoulli likelihood for one logit, a Categorical one for two or more."""
    if n_classes < 1:
        raise InputError(f"n_classes is {n_classes}: give 1 (one logit) or the number of classes")
    kind = Bernoulli if n_classes == 1 else Categorical
    return kind(class_weights=class_weights)


def balanced_weights(y: Int[Tensor, " bags"], n_classes: int) -> tuple[float, ...]:
    """Return weights w_c = n / (C n_c), whose mean over the bags is 1; raise if a class has no bag.

    So L_LL keeps its scale relative to λ L_KL.
    """
    classes = max(n_classes, 2)
    counts = torch.bincount(y.long(), minlength=classes)
    if bool((counts == 0).any()):
        missing = (counts == 0).nonzero().flatten().tolist()
        raise InputError(
            f"class weights need a bag of every class; there is none of class {missing}"
        )
    return tuple((len(y) / (classes * counts)).tolist())


def at_index(log_p: Float[Tensor, "bags samples k"], index: Tensor) -> PerSample:
    """Return the log-probability of the outcome of each bag, of which `index` is (bags,)."""
    return log_p.gather(2, index.long()[:, None, None].expand(-1, log_p.shape[1], 1))[..., 0]


def full_precision(v: Tensor) -> Tensor:
    """Return float32 in place of half precision, in which logits tie and long sums lose digits."""
    return v.float() if v.dtype in (torch.float16, torch.bfloat16) else v


def _expected_distance(m: Tensor, v: Tensor) -> Tensor:
    """Return A(m, v) = E|N(m, v)| = m (2Φ(m/√v) − 1) + 2√v φ(m/√v)."""
    spread = (2 * v / math.pi).sqrt() * torch.exp(-m.square() / (2 * v))
    return m * torch.erf(m / (2 * v).sqrt()) + spread
