"""The labelled instances of many bags as rows of one table: the input of every instance metric.

Instances without a label are left out, but count in the size N of their bag. A column that a bag
does not have is left out for all, and `missing` says why.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import entr

from ...errors import InputError
from ..prediction import Prediction
from ..scores import (
    class_column,
    doubt,
    flip,
    instance_evidence,
    instance_probability,
    instance_scores,
    instance_variances,
    no_doubt_reason,
    no_probability_reason,
)

NO_INSTANCE_LABELS = "no bag has instance labels"
IN_MEMORY = "predictions in memory have no outputs of instances"
NO_CALLS = "relevance has no threshold for calls"
"""The reason why scores of the kind `relevance` have no wrong calls."""
NO_DISTANCE = "the predictions have no distances from training"
NO_EVIDENCE = "the score is not evidence, whose sign could flip"
ONE_MODEL = "one model has no variance between members"


class MapColumn(NamedTuple):
    """The column of a map: of a score that maps of the model show, or of a null map."""

    kind: Literal["map", "null"]
    name: str


Column = str | MapColumn
"""The name of a column, see `COLUMNS`, or a map."""
Values = Float[np.ndarray, " n"]
More = Callable[[Prediction], Mapping[Column, "Values | str"]]
"""Further columns of a bag's instances, or the reasons why it does not have them."""

COLUMNS: dict[str, Callable[[Prediction], Values | str]] = {
    "score": instance_scores,
    "evidence": instance_evidence,
    "variance": instance_variances,
    "doubt": lambda p: _or_reason(doubt(p), no_doubt_reason(p)),
    "flip": lambda p: _or_reason(flip(p), NO_EVIDENCE),
    "flip_within": lambda p: _or_reason(flip(p, part="within"), NO_EVIDENCE),
    "flip_between": lambda p: (
        ONE_MODEL
        if p.variance_between is None
        else _or_reason(flip(p, part="between"), NO_EVIDENCE)
    ),
    "margin": lambda p: -np.abs(instance_evidence(p)),
    "entropy": lambda p: entr(class_column(p, p.weight_mean)),
    "ood": lambda p: NO_DISTANCE if p.ood_distance is None else p.ood_distance.astype(np.float64),
    "probability": lambda p: _or_reason(instance_probability(p), no_probability_reason(p)),
}
"""What is known of each instance: μ as the model gives it; evidence, positive where the instance is
called positive; σ²; P(wrong); the probability that the sign of the evidence flips, by the whole
variance or a part of it; nearness to the threshold; the weight's term of the entropy; distance from
training; the probability that the instance is positive."""


def _or_reason(values: Values | None, reason: str) -> Values | str:
    return reason if values is None else values


