"""Guarantees for numbers and survival times: intervals, and bounds from below."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..core import TaskName
from ..errors import InputError
from ..statistics import (
    ConformalIntervals,
    Metric,
    SurvivalBound,
    coverage_band,
    coverage_band_in_test,
    survival_between,
)
from ..tasks import Task, task_of
from .evaluated import Evaluated
from .group_means import group_mean
from .guarantee_options import GuaranteeOptions
from .unmet_guarantees import check_groups

GRID = 128
"""Number of times among which a bound of survival is chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCoverage:
    """Intervals of numbers, or bounds of survival times: what is promised, and what happened."""

    task: TaskName
    coverage: float
    """The level that was requested."""
    rule: str
    """How the limits follow from a prediction, in a sentence."""
    value: float
    """q of an interval, or the level of survival of a bound."""
    adapts: bool
    """Whether intervals are proportional to the predicted standard deviation."""
    groups: int
    """Number of calibration groups."""
    band: tuple[float, float]
    """Where the realised coverage lies for 9 of 10 calibration sets of this size."""
    test_band: tuple[float, float]
    """The same for the coverage of as many groups as are evaluated, which is wider."""
    metrics: dict[str, Metric]

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return task_of(self.task).coverage_by or ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        kind = "half_width" if self.key == "intervals" else "survival_level"
        return {
            "coverage": self.coverage,
            "rule": self.rule,
            kind: self.value,
            "adapts": self.adapts,
            "calibration_groups": self.groups,
            "band": list(self.band),
            "band_of_this_test": list(self.test_band),
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
        }

    def lines(self) -> list[str]:
        """Return the report as sentences."""
        what = "intervals" if self.key == "intervals" else "bounds of survival times from below"
        (low, high), (near, far) = self.band, self.test_band
        return [
            f"{what} at a coverage of {self.coverage:.3g}: {self.rule}",
            f"  {self.groups} calibration groups: the realised coverage is between {low:.3f} and "
            f"{high:.3f} for 9 of 10 calibration sets of this size, and between {near:.3f} and "
            f"{far:.3f} in a test of this size",
        ]


def check_target_options(task: Task, options: GuaranteeOptions) -> None:
    """Refuse guarantees that a task without classes cannot have.

    Raises:
        InputError: says which guarantees the task has.
    """
    if options.max_error is not None:
        raise InputError(f"--max-error accepts calls of classes, and the task is {task.name}")
    if options.coverage is None:
        return
    if task.coverage_by is None:
        raise InputError(
            "--coverage makes sets of classes, intervals of numbers or bounds of survival times, "
            "and there is none for findings: leave it out"
        )
    if options.per_class:
        raise InputError(f"--per-class is for classes, and the task is {task.name}: leave it out")
    if options.score == "aps" and task.coverage_by == "bounds":
        raise InputError(f"--set-score is for classes and numbers, and the task is {task.name}")


