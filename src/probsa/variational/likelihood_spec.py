"""The likelihood of a run: a choice with its constants, which are fitted on the training bags.

A specification consists of plain values, so that a checkpoint can state it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core import TaskName, as_record
from ..errors import InputError
from .cox import Cox, breslow_hazard
from .findings import Findings
from .gaussian import Gaussian
from .hazards import Hazards
from .likelihoods import Likelihood, likelihood_of
from .options import LikelihoodOptions
from .ordinal import CumulativeLink

ADVICE = "train the run again, with this version of probsa"
MOST_TIMES = 16
"""Largest number of times at which a Cox model predicts survival."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LikelihoodSpec:
    """Everything that is needed to build a likelihood again."""

    task: TaskName
    n_classes: int = 0
    """Number of classes, grades or findings."""
    one_logit: bool = False
    """Whether the model gives one logit where several could be used."""
    kind: Literal["", "cumulative", "hazards", "cox"] = ""
    """Which likelihood, for tasks that have several."""
    starts: tuple[float, ...] = ()
    """Initial thresholds or biases."""
    noise: Literal["learned", "heteroscedastic"] | float = "learned"
    transform: Literal["none", "log1p"] = "none"
    shift: float = 0.0
    """Mean of the training targets, after the transform."""
    scale: float = 1.0
    """Their standard deviation."""
    times: tuple[float, ...] = ()
    """Ends of the intervals of hazards, or the times at which a Cox model predicts."""
    hazard: tuple[float, ...] = ()
    """The Nelson–Aalen estimate at the times of a Cox model."""
    horizon: float | None = None
    positive_weights: tuple[float, ...] | None = None

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


def build_likelihood(spec: LikelihoodSpec) -> Likelihood:
    """Return the likelihood of a specification."""
    kind = _kind(spec.task, spec.kind)
    return likelihood_of(logits_of(spec)) if kind is None else kind.build(spec)


