"""The metrics of a method whose task is not two classes, in every replicate and resample.

With folds, metrics that rank bags are averaged over the folds, because runs need not agree about
the level of a score; all others are of the bags of all folds together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from ...statistics import Draws, Pooling, TargetMetrics, draw_patients
from ...tasks import TASKS, Measure
from .pooled import RESAMPLES, replicate_keys
from .target_scores import RunPart, TargetScores

ReplicateKey = tuple[int, int]
LEAST_PATIENTS = 2
"""Patients of each class that a fold needs: with one, a third of all resamples would lose it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PatientDraws:
    """Resamples of the patients, the same for all methods of a data set."""

    draws: Draws
    freedom: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSamples:
    """All metrics of one method."""

    values: Mapping[str, Mapping[ReplicateKey, Float[np.ndarray, " rows"]]]
    """By metric and replicate; the first row is the data."""
    reasons: Mapping[str, str]
    """Why metrics have no value in some replicate."""
    pooling: Mapping[str, Pooling]
    draws: Mapping[Pooling, PatientDraws]


def sample_targets(scores: TargetScores, *, resamples: int = RESAMPLES) -> TargetSamples:
    """Compute every metric of the tables in each replicate and resample of the patients."""
    measures = TASKS[scores.task].measures
    pooling: dict[str, Pooling] = {m.name: pooling_of(scores, m) for m in measures}
    kinds: list[Pooling] = [*dict.fromkeys(pooling.values())]
    draws: dict[Pooling, PatientDraws] = {p: _draws(scores, p, resamples=resamples) for p in kinds}
    values: dict[str, dict[ReplicateKey, np.ndarray]] = {m.name: {} for m in measures}
    reasons: dict[str, str] = {}
    for key, parts in zip(replicate_keys(scores), scores.replicates, strict=True):
        found = {p: _metrics(parts, draws[p].draws, pooling=p) for p in kinds}
        for name, kind in pooling.items():
            rows = []
            for metrics in found[kind]:
                metric = metrics.overall.get(name)
                if metric is None or metric.rows is None:
                    reason = "the predictions do not state it" if metric is None else metric.reason
                    reasons.setdefault(name, reason or "")
                else:
                    rows.append(metric.rows)
            if len(rows) == len(found[kind]):
                values[name][key] = np.mean(rows, axis=0)
    return TargetSamples(
        values={name: v for name, v in values.items() if name not in reasons},
        reasons=reasons,
        pooling=pooling,
        draws=draws,
    )


def pooling_of(scores: TargetScores, metric: Measure) -> Pooling:
    """Return whether a metric is averaged over folds, as ranks are if each fold has enough
    patients of each class; risks are never ranked across folds."""
    if not (scores.folds and metric.by_fold):
        return "pooled"
    if not TASKS[scores.task].compares_across_folds:
        return "within"
    y, folds = scores.y, scores.split[0]
    columns = [y[:, k] == c for k in range(y.shape[1]) for c in np.unique(y[np.isfinite(y)])]
    counts = [
        len(np.unique(scores.groups[of_class & (folds == fold)]))
        for of_class in columns
        for fold in np.unique(folds)
    ]
    return "within" if min(counts) >= LEAST_PATIENTS else "pooled"


def values_by_split(scores: TargetScores) -> dict[str, dict[int, float]]:
    """Return each metric on each split's test bags, averaged over seeds.

    Splits on which it is undefined are omitted.
    """
    values: dict[str, dict[int, list[float]]] = {m.name: {} for m in TASKS[scores.task].measures}
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


def null_rivals(scores: TargetScores) -> dict[str, dict[str, float]]:
    """Return the metrics of predictions that look at no bag, by rival; means over runs."""
    values: dict[str, dict[str, list[float]]] = {}
    for part in (part for parts in scores.replicates for part in parts):
        rivals = TASKS[scores.task].rivals(part.data, Draws.of_data(len(part.rows)))
        for name, found in rivals.items():
            of_rival = values.setdefault(name, {})
            for metric in TASKS[scores.task].measures:
                sampled = found.overall.get(metric.name)
                if sampled is not None and sampled.value is not None:
                    of_rival.setdefault(metric.name, []).append(sampled.value)
    return {
        name: {metric: float(np.mean(v)) for metric, v in of_rival.items()}
        for name, of_rival in values.items()
    }


def _metrics(parts: Sequence[RunPart], draws: Draws, *, pooling: Pooling) -> list[TargetMetrics]:
    """Return the metrics of each fold, or those of all bags together."""
    if pooling == "pooled" and len(parts) > 1:
        parts = [_merged(parts)]
    return [_metrics_of(part, draws.for_items(part.rows)) for part in parts]


def _metrics_of(part: RunPart, draws: Draws) -> TargetMetrics:
    return TASKS[part.data.task].metrics(part.data, draws)


def _merged(parts: Sequence[RunPart]) -> RunPart:
    first = parts[0]
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
    )
    return replace(first, rows=np.concatenate([p.rows for p in parts]), data=data)


def _draws(scores: TargetScores, pooling: Pooling, *, resamples: int) -> PatientDraws:
    strata = TASKS[scores.task].labels.strata(scores.y)
    if pooling == "within":
        pairs = list(zip(strata.tolist(), scores.split[0].tolist(), strict=True))
    else:
        pairs = strata.tolist()
    draws, freedom = draw_patients(
        pairs, groups=scores.groups.tolist(), resamples=resamples, seed=0
    )
    counted = TASKS[scores.task].labels.needed_stratum
    if counted is not None:  # only patients with the event begin a pair
        freedom = min(freedom, len(np.unique(draws.member[strata == counted])) - 1)
    return PatientDraws(draws=draws, freedom=freedom)
