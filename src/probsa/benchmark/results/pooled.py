"""Compare the methods of one data set: metrics with intervals, and which method wins.

The difference of two methods is computed over the replicates that both have (seeds, or splits and
seeds with a fixed test part), so that a method with few replicates does not affect the others. A
winner is determined over the replicates that all methods have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

import numpy as np
from jaxtyping import Float

from ...statistics import (
    ONE_REPLICATE,
    Comparison,
    Difference,
    MethodSample,
    PairedData,
    Pooling,
    compare,
    compare_pair,
    draw_patients,
    holm,
    resampled_metric,
)
from .means import SplitMetric
from .results import AnyScores, Scores
from .target_scores import TargetScores

RESAMPLES = 2000
ROUNDING = 1e-12

S = TypeVar("S", Scores, TargetScores)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value of one method over its replicates, with its interval."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """The methods of one data set compared by one metric."""

    metric: str
    """Its name, as in `SplitMetric` or, for other tasks, of a `Measure`."""
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
    """The methods of one data set compared by every metric."""

    pooled: Mapping[SplitMetric, Pooled | None]
    within: Pooled | None
    """AUROC within folds; None without folds, or if a fold has fewer than two patients of a
    class."""

    def deciding(self, metric: SplitMetric) -> Pooled | None:
        """Return the comparison that decides the winner: AUROC within folds if possible."""
        if metric == "auroc" and self.within is not None:
            return self.within
        return self.pooled[metric]


def compare_methods(
    scores: Sequence[Scores], *, baseline: str | None, resamples: int = RESAMPLES
) -> Compared:
    """Compare methods by every metric; the arguments are those of `pool`."""
    metrics: tuple[SplitMetric, ...] = get_args(SplitMetric)
    pooled: dict[SplitMetric, Pooled | None] = {
        m: pool(scores, metric=m, baseline=baseline, resamples=resamples) for m in metrics
    }
    within = pool(scores, metric="auroc", baseline=baseline, pooling="within", resamples=resamples)
    return Compared(pooled=pooled, within=within)


def pool(
    scores: Sequence[Scores],
    *,
    metric: SplitMetric,
    baseline: str | None,
    pooling: Pooling = "pooled",
    resamples: int = RESAMPLES,
) -> Pooled | None:
    """Compare methods by one metric.

    Args:
        scores: The methods' scores on one data set.
        metric: F1 uses the calls at each run's own threshold.
        baseline: Name of the method that differences refer to; None: the best method.
        pooling: `within` computes the metric in each fold and averages it, which removes
            differences in level between the folds' runs.
        resamples: Number of resamples of the patients.

    Returns: None if nothing can be compared: one class, or no replicate that two methods share; for
    `within`, also without folds or if a fold has fewer than two patients of a class.
    """
    if not _is_defined(scores[0], pooling):
        return None

    def compared(methods: Sequence[Scores], reference: str | None) -> Comparison:
        return _compare(
            methods, metric=metric, baseline=reference, pooling=pooling, resamples=resamples
        )

    def interval(s: Scores) -> Interval:
        return interval_of(s, metric, pooling=pooling, resamples=resamples)

    found = compare_replicates(scores, baseline=baseline, compared=compared, interval=interval)
    if found is None:
        return None
    comparison = replace(found.comparison, metric=metric)
    return replace(found, metric=metric, pooling=pooling, comparison=comparison)


def compare_replicates(
    scores: Sequence[S],
    *,
    baseline: str | None,
    compared: Callable[[Sequence[S], str | None], Comparison],
    interval: Callable[[S], Interval],
    higher_is_better: bool = True,
) -> Pooled | None:
    """Compare methods over the replicates that they share, pair by pair; see `Pooled`.

    Args:
        scores: The methods' scores on one data set.
        baseline: Name of the method that differences refer to; None: the best method.
        compared: Compares methods that have the same replicates with a reference.
        interval: The value of one method over its own replicates.
        higher_is_better: Which values are better.

    Returns: None if no two methods share a replicate.
    """
    common, lacking = align(scores)
    winning = compared(common, baseline) if len(common[0].seed) else None
    reference = baseline if winning is None else winning.reference
    if reference is None:
        return None
    base = next(s for s in scores if s.method.name == reference)
    counts: dict[str, int] = {}
    differences: dict[str, Difference] = {}
    for s in (s for s in scores if s is not base):
        name, (pair, _) = s.method.name, align([base, s])
        counts[name] = len(pair[0].seed)
        if winning is not None and counts[name] == winning.replicates:
            # every pair has the common replicates, so equal counts mean equal replicates
            differences[name] = winning.differences[name]
        elif counts[name]:
            differences[name] = compared(pair, reference).differences[name]
    if winning is None and not differences:
        return None
    values = {s.method.name: interval(s) for s in scores}
    if winning is None:
        winning = _without_winner(values, base, higher_is_better=higher_is_better)
    comparison = _over_pairs(winning, differences, counts)
    return Pooled(
        metric=winning.metric,
        pooling="pooled",
        values=values,
        comparison=comparison,
        replicates=counts,
        lacking=lacking,
    )


def _over_pairs(
    winning: Comparison, differences: dict[str, Difference], replicates: Mapping[str, int]
) -> Comparison:
    """Combine the winner with the differences of pairs, which may cover more replicates."""
    p = holm([1.0 if d.p is None else d.p for d in differences.values()])
    return replace(
        winning,
        differences=differences,
        adjusted=dict(zip(differences, p, strict=True)),
        notes=(ONE_REPLICATE,) if {winning.replicates, *replicates.values()} <= {0, 1} else (),
    )


def _is_defined(scores: Scores, pooling: Pooling) -> bool:
    """Return whether the ranked bags have both classes and, within folds, two patients of each:
    with one, a third of all resamples would lose a class."""
    if pooling == "pooled":
        return len(set(scores.y.tolist())) == 2
    folds = scores.split[0]
    groups_by_class = [
        scores.groups[(folds == k) & (scores.y == y)] for k in set(folds.tolist()) for y in (0, 1)
    ]
    return scores.folds and all(len(set(groups.tolist())) > 1 for groups in groups_by_class)


def _compare(
    scores: Sequence[Scores],
    *,
    metric: SplitMetric,
    baseline: str | None,
    pooling: Pooling,
    resamples: int,
) -> Comparison:
    """Compare methods that have the same replicates."""
    first = scores[0]
    return compare(
        first.y,
        {s.method.name: s.p if metric == "auroc" else s.calls for s in scores},
        groups=first.groups,
        metric=metric,
        baseline=baseline,
        folds=first.split if pooling == "within" else None,
        blocks=blocks(first),
        resamples=resamples,
    )


def _without_winner(
    values: Mapping[str, Interval], base: AnyScores, *, higher_is_better: bool
) -> Comparison:
    """Return what can be said if no replicate is common to all methods."""
    return Comparison(
        metric="other",
        values={name: v.value for name, v in values.items()},
        best=(max if higher_is_better else min)(values, key=lambda name: values[name].value),
        reference=base.method.name,
        differences={},
        adjusted={},
        winner=None,
        reason="there is no replicate that all methods have",
        replicates=0,
        groups=len(set(base.groups.tolist())),
    )


def interval_of(
    scores: Scores,
    metric: SplitMetric,
    *,
    pooling: Pooling = "pooled",
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the mean of a metric over replicates with its interval, see `mean_with_interval`."""
    y = scores.y == 1
    predicted = scores.p if metric == "auroc" else scores.calls
    folds = scores.split if pooling == "within" else None
    strata = y.tolist() if folds is None else list(zip(y, folds[0].tolist(), strict=True))
    draws, freedom = draw_patients(
        strata, groups=scores.groups.tolist(), resamples=resamples, seed=0
    )
    values = resampled_metric(y, predicted, draws=draws, metric=metric, folds=folds)
    shared = blocks(scores)
    data = PairedData(
        y=y,
        member=draws.member,
        freedom=freedom,
        blocks=tuple(range(len(predicted)) if shared is None else shared),
        metric="other",
    )
    return mean_with_interval(values, data=data)