def logits_of(spec: LikelihoodSpec) -> int:
    """Return how many logits a model must give for a likelihood."""
    kind = _kind(spec.task, spec.kind)
    if kind is None:
        return 1 if spec.n_classes <= 2 else spec.n_classes
    return 1 if spec.one_logit and kind.ordered else kind.logits(spec)


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
        task: the task.
        y: targets of the training bags: (bags,) classes or grades, (bags, findings) with NaN where
            unknown, (bags,) numbers in the user's unit, or (bags, 2) times and events.
        n_classes: number of classes, grades or findings.
        options: the options of the run.
        one_logit: whether the model gives one logit where several could be used.

    Raises:
        InputError: the training bags do not determine the likelihood, or an option does not fit.
    """
    spec = LikelihoodSpec(task=task, n_classes=n_classes, one_logit=one_logit)
    kind = _kind(task, getattr(options, task, ""))  # some tasks have several likelihoods
    return spec if kind is None else kind.fit(spec, y, options)


def _grades(spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
    """Start thresholds at the logits of the cumulative shares, with half a bag more per side."""
    del options
    steps = torch.arange(1, spec.n_classes)
    reached = (y[:, None] >= steps).double().sum(0)
    starts = -((reached + 0.5) / (len(y) - reached + 0.5)).log()
    starts = starts + 1e-3 * steps  # thresholds between which no bag lies are kept apart
    return replace(spec, kind="cumulative", starts=tuple(starts.tolist()))


def _findings(spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
    del options
    for k, finding in enumerate(y.unbind(1)):
        known = finding[finding.isfinite()]
        if len(known.unique()) < 2:
            what = "no bag" if not len(known) else f"only bags with {int(known[0])}"
            raise InputError(
                f"finding {k} (counted from 0) has {what} in the training part: give bags with and "
                "without it, or leave its column out"
            )
    return spec


def _numbers(spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
    y = y.double()
    if options.target_transform == "log1p":
        if bool((y <= -1).any()):
            raise InputError(
                f"target_transform is log1p, but the smallest training target is {float(y.min()):g}"
                ": expected values above -1"
            )
        y = torch.log1p(y)
    scale = float(y.std(correction=0))
    if scale == 0 or len(y) < 2:
        raise InputError(
            f"all {len(y)} training targets are {float(y[0]):g}, but a regression needs values "
            "that differ: choose another column"
        )
    return replace(
        spec,
        noise=options.noise,
        transform=options.target_transform,
        shift=float(y.mean()),
        scale=scale,
    )


def _times(spec: LikelihoodSpec, y: Tensor, options: LikelihoodOptions) -> LikelihoodSpec:
    time, event = y[:, 0].double(), y[:, 1] > 0
    count = int(event.sum())
    least = options.bins if options.survival == "hazards" else 2
    if count < least:
        remedy = "lower bins" if options.survival == "hazards" and count else "give more bags"
        raise InputError(
            f"{count} of {len(y)} training bags have the event, but {options.survival} needs "
            f"{least}: {remedy}"
        )
    events = time[event].numpy()
    if options.survival == "hazards":
        times = np.unique(np.quantile(events, np.arange(1, options.bins + 1) / options.bins))
        extra: dict[str, Any] = {"starts": _hazard_logits(time, event, times)}
    else:
        distinct = np.unique(events)
        times = distinct
        if len(distinct) > MOST_TIMES:
            levels = np.arange(1, MOST_TIMES + 1) / MOST_TIMES
            times = np.unique(np.quantile(events, levels, method="inverted_cdf"))
        nelson = breslow_hazard(torch.ones_like(time), y, torch.from_numpy(times))
        extra = {"hazard": tuple(nelson.tolist())}
    horizon = options.horizon
    if horizon is not None and horizon > times[-1]:
        raise InputError(
            f"horizon is {horizon:g}, but the last training event is at {times[-1]:g}: nothing is "
            "known beyond it"
        )
    return replace(
        spec, kind=options.survival, times=tuple(times.tolist()), horizon=horizon, **extra
    )


def _hazard_logits(time: Tensor, event: Tensor, cuts: np.ndarray) -> tuple[float, ...]:
    """Return the logits of the training part's hazards, with half a bag more on each side."""
    starts = np.concatenate([[0.0], cuts[:-1]])
    t, e = time.numpy(), event.numpy()
    logits = []
    for low, high in zip(starts, cuts, strict=True):
        dying = (e & (t > low) & (t <= high)).sum()
        passing = (t > high).sum()
        logits.append(float(np.log((dying + 0.5) / (passing + 0.5))))
    return tuple(logits)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """How one likelihood is fitted and built, and how many logits it needs."""

    fit: Callable[[LikelihoodSpec, Tensor, LikelihoodOptions], LikelihoodSpec]
    build: Callable[[LikelihoodSpec], Likelihood]
    logits: Callable[[LikelihoodSpec], int] = lambda spec: 1
    ordered: bool = False
    """Whether one logit can serve all of its ordered outcomes."""


_KINDS = {
    Findings.task: _Kind(
        fit=_findings,
        build=lambda spec: Findings(positive_weights=spec.positive_weights),
        logits=lambda spec: spec.n_classes,
    ),
    Gaussian.task: _Kind(
        fit=_numbers,
        build=lambda spec: Gaussian(
            noise=spec.noise, shift=spec.shift, scale=spec.scale, transform=spec.transform
        ),
        logits=lambda spec: 2 if spec.noise == "heteroscedastic" else 1,
    ),
    CumulativeLink.task: _Kind(fit=_grades, build=lambda spec: CumulativeLink(starts=spec.starts)),
    "hazards": _Kind(
        fit=_times,
        build=lambda spec: Hazards(
            cuts=spec.times,
            starts=spec.starts if spec.one_logit else None,
            horizon=spec.horizon,
        ),
        logits=lambda spec: len(spec.times),
        ordered=True,
    ),
    "cox": _Kind(
        fit=_times,
        build=lambda spec: Cox(times=spec.times, hazard=spec.hazard, horizon=spec.horizon),
    ),
}
"""By `LikelihoodSpec.kind` of survival times, or by the task that has a single likelihood."""


def _kind(task: TaskName, kind: str) -> _Kind | None:
    """Return the kind of a likelihood; None for classes, whose number alone determines it."""
    return _KINDS.get(kind if task == Hazards.task else task)
