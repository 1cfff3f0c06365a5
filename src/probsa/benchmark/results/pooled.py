"""Methods of one data set side by side: metrics with intervals, and who beats whom.

A difference is over the replicates (seeds; with a fixed test part splits and seeds) that its two
methods have, so that a method with few costs the others nothing; a winner is sought over those that
all have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from ...statistics import (
    ONE_REPLICATE,
    Comparison,
    Data,
    Difference,
    Pooling,
    Sample,
    compare,
    difference,
    draw,
    holm,
    resampled,
)
from .means import SplitMetric
from .results import Scores

RESAMPLES = 2000
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value of one method, over its replicates."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """The methods of one data set by one metric."""

    metric: SplitMetric
    pooling: Pooling
    """Over the bags of all folds, or in each fold and then the mean."""
    values: dict[str, Interval]
    """By the method's name: over its own replicates."""
    comparison: Comparison
    """Each difference is over the replicates that both methods have; best and winner are over
    `replicates`, which all have (0: none)."""
    replicates: dict[str, int]
    """Of each difference to the reference; 0 where it shares none with it."""
    lacking: int
    """Replicates that some method lacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The methods of one data set by every metric."""

    pooled: Mapping[SplitMetric, Pooled | None]
    within: Pooled | None
    """AUROC within folds; None where there are none, or one has fewer than two patients of a
    class."""

    def deciding(self, metric: SplitMetric) -> Pooled | None:
        """What winners are told by: AUROC within folds where it can be, as tables of means are."""
        if metric == "auroc" and self.within is not None:
            return self.within
        return self.pooled[metric]


def compare_methods(
    scores: Sequence[Scores], *, baseline: str | None, resamples: int = RESAMPLES
) -> Compared:
    """Compares methods by every metric; the arguments are those of `pool`."""
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
    """Compares methods by one metric.

    Args:
        scores: of one data set.
        metric: F1 is of the calls at each run's own threshold.
        baseline: the name of the method that differences are against; None: the best.
        pooling: `within`: in each fold alone, then the mean: levels of folds' runs play no part.
        resamples: of the patients.

    Returns: None where nothing can be compared: one class, no replicate that two methods have, or,
        of `within`, no folds, or one with fewer than two patients of a class.
    """
    if not _is_defined(scores[0], pooling):
        return None

    def compared(of: Sequence[Scores], reference: str | None) -> Comparison:
        return _compare(of, metric=metric, baseline=reference, pooling=pooling, resamples=resamples)

    common, lacking = align(scores)
    winning = compared(common, baseline) if len(common[0].p) else None
    reference = baseline if winning is None else winning.reference
    if reference is None:
        return None
    base = next(s for s in scores if s.method.name == reference)
    counts: dict[str, int] = {}
    differences: dict[str, Difference] = {}
    for s in (s for s in scores if s is not base):
        name, (pair, _) = s.method.name, align([base, s])
        counts[name] = len(pair[0].p)
        if winning is not None and counts[name] == winning.replicates:
            # those that all have are in every pair: as many are the same
            differences[name] = winning.differences[name]
        elif counts[name]:
            differences[name] = compared(pair, reference).differences[name]
    if winning is None and not differences:
        return None
    values = {
        s.method.name: interval_of(s, metric, pooling=pooling, resamples=resamples) for s in scores
    }
    winning = winning or _without_winner(values, base, metric=metric)
    comparison = _over_pairs(winning, differences, counts)
    return Pooled(
        metric=metric,
        pooling=pooling,
        values=values,
        comparison=comparison,
        replicates=counts,
        lacking=lacking,
    )


def _over_pairs(
    winning: Comparison, differences: dict[str, Difference], replicates: Mapping[str, int]
) -> Comparison:
    """The winner of all, beside the differences of pairs, which may be over more replicates."""
    p = holm([1.0 if d.p is None else d.p for d in differences.values()])
    return replace(
        winning,
        differences=differences,
        adjusted=dict(zip(differences, p, strict=True)),
        notes=(ONE_REPLICATE,) if {winning.replicates, *replicates.values()} <= {0, 1} else (),
    )


