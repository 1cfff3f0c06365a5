"""The metrics of one method, in every replicate and resample of the patients.

With folds, metrics that rank bags are also averaged over the folds, because runs need not agree
about the level of a score; all others are of the bags of all folds together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from ...statistics import Draws, Pooling, TargetMetrics, draw_patients
from ...tasks import TASKS, Measure
from .scores import RunPart, Scores

RESAMPLES = 2000
LEAST_PATIENTS = 2
"""Patients of each class that a fold needs: with one, a third of all resamples would lose it."""
OF_POSITIVES = ("f1", "macro_average_precision")
"""Metrics whose variance is that of the rarest class or finding, as in `statistics.compare`."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over splits; None if the metric is undefined on every split."""

    mean: float | None
    sd: float | None
    """Standard deviation over splits (ddof = 1); None with fewer than two splits.

    It shows how much splits differ, not how precise the mean is: splits share bags, and a fixed
    test part consists of the same bags every time."""
    splits: int


def kinds_of(scores: Scores) -> list[tuple[Measure, Pooling]]:
    """Return what is compared on a data set: metrics over all folds, then those within folds.

    Risks are never ranked across folds, so that theirs are within folds alone.
    """
    task = scores.task
    within = [m for m in task.measures if scores.folds and m.by_fold]
    pooled = [m for m in task.measures if m not in within or task.compares_across_folds]
    return [*((m, "pooled") for m in pooled), *((m, "within") for m in within)]


def sample(scores: Scores, *, resamples: int = RESAMPLES) -> dict[Kind, Sampled]:
    """Compute everything that is compared, in each replicate and resample of the patients."""
    kinds = kinds_of(scores)

    def none(reason: str) -> Sampled:
        return Sampled(values={}, reason=reason, member=np.zeros(0, np.int64), freedom=0)

    if scores.task.two_classes and len(np.unique(scores.positive)) < 2:
        return {(m.name, pooling): none("there is only one class") for m, pooling in kinds}
    found: dict[Kind, Sampled] = {}
    poolings: tuple[Pooling, ...] = ("pooled", "within")
    for pooling in poolings:
        measures = [m for m, of in kinds if of == pooling]
        if not measures:
            continue
        ranked = pooling == "within" and scores.task.compares_across_folds
        if ranked and _fewest(scores) < LEAST_PATIENTS:
            few = f"a fold has fewer than {LEAST_PATIENTS} patients of a class"
            found |= {(m.name, pooling): none(few) for m in measures}
            continue
        draws, freedom = _draws(scores, pooling, resamples=resamples)
        metrics = {
            key: _metrics(parts, draws, pooling=pooling)
            for key, parts in zip(scores.keys, scores.replicates, strict=True)
        }
        for m in measures:
            values, reason = _values(metrics, m.name)
            found[m.name, pooling] = Sampled(
                values=values,
                reason=reason,
                member=draws.member,
                freedom=_freedom(scores, m, freedom),
            )
    return found


def _values(
    metrics: Mapping[tuple[int, int], Sequence[TargetMetrics]], name: str
) -> tuple[dict[tuple[int, int], np.ndarray], str | None]:
    """Return the mean over folds of a metric in each replicate, or why some have none."""
    values: dict[tuple[int, int], np.ndarray] = {}
    for key, of_folds in metrics.items():
        rows = []
        for of_fold in of_folds:
            metric = of_fold.overall.get(name)
            if metric is None or metric.rows is None:
                why = "the predictions do not state it" if metric is None else metric.reason
                return {}, why or "it is undefined"
            rows.append(metric.rows)
        values[key] = np.mean(rows, axis=0)
    return values, None


def _fewest(scores: Scores) -> int:
    """Return the number of patients of the class that is rarest in its fold."""
    y, folds = scores.targets, scores.split[0]
    return min(
        len(np.unique(scores.groups[(y[:, k] == c) & (folds == fold)]))
        for k in range(y.shape[1])
        for c in np.unique(y[np.isfinite(y)])
        for fold in np.unique(folds)
    )


