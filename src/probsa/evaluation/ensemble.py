"""Combine what several members predict of one bag, each only of bags that it has not seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..errors import InputError
from .prediction import EXPLANATIONS, Prediction


def combine(members: Sequence[Prediction], *, align: bool) -> Prediction:
    """Return the prediction of an ensemble: the means of its members, and their variance in parts.

    By the law of total variance, Var f = E[σ²] (within members) + Var[μ] (between them), over
    members of equal weight; likewise for the probability and the weights of the instances.

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
    if members[0].of_task.averages is None and len(members) > 1:
        raise InputError(
            f"bag {members[0].name!r}: quantiles of several models cannot be averaged: predict a "
            "regression with one run"
        )
    first = members[0]

    def moments(
        means: Sequence[np.ndarray], variances: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean over members, the mean variance, and the variance of the means."""
        stacked = np.stack(means).astype(np.float64)
        return stacked.mean(0), np.stack(variances).astype(np.float64).mean(0), stacked.var(0)

    means = [np.asarray(p.attention_mean, np.float64) for p in members]
    if align:
        means = [aligned(mean) for mean in means]
    score, within, between = moments(means, [p.attention_variance for p in members])
    probability, std_within, std_between = moments(
        [p.probability for p in members], [np.square(p.std, dtype=np.float64) for p in members]
    )
    weight, w_within, w_between = moments(
        [p.weight_mean for p in members], [p.weight_variance for p in members]
    )
    values = {
        "probability": probability,
        "std": np.sqrt(std_within + std_between),
        "std_within": np.sqrt(std_within),
        "std_between": np.sqrt(std_between),
        "attention_mean": score,
        "attention_variance": within + between,
        "variance_within": within,
        "variance_between": between,
        "weight_mean": weight,
        "weight_variance": w_within + w_between,
    }
    for name in EXPLANATIONS:
        explained = [getattr(p, name) for p in members]
        if all(value is not None for value in explained):
            values[name] = np.stack(explained).astype(np.float64).mean(0)
    shares = [p.neighbour_share for p in members if p.neighbour_share is not None]
    return replace(
        first,
        neighbour_share=float(np.mean(shares)) if shares else None,
        scores=first.scores if len(members) == 1 else {},
        **{name: value.astype(np.float32) for name, value in values.items()},
    )


def aligned(score: Float[np.ndarray, "n *classes"]) -> Float[np.ndarray, "n *classes"]:
    """Return s_n = μ_n - logsumexp(μ) + log N, for each class by itself."""
    return score - logsumexp(score, axis=0, keepdims=True) + np.log(len(score))


T = TypeVar("T")


def new_to(name: str, members: Sequence[T], seen: Sequence[frozenset[str]]) -> list[T]:
    """Return the members that have not seen a bag of this name; all, if `seen` is empty."""
    return [m for k, m in enumerate(members) if not seen or name not in seen[k]]


@dataclass(frozen=True, kw_only=True)
class OfRuns(Generic[T]):
    """What each of several runs has fitted, with the bags of its training and validation part."""

    runs: tuple[T, ...]
    seen: tuple[frozenset[str], ...]

    def mean(self, name: str, values: Callable[[T], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the mean of `values` over the runs that have not seen a bag, by key.

        A text is the reason why a run has no value; it is the result where no run has one.
        """
        found = [values(run) for run in new_to(name, self.runs, self.seen)]
        means: dict[str, Any] = {}
        for key in found[0]:
            numbers = [v[key] for v in found if not isinstance(v[key], str)]
            means[key] = np.mean(numbers, axis=0) if numbers else found[0][key]
        return means
