"""Metrics of patients, where a patient has several slides that were predicted one by one.

The rule is fixed: the mean of the slides' predictions, compared with the patient's target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from ..core import counted
from ..statistics import Metric
from ..tasks import TargetData, task_of
from .target_section import metric_cell, target_metrics
from .titles import TARGET_TITLES


@dataclass(frozen=True, kw_only=True, slots=True)
class PatientsSection:
    """The metrics of patients, or the reason why there are none."""

    patients: int
    slides: int
    metrics: Mapping[str, Metric]
    reason: str = ""

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return "patients"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "patients": self.patients,
            "slides": self.slides,
            "rule": "mean",
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
            **({"reason": self.reason} if self.reason else {}),
        }

    def render(self, console: Console) -> None:
        """Print it as text."""
        counts = f"{counted(self.patients, 'patient')} with {counted(self.slides, 'bag')}"
        if self.reason:
            console.print(f"{counts}: {self.reason}", markup=False, soft_wrap=True)
            return
        grid = Grid(title=f"{counts}: the mean over the bags of a patient", title_justify="left")
        grid.add_column("metric")
        grid.add_column("value and 95 % interval", justify="right")
        for name, metric in self.metrics.items():
            grid.add_row(TARGET_TITLES.get(name, name), metric_cell(metric))
        console.print(grid)


def patients_section(
    data: TargetData,
    *,
    groups: Sequence[str],
    bootstrap: int,
    seed: int,
) -> PatientsSection | None:
    """Return the metrics of patients; None if no patient has several bags.

    A patient is positive, or has the highest grade, if one of its bags is. For other tasks all bags
    of a patient must have the same target.

    Args:
        data: the evaluated bags, each with a target.
        groups: the patient of each bag.
        bootstrap: number of resamples of the patients; 0 for no intervals.
        seed: seed of the resamples.
    """
    names = list(dict.fromkeys(groups))
    if len(names) == len(groups):
        return None
    member = np.array([names.index(g) for g in groups])
    y = np.stack([_highest(data.y[member == k]) for k in range(len(names))])
    differ = [names[m] for k, m in enumerate(member) if not _same(data.y[k], y[m])]
    if differ and not task_of(data.task).patient_has_highest:
        reason = f"no metrics, as the bags of {differ[0]!r} differ in their targets"
        return PatientsSection(patients=len(names), slides=len(groups), metrics={}, reason=reason)
    sizes = np.bincount(member)[:, None]
    predicted = np.zeros((len(names), data.predicted.shape[1]))
    np.add.at(predicted, member, data.predicted)
    predicted /= sizes
    of_patients = replace(data, y=y, predicted=predicted, scores={}, of_means=None)
    metrics, _ = target_metrics(of_patients, groups=names, bootstrap=bootstrap, seed=seed)
    return PatientsSection(patients=len(names), slides=len(groups), metrics=metrics)


def _highest(y: np.ndarray) -> np.ndarray:
    """Return the highest value in each column; nan where no bag has a value."""
    return np.where(np.isnan(y).all(0), np.nan, np.where(np.isnan(y), -np.inf, y).max(0))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))
