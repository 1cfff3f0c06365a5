"""The metrics of one method: a tidy frame of its runs, and samples over resamples of the patients.

With folds, metrics that rank bags are also averaged over the folds, because runs need not agree
about the level of a score; all others are of the bags of all folds together.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from ...statistics import Draws, Pooling, TargetMetrics
from ...tasks import Measure
from .scores import RunPart, Scores, once

RESAMPLES = 2000
LEAST_PATIENTS = 2
"""Patients of each class that a fold needs: with one, a third of all resamples would lose it."""

Kind = tuple[str, Pooling]
"""The name of a metric, and over which bags it is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """One metric of one method: a row each replicate, a column each resample after the data."""

    values: Mapping[tuple[int, int], Float[np.ndarray, " rows"]]
    """By replicate, see `Scores.keys`."""
    reason: str | None
    """Why it has no value in some replicate."""
    member: Int[np.ndarray, " bags"]
    """The patient of each bag."""
    freedom: int
    """Degrees of freedom of the patients."""

    def rows(self, scores: Scores) -> Float[np.ndarray, "replicates rows"]:
        """Return the values of some or all replicates of the method."""
        return np.stack([self.values[key] for key in scores.keys])


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over splits; None if the metric is undefined on every split."""

    mean: float | None
    sd: float | None
    """Standard deviation over splits (ddof = 1); None with fewer than two splits.

    It shows how much splits differ, not how precise the mean is: splits share bags, and a fixed
    test part consists of the same bags every time."""
    splits: int


@once
def metric_frame(scores: Scores) -> pd.DataFrame:
    """Return the tidy frame of a method: a row for each run and metric of the task.

    The columns are data, method, kl_weight, split, seed, metric and value, which is nan where the
    metric is undefined.
    """
    rows: list[dict[str, Any]] = []
    for seed, parts in zip(scores.seed.tolist(), scores.replicates, strict=True):
        for part in parts:
            metrics = scores.task.metrics(part.data, Draws.of_data(len(part.rows)))
            for metric, value in _values(scores, metrics).items():
                row = {
                    "data": scores.data,
                    "method": scores.method.name,
                    "kl_weight": scores.method.kl_weight,
                    "split": part.split,
                    "seed": seed,
                    "metric": metric,
                    "value": value,
                }
                rows.append(row)
    return pd.DataFrame(rows)


def _values(scores: Scores, metrics: TargetMetrics) -> dict[str, float]:
    """Return the metrics of the task; nan where one is undefined."""
    values: dict[str, float] = {}
    for measure in scores.task.measures:
        metric = metrics.overall.get(measure.name)
        value = None if metric is None else metric.value
        values[measure.name] = np.nan if value is None else value
    return values


def values_by_split(scores: Scores) -> dict[str, dict[int, float]]:
    """Return each metric on each split's test bags, averaged over seeds, where it is defined."""
    values: dict[str, dict[int, float]] = {m.name: {} for m in scores.task.measures}
    defined = metric_frame(scores).dropna(subset="value")
    means = defined.groupby(["metric", "split"])["value"].agg(lambda v: np.mean(v.to_numpy()))
    for (name, split), mean in means.to_dict().items():
        values[name][split] = float(mean)
    return values


def means_of(scores: Scores) -> dict[str, Mean]:
    """Return the mean and s.d. over splits of each metric; seeds are averaged within a split."""
    means = {}
    for name, by_split in values_by_split(scores).items():
        values = list(by_split.values())
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        mean = float(np.mean(values)) if values else None
        means[name] = Mean(mean=mean, sd=sd, splits=len(values))
    return means


def null_rivals(scores: Scores) -> dict[str, dict[str, float]]:
    """Return the metrics of predictions that look at no bag, by rival; means over runs."""
    values: dict[str, list[dict[str, float]]] = {}
    for part in scores.parts:
        rivals = scores.task.rivals(part.data, Draws.of_data(len(part.rows)))
        for rival, metrics in rivals.items():
            values.setdefault(rival, []).append(_values(scores, metrics))
    means: dict[str, dict[str, float]] = {}
    for rival, rows in values.items():
        names = [m.name for m in scores.task.measures]
        means[rival] = {name: float(np.mean([row[name] for row in rows])) for name in names}
    return means


def kinds_of(scores: Scores) -> list[tuple[Measure, Pooling]]:
    """Return what is compared on a data set: metrics over all folds, then those within folds.

    Risks are never ranked across folds, so that theirs are within folds alone.
    """
    task = scores.task
    within = [m for m in task.measures if scores.folds and m.by_fold]
    pooled = [m for m in task.measures if m not in within or task.compares_across_folds]
    return [*((m, "pooled") for m in pooled), *((m, "within") for m in within)]


