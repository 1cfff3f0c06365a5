"""The metrics of targets that are not two classes: over all bags, and by class, cut or time.

Beside them stand rivals. Some look at no bag: the mean and the median of the training bags, and the
survival curve of Kaplan and Meier. One is linear in the mean of the features of a bag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table as Grid

from ..core import Task, TextTable
from ..errors import InputError
from ..statistics import (
    PRIMARY,
    CensoringCurve,
    Draws,
    KaplanMeier,
    Metric,
    TargetMetrics,
    multiclass_metrics,
    multilabel_metrics,
    ordinal_metrics,
    regression_metrics,
    sampled_difference,
    student_interval,
    survival_metrics,
)
from .tables import Predictions
from .titles import TARGET_TITLES

MEAN_FEATURES = "mean_features.csv"
"""What a linear model of the mean features predicts, in a folder of predictions."""
MEAN_RIVAL = "mean of the features"
PARTS = {
    "multiclass": "class against the others",
    "ordinal": "grade and above, against those below",
    "multilabel": "finding",
    "regression": "interval",
    "survival": "time",
}
"""What the metrics by part are of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSection:
    """The metrics of a target beyond those of the table of bags."""

    task: Task
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
            console.print(_grid(PARTS[self.task], self.by_part))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetData:
    """The evaluated bags of a target: what is true and what is predicted."""

    task: Task
    y: Float[np.ndarray, "bags targets"]
    predicted: Float[np.ndarray, "bags outputs"]
    outputs: tuple[str, ...]
    names: tuple[str, ...]
    """Names of the classes or findings."""
    scores: Mapping[str, Float[np.ndarray, " bags"]] = field(default_factory=dict)
    training: Float[np.ndarray, "training targets"] | None = None
    """The targets of the training bags; None if the predictions do not state them."""
    thresholds: tuple[float, ...] | None = None
    """From which probability each finding is called."""
    of_means: Float[np.ndarray, "bags outputs"] | None = None
    """What the linear model of the mean features predicts; None if it is not stored."""

    @classmethod
    def of(
        cls, predictions: Predictions, rows: Sequence[int], y: Float[np.ndarray, "bags targets"]
    ) -> "TargetData":
        """Return the data of some rows of a table of predictions, with their true targets."""
        stored = predictions.metadata.get("training_targets")
        training = None if stored is None else np.array(stored, dtype=np.float64)
        picked = list(rows)
        return cls(
            task=predictions.task,
            y=y,
            predicted=predictions.probability[picked],
            outputs=predictions.outputs,
            names=predictions.classes,
            scores={k: v[picked] for k, v in predictions.scores.items()},
            training=None if training is None else training.reshape(len(training), -1),
            thresholds=predictions.metadata.get("thresholds"),
            of_means=_of_means(predictions, picked),
        )

    def column(self, name: str) -> Float[np.ndarray, " bags"]:
        """Return a predicted column by its name."""
        return self.predicted[:, self.outputs.index(name)]

    def strata(self) -> np.ndarray:
        """Return what resamples are stratified by: classes, grades or events; else nothing."""
        if self.task == "survival":
            return self.y[:, 1]
        return (
            self.y[:, 0]
            if self.task in ("binary", "multiclass", "ordinal")
            else np.zeros(len(self.y))
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
    draws = Draws.stratified(
        data.strata(), groups=groups, resamples=bootstrap, seed=seed
    ).with_data()
    of_model, rivals = sampled_target_metrics(data, draws)
    section = TargetSection(
        task=data.task,
        by_part=_metrics(of_model.by_part),
        rivals=_metrics({name: r.overall for name, r in rivals.items()}),
        gain=_gain(data.task, of_model, rivals.get(MEAN_RIVAL), groups=len(set(groups))),
        notes=tuple(dict.fromkeys(of_model.notes)),
    )
    return {name: m.metric() for name, m in of_model.overall.items()}, section


def resampled_metrics(data: TargetData, draws: Draws) -> TargetMetrics:
    """Return the metrics of any task with their resamples; two classes count as a multiclass task.

    Args:
        data: the evaluated bags, each with a target.
        draws: the data and its resamples, from `Draws.with_data`.
    """
    if data.task != "binary":
        return _METRICS[data.task](data, draws)[0]
    p = data.predicted[:, -1]
    return multiclass_metrics(
        data.y[:, 0].astype(np.int64), np.stack([1 - p, p], 1), names=("0", "1"), draws=draws
    )


Found = tuple[TargetMetrics, dict[str, TargetMetrics]]
Gain = tuple[str, Metric]


def sampled_target_metrics(data: TargetData, draws: Draws) -> Found:
    """Return the metrics in every resample, and those of the rivals by their name.

    Rivals that look at no bag need the targets of the training bags, and the mean of the features
    the predictions that are stored with those of a run.

    Args:
        data: the evaluated bags, each with a target.
        draws: resamples of the bags, with the data as row 0.

    Raises:
        InputError: the targets cannot be compared with the predictions.
    """
    found, rivals = _METRICS[data.task](data, draws)
    if data.of_means is not None:
        other = replace(data, predicted=data.of_means, scores={}, thresholds=None, of_means=None)
        rivals = {**rivals, MEAN_RIVAL: _METRICS[data.task](other, draws)[0]}
    return found, rivals


def _gain(
    task: Task, of_model: TargetMetrics, of_means: TargetMetrics | None, *, groups: int
) -> Gain | None:
    """Return by how much the model is better than the mean of the features, over these groups."""
    primary = PRIMARY[task]
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
    stored = {row.get("bag"): row for row in TextTable.read(path).rows}
    try:
        values = [[float(stored[predictions.bags[k]][column]) for column in columns] for k in rows]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path} is damaged or belongs to other predictions: predict again, or remove it to "
            "evaluate without the mean of the features"
        ) from None
    return np.array(values, dtype=np.float64).reshape(len(rows), len(columns))