def mean_with_interval(
    values: Float[np.ndarray, "replicates rows"],
    *,
    data: PairedData,
    low: float = 0.0,
    high: float = 1.0,
) -> Interval:
    """Return the mean of a metric over replicates with its interval.

    The interval is that of the difference to a method of value 0, clipped to the metric's range
    from `low` to `high`; None if no resample changes the value.
    """
    unknown = np.full((len(values), 1), np.nan)  # scores decide only whether methods are equal
    method, zero = (MethodSample(values=v, scores=unknown) for v in (values, np.zeros_like(values)))
    d, value = compare_pair(method, zero, data=data), float(values[:, 0].mean())
    if d.low is None or d.high is None:
        return Interval(value=value, low=None, high=None)
    return Interval(value=value, low=max(d.low, low), high=min(d.high, high))


def align(scores: Sequence[S]) -> tuple[list[S], int]:
    """Return the methods with their common replicates in one order, and how many were left out."""
    keys = [replicate_keys(s) for s in scores]
    common = sorted(set.intersection(*map(set, keys)))
    aligned = [
        s.take([method_keys.index(k) for k in common])
        for s, method_keys in zip(scores, keys, strict=True)
    ]
    return aligned, len(set().union(*keys)) - len(common)


def replicate_keys(scores: AnyScores) -> list[tuple[int, int]]:
    """Return (split, seed) of each replicate; (-1, seed) with folds, which it pools."""
    splits = [-1] * len(scores.seed) if scores.folds else scores.split[:, 0].tolist()
    return list(zip(splits, scores.seed.tolist(), strict=True))


def blocks(scores: AnyScores) -> list[int] | None:
    """Return the split of each replicate if a replicate is a split and a seed, else None."""
    splits = [k for k, _ in replicate_keys(scores)]
    return splits if len(set(splits)) > 1 else None
