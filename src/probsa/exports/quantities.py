"""Stage 10: what exports hold of each instance, in one table: names, values, and where from.

All formats take names and values from `TABLE`, whose values are those of `INSTANCE_QUANTITIES`;
docs/exports.md explains each row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32

from ..evaluation import (
    INSTANCE_QUANTITIES,
    Prediction,
    QuantityKey,
    column_of,
    no_probability_reason,
)
from ..maps import NO_VARIANCE, class_names

Key = Literal[
    "mean",
    "std",
    "probability",
    "weight",
    "contribution",
    "evidence",
    "leave one out",
    "P(evidence > 0)",
    "at least",
]
IS_PROBABILITY = "the model's score is a probability, which is exported under that name"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What is always true of one quantity."""

    quantity: QuantityKey
    """Row of `INSTANCE_QUANTITIES` that has its values."""
    of_score: bool = False
    """Whether it describes the model's own score; its name then states the kind of the score, such
    as `mean (evidence)`."""
    raster: bool = False
    """Whether it is a channel or file of OME-TIFF, DICOM and NIfTI, beside GeoJSON and AnnData."""
    repeats_mean_of: str = ""
    """The kind of score whose mean has the same values, so that this row is left out."""
    is_mean_of: str = ""
    """The kind of score whose mean is exported under this name."""

    def values(self, p: Prediction) -> np.ndarray | None:
        """Return the values of a prediction, (n,) or (n, classes); None if it has none."""
        if p.score_kind == self.repeats_mean_of:
            return None  # they are exported under another name
        if p.score_kind == self.is_mean_of:
            return INSTANCE_QUANTITIES["mean"](p)
        return INSTANCE_QUANTITIES[self.quantity](p)


TABLE: dict[Key, Row] = {
    "mean": Row(quantity="mean", of_score=True, raster=True, repeats_mean_of="probability"),
    "std": Row(quantity="deviation", of_score=True, raster=True),
    "probability": Row(quantity="probability", raster=True, is_mean_of="probability"),
    "weight": Row(quantity="weight", repeats_mean_of="weight"),
    "contribution": Row(quantity="contribution"),
    "evidence": Row(quantity="class score", repeats_mean_of="evidence"),
    "leave one out": Row(quantity="leave one out"),
    "P(evidence > 0)": Row(quantity="P(evidence > 0)"),
    "at least": Row(quantity="at least"),
}
"""The quantities of an instance, by the names of all formats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """One quantity of one class, with the words of files."""

    key: Key
    values: Float32[np.ndarray, " n"]
    unit: str
    """`logit`, `weight`, … as in `Prediction.score_kind`, for `mean` and `std`; else the key."""
    column: int | None
    """Index of the class; None if the model has one score for all classes."""
    class_name: str

    @property
    def name(self) -> str:
        """`mean`, or `mean tumour` if there is a score per class."""
        return f"{self.key} {self.class_name}".strip()

    @property
    def quantity(self) -> str:
        """The name without that of the class: `mean (evidence)`, `probability`."""
        return f"{self.key} ({self.unit})" if TABLE[self.key].of_score else self.key

    @property
    def label(self) -> str:
        """The name in files: `mean (evidence)`, or `mean (evidence) tumour`."""
        return f"{self.quantity} {self.class_name}".strip()

    @property
    def suffix(self) -> str:
        """`mean`, or `mean_class1`: what the names of files end with."""
        return self.key if self.column is None else f"{self.key}_class{self.column}"


def channels(p: Prediction, classes: Sequence[str] = ()) -> Iterator[Channel]:
    """Yield the quantities that a prediction has, in the order of the table, each class by class.

    The mean and the standard deviation are those of the model's own score, and the probability is
    `Prediction.instance_probability`, or the score itself if it is one. No two rows hold the same
    values.
    """
    for key, row in TABLE.items():
        values = row.values(p)
        if values is None:
            continue
        columns = 1 if values.ndim == 1 else values.shape[1]
        names: Sequence[str] = class_names(p, columns, classes)
        if key == "at least" and len(p.outputs.names) > 1:
            # every instance has at least the lowest grade, which has no column
            names = p.outputs.names[1:]
        # with two grades, "at least" has one column, which is that of the higher grade
        has_classes = columns > 1 or key == "at least"
        for c in range(columns):
            yield Channel(
                key=key,
                values=np.asarray(column_of(values, c), np.float32),
                unit=p.score_kind if row.of_score else key,
                column=c if has_classes else None,
                class_name=names[c] if has_classes else "",
            )


def missing_reasons(p: Prediction) -> dict[str, str]:
    """Return why a prediction has no mean, standard deviation or probability, by key."""
    reasons = {}
    if TABLE["mean"].values(p) is None:
        reasons["mean"] = IS_PROBABILITY
    if TABLE["std"].values(p) is None:
        reasons["std"] = NO_VARIANCE
    if p.instance_probability is None and p.score_kind == "evidence":
        reasons["probability"] = no_probability_reason(p)
    elif TABLE["probability"].values(p) is None:
        reasons["probability"] = (
            f"the model's score is a {p.score_kind}: a probability exists for evidence models and "
            "for scores that are probabilities"
        )
    return reasons
