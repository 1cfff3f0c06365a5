"""Combine what several members predict of one bag, each only of bags that it has not seen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..errors import InputError
from .prediction import EXPLANATIONS, Prediction

T = TypeVar("T")


def combine(members: Sequence[Prediction], *, align: bool) -> Prediction:
    """Return the prediction of an ensemble: the means of its members, and their variance in parts.

    An ensemble is a mixture of equal weights: its probabilities, of the bag and of instances, are
    the means of its members' probabilities. By the law of total variance, Var f = E[σ²] (within
    members) + Var[μ] (between them); likewise for the probability and the weights of the instances.

    Args:
        members: predictions of one bag, at least one.
        align: whether the level of scores means nothing (attention logits), so that those of each
            member are shifted to the log ratio to uniform attention.

    Raises:
        InputError: some members have one map per class, and others one map for all.
    """
    first, shapes = members[0], {p.attention_mean.shape for p in members}
    if len(shapes) > 1:
        raise InputError(
            f"bag {first.name!r}: the scores of its instances have the shapes "
            f"{' and '.join(map(str, sorted(shapes)))}: models with one map per class and models "
            "with one map cannot be combined"
        )

    def each(name: str) -> Float[np.ndarray, "members *shape"]:
        return np.stack([getattr(p, name) for p in members]).astype(np.float64)

    score, p, weight = each("attention_mean"), each("probability"), each("weight_mean")
    if align:
        score = np.stack([aligned(s) for s in score])
    within, between = each("attention_variance").mean(0), score.var(0)
    p_within, p_between = np.square(each("std")).mean(0), p.var(0)
    values = {
        "probability": p.mean(0),
        "std": np.sqrt(p_within + p_between),
        "std_within": np.sqrt(p_within),
        "std_between": np.sqrt(p_between),
        "attention_mean": score.mean(0),
        "attention_variance": within + between,
        "variance_within": within,
        "variance_between": between,
        "weight_mean": weight.mean(0),
        "weight_variance": each("weight_variance").mean(0) + weight.var(0),
    }
    for name in (*EXPLANATIONS, "weight_above_uniform"):
        if all(getattr(p, name) is not None for p in members):
            values[name] = each(name).mean(0)
    weights = [p.neighbour_weight for p in members if p.neighbour_weight is not None]
    return replace(
        first,
        neighbour_weight=float(np.mean(weights)) if weights else None,
        scores=first.scores if len(members) == 1 else {},
        **{name: value.astype(np.float32) for name, value in values.items()},
    )


def aligned(score: Float[np.ndarray, "n *classes"]) -> Float[np.ndarray, "n *classes"]:
    """Return s_n = μ_n - logsumexp(μ) + log N, for each class by itself."""
    return score - logsumexp(score, axis=0, keepdims=True) + np.log(len(score))


def new_to(name: str, members: Sequence[T], seen: Sequence[frozenset[str]]) -> list[T]:
    """Return the members that have not seen a bag of this name; all, if `seen` is empty."""
    return [m for k, m in enumerate(members) if not seen or name not in seen[k]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeansOfRuns:
    """The null maps or the distances of several runs, of which a bag has the means."""

    runs: tuple[Any, ...]
    """`NullMaps`, or `TrainingDistance`, of each run."""
    seen: tuple[frozenset[str], ...]
    """The bags of the training and validation part of each run, to which it does not contribute."""

    @property
    def about(self) -> dict[str, Any]:
        """What is known of the fits."""
        return {"runs": [dict(run.about) for run in self.runs]}

    def scores(self, bag: Any) -> dict[str, Any]:
        """Return the mean of each of the runs' `scores`; of a map that some lack, of the others.

        A text is the reason why a run has no value; it is the result where no run has one.

        Raises:
            BagError: the bag has another number of features than those of the fits.
        """
        found = [run.scores(bag) for run in new_to(bag.name, self.runs, self.seen)]
        means: dict[str, Any] = {}
        for key in found[0]:
            numbers = [v[key] for v in found if not isinstance(v[key], str)]
            means[key] = np.mean(numbers, axis=0) if numbers else found[0][key]
        return means