def _is_defined(scores: Scores, pooling: Pooling) -> bool:
    """Whether what is ranked together has both classes, and each fold two patients of each: with
    one, a third of all resamples would lose its class."""
    if pooling == "pooled":
        return len(set(scores.y.tolist())) == 2
    folds = scores.split[0]
    of = [
        scores.groups[(folds == k) & (scores.y == y)] for k in set(folds.tolist()) for y in (0, 1)
    ]
    return scores.folds and all(len(set(groups.tolist())) > 1 for groups in of)


def _compare(
    scores: Sequence[Scores],
    *,
    metric: SplitMetric,
    baseline: str | None,
    pooling: Pooling,
    resamples: int,
) -> Comparison:
    """Of methods that have the same replicates."""
    first = scores[0]
    return compare(
        first.y,
        {s.method.name: s.p if metric == "auroc" else s.calls for s in scores},
        groups=first.groups,
        metric=metric,
        baseline=baseline,
        pooling=pooling,
        folds=first.split if pooling == "within" else None,
        blocks=blocks(first),
        resamples=resamples,
    )


def _without_winner(
    values: Mapping[str, Interval], base: Scores, *, metric: SplitMetric
) -> Comparison:
    """Where no replicate is in all methods: what can be said without one."""
    return Comparison(
        metric=metric,
        values={name: v.value for name, v in values.items()},
        best=max(values, key=lambda name: values[name].value),
        reference=base.method.name,
        differences={},
        adjusted={},
        winner=None,
        reason="no replicate is one that all methods have",
        indistinguishable=(),
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
    """The mean of a metric over replicates; its interval is of patients and replicates.

    It is that of the difference to a method of value 0, cut to what the metric can be; None where
    no resample changes the value.
    """
    y = scores.y == 1
    given = scores.p if metric == "auroc" else scores.calls
    folds = scores.split if pooling == "within" else None
    strata = y.tolist() if folds is None else list(zip(y, folds[0].tolist(), strict=True))
    draws, freedom = draw(strata, groups=scores.groups.tolist(), resamples=resamples, seed=0)
    values = resampled(y, given, draws=draws, metric=metric, folds=folds)
    value = float(values[:, 0].mean())
    if np.nanmax(values) - np.nanmin(values) < ROUNDING:  # 1, say, whichever patients are drawn
        return Interval(value=value, low=None, high=None)
    shared = blocks(scores)
    data = Data(
        y=y,
        member=draws.member,
        freedom=freedom,
        blocks=tuple(range(len(given)) if shared is None else shared),
        metric=metric,
        folds=folds,
    )
    nothing = Sample(values=np.zeros_like(values), scores=np.zeros_like(given))
    found = difference(Sample(values=values, scores=given), nothing, data=data)
    low, high = found.low, found.high
    if low is not None and high is not None:
        low, high = max(low, 0.0), min(high, 1.0)
    return Interval(value=value, low=low, high=high)


def align(scores: Sequence[Scores]) -> tuple[list[Scores], int]:
    """The methods with the replicates that all have, in one order; and how many were left out."""
    keys = [replicate_keys(s) for s in scores]
    common = sorted(set.intersection(*map(set, keys)))
    found = []
    for s, own in zip(scores, keys, strict=True):
        rows = [own.index(k) for k in common]
        each = len(s.runs) // len(s.p)
        runs = tuple(path for r in rows for path in s.runs[r * each : (r + 1) * each])
        found.append(
            replace(
                s,
                p=s.p[rows],
                calls=s.calls[rows],
                split=s.split[rows],
                seed=s.seed[rows],
                runs=runs,
            )
        )
    return found, len(set().union(*keys)) - len(common)


def replicate_keys(scores: Scores) -> list[tuple[int, int]]:
    """(split, seed) of each replicate; with folds, which it pools, (-1, seed)."""
    splits = [-1] * len(scores.p) if scores.folds else scores.split[:, 0].tolist()
    return list(zip(splits, scores.seed.tolist(), strict=True))


def blocks(scores: Scores) -> list[int] | None:
    """What replicates share: the split, where a replicate is a split and a seed."""
    splits = [k for k, _ in replicate_keys(scores)]
    return splits if len(set(splits)) > 1 else None