def target_coverage(
    evaluated: Evaluated, calibration: Evaluated, options: GuaranteeOptions, *, coverage: float
) -> TargetCoverage:
    """Compute intervals or bounds from the calibration bags, and compare them with the truth.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    rule = calibrated_rule(calibration, options, coverage=coverage)
    tested = len(set(evaluated.groups(evaluated.rows)))
    alpha = 1 - coverage
    made = rule.made
    return TargetCoverage(
        task=evaluated.predictions.task,
        coverage=coverage,
        rule=rule.text,
        value=made.half_width if isinstance(made, ConformalIntervals) else made.level,
        adapts=isinstance(made, ConformalIntervals) and made.normalised,
        groups=made.groups,
        band=coverage_band(made.groups, alpha=alpha),
        test_band=coverage_band_in_test(made.groups, test_groups=tested, alpha=alpha),
        metrics=rule.metrics(evaluated),
    )


def calibrated_rule(
    calibration: Evaluated, options: GuaranteeOptions, *, coverage: float
) -> "IntervalRule | BoundRule":
    """Return the rule that the calibration bags give, which can be applied to other bags.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    count = len(set(calibration.groups(calibration.rows)))
    check_groups(count, flag="--coverage", level=coverage)
    numbers = calibration.predictions.of_task.coverage_by == "intervals"
    kind = IntervalRule if numbers else BoundRule
    return kind.calibrated(calibration, options, alpha=1 - coverage)


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalRule:
    """Intervals of one width, or proportional to the predicted standard deviation."""

    made: ConformalIntervals

    @classmethod
    def calibrated(
        cls, calibration: Evaluated, options: GuaranteeOptions, *, alpha: float
    ) -> "IntervalRule":
        """Return the rule of the calibration bags."""
        rows = calibration.rows
        made = ConformalIntervals.calibrated(
            calibration.values(rows)[:, 0],
            calibration.output("mean", rows),
            groups=calibration.groups(rows),
            alpha=alpha,
            spread=calibration.output("sd", rows) if options.score == "aps" else None,
        )
        return cls(made=made)

    @property
    def text(self) -> str:
        """The rule in words."""
        unit = " predicted standard deviations" if self.made.normalised else ""
        return f"the predicted mean ± {self.made.half_width:.4g}{unit}"

    def columns(self, bags: Evaluated) -> dict[str, Float[np.ndarray, " bags"]]:
        """Return the limits of each bag, which belong to its interval."""
        spread = bags.output("sd", bags.rows) if self.made.normalised else None
        limits = self.made.intervals(bags.output("mean", bags.rows), spread=spread)
        return {"low": limits[:, 0], "high": limits[:, 1]}

    def metrics(self, bags: Evaluated) -> dict[str, Metric]:
        """Return what happened with labelled bags."""
        limits = self.columns(bags)
        low, high = limits["low"], limits["high"]
        y = bags.values(bags.rows)[:, 0]
        inside = (low <= y) & (y <= high)
        return {
            "coverage": group_mean(bags, inside),
            "coverage_of_bags": group_mean(bags, inside, weighted=False),
            "width": group_mean(bags, high - low),
            "below": group_mean(bags, y < low),
            "above": group_mean(bags, y > high),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundRule:
    """The first time at which predicted survival falls to a level."""

    made: SurvivalBound

    @classmethod
    def calibrated(
        cls, calibration: Evaluated, options: GuaranteeOptions, *, alpha: float
    ) -> "BoundRule":
        """Return the rule of the calibration bags."""
        del options
        grid = np.linspace(0, _times(calibration)[-1], GRID + 1)[1:]
        made = SurvivalBound.calibrated(
            calibration.values(calibration.rows)[:, 0],
            _survival(calibration, grid),
            times=grid,
            groups=calibration.groups(calibration.rows),
            alpha=alpha,
        )
        return cls(made=made)

    @property
    def text(self) -> str:
        """The rule in words."""
        if self.made.level >= 1:
            return "0 for every bag, as the calibration bags allow no later bound"
        return (
            f"the first time at which predicted survival is at most {self.made.level:.3g}, at the "
            f"latest {self.made.times[-1]:g}"
        )

    def columns(self, bags: Evaluated) -> dict[str, Float[np.ndarray, " bags"]]:
        """Return the bound of each bag."""
        return {"lower_bound": self.made.bounds(_survival(bags, self.made.times))}

    def metrics(self, bags: Evaluated) -> dict[str, Metric]:
        """Return what happened with labelled bags."""
        bound = self.columns(bags)["lower_bound"]
        time, event = bags.values(bags.rows).T
        return {
            "observed_after_bound": group_mean(bags, time >= bound),
            "coverage_of_bags": group_mean(bags, time >= bound, weighted=False),
            "events_before_bound": group_mean(bags, (time < bound) & (event > 0)),
            "censored_before_bound": group_mean(bags, (time < bound) & (event == 0)),
            "mean_bound": group_mean(bags, bound),
        }


def _times(bags: Evaluated) -> Float[np.ndarray, " t"]:
    names = [n for n in bags.predictions.outputs if n.startswith("s_")]
    return np.array([float(n[2:]) for n in names])


def _survival(bags: Evaluated, grid: Float[np.ndarray, " w"]) -> Float[np.ndarray, "bags w"]:
    names = [n for n in bags.predictions.outputs if n.startswith("s_")]
    curve = np.stack([bags.output(n, bags.rows) for n in names], axis=1)
    return survival_between(curve, times=_times(bags), wanted=grid)
