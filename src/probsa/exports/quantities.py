"""Stage 10: the quantities of a map that are exported, and why some models lack one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32

from ..errors import InputError
from ..evaluation import Prediction
from ..maps import NO_VARIANCE, column_of, columns_of

Key = Literal["mean", "std", "probability"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """One quantity of one class, with the words of files."""

    key: Key
    values: Float32[np.ndarray, " n"]
    unit: str
    """`logit`, `weight`, … as in `Prediction.score_kind`; `probability`."""
    column: int | None
    """Index of the class; None if the model has one score for all classes."""
    class_name: str

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
class Channels:
    """What a prediction has, and the reasons for what it lacks."""

    present: tuple[Channel, ...]
    absent: dict[str, str]

    def of(self, key: Key) -> tuple[Channel, ...]:
        """Return a quantity, one item per class if there is a score per class."""
        return tuple(c for c in self.present if c.key == key)


def channels(p: Prediction, *, classes: Sequence[str] = ()) -> Channels:
    """Return the mean and, where they exist, the standard deviation and P(evidence) of a bag.

    The mean and the standard deviation are those of the model's own score, and P(evidence) is
    P(f > 0), or the score itself if it is a probability: as `probsa map` shows them.
    """
    width = columns_of(p)
    chance = p.attention_mean if p.score_kind == "probability" else p.probability_positive
    names = (p.of_task.column_names(p, width) if width > 1 else None) or classes
    std = np.sqrt(p.attention_variance) if p.attention_variance.any() else None
    lacking: dict[Key, str] = {
        "std": NO_VARIANCE,
        "probability": f"the model's score is a {p.score_kind}, whose zero has no meaning: "
        "P(evidence) exists for evidence models and for scores that are probabilities",
    }
    arrays: dict[Key, np.ndarray | None] = {
        "mean": p.attention_mean, "std": std, "probability": chance,
    }  # fmt: skip

    def present() -> Iterator[Channel]:
        for key, values in arrays.items():
            columns = 0 if values is None else values[0].size
            for c in range(columns):
                assert values is not None
                yield Channel(
                    key=key,
                    values=np.asarray(column_of(values, c), np.float32),
                    unit="probability" if key == "probability" else p.score_kind,
                    column=c if columns > 1 else None,
                    class_name="" if columns == 1 else names[c] if c < len(names) else str(c),
                )

    absent: dict[str, str] = {key: lacking[key] for key, values in arrays.items() if values is None}
    return Channels(present=tuple(present()), absent=absent)


def probabilities(p: Prediction, *, classes: Sequence[str] = ()) -> tuple[Channel, ...]:
    """Return P(evidence) of each class."""
    held = channels(p, classes=classes)
    if "probability" in held.absent:
        raise InputError(f"bag {p.name!r} has no P(evidence): {held.absent['probability']}")
    return held.of("probability")