def _multiclass(data: TargetData, draws: Draws) -> Found:
    y = data.y[:, 0].astype(np.int64)
    return multiclass_metrics(y, data.predicted, names=data.names, draws=draws), {}


def _ordinal(data: TargetData, draws: Draws) -> Found:
    y = data.y[:, 0].astype(np.int64)
    rivals = {}
    if data.training is not None:
        shares = np.bincount(data.training[:, 0].astype(int), minlength=data.predicted.shape[1])
        constant = np.tile(shares / shares.sum(), (len(y), 1))
        rivals["shares of the training bags"] = ordinal_metrics(y, constant, draws=draws)
    return ordinal_metrics(y, data.predicted, draws=draws), rivals


def _multilabel(data: TargetData, draws: Draws) -> Found:
    return multilabel_metrics(
        data.y, data.predicted, names=data.names, thresholds=data.thresholds, draws=draws
    ), {}


def _regression(data: TargetData, draws: Draws) -> Found:
    y = data.y[:, 0]
    quantiles = {float(n[1:]) / 100: data.column(n) for n in data.outputs if n.startswith("q")}
    found = regression_metrics(
        y, data.column("mean"), scores=data.scores, quantiles=quantiles, draws=draws
    )
    rivals = {}
    if data.training is not None:
        for name, value in (
            ("mean of the training bags", data.training.mean()),
            ("median of the training bags", np.median(data.training)),
        ):
            rivals[name] = regression_metrics(y, np.full(len(y), value), draws=draws)
    return found, rivals


def _survival(data: TargetData, draws: Draws) -> Found:
    if data.training is None:
        raise InputError(
            "these predictions do not state the times of the training bags, which the metrics of "
            "survival need: predict again with a run"
        )
    time, event = data.y[:, 0], data.y[:, 1] > 0
    training_time, training_event = data.training[:, 0], data.training[:, 1] > 0
    censoring = CensoringCurve.fit(training_time, training_event)
    columns = [n for n in data.outputs if n.startswith("s_")]
    times = np.array([float(n[2:]) for n in columns])
    survival = np.stack([data.column(n) for n in columns], 1)

    def of(survival: np.ndarray, risk: np.ndarray) -> TargetMetrics:
        return survival_metrics(
            time, event, risk=risk, censoring=censoring, survival=survival, times=times, draws=draws
        )

    curve = KaplanMeier.fit(training_time, training_event).at(times)[0]
    null = of(np.tile(curve, (len(time), 1)), np.zeros(len(time)))
    return of(survival, data.column("risk")), {"Kaplan–Meier of the training bags": null}


_METRICS = {
    "multiclass": _multiclass,
    "ordinal": _ordinal,
    "multilabel": _multilabel,
    "regression": _regression,
    "survival": _survival,
}


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
