"""Stage 10: what exports hold of each instance, in one table: names, values, and where from.

All formats take names and values from `TABLE`; docs/exports.md explains each row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32

from ..evaluation import Prediction, no_probability_reason
from ..maps import NO_VARIANCE, class_names, column_of

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

    of: Callable[[Prediction], np.ndarray | None]
    """Values of a prediction, (n,) or (n, classes); None if it has none."""
    of_score: bool = False
    """Whether it describes the model's own score, whose kind belongs to the name."""
    raster: bool = False
    """Whether it is a channel or file of OME-TIFF, DICOM and NIfTI, beside GeoJSON and AnnData."""


def _mean(p: Prediction) -> np.ndarray | None:
    return None if p.score_kind == "probability" else p.attention_mean


def _std(p: Prediction) -> np.ndarray | None:
    return np.sqrt(p.attention_variance) if p.attention_variance.any() else None


def _probability(p: Prediction) -> np.ndarray | None:
    return p.attention_mean if p.score_kind == "probability" else p.instance_probability


def _weight(p: Prediction) -> np.ndarray | None:
    return None if p.score_kind == "weight" else p.weight_mean  # which is the mean, then


def _class_score(p: Prediction) -> np.ndarray | None:
    return None if p.score_has_level else p.class_score  # which is the mean, then


TABLE: dict[Key, Row] = {
    "mean": Row(of=_mean, of_score=True, raster=True),
    "std": Row(of=_std, of_score=True, raster=True),
    "probability": Row(of=_probability, raster=True),
    "weight": Row(of=_weight),
    "contribution": Row(of=lambda p: p.contribution),
    "evidence": Row(of=_class_score),
    "leave one out": Row(of=lambda p: p.leave_one_out),
    "P(evidence > 0)": Row(of=lambda p: p.probability_positive),
    "at least": Row(of=lambda p: p.at_least),
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
        values = row.of(p)
        if values is None:
            continue
        columns = 1 if values.ndim == 1 else values.shape[1]
        grades = p.outputs.names[1:] if key == "at least" else ()
        names = grades or class_names(p, columns, classes)
        several = columns > 1 or key == "at least"
        for c in range(columns):
            yield Channel(
                key=key,
                values=np.asarray(column_of(values, c), np.float32),
                unit=p.score_kind if row.of_score else key,
                column=c if several else None,
                class_name=names[c] if several else "",
            )


def lacking(p: Prediction) -> dict[str, str]:
    """Return why a prediction has no mean, standard deviation or probability, by key."""
    absent = {}
    if _mean(p) is None:
        absent["mean"] = IS_PROBABILITY
    if _std(p) is None:
        absent["std"] = NO_VARIANCE
    if p.instance_probability is None and p.score_kind == "evidence":
        absent["probability"] = no_probability_reason(p)
    elif _probability(p) is None:
        absent["probability"] = (
            f"the model's score is a {p.score_kind}: a probability exists for evidence models and "
            "for scores that are probabilities"
        )
    return absent
