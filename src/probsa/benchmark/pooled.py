"""Methods of one data set side by side: pooled metrics with intervals, and who beats whom.

Only replicates (seeds; with a fixed test part splits and seeds) that all of them have are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..evaluation.comparison import Comparison, compare
from ..evaluation.difference import Data, Sample, difference
from ..evaluation.replicates import draw, resampled
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
    values: dict[str, Interval]
    """By the method's name."""
    comparison: Comparison


def pool(
    scores: Sequence[Scores],
    *,
    metric: SplitMetric,
    baseline: str | None,
    resamples: int = RESAMPLES,
) -> Pooled | None:
    """Compares methods on the replicates that all of them have.

    Args:
        scores: of one data set.
        metric: F1 is of the calls at each run's own threshold.
        baseline: the name of the method that differences are against; None: the best.
        resamples: of the patients.

    Returns: None where nothing can be compared: one class, or no replicate that all have.
    """
    first = scores[0]
    if first.y.all() or not first.y.any():
        return None
    aligned, _ = align(scores)
    if not len(aligned[0].p):
        return None
    given = {s.method.name: s.p if metric == "auroc" else s.calls for s in aligned}
    compared = compare(
        first.y,
        given,
        groups=first.groups,
        metric=metric,
        baseline=baseline,
        blocks=blocks(aligned[0]),
        resamples=resamples,
    )
    values = {s.method.name: interval_of(s, metric, resamples=resamples) for s in aligned}
    return Pooled(metric=metric, values=values, comparison=compared)


def within_folds(
    scores: Sequence[Scores], *, baseline: str | None, resamples: int = RESAMPLES
) -> Comparison | None:
    """Compares AUROC in each fold alone, then the mean: levels of folds' runs play no part.

    Args:
        scores: of one data set.
        baseline: as `pool`.
        resamples: of the patients.

    Returns: None without folds, where one has one class, or no replicate that all have.
    """
    first = scores[0]
    folds = first.split[0]
    if not first.folds or any(len(set(first.y[folds == k].tolist())) < 2 for k in set(folds)):
        return None
    aligned, _ = align(scores)
    if not len(aligned[0].p):
        return None
    return compare(
        first.y,
        {s.method.name: s.p for s in aligned},
        groups=first.groups,
        metric="auroc",
        baseline=baseline,
        pooling="within",
        folds=folds,
        resamples=resamples,
    )


def interval_of(scores: Scores, metric: SplitMetric, *, resamples: int = RESAMPLES) -> Interval:
    """The mean of a metric over replicates; its interval is of patients and replicates.

    It is that of the difference to a method of value 0, cut to what the metric can be; None where
    no resample changes the value.
    """
    y = scores.y == 1
    given = scores.p if metric == "auroc" else scores.calls
    draws, freedom = draw(y.tolist(), groups=scores.groups.tolist(), resamples=resamples, seed=0)
    values = resampled(y, given, draws=draws, metric=metric)
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
