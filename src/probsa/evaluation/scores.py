"""What a prediction says of its instances, as one number each: μ, σ², and how it is called."""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..errors import BagError
from .prediction import Prediction


def evidence(score: Float[np.ndarray, " n"], *, kind: str) -> Float[np.ndarray, " n"]:
    """How far one bag's instances are on the positive side; an instance is called positive above 0.

    kind: `logit`: the log ratio to uniform attention, s_n = μ_n - logsumexp(μ) + log N;
    `weight`: the same of the weight itself, log(N w_n); `probability`: p_n - 0.5;
    `relevance` has no such point: nan.
    """
    value = score.astype(np.float64)
    if kind == "logit":
        return value - logsumexp(value) + np.log(len(value))
    if kind == "weight":
        return np.log(np.maximum(value, np.finfo(np.float64).tiny)) + np.log(len(value))
    if kind == "probability":
        return value - 0.5
    return np.full(len(value), np.nan)


def instance_scores(p: Prediction) -> Float[np.ndarray, " n"]:
    """μ of each instance; with one attention a class, that of the most probable class above 0.

    Raises:
        BagError: attention is nan or infinite.
    """
    return one_column(p, p.attention_mean)


def instance_evidence(p: Prediction) -> Float[np.ndarray, " n"]:
    """`evidence` of each instance."""
    return evidence(instance_scores(p), kind=p.score_kind)


def instance_variances(p: Prediction) -> Float[np.ndarray, " n"]:
    """σ² of each instance, of the same class as `instance_scores`."""
    return one_column(p, p.attention_variance)


def one_column(p: Prediction, value: np.ndarray) -> Float[np.ndarray, " n"]:
    """The column of a per-instance array that belongs to the bag's most probable class above 0.

    Raises:
        BagError: one of its values is nan or infinite.
    """
    if value.ndim == 1:
        chosen = value
    elif value.shape[1] == 1 or len(p.probability) != value.shape[1]:
        chosen = value[:, -1]
    else:
        chosen = value[:, 1 + int(np.argmax(p.probability[1:]))]
    if not np.isfinite(chosen).all():
        raise BagError(
            f"bag {p.name!r} has attention that is nan or infinite: predict it again, and look "
            "at its features and the run's losses"
        )
    return chosen.astype(np.float64)
