"""Means over splits as the paper prints them: seeds are averaged within a split first.

The std over splits (ddof = 1) shows how much splits differ, not how precise the mean is: splits
share bags, and a fixed test part consists of the same bags every time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.metrics import f1_score, roc_auc_score

from .results import Scores

SplitMetric = Literal["auroc", "f1"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over splits; None if the metric is undefined on every split."""

    mean: float | None
    sd: float | None
    """Standard deviation over splits; None with fewer than two splits."""
    splits: int


def mean_over_splits(scores: Scores, metric: SplitMetric) -> Mean:
    """Return the mean and std over splits of a metric between 0 and 1."""
    return mean_of_splits(split_values(scores, metric))


def mean_of_splits(by_split: Mapping[int, float]) -> Mean:
    """Return the mean and std of a value per split."""
    values = list(by_split.values())
    if not values:
        return Mean(mean=None, sd=None, splits=0)
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Mean(mean=float(np.mean(values)), sd=sd, splits=len(values))


def split_values(scores: Scores, metric: SplitMetric) -> dict[int, float]:
    """Return the metric on each split's test bags, averaged over seeds.

    Splits on which it is undefined (one class, or no positive bag for F1) are omitted.
    """
    values: dict[int, list[float]] = {}
    for split, p, calls in zip(scores.split, scores.p, scores.calls, strict=True):
        for k in np.unique(split):
            in_split = split == k
            value = _value(scores.y[in_split], p[in_split], calls=calls[in_split], metric=metric)
            if value is not None:
                values.setdefault(int(k), []).append(value)
    return {k: float(np.mean(values[k])) for k in sorted(values)}


def _value(
    y: Int[np.ndarray, " bags"],
    p: Float[np.ndarray, " bags"],
    *,
    calls: Bool[np.ndarray, " bags"],
    metric: SplitMetric,
) -> float | None:
    if not y.any():
        return None
    if metric == "f1":
        return float(f1_score(y, calls))
    return None if y.all() else float(roc_auc_score(y, p))
