"""Combine the predictions of several members for one bag, by the law of total variance.

Var f = E[σ²] (within members) + Var[μ] (between them), over members of equal weight; likewise for
the probability of the bag and the weights of its instances.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..errors import InputError
from .prediction import EXPLANATIONS, Prediction


def combine(members: Sequence[Prediction], *, align: bool) -> Prediction:
    """Return the prediction of an ensemble: the means of its members, and their variance in parts.

    Args:
        members: predictions of one bag, at least one.
        align: whether the level of a member's scores means nothing (attention logits), so that each
            is shifted to the log ratio to uniform attention before scores are compared.

    Raises:
        InputError: some members have one map per class, and others one map for all.
    """
    shapes = {p.attention_mean.shape for p in members}
    if len(shapes) > 1:
        raise InputError(
            f"bag {members[0].name!r}: the scores of its instances have the shapes "
            f"{' and '.join(map(str, sorted(shapes)))}: models with one map per class and models "
            "with one map cannot be combined"
        )
    if not members[0].of_task.members_average and len(members) > 1:
        raise InputError(
            f"bag {members[0].name!r}: quantiles of several models cannot be averaged: predict a "
            "regression with one run"
        )
    means = [np.asarray(p.attention_mean, np.float64) for p in members]
    if align:
        means = [aligned(mean) for mean in means]
    score, within, between = _moments(means, [p.attention_variance for p in members])
    probability, std_within, std_between = _moments(
        [p.probability for p in members], [np.square(p.std, dtype=np.float64) for p in members]
    )
    weight, w_within, w_between = _moments(
        [p.weight_mean for p in members], [p.weight_variance for p in members]
    )
    return replace(
        members[0],
        probability=_float32(probability),
        std=_float32(np.sqrt(std_within + std_between)),
        std_within=_float32(np.sqrt(std_within)),
        std_between=_float32(np.sqrt(std_between)),
        attention_mean=_float32(score),
        attention_variance=_float32(within + between),
        variance_within=_float32(within),
        variance_between=_float32(between),
        weight_mean=_float32(weight),
        weight_variance=_float32(w_within + w_between),
        neighbour_share=_mean_share(members),
        scores=members[0].scores if len(members) == 1 else {},
        **_explanations(members),
    )


def _explanations(members: Sequence[Prediction]) -> dict[str, np.ndarray]:
    """Return the means of what explains the members, where all of them have it."""
    means = {}
    for name in EXPLANATIONS:
        values = [getattr(p, name) for p in members]
        if all(value is not None for value in values):
            means[name] = _float32(np.stack(values).astype(np.float64).mean(0))
    return means


def _mean_share(members: Sequence[Prediction]) -> float | None:
    shares = [p.neighbour_share for p in members if p.neighbour_share is not None]
    return float(np.mean(shares)) if shares else None


def aligned(score: Float[np.ndarray, "n *classes"]) -> Float[np.ndarray, "n *classes"]:
    """Return s_n = μ_n - logsumexp(μ) + log N, for each class by itself."""
    return score - logsumexp(score, axis=0, keepdims=True) + np.log(len(score))


def _moments(
    means: Sequence[np.ndarray], variances: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over members, the mean variance, and the variance of the means."""
    stacked = np.stack(means).astype(np.float64)
    return stacked.mean(0), np.stack(variances).astype(np.float64).mean(0), stacked.var(0)


def _float32(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32)
