"""The metrics of targets that are not two classes: over all bags, and by class, cut or time.

Beside them stand rivals. Some look at no bag: the mean and the median of the training bags, and the
survival curve of Kaplan and Meier. One is linear in the mean of the features of a bag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table as Grid

from ..core import TaskName, read_csv
from ..errors import InputError
from ..statistics import Draws, Metric, TargetMetrics, sampled_difference, student_interval
from ..tasks import MEAN_RIVAL, Measure, TargetData, task_of
from .tables import Predictions
from .titles import TARGET_TITLES

MEAN_FEATURES = "mean_features.csv"
"""What a linear model of the mean features predicts, in a folder of predictions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSection:
    """The metrics of a target beyond those of the table of bags."""

    task: TaskName
    by_part: Mapping[str, Mapping[str, Metric]]
    """Metrics of each class, cut, finding, interval or time."""
    rivals: Mapping[str, Mapping[str, Metric]] = field(default_factory=dict)
    """Metrics of the rivals, by their name."""
    gain: tuple[str, Metric] | None = None
    """The primary metric, and how much better the model is than the mean of the features."""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return "target"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "task": self.task,
            "by_part": _plain(self.by_part),
            "rivals": _plain(self.rivals),
            "gain_over_mean_features": None
            if self.gain is None
            else {"metric": self.gain[0], **self.gain[1].to_dict()},
            "notes": list(self.notes),
        }

    def render(self, console: Console) -> None:
        """Print it as text."""
        if self.by_part:
            console.print(_grid(task_of(self.task).words.part, self.by_part))
        if self.rivals:
            console.print(_grid("rival", self.rivals))
        if self.gain is not None:
            name, gain = self.gain
            console.print(
                f"{TARGET_TITLES[name]}, better than the {MEAN_RIVAL} by: {metric_cell(gain)}",
                markup=False,
                soft_wrap=True,
            )
        for note in self.notes:
            console.print(f"note: {note}", markup=False, soft_wrap=True)


def target_data(
    predictions: Predictions,
    rows: Sequence[int],
    y: Float[np.ndarray, "bags targets"],
    *,
    threshold: float | None = None,
) -> TargetData:
    """Return the data of some rows of a table of predictions, with their true targets."""
    stored = predictions.metadata.get("training_targets")
    training = None if stored is None else np.array(stored, dtype=np.float64)
    picked = list(rows)
    return TargetData(
        task=predictions.task,
        y=y,
        predicted=predictions.probability[picked],
        outputs=predictions.outputs,
        names=predictions.classes,
        scores={k: v[picked] for k, v in predictions.scores.items()},
        training=None if training is None else training.reshape(len(training), -1),
        thresholds=predictions.metadata.get("thresholds"),
        threshold=threshold,
        of_means=_of_means(predictions, picked),
    )


def target_metrics(
    data: TargetData, *, groups: Sequence[str], bootstrap: int, seed: int
) -> tuple[dict[str, Metric], TargetSection]:
    """Return the metrics over all bags, and the section with the others.

    Args:
        data: the evaluated bags, each with a target.
        groups: the patient of each bag, whom the intervals resample.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples.

    Raises:
        InputError: the targets cannot be compared with the predictions.
    """
    task = task_of(data.task)
    draws = Draws.stratified(
        task.strata(data.y), groups=groups, resamples=bootstrap, seed=seed
    ).with_data()
    of_model, rivals = task.metrics(data, draws), task.rivals(data, draws)
    section = TargetSection(
        task=data.task,
        by_part=_metrics(of_model.by_part),
        rivals=_metrics({name: r.overall for name, r in rivals.items()}),
        gain=_gain(task.primary, of_model, rivals.get(MEAN_RIVAL), groups=len(set(groups))),
        notes=tuple(dict.fromkeys(of_model.notes)),
    )
    return {name: m.metric() for name, m in of_model.overall.items()}, section


def _gain(
    primary: Measure, of_model: TargetMetrics, of_means: TargetMetrics | None, *, groups: int
) -> tuple[str, Metric] | None:
    """Return by how much the model is better than the mean of the features, over these groups."""
    if of_means is None or primary.name not in of_model.overall:
        return None
    one, other = of_model.overall[primary.name], of_means.overall[primary.name]
    better = (one, other) if primary.higher_is_better else (other, one)
    return primary.name, student_interval(sampled_difference(*better), groups=groups)


def _of_means(
    predictions: Predictions, rows: Sequence[int]
) -> Float[np.ndarray, "bags outputs"] | None:
    path = predictions.folder / MEAN_FEATURES
    if not path.is_file():
        return None
    columns = predictions.outputs or predictions.classes
    stored = {row.get("bag"): row for row in read_csv(path)}
    try:
        values = [[float(stored[predictions.bags[k]][column]) for column in columns] for k in rows]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path} is damaged or belongs to other predictions: predict again, or remove it to "
            "evaluate without the mean of the features"
        ) from None
    return np.array(values, dtype=np.float64).reshape(len(rows), len(columns))


def _metrics(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Metric]]:
    return {part: {k: m.metric() for k, m in metrics.items()} for part, metrics in parts.items()}


def _plain(parts: Mapping[str, Mapping[str, Metric]]) -> dict[str, dict[str, Any]]:
    return {part: {k: m.to_dict() for k, m in metrics.items()} for part, metrics in parts.items()}


def _grid(title: str, parts: Mapping[str, Mapping[str, Metric]]) -> Grid:
    """Return a table with a row for each part and a column for each metric that has a value."""
    known = dict.fromkeys(k for metrics in parts.values() for k in metrics)
    columns = [k for k in known if any(m[k].value is not None for m in parts.values() if k in m)]
    grid = Grid()
    grid.add_column(title)
    for column in columns:
        grid.add_column(TARGET_TITLES.get(column, column), justify="right")
    for part, metrics in parts.items():
        cells = [metrics.get(column) for column in columns]
        grid.add_row(part, *(metric_cell(metric) for metric in cells))
    return grid


def metric_cell(metric: Metric | None) -> str:
    """Return a metric with its interval as text; a dash if it is undefined."""
    if metric is None or metric.value is None:
        return "-"
    if metric.low is None or metric.high is None:
        return f"{metric.value:.3f}"
    return f"{metric.value:.3f} [{metric.low:.3f}, {metric.high:.3f}]"
