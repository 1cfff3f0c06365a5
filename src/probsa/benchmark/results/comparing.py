"""Compare the methods of one data set: metrics with intervals, and which method wins.

The difference of two methods is computed over the replicates that both have (seeds, or splits and
seeds with a fixed test part), so that a method with few replicates does not affect the others. A
winner is determined over the replicates that all methods have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from ...statistics import (
    ONE_REPLICATE,
    Comparison,
    Difference,
    MethodSample,
    Metric,
    PairedData,
    Pooling,
    compare_pair,
    compared_samples,
    holm,
)
from ...tasks import Measure
from .instances import BOOTSTRAP, metrics_of
from .sampling import RESAMPLES, Kind, Mean, Sampled, kinds_of, means_of, sample
from .scores import Scores, align

ROUNDING = 1e-12
NOT_PAIRED = "no two methods share a replicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value of one method over its replicates, with its interval."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """The methods of one data set compared by one metric."""

    measure: Measure
    pooling: Pooling
    """Whether bags of all folds are pooled, or the metric is averaged over folds."""
    values: dict[str, Interval]
    """Each method's value over its own replicates, by name."""
    comparison: Comparison
    """Differences cover the replicates that both methods have; best and winner cover `replicates`,
    those that all methods have (0: none)."""
    replicates: dict[str, int]
    """Replicates behind each difference to the reference; 0 if they share none."""
    lacking: int
    """Replicates that some method lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The methods of one data set compared by every metric of its task."""

    by_kind: Mapping[Kind, Pooled | str]
    """What is compared, see `kinds_of`, or the reason why it is not."""
    means: Mapping[str, Mapping[str, Mean]]
    """Means over splits, by method and metric."""

    def of(self, name: str, pooling: Pooling) -> Pooled | None:
        """Return a comparison, None if there is none."""
        found = self.by_kind.get((name, pooling))
        return found if isinstance(found, Pooled) else None

    def deciding(self, name: str) -> Pooled | None:
        """Return the comparison by which a metric has a winner: that within folds if possible."""
        return self.of(name, "within") or self.of(name, "pooled")

    def why_not(self, name: str) -> str:
        """Return why no comparison decides."""
        return next(str(why) for (of, _), why in self.by_kind.items() if of == name)

    @property
    def known(self) -> list[Pooled]:
        """The comparisons that could be made."""
        return [p for p in self.by_kind.values() if isinstance(p, Pooled)]


def compare_methods(
    scores: Sequence[Scores],
    *,
    baseline: str | None,
    sampled: Mapping[str, Mapping[Kind, Sampled]] | None = None,
    resamples: int = RESAMPLES,
) -> Compared:
    """Compare methods by every metric of their task.

    Args:
        scores: The methods' scores on one data set.
        baseline: Name of the method that differences refer to; None: the best method.
        sampled: What `sample` returns of each method, by name; None to compute it.
        resamples: Number of resamples of the patients.
    """
    if sampled is None:
        sampled = {s.method.name: sample(s, resamples=resamples) for s in scores}
    by_kind: dict[Kind, Pooled | str] = {}
    for measure, pooling in kinds_of(scores[0]):
        kind = measure.name, pooling
        samples = {name: of_method[kind] for name, of_method in sampled.items()}
        by_kind[kind] = _compare(scores, measure, pooling, samples, baseline=baseline)
    return Compared(
        by_kind=by_kind,
        means={s.method.name: means_of(s) for s in scores},
    )


def _compare(
    scores: Sequence[Scores],
    measure: Measure,
    pooling: Pooling,
    samples: Mapping[str, Sampled],
    *,
    baseline: str | None,
) -> Pooled | str:
    """Compare methods over the replicates that they share, pair by pair; see `Pooled`."""
    for name, of_method in samples.items():
        if of_method.reason is not None:
            return f"{of_method.reason} ({name})"
    if measure.name == "integrated_brier" and not _same_times(scores):
        return "the methods predict survival at different times"

    def compared(methods: Sequence[Scores], reference: str | None) -> Comparison:
        by_name = {s.method.name: _sample(s, measure, samples[s.method.name]) for s in methods}
        data = _paired(methods[0], measure, pooling, samples[methods[0].method.name])
        return compared_samples(by_name, baseline=reference, data=data)

    common, lacking = align(scores)
    winning = compared(common, baseline) if len(common[0].seed) else None
    reference = baseline if winning is None else winning.reference
    counts: dict[str, int] = {}
    differences: dict[str, Difference] = {}
    base = next((s for s in scores if s.method.name == reference), None)
    if base is None:
        return NOT_PAIRED
    for s in (s for s in scores if s is not base):
        name, (pair, _) = s.method.name, align([base, s])
        counts[name] = len(pair[0].seed)
        if winning is not None and counts[name] == winning.replicates:
            # every pair has the common replicates, so equal counts mean equal replicates
            differences[name] = winning.differences[name]
        elif counts[name]:
            differences[name] = compared(pair, reference).differences[name]
    if winning is None and not differences:
        return NOT_PAIRED
    values = {s.method.name: _interval(s, measure, pooling, samples[s.method.name]) for s in scores}
    if winning is None:
        best = (max if measure.higher_is_better else min)(values, key=lambda n: values[n].value)
        winning = Comparison(
            metric="other",
            values={name: v.value for name, v in values.items()},
            best=best,
            reference=base.method.name,
            differences={},
            adjusted={},
            winner=None,
            reason="there is no replicate that all methods have",
            replicates=0,
            groups=len(set(base.groups.tolist())),
        )
    p = holm([1.0 if d.p is None else d.p for d in differences.values()])
    one = {winning.replicates, *counts.values()} <= {0, 1}
    comparison = replace(
        winning,
        metric=measure.exchanged or "other",
        differences=differences,
        adjusted=dict(zip(differences, p, strict=True)),
        notes=(ONE_REPLICATE,) if one else (),
    )
    return Pooled(
        measure=measure,
        pooling=pooling,
        values=values,
        comparison=comparison,
        replicates=counts,
        lacking=lacking,
    )


