"""Scalar scores of the instances of a prediction: μ, σ², evidence that decides calls, doubt."""

from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtr

from ..errors import BagError
from .prediction import Prediction

VariancePart = Literal["total", "within", "between"]
"""The whole variance; its part within the members of an ensemble; that between the members."""


def evidence(score: Float[np.ndarray, " n"], *, kind: str) -> Float[np.ndarray, " n"]:
    """Return the evidence of one bag's instances; an instance is called positive above 0.

    kind: `logit`: the log ratio to uniform attention, s_n = μ_n - logsumexp(μ) + log N;
    `weight`: the same ratio from the weight itself, log(N w_n); `probability`: p_n - 0.5;
    `evidence`: the score itself, whose zero divides for from against; `relevance`: nan, because it
    has no such threshold.
    """
    value = score.astype(np.float64)
    if kind == "evidence":
        return value
    if kind == "logit":
        return value - logsumexp(value) + np.log(len(value))
    if kind == "weight":
        return np.log(np.maximum(value, np.finfo(np.float64).tiny)) + np.log(len(value))
    if kind == "probability":
        return value - 0.5
    return np.full(len(value), np.nan)


def instance_scores(p: Prediction) -> Float[np.ndarray, " n"]:
    """Return μ of each instance; see `class_column` for attention with one column per class.

    Raises:
        BagError: the attention is nan or infinite.
    """
    return class_column(p, p.attention_mean)


def instance_evidence(p: Prediction) -> Float[np.ndarray, " n"]:
    """Return the `evidence` of each instance."""
    return evidence(instance_scores(p), kind=p.score_kind)


def instance_variances(p: Prediction, *, part: VariancePart = "total") -> Float[np.ndarray, " n"]:
    """Return σ² of each instance, or one of its parts, for the same class as `instance_scores`.

    The variance of a single model is all within, and none between members.
    """
    value = p.attention_variance if part == "total" else getattr(p, f"variance_{part}")
    if value is None:
        value = p.attention_variance * (part == "within")
    return class_column(p, value)


def doubt(p: Prediction, *, part: VariancePart = "total") -> Float[np.ndarray, " n"]:
    """Return P(wrong) = Φ(−|e|/σ) of each instance's call, with e its `evidence`.

    It is the posterior probability that the true score and its estimate are on different sides of
    the threshold, and 0.5 at the threshold. By default, σ is the whole standard deviation; in an
    ensemble, it combines the parts within and between members; that of evidence is the probability
    of the less likely side, in the mean over members, as their scales may differ. The variance of a
    `weight` is in the unit of weights, so its distance from the threshold is |w - 1/N|. Scores of
    the kind `relevance` have no threshold: nan.
    """
    score, kind = instance_scores(p), p.score_kind
    if kind == "evidence" and part == "total" and p.probability_positive is not None:
        positive = class_column(p, p.probability_positive)
        return np.minimum(positive, 1 - positive)
    unit = score - 1 / len(score) if kind == "weight" else evidence(score, kind=kind)
    return ndtr(-distance_ratio(np.abs(unit), np.sqrt(instance_variances(p, part=part))))


def distance_ratio(
    distance: Float[np.ndarray, " n"], deviation: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return distance / deviation; without a deviation, inf, or 0 at a distance of 0."""
    ratio = np.where(distance > 0, np.inf, distance)  # nan stays nan
    np.divide(distance, deviation, out=ratio, where=deviation > 0)
    return ratio


def class_column(p: Prediction, value: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return the column of a per-instance array that is shown first, see `Task.column`.

    Raises:
        BagError: one of its values is nan or infinite.
    """
    column = value if value.ndim == 1 else value[:, p.of_task.column(p, value.shape[1])]
    if not np.isfinite(column).all():
        raise BagError(
            f"bag {p.name!r} has attention that is nan or infinite: predict it again, and look "
            "at its features and the run's losses"
        )
    return column.astype(np.float64)
