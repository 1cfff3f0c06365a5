"""What is known of each instance of a bag, in the one table that maps, viewer and exports read.

The table holds values alone. What a quantity is called, how it is coloured, and why a prediction
lacks it is said where it is shown.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from .prediction import Prediction
from .scores import doubt, instance_scores

QuantityKey = Literal[
    "mean",
    "variance",
    "within",
    "between",
    "deviation",
    "weight",
    "probability",
    "doubt",
    "contribution",
    "class score",
    "leave one out",
    "P(evidence > 0)",
    "at least",
    "labels",
    "calls",
]
PER_CLASS = (
    "attention_mean",
    "attention_variance",
    "instance_probability",
    "probability_positive",
    "weight_above_uniform",
)
"""Fields of `Prediction` from which the doubt about one class is computed."""


def column_of(values: np.ndarray, column: int) -> np.ndarray:
    """Return one class of a per-instance array, (n,) or (n, classes); without it, the last one."""
    if values.ndim == 1:
        return values
    return values[:, column if column < values.shape[1] else -1]


def _of_class(p: Prediction, column: int) -> Prediction:
    """Return a prediction with one score per instance: that of one of several classes."""
    columns = {}
    for name in PER_CLASS:
        values = getattr(p, name)
        if values is not None:
            columns[name] = column_of(values, column)
    return replace(p, **columns)


def _variance(p: Prediction) -> np.ndarray | None:
    """Return σ²; None for a model that gives one value per instance, whose variance is 0."""
    return p.attention_variance if p.attention_variance.any() else None


def _deviation(p: Prediction) -> np.ndarray | None:
    variance = _variance(p)
    return None if variance is None else np.sqrt(variance)


def _doubt(p: Prediction) -> np.ndarray | None:
    """Return P(wrong), by class where there is one score for each; None where nothing states it."""
    if p.attention_mean.ndim == 1:
        return doubt(p)
    columns = []
    for column in range(p.attention_mean.shape[1]):
        values = doubt(_of_class(p, column))
        if values is None:
            return None
        columns.append(values)
    return np.stack(columns, axis=1)


def _labels(p: Prediction) -> np.ndarray | None:
    """Return 1 for a positive instance, 0 for a negative one, and nan for an unknown label."""
    labels = p.instance_labels
    return None if labels is None else np.where(labels < 0, np.nan, labels > 0)


def _wrong_calls(p: Prediction) -> np.ndarray | None:
    """Return 1 where the sign of the score contradicts the label, and nan for unknown labels."""
    labels = _labels(p)
    if labels is None:
        return None
    return np.where(np.isnan(labels), np.nan, (instance_scores(p) > 0) != (labels > 0))


INSTANCE_QUANTITIES: dict[str, Callable[[Prediction], np.ndarray | None]] = {
    "mean": lambda p: p.attention_mean,
    "variance": _variance,
    "within": lambda p: p.variance_within,
    "between": lambda p: p.variance_between,
    "deviation": _deviation,
    "weight": lambda p: p.weight_mean,
    "probability": lambda p: p.instance_probability,
    "doubt": _doubt,
    "contribution": lambda p: p.contribution,
    "class score": lambda p: p.class_score,
    "leave one out": lambda p: p.leave_one_out,
    "P(evidence > 0)": lambda p: p.probability_positive,
    "at least": lambda p: p.at_least,
    "labels": _labels,
    "calls": _wrong_calls,
}
"""Values of a prediction by `QuantityKey`, (n,) or (n, classes); None if it has none."""
