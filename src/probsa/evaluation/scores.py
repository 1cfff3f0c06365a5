"""Scalar scores of the instances of a prediction: μ, σ², and the evidence that decides calls."""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..errors import BagError
from .prediction import Prediction


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


def instance_variances(p: Prediction) -> Float[np.ndarray, " n"]:
    """Return σ² of each instance, for the same class as `instance_scores`."""
    return class_column(p, p.attention_variance)


def class_column(p: Prediction, value: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return the column of a per-instance array for the bag's most probable class, except class 0.

    Raises:
        BagError: one of its values is nan or infinite.
    """
    if value.ndim == 1:
        column = value
    elif value.shape[1] == 1 or len(p.probability) != value.shape[1]:
        column = value[:, -1]
    else:
        column = value[:, 1 + int(np.argmax(p.probability[1:]))]
    if not np.isfinite(column).all():
        raise BagError(
            f"bag {p.name!r} has attention that is nan or infinite: predict it again, and look "
            "at its features and the run's losses"
        )
    return column.astype(np.float64)
