"""Scalar scores of the instances of a prediction: μ, σ², evidence that decides calls, doubt."""

from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtr

from ..errors import BagError
from .prediction import Prediction

VariancePart = Literal["total", "within", "between"]
"""The whole variance; its part within the members of an ensemble; that between the members."""
NO_VARIANCE = "this posterior has no variance"
NO_PROBABILITY = "the model gives instances no probability of being positive"
NOT_STORED = (
    "these predictions do not hold it: those of version 0.2 have to be predicted again; models of "
    "numbers and of survival have none"
)


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
    if part == "total":
        return class_column(p, p.attention_variance)
    variance = p.variance_within if part == "within" else p.variance_between
    if variance is None:
        # a product, so that a variance that is nan is refused here too
        variance = p.attention_variance * (1 if part == "within" else 0)
    return class_column(p, variance)


def instance_probability(p: Prediction) -> Float[np.ndarray, " n"] | None:
    """Return the probability that each instance is positive; None where the model has none.

    It is `Prediction.instance_probability`, or the score itself if that is a probability. See
    `class_column` for models with one map per class.
    """
    if p.score_kind == "probability":
        return np.clip(instance_scores(p), 0, 1)
    return None if p.instance_probability is None else class_column(p, p.instance_probability)


def no_probability_reason(p: Prediction) -> str:
    """Return why `instance_probability` is None, for this kind of score."""
    return NOT_STORED if p.score_kind == "evidence" else NO_PROBABILITY


def doubt(p: Prediction) -> Float[np.ndarray, " n"] | None:
    """Return P(wrong) of the call of each instance; None where nothing states it.

    An instance is called positive if its `evidence` is above 0. P(wrong) is the probability that
    the prediction gives the other call. With the `instance_probability` P, it is 1 − P where the
    instance is called positive, and P elsewhere. Attention has no such probability; there, P is the
    share of the posterior samples in which the weight of the instance is above the uniform weight
    1 / n.
    """
    positive = None
    if p.score_kind in ("evidence", "probability"):
        positive = instance_probability(p)
    elif p.score_kind == "logit" and p.weight_above_uniform is not None:
        positive = class_column(p, p.weight_above_uniform)
    if positive is None:
        return None
    return np.where(instance_evidence(p) > 0, 1 - positive, positive)


def no_doubt_reason(p: Prediction) -> str:
    """Return why `doubt` is None, for this kind of score."""
    if p.score_kind == "logit" and p.attention_variance.any():
        return NOT_STORED
    return NO_VARIANCE if p.score_kind in ("logit", "weight") else no_probability_reason(p)


def flip(p: Prediction, *, part: VariancePart = "total") -> Float[np.ndarray, " n"] | None:
    """Return the posterior probability that the evidence f of each instance has another sign.

    The sign is that of the mean m, which decides the call. This is the probability that the call
    flips, not the probability that it is wrong.

    By default, it comes from the stored P(f > 0): 1 − P where m > 0, and P elsewhere. In an
    ensemble, P is the mean over the members, and the result may exceed ½: one member with much
    evidence can outweigh several that give a little for the other call. For a part of the variance,
    and without a stored P, it is Φ(−|m|/σ) with the standard deviation σ, which is ½ at m = 0.

    Returns None for scores that are not evidence.
    """
    if p.score_kind != "evidence":
        return None
    if part == "total" and p.probability_positive is not None:
        positive = class_column(p, p.probability_positive)
        return np.where(instance_scores(p) > 0, 1 - positive, positive)
    deviation = np.sqrt(instance_variances(p, part=part))
    return ndtr(-distance_ratio(np.abs(instance_scores(p)), deviation))


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
