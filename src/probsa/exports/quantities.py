"""Stage 10: the quantities of a map that are exported, and why some models lack one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from ..evaluation import Prediction

QuantityKey = Literal["mean", "std", "probability"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One value for each instance of a bag."""

    key: QuantityKey
    values: Float[np.ndarray, " n"]
    """float32."""
    unit: str
    """`logit`, `weight`, … as in `Prediction.score_kind`; `probability`."""
    column: int | None = None
    """Index of the class; None if the model has one score for all classes."""
    class_name: str = ""

    @property
    def name(self) -> str:
        """`mean`, or `mean tumour` if there is a score per class."""
        return f"{self.key} {self.class_name}".strip()

    @property
    def label(self) -> str:
        """The name with its unit, for readers."""
        word = "P(evidence)" if self.key == "probability" else f"{self.key} ({self.unit})"
        return f"{word} {self.class_name}".strip()

    @property
    def suffix(self) -> str:
        """`mean`, or `mean_class1`: what the names of files end with."""
        return self.key if self.column is None else f"{self.key}_class{self.column}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantities:
    """The quantities that a prediction has, and the reasons for those that it lacks."""

    present: tuple[Quantity, ...]
    absent: dict[QuantityKey, str]

    def of(self, key: QuantityKey) -> tuple[Quantity, ...]:
        """Return a quantity, one item per class if there is a score per class."""
        return tuple(q for q in self.present if q.key == key)


def quantities(p: Prediction, *, classes: Sequence[str] = ()) -> Quantities:
    """Return the mean and, where they exist, the standard deviation and P(evidence) of a bag.

    The mean and the standard deviation are those of the model's own score, and P(evidence) is
    P(f > 0), or the score itself if it is a probability: as `probsa map` shows them.

    Args:
        p: The bag's prediction.
        classes: Class names in the order of their index; without them, classes are numbered.
    """
    several = p.attention_mean.ndim == 2
    classes = (p.of_task.column_names(p, p.attention_mean.shape[1]) if several else None) or classes
    found = list(_columns("mean", p.attention_mean, unit=p.score_kind, classes=classes))
    absent: dict[QuantityKey, str] = {}
    if p.attention_variance.any():
        std = np.sqrt(p.attention_variance)
        found += _columns("std", std, unit=p.score_kind, classes=classes)
    else:
        absent["std"] = "the model has no variance: its scores are single values"
    chance = p.attention_mean if p.score_kind == "probability" else p.probability_positive
    if chance is None:
        absent["probability"] = (
            f"the model's score is a {p.score_kind}, whose zero has no meaning: P(evidence) exists "
            "for evidence models and for scores that are probabilities"
        )
    else:
        found += _columns("probability", chance, unit="probability", classes=classes)
    return Quantities(present=tuple(found), absent=absent)


def probabilities(p: Prediction, *, classes: Sequence[str] = ()) -> tuple[Quantity, ...]:
    """Return P(evidence) of each class.

    Raises:
        InputError: The model has none.
    """
    held = quantities(p, classes=classes)
    if "probability" in held.absent:
        raise InputError(f"bag {p.name!r} has no P(evidence): {held.absent['probability']}")
    return held.of("probability")


def _columns(
    key: QuantityKey, values: np.ndarray, *, unit: str, classes: Sequence[str]
) -> tuple[Quantity, ...]:
    table = np.asarray(values, np.float32).reshape(len(values), -1)
    width = table.shape[1]
    if width == 1:
        return (Quantity(key=key, values=table[:, 0], unit=unit),)
    names = [classes[c] if c < len(classes) else str(c) for c in range(width)]
    return tuple(
        Quantity(key=key, values=table[:, c], unit=unit, column=c, class_name=names[c])
        for c in range(width)
    )
