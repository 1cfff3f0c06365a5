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
    sampled = {s.method.name: sample(s, resamples=resamples) for s in scores}
    by_kind: dict[Kind, Pooled | str] = {}
    for measure, pooling in kinds_of(scores[0]):
        kind = measure.name, pooling
        samples = {name: of_method[kind] for name, of_method in sampled.items()}
        by_kind[kind] = _compare(scores, measure, pooling, samples, baseline=baseline)
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
    for name, of_method in samples.items():
        if of_method.reason is not None:
            return f"{of_method.reason} ({name})"
    times: dict[int, tuple[float, ...]] = {}
    if measure.name == "integrated_brier" and any(
        times.setdefault(part.split, part.data.outputs.times) != part.data.outputs.times
        for s in scores
        for part in s.parts
    ):
        return "the methods predict survival at different times"

    def compared(methods: Sequence[Scores], reference: str | None) -> Comparison:
        by_name = {
            s.method.name: MethodSample(
                values=samples[s.method.name].rows(s), scores=_predicted(s, measure)
            )
            for s in methods
        }
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
        means = {name: float(m.value or 0.0) for name, m in values.items()}
        best = (max if measure.higher_is_better else min)(means, key=lambda n: means[n])
        winning = Comparison(
            metric="other",
            values=means,
            best=best,
            reference=base.method.name,
            differences={},
            adjusted={},
            winner=None,
            undecided=None,
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


def _interval(scores: Scores, measure: Measure, pooling: Pooling, sampled: Sampled) -> Metric:
    """Return the mean of a metric over replicates (over splits, of the means over their seeds) with
    its interval.

    The interval is that of the difference to a method of value 0, clipped to the metric's range;
    None if no resample changes the value.
    """
    values = sampled.rows(scores)
    unknown = np.full((len(values), 1), np.nan)  # scores decide only whether methods are equal
    method, zero = (MethodSample(values=v, scores=unknown) for v in (values, np.zeros_like(values)))
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
