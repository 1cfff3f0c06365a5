"""Compare the methods of one data set whose task is not two classes, by each of its metrics.

Differences are paired over patients and replicates, by the rule of `pooled`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...statistics import Comparison, MethodSample, PairedData, compared_samples
from ...tasks import TASKS, Measure
from .means import Mean, mean_of_splits
from .pooled import (
    Interval,
    Pooled,
    blocks,
    compare_replicates,
    mean_with_interval,
    replicate_keys,
)
from .target_samples import TargetSamples, values_by_split
from .target_scores import TargetScores

OF_POSITIVES = ("f1", "macro_average_precision")
"""Metrics whose variance is that of the rarest class or finding, as in `statistics.compare`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCompared:
    """The methods of one data set compared by every metric of its task."""

    pooled: Mapping[str, Pooled | None]
    """By metric; None if nothing can be compared."""
    means: Mapping[str, Mapping[str, Mean]]
    """Means over splits, by method and metric."""
    reasons: Mapping[str, str]
    """Why a metric is not compared, in words."""


def compare_targets(
    scores: Sequence[TargetScores],
    *,
    baseline: str | None,
    sampled: Callable[[TargetScores], TargetSamples],
) -> TargetCompared:
    """Compare methods by every metric of their task.

    Args:
        scores: The methods' scores on one data set.
        baseline: Name of the method that differences refer to; None: the best method.
        sampled: Returns the metrics of a method in all resamples.
    """
    samples = {s.method.name: sampled(s) for s in scores}
    pooled: dict[str, Pooled | None] = {}
    reasons: dict[str, str] = {}
    for metric in TASKS[scores[0].task].measures:
        lacking = {
            n: s.reasons[metric.name] for n, s in samples.items() if metric.name in s.reasons
        }
        if lacking:
            name, why = next(iter(lacking.items()))
            reasons[metric.name] = f"{why} ({name})"
        elif metric.name == "integrated_brier" and not _same_times(scores):
            reasons[metric.name] = "the methods predict survival at different times"
        found = None if metric.name in reasons else _pooled(scores, metric, baseline, samples)
        pooled[metric.name] = found
        if found is None:
            reasons.setdefault(metric.name, "no two methods share a replicate")
    means = {
        s.method.name: {m: mean_of_splits(v) for m, v in values_by_split(s).items()} for s in scores
    }
    return TargetCompared(pooled=pooled, means=means, reasons=reasons)


def _pooled(
    scores: Sequence[TargetScores],
    metric: Measure,
    baseline: str | None,
    samples: Mapping[str, TargetSamples],
) -> Pooled | None:
    name = metric.name

    def sample_of(s: TargetScores) -> MethodSample:
        rows = samples[s.method.name].values[name]
        return MethodSample(
            values=np.stack([rows[key] for key in replicate_keys(s)]), scores=_predicted(s)
        )

    def compared(methods: Sequence[TargetScores], reference: str | None) -> Comparison:
        data = _paired(methods[0], metric, samples[methods[0].method.name])
        by_name = {s.method.name: sample_of(s) for s in methods}
        return compared_samples(by_name, baseline=reference, data=data)

    def interval(s: TargetScores) -> Interval:
        data = _paired(s, metric, samples[s.method.name])
        return mean_with_interval(sample_of(s).values, data=data, low=metric.low, high=metric.high)

    found = compare_replicates(
        scores,
        baseline=baseline,
        compared=compared,
        interval=interval,
        higher_is_better=metric.higher_is_better,
    )
    if found is None:
        return None
    return replace(found, metric=name, pooling=samples[scores[0].method.name].pooling[name])


def _paired(scores: TargetScores, metric: Measure, samples: TargetSamples) -> PairedData:
    patients, shared, y = samples.draws[samples.pooling[metric.name]], blocks(scores), scores.y
    deviation = float(y[:, 0].std()) if metric.of_target else 1.0
    freedom = patients.freedom
    if metric.name in OF_POSITIVES:
        freedom = max(1, min(freedom, _fewest_patients(scores) - 1))
    return PairedData(
        y=np.ones(len(scores.bags), dtype=bool),
        member=patients.draws.member,
        freedom=freedom,
        blocks=tuple(range(len(scores.seed)) if shared is None else shared),
        metric="other",
        higher_is_better=metric.higher_is_better,
        scale=deviation or 1.0,
    )


def _fewest_patients(scores: TargetScores) -> int:
    """Return the number of patients of the rarest class, or with the rarest finding."""
    y = scores.y
    if y.shape[1] > 1:
        present = list((y == 1).T)
    else:
        present = [y[:, 0] == c for c in np.unique(y[np.isfinite(y)])]
    return min(len(np.unique(scores.groups[of_class])) for of_class in present)


def _predicted(scores: TargetScores) -> np.ndarray:
    """Return all that a method predicts as one row per replicate."""
    rows = [
        np.concatenate([part.data.predicted.ravel() for part in parts])
        for parts in scores.replicates
    ]
    # runs of survival may predict at different numbers of times
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def _same_times(scores: Sequence[TargetScores]) -> bool:
    """Return whether all methods predict survival at the same times on each split."""
    times: dict[int, tuple[str, ...]] = {}
    parts = (part for s in scores for parts in s.replicates for part in parts)
    return all(times.setdefault(p.split, p.data.outputs) == p.data.outputs for p in parts)