def _columns(
    p: Prediction, more: More | None, *, rows: Bool[np.ndarray, " n"]
) -> dict[Column, Values | str]:
    """Return the columns of some instances of a bag, or why it does not have them."""
    columns: dict[Column, Values | str] = {name: column(p) for name, column in COLUMNS.items()}
    if more is not None:
        columns |= more(p)
    return {
        column: values if isinstance(values, str) else values[rows]
        for column, values in columns.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceTable:
    """Labelled instances of the bags `names`, which are the bags with instance labels."""

    names: tuple[str, ...] = ()
    positive: Bool[np.ndarray, " bags"]
    """Whether each bag is positive."""
    kind: str = ""
    """The kind of the model's score."""
    bag: Int[np.ndarray, " n"]
    """The index of each instance's bag."""
    y: Bool[np.ndarray, " n"]
    columns: Mapping[Column, Values] = field(default_factory=dict)
    missing: Mapping[Column, str] = field(default_factory=dict)
    """Why a column is not there."""

    @classmethod
    def of(
        cls,
        predictions: Iterable[Prediction],
        *,
        positive: Callable[[Prediction], bool],
        more: More | None = None,
    ) -> "InstanceTable":
        """Read the labelled instances of predictions, one bag at a time.

        Args:
            predictions: the predictions; bags without instance labels are passed over.
            positive: whether a bag is positive.
            more: further columns, such as null maps.

        Raises:
            InputError: the predictions have several score kinds.
            BagError: the attention of a bag is not finite.
        """
        names: list[str] = []
        positive_flags: list[bool] = []
        kinds: set[str] = set()
        y: list[np.ndarray] = []
        columns_of_bags: list[dict[Column, Values | str]] = []
        for p in predictions:
            if p.instance_labels is None:
                continue
            labelled = p.instance_labels >= 0
            names.append(p.name)
            positive_flags.append(positive(p))
            kinds.add(p.score_kind)
            y.append(p.instance_labels[labelled] > 0)
            columns_of_bags.append(_columns(p, more, rows=labelled))
        if len(kinds) > 1:
            raise InputError(
                f"scores of several kinds ({', '.join(sorted(kinds))}) cannot be evaluated "
                "together: predict all bags with one model"
            )
        columns: dict[Column, Values] = {}
        missing: dict[Column, str] = {}
        for column in dict.fromkeys(column for bag in columns_of_bags for column in bag):
            bags = [bag.get(column, "some bags do not have it") for bag in columns_of_bags]
            arrays = [values for values in bags if not isinstance(values, str)]
            if len(arrays) == len(bags):
                columns[column] = np.concatenate(arrays)
                continue
            reasons = Counter(values for values in bags if isinstance(values, str))
            reason, count = reasons.most_common(1)[0]
            if count < len(bags):
                reason = f"{reason} ({count} of {len(bags)} bags)"
            missing[column] = reason
        return cls(
            names=tuple(names),
            positive=np.array(positive_flags, dtype=bool),
            kind=min(kinds, default=""),
            bag=np.repeat(np.arange(len(names)), [len(part) for part in y]),
            y=np.concatenate([np.zeros(0, dtype=bool), *y]),
            columns=columns,
            missing=missing,
        )

    def __getitem__(self, column: Column) -> Values:
        return self.columns[column]

    def map_names(self, kind: Literal["map", "null"]) -> list[str]:
        """Return the names of the maps, or null maps, that every bag has."""
        return [c.name for c in self.columns if isinstance(c, MapColumn) and c.kind == kind]

    def where(self, keep: Bool[np.ndarray, " n"]) -> "InstanceTable":
        """Return the rows that are True; the bags stay as they are."""
        columns = {column: values[keep] for column, values in self.columns.items()}
        return replace(self, bag=self.bag[keep], y=self.y[keep], columns=columns)

    def of_bags(self, bags: Bool[np.ndarray, " bags"] | None = None) -> "InstanceTable":
        """Return the instances of some bags, by default of the positive ones."""
        chosen = self.positive if bags is None else bags
        return self.where(chosen[self.bag])

    @property
    def called(self) -> Bool[np.ndarray, " n"] | None:
        """Whether each instance is called positive; None if the scores have no threshold."""
        return None if self.kind == "relevance" else self["evidence"] > 0

    @property
    def decision(self) -> Values:
        """The quantity to threshold: evidence, which bags share a scale for, or else μ itself."""
        return self["score"] if self.kind == "relevance" else self["evidence"]

    def bag_sums(
        self, value: Float[np.ndarray, " n"] | Bool[np.ndarray, " n"]
    ) -> Float[np.ndarray, " bags"]:
        """Return the sum of a value over the instances of each bag."""
        sums = np.bincount(self.bag, weights=value, minlength=len(self.names))
        return sums.astype(np.float64)  # of no instance, they are integers

    @property
    def mixed(self) -> Bool[np.ndarray, " bags"]:
        """Whether each bag is positive and has labelled instances of both labels."""
        return self.positive & (self.bag_sums(self.y) > 0) & (self.bag_sums(~self.y) > 0)