def _freedom(scores: Scores, measure: Measure, freedom: int) -> int:
    if measure.name not in OF_POSITIVES:
        return freedom
    y = scores.targets
    if scores.task.two_classes:
        return min(freedom, len(np.unique(scores.groups[scores.positive])) - 1)
    parts = [y[:, 0] == c for c in np.unique(y[np.isfinite(y)])]
    of_classes = parts if y.shape[1] == 1 else list((y == 1).T)
    fewest = min(len(np.unique(scores.groups[of_class])) for of_class in of_classes)
    return max(1, min(freedom, fewest - 1))


def _draws(scores: Scores, pooling: Pooling, *, resamples: int) -> tuple[Draws, int]:
    """Return resamples of the patients, the same for all methods of a data set."""
    labels = scores.task.labels
    strata = labels.strata(scores.targets)
    units = strata.tolist()
    if pooling == "within":
        units = list(zip(units, scores.split[0].tolist(), strict=True))
    draws, freedom = draw_patients(
        units, groups=scores.groups.tolist(), resamples=resamples, seed=0
    )
    if labels.needed_stratum is not None:  # only patients with the event begin a pair
        needed = np.unique(draws.member[strata == labels.needed_stratum])
        freedom = min(freedom, len(needed) - 1)
    return draws, freedom


def _metrics(parts: Sequence[RunPart], draws: Draws, *, pooling: Pooling) -> list[TargetMetrics]:
    """Return the metrics of each fold, or those of all bags together."""
    if pooling == "pooled" and len(parts) > 1:
        parts = [_merged(parts)]
    return [_metrics_of(part, draws.for_items(part.rows)) for part in parts]


def _metrics_of(part: RunPart, draws: Draws) -> TargetMetrics:
    return TASKS[part.data.task].metrics(part.data, draws)


def _merged(parts: Sequence[RunPart]) -> RunPart:
    first = parts[0]
    limits = [np.full(len(p.rows), p.data.threshold, dtype=np.float64) for p in parts]
    data = replace(
        first.data,
        y=np.concatenate([p.data.y for p in parts]),
        predicted=np.concatenate([p.data.predicted for p in parts]),
        scores={
            k: np.concatenate([p.data.scores[k] for p in parts])
            for k in first.data.scores
            if all(k in p.data.scores for p in parts)
        },
        training=None,
        threshold=None if first.data.threshold is None else np.concatenate(limits),
    )
    return replace(first, rows=np.concatenate([p.rows for p in parts]), data=data)


def values_by_split(scores: Scores) -> dict[str, dict[int, float]]:
    """Return each metric on each split's test bags, averaged over seeds.

    Splits on which it is undefined are omitted.
    """
    values: dict[str, dict[int, list[float]]] = {m.name: {} for m in scores.task.measures}
    for part in (part for parts in scores.replicates for part in parts):
        found = _metrics_of(part, Draws.of_data(len(part.rows)))
        for name, by_split in values.items():
            metric = found.overall.get(name)
            if metric is not None and metric.value is not None:
                by_split.setdefault(part.split, []).append(metric.value)
    return {
        name: {k: float(np.mean(by_split[k])) for k in sorted(by_split)}
        for name, by_split in values.items()
    }


def means_of(scores: Scores) -> dict[str, Mean]:
    """Return the mean and std over splits of each metric; seeds are averaged within a split."""
    means = {}
    for name, by_split in values_by_split(scores).items():
        values = list(by_split.values())
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        mean = float(np.mean(values)) if values else None
        means[name] = Mean(mean=mean, sd=sd, splits=len(values))
    return means


def null_rivals(scores: Scores) -> dict[str, dict[str, float]]:
    """Return the metrics of predictions that look at no bag, by rival; means over runs."""
    values: dict[str, dict[str, list[float]]] = {}
    for part in (part for parts in scores.replicates for part in parts):
        rivals = scores.task.rivals(part.data, Draws.of_data(len(part.rows)))
        for name, found in rivals.items():
            of_rival = values.setdefault(name, {})
            for metric in scores.task.measures:
                sampled = found.overall.get(metric.name)
                if sampled is not None and sampled.value is not None:
                    of_rival.setdefault(metric.name, []).append(sampled.value)
    return {
        name: {metric: float(np.mean(v)) for metric, v in of_rival.items()}
        for name, of_rival in values.items()
    }
