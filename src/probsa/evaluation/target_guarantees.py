"""Guarantees for numbers: intervals."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..core import Task
from ..errors import InputError
from ..statistics import (
    ConformalIntervals,
    Metric,
    coverage_band,
    coverage_band_in_test,
)
from .evaluated import Evaluated
from .group_means import group_mean
from .guarantee_options import GuaranteeOptions
from .unmet_guarantees import check_groups


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCoverage:
    """Intervals of numbers: what is promised, and what happened."""

    coverage: float
    """The level that was requested."""
    rule: str
    """How the limits follow from a prediction, in a sentence."""
    value: float
    """Half of the width of an interval, or its multiple of the standard deviation."""
    adapts: bool
    """Whether intervals are proportional to the predicted standard deviation."""
    groups: int
    """Number of calibration groups."""
    band: tuple[float, float]
    """Where the realised coverage lies for 9 of 10 calibration sets of this size."""
    test_band: tuple[float, float]
    """The same for the coverage of as many groups as are evaluated, which is wider."""
    metrics: dict[str, Metric]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "coverage": self.coverage,
            "rule": self.rule,
            "half_width": self.value,
            "adapts": self.adapts,
            "calibration_groups": self.groups,
            "band": list(self.band),
            "band_of_this_test": list(self.test_band),
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
        }

    def lines(self) -> list[str]:
        """Return the report as sentences."""
        (low, high), (near, far) = self.band, self.test_band
        return [
            f"intervals at a coverage of {self.coverage:.3g}: {self.rule}",
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
        raise InputError(f"--max-error accepts calls of classes, and the task is {task}")
    if options.coverage is None:
        return
    if task != "regression":
        raise InputError(
            f"--coverage makes sets of classes or intervals of numbers, and the task is {task}: "
            "leave it out"
        )
    if options.per_class:
        raise InputError(f"--per-class is for classes, and the task is {task}: leave it out")


def target_coverage(
    evaluated: Evaluated, calibration: Evaluated, options: GuaranteeOptions, *, coverage: float
) -> TargetCoverage:
    """Compute intervals from the calibration bags, and compare them with the truth.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    rule = calibrated_rule(calibration, options, coverage=coverage)
    tested = len(set(evaluated.groups(evaluated.rows)))
    alpha = 1 - coverage
    made = rule.made
    return TargetCoverage(
        coverage=coverage,
        rule=rule.text,
        value=made.half_width,
        adapts=made.normalised,
        groups=made.groups,
        band=coverage_band(made.groups, alpha=alpha),
        test_band=coverage_band_in_test(made.groups, test_groups=tested, alpha=alpha),
        metrics=rule.metrics(evaluated),
    )


def calibrated_rule(
    calibration: Evaluated, options: GuaranteeOptions, *, coverage: float
) -> "IntervalRule":
    """Return the rule that the calibration bags give, which can be applied to other bags.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    count = len(set(calibration.groups(calibration.rows)))
    check_groups(count, coverage=coverage)
    return IntervalRule.calibrated(calibration, options, alpha=1 - coverage)


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