def _sample(scores: Scores, measure: Measure, sampled: Sampled) -> MethodSample:
    return MethodSample(
        values=np.stack([sampled.values[key] for key in scores.keys]),
        scores=_predicted(scores, measure),
    )


def _paired(scores: Scores, measure: Measure, pooling: Pooling, sampled: Sampled) -> PairedData:
    blocks, targets = scores.blocks, scores.targets
    scale = float(targets[:, 0].std()) if measure.of_target else 1.0
    return PairedData(
        y=scores.positive,
        member=sampled.member,
        freedom=sampled.freedom,
        blocks=tuple(range(len(scores.seed)) if blocks is None else blocks),
        metric=measure.exchanged or "other",
        folds=scores.split if pooling == "within" else None,
        higher_is_better=measure.higher_is_better,
        scale=scale or 1.0,
    )


def _interval(scores: Scores, measure: Measure, pooling: Pooling, sampled: Sampled) -> Interval:
    """Return the mean of a metric over replicates with its interval.

    The interval is that of the difference to a method of value 0, clipped to the metric's range;
    None if no resample changes the value.
    """
    values = np.stack([sampled.values[key] for key in scores.keys])
    unknown = np.full((len(values), 1), np.nan)  # scores decide only whether methods are equal
    method, zero = (MethodSample(values=v, scores=unknown) for v in (values, np.zeros_like(values)))
    data = replace(_paired(scores, measure, pooling, sampled), metric="other")
    d, value = compare_pair(method, zero, data=data), float(values[:, 0].mean())
    if d.low is None or d.high is None:
        return Interval(value=value, low=None, high=None)
    return Interval(value=value, low=max(d.low, measure.low), high=min(d.high, measure.high))


def _predicted(scores: Scores, measure: Measure) -> Shaped[np.ndarray, "replicates items"]:
    """Return what decides whether methods are equal, and what is exchanged in the test of it."""
    if measure.exchanged is not None:
        return scores.calls if measure.exchanged == "f1" else scores.p
    rows = [
        np.concatenate([part.data.predicted.ravel() for part in parts])
        for parts in scores.replicates
    ]
    # runs of survival may predict at different numbers of times
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def _same_times(scores: Sequence[Scores]) -> bool:
    """Return whether all methods predict survival at the same times on each split."""
    times: dict[int, tuple[str, ...]] = {}
    parts = (part for s in scores for parts in s.replicates for part in parts)
    return all(times.setdefault(p.split, p.data.outputs) == p.data.outputs for p in parts)


Key = tuple[str, str, tuple[tuple[Path, ...], ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultCache:
    """Computes each result once for the same runs, which tables and figures share."""

    _samples: dict[Key, dict[Kind, Sampled]] = field(default_factory=dict)
    _compared: dict[tuple[tuple[Key, ...], str | None], Compared] = field(default_factory=dict)
    _metrics: dict[tuple[Key, int], Mapping[str, Metric] | None] = field(default_factory=dict)

    def compared(self, scores: Sequence[Scores], *, baseline: str | None) -> Compared:
        """Return `compare_methods` of the scores."""
        key = tuple(map(_key, scores)), baseline
        if key not in self._compared:
            for s in scores:
                if _key(s) not in self._samples:
                    self._samples[_key(s)] = sample(s)
            sampled = {s.method.name: self._samples[_key(s)] for s in scores}
            self._compared[key] = compare_methods(scores, baseline=baseline, sampled=sampled)
        return self._compared[key]

    def metrics(self, scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
        """Return `metrics_of` the scores.

        Raises:
            BagError, InputError: As `metrics_of` does.
        """
        key = _key(scores), bootstrap
        if key not in self._metrics:
            self._metrics[key] = metrics_of(scores, bootstrap=bootstrap)
        return self._metrics[key]


def _key(scores: Scores) -> Key:
    """Return the runs in order: a grid may finish more of them between two calls."""
    return scores.data, scores.method.name, tuple(scores.runs)
