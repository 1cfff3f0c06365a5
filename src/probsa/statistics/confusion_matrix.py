"""Metrics of called classes from the confusion matrix, for all resamples at once.

Cohen, Educational and Psychological Measurement 1960, and Psychological Bulletin 1968 (weighted κ);
Gorodkin, Computational Biology and Chemistry 2004 (the correlation of several classes).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from .bootstrap import Draws
from .metric import Metric

Weighting = Literal["none", "linear", "quadratic"]


def confusion(
    y: Int[np.ndarray, " bags"], called: Int[np.ndarray, " bags"], *, classes: int, draws: Draws
) -> Float[np.ndarray, "rows truth call"]:
    """Return the confusion matrix of each row: truth in rows, calls in columns.

    Classes 0 to `classes` - 1 are always all there, even if one of them does not occur.
    """
    cell = np.eye(classes * classes)[y * classes + called]
    return draws.totals(cell).reshape(-1, classes, classes)


def cohen_kappa(
    matrix: Float[np.ndarray, "rows classes classes"], *, weighting: Weighting = "none"
) -> Metric:
    """Return κ = 1 - Σ w_ij O_ij / Σ w_ij E_ij, with E the product of the two margins over n.

    w_ij is 1 off the diagonal (`none`), |i - j| or (i - j)². κ is undefined (0/0) if truth and
    calls are the same single class.
    """
    classes = matrix.shape[1]
    distance = np.abs(np.arange(classes)[:, None] - np.arange(classes))
    weight = {"none": np.sign(distance), "linear": distance, "quadratic": distance**2}[weighting]
    truth, call = matrix.sum(2), matrix.sum(1)
    observed = (matrix * weight).sum((1, 2)) * matrix.sum((1, 2))
    expected = np.einsum("ri,ij,rj->r", truth, weight.astype(np.float64), call)
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa = 1 - observed / expected
    return Metric.of(
        np.where(expected > 0, kappa, np.nan),
        reason=f"{_bags(matrix)}: truth and calls are one and the same class, so kappa is 0/0",
    )


def matthews(matrix: Float[np.ndarray, "rows classes classes"]) -> Metric:
    """Return Matthews' correlation of truth and calls; undefined if either is a single class."""
    truth, call, n = matrix.sum(2), matrix.sum(1), matrix.sum((1, 2))
    covariance = np.trace(matrix, axis1=1, axis2=2) * n - (truth * call).sum(1)
    # n² - Σ t² as Σ t (n - t), which is exactly 0 for a single class.
    spread = (truth * (n[:, None] - truth)).sum(1) * (call * (n[:, None] - call)).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = np.where(spread > 0, covariance / np.sqrt(spread), np.nan)
    reason = f"{_bags(matrix)}: truth or calls are a single class, so the correlation is 0/0"
    return Metric.of(rows, reason=reason)


def accuracy(matrix: Float[np.ndarray, "rows classes classes"]) -> Metric:
    """Return the share of bags with the right call."""
    with np.errstate(invalid="ignore"):
        rows = np.trace(matrix, axis1=1, axis2=2) / matrix.sum((1, 2))
    return Metric.of(rows, reason="no bags")


def class_recalls(
    matrix: Float[np.ndarray, "rows classes classes"], *, names: Sequence[str]
) -> list[Metric]:
    """Return the share of right calls among the bags of each class; their mean is macro recall."""
    right = np.diagonal(matrix, axis1=1, axis2=2)
    return _of_classes(right, matrix.sum(2), matrix=matrix, names=names)


def class_f1s(
    matrix: Float[np.ndarray, "rows classes classes"], *, names: Sequence[str]
) -> list[Metric]:
    """Return F1 of each class against the rest; undefined for a class without bags."""
    right = np.diagonal(matrix, axis1=1, axis2=2)
    return _of_classes(2 * right, matrix.sum(2) + matrix.sum(1), matrix=matrix, names=names)


def _of_classes(
    above: Float[np.ndarray, "rows classes"],
    below: Float[np.ndarray, "rows classes"],
    *,
    matrix: Float[np.ndarray, "rows classes classes"],
    names: Sequence[str],
) -> list[Metric]:
    with np.errstate(invalid="ignore", divide="ignore"):
        rows = np.where(matrix.sum(2) > 0, above / below, np.nan)
    return [
        Metric.of(rows[:, c], reason=f"no bag of class {name} among {_bags(matrix)}")
        for c, name in enumerate(names)
    ]


def _bags(matrix: Float[np.ndarray, "rows classes classes"]) -> str:
    return f"{matrix[0].sum():.0f} bags"
