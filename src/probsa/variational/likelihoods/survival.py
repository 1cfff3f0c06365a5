"""The likelihoods of a time to an event: discrete hazards, and Cox's proportional hazards."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...errors import InputError
from ..options import LikelihoodOptions
from .classes import (
    Columns,
    Likelihood,
    LikelihoodSpec,
    Logits,
    PerBag,
    PerSample,
    at_index,
    in_float32,
)

SMALL = 1e-6
MOST_TIMES = 16
"""Largest number of times at which a Cox model predicts survival."""


class _Survival(Likelihood):
    """Targets are times with 1 for an event and 0 for censoring: (bags, 2)."""

    task = "survival"

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__()
        self.horizon = spec.times[-1] if spec.horizon is None else spec.horizon
        self.names = tuple(f"s_{t:g}" for t in spec.times)

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        return ("risk", *self.names)


class Hazards(_Survival):
    """The hazard of interval k is h_k = σ(ℓ_k), with K logits, or σ(η + b_k) with one.

    Interval k is (c_k, c_{k+1}], and the first one begins at 0. An event has the index of its
    interval, beyond the last cut that of the last. A censored bag counts the intervals that it has
    left behind. The loss of a bag depends neither on the batch nor on a baseline.
    """

    cuts: Tensor

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__(spec)
        self.register_buffer("cuts", torch.tensor(spec.times, dtype=torch.float64))
        self.biases = nn.Parameter(torch.tensor(spec.starts)) if spec.one_logit else None

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        """Cut at quantiles of the events; biases start at the logits of the bags' hazards."""
        events = _event_times(y, options, least=options.bins)
        cuts = np.unique(np.quantile(events, np.arange(1, options.bins + 1) / options.bins))
        time, event = y[:, :1].double().numpy(), y[:, 1:].numpy() > 0
        begun, passed = time > np.concatenate([[0.0], cuts[:-1]]), time > cuts
        dying = (event & begun & ~passed).sum(0)
        starts = np.log((dying + 0.5) / (passed.sum(0) + 0.5))  # half a bag more on each side
        spec = _with_times(spec, cuts, options)
        return replace(spec, kind="hazards", starts=tuple(starts.tolist()))

    @staticmethod
    def n_logits(spec: LikelihoodSpec) -> int:
        return 1 if spec.one_logit else len(spec.times)

    def sampled_nll(self, logits: Logits, y: Float[Tensor, "bags 2"]) -> PerSample:
        """Return −Σ_{j<k} log(1 − h_j) − log h_k for events, without the last term if censored."""
        stop = self._hazard_logits(logits)
        survival = self._log_survival(stop)
        log_p = torch.cat([survival[..., :-1] + F.logsigmoid(stop), survival], -1)
        time, event = y[:, 0].double().contiguous(), y[:, 1] > 0
        within = torch.searchsorted(self.cuts, time).clamp(max=len(self.cuts) - 1)
        passed = torch.searchsorted(self.cuts, time, right=True)
        return -at_index(log_p, torch.where(event, within, len(self.cuts) + passed))

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch outputs"]:
        """Return the risk τ − ∫_0^τ S(t) dt, and S at the cuts."""
        log_s = self._log_survival(self._hazard_logits(in_float32(logits)))
        ends = torch.cat([self.cuts.new_zeros(1), self.cuts])
        counted = (self.horizon - ends[:-1]).clamp_min(0).minimum(ends.diff())
        # log S is linear within an interval: S falls at the rate −diff(log S) / width
        fall = -log_s.diff() * (counted / ends.diff()).to(log_s.dtype)
        mean = torch.where(fall > SMALL, -torch.expm1(-fall) / fall.clamp_min(SMALL), 1 - fall / 2)
        survival = log_s.exp()
        area = (survival[..., :-1] * mean * counted.to(log_s.dtype)).sum(-1, keepdim=True)
        return torch.cat([self.horizon - area, survival[..., 1:]], -1)

    def probability(self, logits: Columns) -> Columns:
        """Return the hazards of the intervals; of a model with one logit, the risk."""
        return logits.sigmoid() if self.biases is None else self.sample_outputs(logits)[..., :1]

    def _hazard_logits(self, logits: Columns) -> Float[Tensor, "*batch k"]:
        return logits if self.biases is None else logits + self.biases.to(logits.dtype)

    @staticmethod
    def _log_survival(stop: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch steps"]:
        """Return log Π_{j ≤ k} (1 − h_j) with h = σ(stop), from k = 0 on, where it is 0."""
        return F.pad(F.logsigmoid(-stop).cumsum(-1), (1, 0))


class Cox(_Survival):
    """One logit r, the log hazard ratio; ties by Efron's method.

    The loss of a batch is minus the partial log-likelihood of its bags divided by their number. It
    is biased for that of the cohort, whose risk sets are larger. A batch without an event has loss
    0. Survival is predicted from a cumulative baseline hazard, before `set_baseline` that of the
    specification.
    """

    couples_bags = True
    times: Tensor
    cumulative_hazard: Tensor

    def __init__(self, spec: LikelihoodSpec) -> None:
        super().__init__(spec)
        self.register_buffer("times", torch.tensor(spec.times, dtype=torch.float64))
        self.register_buffer("cumulative_hazard", torch.tensor(spec.hazard, dtype=torch.float64))

    @classmethod
    def fit(cls, spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
        """Predict at the times of events, or at quantiles of these if there are many."""
        events = _event_times(y, options, least=2)
        times = np.unique(events)
        if len(times) > MOST_TIMES:
            levels = np.arange(1, MOST_TIMES + 1) / MOST_TIMES
            times = np.unique(np.quantile(events, levels, method="inverted_cdf"))
        spec = replace(_with_times(spec, times, options), kind="cox", hazard=(0.0,) * len(times))
        nelson_aalen = cls(spec)
        nelson_aalen.set_baseline(torch.ones(len(y)), y)
        return replace(spec, hazard=tuple(nelson_aalen.cumulative_hazard.tolist()))

    def sampled_nll(self, logits: Logits, y: Float[Tensor, "bags 2"]) -> PerSample:
        """Return the term of each bag with an event, 0 for the others; they sum to the batch's.

        Bags with an event at the same time share its term equally, apart from their own r.
        """
        r, time, event = logits[..., 0], y[:, 0], y[:, 1] > 0
        parts = 0 * r  # 0 with a gradient, for batches without an event
        for t in time[event].unique():
            dying = event & (time == t)
            d = int(dying.sum())
            at_risk = r[time >= t].logsumexp(0)
            share = (r[dying].logsumexp(0) - at_risk).exp()
            total = d * at_risk + sum(torch.log1p(-(k / d) * share) for k in range(1, d))
            parts = torch.where(dying[:, None], total / d - r, parts)
        return parts

    def predictive_nll(self, logits: Logits, y: Float[Tensor, "bags 2"]) -> PerBag:
        """Return the loss, which is of the risk sets of these bags."""
        return self.nll(logits, y)

    def score(self, logits: Logits, y: Float[Tensor, "bags 2"]) -> dict[str, PerBag]:
        """Return nothing: the partial likelihood is no score of a single bag."""
        return {}

    def set_baseline(self, relative: PerBag, y: Float[Tensor, "bags 2"]) -> None:
        """Set the cumulative baseline hazard by Breslow's estimator.

        It is H(t) = Σ_{events ≤ t} d / Σ_{at risk} e^r; of Nelson and Aalen if e^r = 1.

        Args:
            relative: the mean over samples of e^r of each training bag.
            y: their times and events.
        """
        time, event = y[:, 0].double().contiguous(), y[:, 1] > 0
        distinct = time[event].unique()
        deaths = torch.stack([(event & (time == t)).sum() for t in distinct])
        at_risk = torch.stack([relative.double()[time >= t].sum() for t in distinct])
        total = F.pad((deaths / at_risk).cumsum(0), (1, 0))
        reached = torch.searchsorted(distinct, self.times.to(distinct), right=True)
        self.cumulative_hazard.copy_(total[reached])

    def sample_outputs(self, logits: Columns) -> Float[Tensor, "*batch outputs"]:
        """Return the risk τ − ∫_0^τ S(t) dt of S(t) = exp(−H(t) e^r), and S at the times."""
        survival = torch.exp(-self.cumulative_hazard * logits.double().exp())
        ends = torch.cat([self.times, self.times.new_tensor([torch.inf])]).clamp(max=self.horizon)
        width = ends.diff(prepend=ends.new_zeros(1)).clamp_min(0)
        steps = F.pad(survival, (1, 0), value=1.0)
        risk = self.horizon - (steps * width).sum(-1, keepdim=True)
        return torch.cat([risk, survival], -1).to(logits.dtype)

    def probability(self, logits: Columns) -> Columns:
        """Return r, which explanations differ: instances add up to it, not to e^r."""
        return logits


def _event_times(y: Tensor, options: LikelihoodOptions, *, least: int) -> np.ndarray:
    events = y[y[:, 1] > 0, 0].double().numpy()
    if len(events) < least:
        remedy = "lower bins" if options.survival == "hazards" and len(events) else "give more bags"
        raise InputError(
            f"{len(events)} of {len(y)} training bags have the event, but {options.survival} needs "
            f"{least}: {remedy}"
        )
    return events


def _with_times(
    spec: LikelihoodSpec, times: np.ndarray, options: LikelihoodOptions
) -> LikelihoodSpec:
    if options.horizon is not None and options.horizon > times[-1]:
        raise InputError(
            f"horizon is {options.horizon:g}, but the last training event is at {times[-1]:g}: "
            "nothing is known beyond it"
        )
    return replace(spec, times=tuple(times.tolist()), horizon=options.horizon)