@once
def sample(scores: Scores, *, resamples: int = RESAMPLES) -> dict[Kind, Sampled]:
    """Compute everything that is compared, in each replicate and resample of the patients."""
    samples: dict[Kind, Sampled] = {}
    for pooling in get_args(Pooling):
        measures = [m for m, kind in kinds_of(scores) if kind == pooling]
        reason = _why_not(scores, pooling)
        if reason is not None or not measures:
            empty = Sampled(values={}, reason=reason, member=np.zeros(0, np.int64), freedom=0)
            samples |= {(m.name, pooling): empty for m in measures}
            continue
        draws, freedom = _draws(scores, pooling, resamples=resamples)
        metrics: dict[tuple[int, int], list[TargetMetrics]] = {}
        for key, parts in zip(scores.keys, scores.replicates, strict=True):
            if pooling == "pooled" and len(parts) > 1:
                parts = (_merged(parts),)
            metrics[key] = [scores.task.metrics(p.data, draws.for_items(p.rows)) for p in parts]
        for m in measures:
            values, reason = _means_over_folds(metrics, m.name)
            samples[m.name, pooling] = Sampled(
                values=values,
                reason=reason,
                member=draws.member,
                freedom=_freedom(scores, m, freedom),
            )
    return samples


def _why_not(scores: Scores, pooling: Pooling) -> str | None:
    """Return why nothing can be compared over these bags."""
    if scores.task.two_classes and len(np.unique(scores.positive)) < 2:
        return "there is only one class"
    if pooling == "pooled" or not scores.task.compares_across_folds:
        return None
    y = scores.targets
    folds = scores.split[0]
    classes = np.unique(y[np.isfinite(y)])
    for fold, column, c in itertools.product(np.unique(folds), y.T, classes):
        patients = np.unique(scores.groups[(column == c) & (folds == fold)])
        if len(patients) < LEAST_PATIENTS:
            return f"a fold has fewer than {LEAST_PATIENTS} patients of a class"
    return None


def _means_over_folds(
    metrics: Mapping[tuple[int, int], Sequence[TargetMetrics]], name: str
) -> tuple[dict[tuple[int, int], np.ndarray], str | None]:
    """Return the mean over folds of a metric in each replicate, or why some have none."""
    values: dict[tuple[int, int], np.ndarray] = {}
    for key, fold_metrics in metrics.items():
        rows = []
        for fold in fold_metrics:
            metric = fold.overall.get(name)
            if metric is None:
                return {}, "the predictions do not state it"
            if metric.rows is None:
                return {}, metric.reason or "it is undefined"
            rows.append(metric.rows)
        values[key] = np.mean(rows, axis=0)
    return values, None


def _freedom(scores: Scores, measure: Measure, freedom: int) -> int:
    """Return the degrees of freedom of a metric: those of the rarest class or finding if only its
    patients change the metric, else those of all patients."""
    if not measure.of_rarest_class:
        return freedom
    if scores.task.two_classes:
        return min(freedom, len(np.unique(scores.groups[scores.positive])) - 1)
    y = scores.targets
    if y.shape[1] == 1:
        members = [y[:, 0] == c for c in np.unique(y[np.isfinite(y)])]
    else:
        members = list((y == 1).T)
    fewest = min(len(np.unique(scores.groups[is_member])) for is_member in members)
    return max(1, min(freedom, fewest - 1))


def _draws(scores: Scores, pooling: Pooling, *, resamples: int) -> tuple[Draws, int]:
    """Return resamples of the patients, the same for all methods of a data set, and their degrees
    of freedom."""
    labels = scores.task.labels
    strata = labels.strata(scores.targets)
    units = strata.tolist()
    if pooling == "within":  # every fold keeps its number of patients of each class
        units = list(zip(units, scores.split[0].tolist(), strict=True))
    groups = scores.groups.tolist()
    draws = Draws.patients(units, groups=groups, resamples=resamples, seed=0)
    freedom = draws.freedom
    if labels.needed_stratum is not None:  # only patients with the event begin a pair
        needed = draws.patients_with(strata == labels.needed_stratum)
        freedom = min(freedom, needed - 1)
    return draws, freedom


def _merged(parts: Sequence[RunPart]) -> RunPart:
    """Return the parts of all folds as one."""
    first = parts[0]
    score_names = [k for k in first.data.scores if all(k in p.data.scores for p in parts)]
    threshold = None
    if first.data.threshold is not None:  # of each bag, since runs have thresholds of their own
        thresholds = [np.full(len(p.rows), p.data.threshold, dtype=np.float64) for p in parts]
        threshold = np.concatenate(thresholds)
    data = replace(
        first.data,
        y=np.concatenate([p.data.y for p in parts]),
        predicted=np.concatenate([p.data.predicted for p in parts]),
        scores={k: np.concatenate([p.data.scores[k] for p in parts]) for k in score_names},
        training=None,
        threshold=threshold,
    )
    return replace(first, rows=np.concatenate([p.rows for p in parts]), data=data)
