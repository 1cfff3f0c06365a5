"""Labelled instances of many bags, concatenated: the input of the instance metrics."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import InputError
from ..statistics import Draws
from .prediction import Prediction
from .scores import doubt, evidence, instance_scores, instance_variances

NO_INSTANCE_LABELS = "no bag has instance labels"
NO_CALLS = "relevance has no threshold for calls"
"""The reason why scores of the kind `relevance` have no wrong calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Labelled instances; unlabelled ones are dropped, but count in the size N of their bag."""

    bag: Int[np.ndarray, " n"]
    """Index of the bag."""
    y: Bool[np.ndarray, " n"]
    score: Float[np.ndarray, " n"]
    """μ as the model gives it."""
    evidence: Float[np.ndarray, " n"]
    """Positive where the instance is called positive; see `scores.evidence`."""
    variance: Float[np.ndarray, " n"]
    doubt: Float[np.ndarray, " n"]
    """P(wrong) of the call; see `scores.doubt`."""

    @classmethod
    def of(cls, predictions: Sequence[Prediction]) -> "Pool":
        """Concatenate the labelled instances of bags that have instance labels.

        Raises:
            BagError: the attention of a bag is not finite.
        """
        columns: dict[str, list[np.ndarray]] = {field.name: [np.zeros(0)] for field in fields(cls)}
        columns |= {"bag": [np.zeros(0, dtype=np.int64)], "y": [np.zeros(0, dtype=bool)]}
        for b, p in enumerate(predictions):
            assert p.instance_labels is not None
            known = p.instance_labels >= 0
            score = instance_scores(p)
            columns["bag"].append(np.full(int(known.sum()), b, dtype=np.int64))
            columns["y"].append(p.instance_labels[known] > 0)
            columns["score"].append(score[known])
            columns["evidence"].append(evidence(score, kind=p.score_kind)[known])
            columns["variance"].append(instance_variances(p)[known])
            columns["doubt"].append(doubt(p)[known])
        return cls(**{name: np.concatenate(parts) for name, parts in columns.items()})

    @property
    def decision(self) -> Float[np.ndarray, " n"]:
        """The quantity to threshold: evidence, which bags share a scale for, or else μ itself."""
        return self.score if np.isnan(self.evidence).any() else self.evidence

    def within(self, bags: Sequence[bool]) -> "Pool":
        """Return the instances of the bags that are True."""
        rows = np.asarray(bags, dtype=bool)[self.bag]
        return Pool(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def bag_draws(
    bags: Sequence[str],
    positive: Bool[np.ndarray, " bags"],
    *,
    groups: Mapping[str, Hashable] | None,
    resamples: int,
    seed: int,
) -> Draws:
    """Resample bags, or the groups (patients) of bags; a bag that has no group is its own."""
    names = None if groups is None else [groups.get(bag, (bag,)) for bag in bags]
    return Draws.stratified(positive, groups=names, resamples=resamples, seed=seed)


def labelled(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the bags that have instance labels."""
    return [p for p in predictions if p.instance_labels is not None]


def threshold_bags(
    validation: Sequence[Prediction], *, positive: Mapping[str, bool], kind: str
) -> list[Prediction]:
    """Return the positive validation bags with instance labels, on which thresholds are chosen.

    Raises:
        InputError: their scores are not of the given kind, that of the test scores.
    """
    bags = [p for p in labelled(validation) if positive.get(p.name)]
    if bags and score_kind_of(bags) != kind:
        raise InputError(
            f"test scores are of kind {kind!r}, validation's {score_kind_of(bags)!r}: "
            "predict both with one model"
        )
    return bags


def score_kind_of(predictions: Sequence[Prediction]) -> str:
    """Return the score kind that all predictions have.

    Raises:
        InputError: they have several kinds.
    """
    kinds = sorted({p.score_kind for p in predictions})
    if len(kinds) > 1:
        raise InputError(
            f"scores of several kinds ({', '.join(kinds)}) cannot be evaluated together: "
            "predict all bags with one model"
        )
    return kinds[0]
