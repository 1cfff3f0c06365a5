"""The sections on what is predicted: metrics by class, cut, finding, interval or time; patients.

Beside the model stand rivals. Some look at no bag: mean and median of the training bags, and
the survival curve of Kaplan and Meier. One is linear in the mean of the features of a bag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from rich.table import Table as Grid

from ...core import counted
from ...errors import InputError
from ...statistics import Metric
from ...tasks import MEAN_RIVAL
from ..context import Context
from ..section import Section, metric_columns, metric_grid
from ..words import METRIC_TITLES, metric_titles


@dataclass(frozen=True, slots=True)
class Gain:
    """How much better the primary metric of the model is than that of a rival."""

    metric: str
    """The name of the metric."""
    gain: Metric

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"metric": self.metric, **self.gain.to_dict()}


def target_section(context: Context) -> tuple[dict[str, Metric], Section | None]:
    """Return the metrics over all bags, and the section with the others, if there are any.

    Raises:
        InputError: the targets cannot be compared with the predictions.
    """
    task = context.task
    primary = context.task.primary
    metrics = task.metrics(context.data, context.draws)
    overall = dict(metrics.overall)
    rivals: dict[str, Mapping[str, Metric]] = {}
    for name, rival_metrics in task.rivals(context.data, context.draws).items():
        rivals[name] = rival_metrics.overall
    gain = None
    if MEAN_RIVAL in rivals and primary.name in overall:
        gain = overall[primary.name] - rivals[MEAN_RIVAL][primary.name]
        if not primary.higher_is_better:
            gain = gain.map(np.negative)
    if not (metrics.by_part or rivals or metrics.notes):
        return overall, None
    text: list[Grid | str] = []
    for part, rows in ((task.words.part, metrics.by_part), ("rival", rivals)):
        if rows:
            columns: dict[str, Metric] = {}
            for metrics_of_row in rows.values():
                columns |= metrics_of_row
            text.append(metric_columns(part, rows, titles=metric_titles(columns)))
    if gain is not None:
        text.append(f"{METRIC_TITLES[primary.name]}, better than the {MEAN_RIVAL} by: {gain}")
    notes = tuple(dict.fromkeys(metrics.notes))
    values = {
        "task": task.name,
        "by_part": metrics.by_part,
        "rivals": rivals,
        "gain_over_mean_features": None if gain is None else Gain(primary.name, gain),
        "notes": notes,
    }
    return overall, Section("target", values, text=text, warnings=notes)


def patients_section(context: Context) -> Section | None:
    """Return the metrics of patients; None if no patient has several bags.

    The rule is fixed: the mean of the bags' predictions, compared with the patient's target. A
    patient has the highest class or grade of its bags. For other tasks all bags of a patient must
    have the same target.
    """
    data = context.data
    groups = context.groups
    task = context.task
    patient_of_bag, unique = pd.factorize(np.array(groups, dtype=object))
    names = list(unique)
    if len(names) == len(groups):
        return None
    y = pd.DataFrame(data.y).groupby(patient_of_bag).max().to_numpy()
    predicted = pd.DataFrame(data.predicted).groupby(patient_of_bag).mean().to_numpy()
    counts = f"{counted(len(names), 'patient')} with {counted(len(groups), 'bag')}"
    values = {"patients": len(names), "slides": len(groups), "rule": "mean"}
    try:
        if not task.patient_has_highest:
            _check_alike(data.y, y, patient_of_bag, names=names)
        patients = replace(data, y=y, predicted=predicted, scores={}, of_means=None)
        draws = context.sample(task.labels.strata(y), groups=names)
        metrics = task.metrics(patients, draws).overall
    except InputError as error:
        values |= {"metrics": {}, "reason": str(error)}
        return Section("patients", values, text=[f"{counts}: {error}"])
    title = f"{counts}: the mean over the bags of a patient"
    text = [metric_grid(title, metrics, titles=metric_titles(metrics))]
    values["metrics"] = metrics
    return Section("patients", values, text=text, metrics={"patients": metrics})


def _check_alike(
    bags: Float[np.ndarray, "bags targets"],
    patients: Float[np.ndarray, "patients targets"],
    patient_of_bag: Int[np.ndarray, " bags"],
    *,
    names: Sequence[str],
) -> None:
    """Refuse a patient whose bags have different targets."""
    for patient, target in zip(patient_of_bag, bags, strict=True):
        if not np.array_equal(target, patients[patient], equal_nan=True):
            raise InputError(
                f"no metrics, as the bags of {names[patient]!r} differ in their targets"
            )
