"""The section `guarantees` of a report: promises from calibration bags, and whether they held."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console

from ..statistics import Metric
from .accepted_calls import AcceptedReport, accepted_report
from .calibration import calibration_bags
from .evaluated import Evaluated
from .guarantee_options import GuaranteeOptions
from .missed_instances import MissedReport, missed_report
from .prediction_sets import SetsReport, requested_sets, sets_report
from .shift_alarm import ShiftAlarm, shift_alarm
from .target_guarantees import TargetCoverage, check_target_options, target_coverage
from .unmet_guarantees import noted, refusal

TITLES = {
    "coverage": "realised coverage (groups count once)",
    "coverage_of_bags": "… if bags count equally (not promised)",
    "set_size": "mean number of classes in a set",
    "empty_sets": "share of empty sets",
    "single_sets": "share of sets of one class",
    "larger_sets": "share of sets of several classes",
    "error_of_single_sets": "error rate of sets of one class (not promised)",
    "missed": "missed share of positive instances",
    "flagged_positive_bags": "flagged share of bags with positive instances",
    "flagged_negative_bags": "flagged share of bags without",
    "width": "mean width, in the unit of the target",
    "below": "share of values below their interval",
    "above": "share of values above their interval",
    "observed_after_bound": "share with an event or censoring not before the bound",
    "events_before_bound": "share with an event before the bound",
    "censored_before_bound": "share censored before the bound, of whom nothing is known",
    "mean_bound": "mean bound, in the unit of the times",
    "accepted": "share of accepted calls",
    "error_of_accepted": "their error rate",
    "error_of_all": "error rate of all calls",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantees:
    """Guarantees at the requested levels."""

    origin: str
    """Which bags calibrate."""
    caution: str | None
    """Why the guarantees hold only approximately, or None."""
    bags: int
    groups: int
    """Number of calibration bags and of their groups."""
    sets: SetsReport | None
    intervals: TargetCoverage | None
    """Intervals of numbers, or bounds of survival times."""
    missed: MissedReport | None
    accepted: AcceptedReport | None
    alarm: ShiftAlarm
    unmet: Mapping[str, str] = field(default_factory=dict)
    """Why requests cannot be met, by their flag."""

    key = "guarantees"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        of_target = "" if self.intervals is None else self.intervals.key
        parts = {
            "sets": self.sets,
            of_target: self.intervals,
            "missed": self.missed,
            "accepted": self.accepted,
        }
        return {
            "calibration": self.origin,
            "calibration_bags": self.bags,
            "calibration_groups": self.groups,
            "caution": self.caution,
            **{name: part.to_dict() for name, part in parts.items() if part is not None},
            "shift": self.alarm.to_dict(),
            "unmet": dict(self.unmet),
        }

    def render(self, console: Console) -> None:
        """Print the section as text."""
        line = partial(console.print, markup=False, soft_wrap=True, highlight=False)
        line(f"guarantees, from {self.bags} calibration bags of {self.groups} groups {self.origin}")
        for part in (self.sets, self.intervals, self.missed, self.accepted):
            if part is not None:
                for text in part.lines():
                    line(text)
                for name, metric in part.metrics.items():
                    line(f"    {_title(name)}: {_value(metric)}")
        for text in self.alarm.lines():
            line(text)
        if self.caution is not None:
            line(f"caution: {self.caution}")
        for reason in self.unmet.values():
            line(f"not guaranteed: {reason}")


def guarantees_section(evaluated: Evaluated) -> Guarantees | None:
    """Return the section, or None if no guarantee is requested.

    Raises:
        InputError: the calibration bags cannot be used.
        UnmetGuarantee: none of the requests can be met; gives every reason.
    """
    options = evaluated.guarantees
    if options is None:
        return None
    task = evaluated.predictions.of_task
    if not task.has_classes:
        check_target_options(task, options)
    calibration = calibration_bags(evaluated, options)
    sets = intervals = missed = accepted = None
    unmet: dict[str, str] = {}
    with noted(unmet, "--coverage"):
        if options.coverage is not None and not task.has_classes:
            intervals = target_coverage(evaluated, calibration, options, coverage=options.coverage)
        elif options.coverage is not None:
            made = requested_sets(calibration, options, coverage=options.coverage)
            sets = sets_report(evaluated, made, coverage=options.coverage, score=options.score)
    with noted(unmet, "--max-missed"):
        if options.max_missed is not None:
            missed = missed_report(evaluated, calibration, max_missed=options.max_missed)
    with noted(unmet, "--max-error"):
        if options.max_error is not None:
            accepted = accepted_report(evaluated, calibration, max_error=options.max_error)
    if len(unmet) == sum(level is not None for level in options.levels):
        raise refusal(unmet)
    return Guarantees(
        origin=origin(calibration, options),
        caution=caution(evaluated, calibration),
        bags=len(calibration.rows),
        groups=len(set(calibration.groups(calibration.rows))),
        sets=sets,
        intervals=intervals,
        missed=missed,
        accepted=accepted,
        alarm=shift_alarm(evaluated, calibration),
        unmet=unmet,
    )


def origin(calibration: Evaluated, options: GuaranteeOptions) -> str:
    """Return which bags calibrate, in words."""
    if options.calibration is None:
        return "(the validation bags of these predictions)"
    return f"(the {calibration.part} bags of {options.calibration})"


def caution(evaluated: Evaluated, calibration: Evaluated) -> str | None:
    """Return why the guarantees hold only approximately, or None."""
    reasons = []
    if calibration.part == "val":
        reasons.append(
            "the weights and the threshold of the model were chosen on the calibration bags, which "
            "may therefore look better than new bags; name bags that the run has not seen with "
            "--calibration"
        )
    if not evaluated.group:
        reasons.append(
            "no groups are known, so that every bag counts as a patient of its own; if patients "
            "have several bags, give --labels with a column group"
        )
    if evaluated.part in ("train", "all"):
        reasons.append("training bags are evaluated, for which nothing is promised")
    return "; ".join(reasons) or None


def _title(name: str) -> str:
    if name in TITLES:
        return TITLES[name]
    return f"coverage of class {name.removeprefix('coverage_')}"


def _value(metric: Metric) -> str:
    if metric.value is None:
        return f"- ({metric.reason})"
    if metric.low is None or metric.high is None:
        return f"{metric.value:.3f}"
    return f"{metric.value:.3f} [{metric.low:.3f}, {metric.high:.3f}]"
