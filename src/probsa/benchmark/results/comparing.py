"""Compare the methods of one data set: metrics with intervals, and which method wins.

The difference of two methods is computed over the replicates that both have (seeds, or splits and
seeds with a fixed test part), so that a method with few replicates does not affect the others. A
winner is determined over the replicates that all methods have. With a fixed test part and several
splits, every mean is over splits, after averaging the seeds of a split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from .sampling import RESAMPLES, Kind, Mean, Sampled, kinds_of, means_of, sample
from .scores import Scores, align, once

ROUNDING = 1e-12
NOT_PAIRED = "no two methods share a replicate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """The methods of one data set compared by one metric."""

    measure: Measure
    pooling: Pooling
    """Whether bags of all folds are pooled, or the metric is averaged over folds."""
    values: dict[str, Metric]
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
        pooled = self.by_kind.get((name, pooling))
        return pooled if isinstance(pooled, Pooled) else None

    def deciding(self, name: str) -> Pooled | None:
        """Return the comparison by which a metric has a winner: that within folds if possible."""
        return self.of(name, "within") or self.of(name, "pooled")

    def why_not(self, name: str) -> str:
        """Return why no comparison decides."""
        return next(str(why) for (metric, _), why in self.by_kind.items() if metric == name)

    @property
    def comparisons(self) -> list[Pooled]:
        """The comparisons that could be made."""
        return [p for p in self.by_kind.values() if isinstance(p, Pooled)]


@once
def compare_methods(
    scores: Sequence[Scores], *, baseline: str | None, resamples: int = RESAMPLES
) -> Compared:
    """Compare methods by every metric of their task.

    Args:
        scores: The methods' scores on one data set.
        baseline: Name of the method that differences refer to; None: the best method.
        resamples: Number of resamples of the patients.
    """
    samples = {s.method.name: sample(s, resamples=resamples) for s in scores}
    by_kind: dict[Kind, Pooled | str] = {}
    for measure, pooling in kinds_of(scores[0]):
        kind = (measure.name, pooling)
        of_kind = {name: sampled[kind] for name, sampled in samples.items()}
        by_kind[kind] = _compare(scores, measure, pooling, of_kind, baseline=baseline)
    return Compared(by_kind=by_kind, means={s.method.name: means_of(s) for s in scores})


def _compare(
    scores: Sequence[Scores],
    measure: Measure,
    pooling: Pooling,
    samples: Mapping[str, Sampled],
    *,
    baseline: str | None,
) -> Pooled | str:
    """Compare methods over the replicates that they share, pair by pair; see `Pooled`."""
    reason = _why_not(scores, measure, samples)
    if reason is not None:
        return reason
    common, lacking = align(scores)
    winning = None
    if len(common[0].seed):
        winning = _comparison(common, measure, pooling, samples, reference=baseline)
    reference = baseline if winning is None else winning.reference
    base = next((s for s in scores if s.method.name == reference), None)
    if base is None:
        return NOT_PAIRED
    counts: dict[str, int] = {}
    differences: dict[str, Difference] = {}
    for s in scores:
        if s is base:
            continue
        name = s.method.name
        pair, _ = align([base, s])
        counts[name] = len(pair[0].seed)
        if winning is not None and counts[name] == winning.replicates:
            # every pair has the common replicates, so equal counts mean equal replicates
            differences[name] = winning.differences[name]
        elif counts[name]:
            comparison = _comparison(pair, measure, pooling, samples, reference=reference)
            differences[name] = comparison.differences[name]
    if winning is None and not differences:
        return NOT_PAIRED
    values = {s.method.name: _interval(s, measure, pooling, samples[s.method.name]) for s in scores}
    if winning is None:
        winning = _without_winner(base, values, measure)
    p = holm([1.0 if d.p is None else d.p for d in differences.values()])
    at_most_one = max([winning.replicates, *counts.values()]) <= 1
    comparison = replace(
        winning,
        metric=measure.exchanged or "other",
        differences=differences,
        adjusted=dict(zip(differences, p, strict=True)),
        notes=(ONE_REPLICATE,) if at_most_one else (),
    )
    return Pooled(
        measure=measure,
        pooling=pooling,
        values=values,
        comparison=comparison,
        replicates=counts,
        lacking=lacking,
    )


def _why_not(
    scores: Sequence[Scores], measure: Measure, samples: Mapping[str, Sampled]
) -> str | None:
    """Return why methods cannot be compared by a metric, None if they can."""
    for name, sampled in samples.items():
        if sampled.reason is not None:
            return f"{sampled.reason} ({name})"
    if measure.name == "integrated_brier":
        times: dict[int, tuple[float, ...]] = {}
        for s in scores:
            for part in s.parts:
                part_times = part.data.outputs.times
                if times.setdefault(part.split, part_times) != part_times:
                    return "the methods predict survival at different times"
    return None


def _comparison(
    scores: Sequence[Scores],
    measure: Measure,
    pooling: Pooling,
    samples: Mapping[str, Sampled],
    *,
    reference: str | None,
) -> Comparison:
    """Compare methods that have the same replicates, in the same order."""
    method_samples: dict[str, MethodSample] = {}
    for s in scores:
        values = samples[s.method.name].rows(s)
        method_samples[s.method.name] = MethodSample(values=values, scores=_predicted(s, measure))
    first = scores[0]
    data = _paired(first, measure, pooling, samples[first.method.name])
    return compared_samples(method_samples, baseline=reference, data=data)


def _without_winner(base: Scores, values: Mapping[str, Metric], measure: Measure) -> Comparison:
    """Return the comparison of methods without a replicate in common: their values alone."""
    means = {name: float(m.value or 0.0) for name, m in values.items()}
    choose = max if measure.higher_is_better else min
    return Comparison(
        metric="other",
        values=means,
        best=choose(means, key=lambda name: means[name]),
        reference=base.method.name,
        differences={},
        adjusted={},
        winner=None,
        undecided=None,
        replicates=0,
        groups=len(set(base.groups.tolist())),
    )


def _paired(scores: Scores, measure: Measure, pooling: Pooling, sampled: Sampled) -> PairedData:
    blocks = scores.blocks
    if blocks is None:  # every replicate is a block of its own
        blocks = list(range(len(scores.seed)))
    deviation = float(scores.targets[:, 0].std()) if measure.of_target else 1.0
    return PairedData(
        y=scores.positive,
        member=sampled.member,
        freedom=sampled.freedom,
        blocks=tuple(blocks),
        metric=measure.exchanged or "other",
        folds=scores.split if pooling == "within" else None,
        higher_is_better=measure.higher_is_better,
        scale=deviation or 1.0,
    )


def _interval(scores: Scores, measure: Measure, pooling: Pooling, sampled: Sampled) -> Metric:
    """Return the mean of a metric over replicates (over splits, of the means over their seeds) with
    its interval.

    The interval is that of the difference to a method of value 0, clipped to the metric's range;
    None if no resample changes the value.
    """
    values = sampled.rows(scores)
    unknown = np.full((len(values), 1), np.nan)  # scores decide only whether methods are equal
    method = MethodSample(values=values, scores=unknown)
    zero = MethodSample(values=np.zeros_like(values), scores=unknown)
    data = replace(_paired(scores, measure, pooling, sampled), metric="other")
    return clipped(compare_pair(method, zero, data=data), measure.low, measure.high)


def clipped(d: Difference, lowest: float, highest: float) -> Metric:
    """Return a mean, as a difference to 0, whose interval ends where its values do."""
    if d.low is None or d.high is None:
        return Metric(d.difference)
    return Metric(d.difference, low=max(d.low, lowest), high=min(d.high, highest))


def _predicted(scores: Scores, measure: Measure) -> Shaped[np.ndarray, "replicates items"]:
    """Return what decides whether methods are equal, and what is exchanged in the test of it."""
    if measure.exchanged is not None:
        return scores.called(measure) if measure.exchanged == "f1" else scores.p
    rows = [
        np.concatenate([part.data.predicted.ravel() for part in parts])
        for parts in scores.replicates
    ]
    # runs of survival may predict at different numbers of times
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])
