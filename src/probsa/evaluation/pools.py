"""The labelled instances of many bags, one after another: what instance metrics are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import InputError
from .prediction import Prediction
from .scores import evidence, instance_scores, instance_variances


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Instances with a label; those without one are dropped, but count in their bag's N."""

    bag: Int[np.ndarray, " n"]
    """Index of the bag."""
    y: Bool[np.ndarray, " n"]
    score: Float[np.ndarray, " n"]
    """μ as the model gives it."""
    evidence: Float[np.ndarray, " n"]
    """Positive where the instance is called positive; see `evidence`."""
    variance: Float[np.ndarray, " n"]
    degree: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, predictions: Sequence[Prediction]) -> "Pool":
        """The labelled instances of bags that have instance labels.

        Raises:
            BagError: a bag's attention is not finite.
        """
        columns: dict[str, list[np.ndarray]] = {
            k: [] for k in ("bag", "y", "score", "evidence", "variance", "degree")
        }
        for b, p in enumerate(predictions):
            assert p.instance_labels is not None
            kept = p.instance_labels >= 0
            score = instance_scores(p)
            columns["bag"].append(np.full(int(kept.sum()), b, dtype=np.int64))
            columns["y"].append(p.instance_labels[kept] > 0)
            columns["score"].append(score[kept])
            columns["evidence"].append(evidence(score, kind=p.score_kind)[kept])
            columns["variance"].append(instance_variances(p)[kept])
            columns["degree"].append(p.degree.astype(np.float64)[kept])
        if not predictions:
            none = np.zeros(0)
            return cls(
                bag=none.astype(np.int64),
                y=none.astype(bool),
                score=none,
                evidence=none,
                variance=none,
                degree=none,
            )
        return cls(**{k: np.concatenate(v) for k, v in columns.items()})

    @property
    def decision(self) -> Float[np.ndarray, " n"]:
        """What a threshold is laid on: evidence, in which bags share a scale; else μ itself."""
        return self.score if np.isnan(self.evidence).any() else self.evidence

    def where(self, kept: Bool[np.ndarray, " n"]) -> "Pool":
        """Some of the instances."""
        return Pool(
            bag=self.bag[kept],
            y=self.y[kept],
            score=self.score[kept],
            evidence=self.evidence[kept],
            variance=self.variance[kept],
            degree=self.degree[kept],
        )

    def within(self, bags: Sequence[bool]) -> "Pool":
        """The instances of the bags that are True."""
        return self.where(np.asarray(bags, dtype=bool)[self.bag])


def labelled(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The bags that have instance labels."""
    return [p for p in predictions if p.instance_labels is not None]


def held_out(
    validation: Sequence[Prediction], *, positive: Mapping[str, bool], kind: str
) -> list[Prediction]:
    """The positive validation bags with instance labels, where thresholds are chosen.

    Raises:
        InputError: their scores are not of the kind of the judged ones.
    """
    held = [p for p in labelled(validation) if positive.get(p.name)]
    if held and kind_of(held) != kind:
        raise InputError(
            f"test scores are of kind {kind!r}, validation's {kind_of(held)!r}: "
            "predict both with one model"
        )
    return held


def kind_of(predictions: Sequence[Prediction]) -> str:
    """The score kind of all of them.

    Raises:
        InputError: they have several.
    """
    kinds = sorted({p.score_kind for p in predictions})
    if len(kinds) > 1:
        raise InputError(
            f"scores of several kinds ({', '.join(kinds)}) cannot be judged together: "
            "predict all bags with one model"
        )
    return kinds[0]
