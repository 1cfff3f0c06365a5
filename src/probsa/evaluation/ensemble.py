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
    first = members[0]
    shapes = {p.attention_mean.shape for p in members}
    if len(shapes) > 1:
        raise InputError(
            f"bag {first.name!r}: the scores of its instances have the shapes "
            f"{' and '.join(map(str, sorted(shapes)))}: models with one map per class and models "
            "with one map cannot be combined"
        )

    def each(name: str) -> Float[np.ndarray, "members *shape"]:
        return np.stack([getattr(p, name) for p in members]).astype(np.float64)

    score = each("attention_mean")
    if align:
        score = np.stack([aligned(of_member) for of_member in score])
    probability = each("probability")
    weight = each("weight_mean")
    # law of total variance: the mean of the variances, and the variance of the means
    score_within = each("attention_variance").mean(0)
    score_between = score.var(0)
    within = np.square(each("std")).mean(0)
    between = probability.var(0)
    values = {
        "probability": probability.mean(0),
        "std": np.sqrt(within + between),
        "std_within": np.sqrt(within),
        "std_between": np.sqrt(between),
        "attention_mean": score.mean(0),
        "attention_variance": score_within + score_between,
        "variance_within": score_within,
        "variance_between": score_between,
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
    if not seen:
        return list(members)
    pairs = zip(members, seen, strict=True)
    return [member for member, seen_bags in pairs if name not in seen_bags]


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
        scores = [run.scores(bag) for run in new_to(bag.name, self.runs, self.seen)]
        means: dict[str, Any] = {}
        for key, first in scores[0].items():
            values = [of_run[key] for of_run in scores if not isinstance(of_run[key], str)]
            means[key] = np.mean(values, axis=0) if values else first
        return means
