"""Stage 10: a bag that is exported: its values and origin, its slide or scan, and its files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32

from ..core import named_file, replacing
from ..errors import InputError
from ..evaluation import Prediction, no_probability_reason
from ..jobs import write_lock
from ..maps import NO_VARIANCE, CohortSources, Layout, class_names, column_of, squares
from ..slides import Scan, Slide
from .provenance import Provenance

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
        word = self.key if self.key == "probability" else f"{self.key} ({self.unit})"
        return f"{word} {self.class_name}".strip()

    @property
    def suffix(self) -> str:
        """`mean`, or `mean_class1`: what the names of files end with."""
        return self.key if self.column is None else f"{self.key}_class{self.column}"


def channels(p: Prediction, classes: Sequence[str] = ()) -> Iterator[Channel]:
    """Yield the mean and, where they exist, the standard deviation and the probability, by class.

    The mean and the standard deviation are those of the model's own score, and the probability is
    `Prediction.instance_probability`, or the score itself if it is one: as `probsa map` shows them.
    """
    chance = p.attention_mean if p.score_kind == "probability" else p.instance_probability
    arrays: dict[Key, np.ndarray | None] = {
        "mean": p.attention_mean, "std": np.sqrt(p.attention_variance), "probability": chance,
    }  # fmt: skip
    for key, values in arrays.items():
        if values is None or key in lacking(p):
            continue
        columns = values[0].size
        for c, name in enumerate(class_names(p, columns, classes)):
            yield Channel(
                key=key,
                values=np.asarray(column_of(values, c), np.float32),
                unit="probability" if key == "probability" else p.score_kind,
                column=c if columns > 1 else None,
                class_name=name if columns > 1 else "",
            )


def lacking(p: Prediction) -> dict[str, str]:
    """Return why a prediction has no standard deviation or no probability, by key."""
    absent = {}
    if not p.attention_variance.any():
        absent["std"] = NO_VARIANCE
    if p.instance_probability is None and p.score_kind == "evidence":
        absent["probability"] = no_probability_reason(p)
    elif p.instance_probability is None and p.score_kind != "probability":
        absent["probability"] = (
            f"the model's score is a {p.score_kind}: a probability exists for evidence models and "
            "for scores that are probabilities"
        )
    return absent


@dataclass(frozen=True, kw_only=True)
class ExportBag:
    """A bag, with what the writers of all formats need."""

    p: Prediction
    about: Provenance
    out: Path
    """The folder of its files."""
    classes: Sequence[str] = ()
    sources: CohortSources | None = None
    written: list[Path] = field(default_factory=list)

    @cached_property
    def channels(self) -> list[Channel]:
        """What is written of it."""
        return list(channels(self.p, self.classes))

    def of(self, key: Key) -> list[Channel]:
        """Return one quantity, an item per class."""
        return [c for c in self.channels if c.key == key]

    @property
    def squares(self) -> Layout:
        """Its patches on the slide, or an InputError if it has none."""
        patches = None if self.sources is None else self.sources.patches(self.p)
        return squares(self.p, side=None if patches is None else patches.size_level0)

    @property
    def placed(self) -> CohortSources:
        """Where its slide or scan is, for formats that are refused without."""
        assert self.sources is not None
        return self.sources

    def slide(self, what: str) -> Slide:
        """Return its slide, open for reading; `what` is the format that is written for slides."""
        source = self.placed.open(self.p)
        if isinstance(source, Scan):
            raise InputError(f"bag {self.p.name!r} is a scan: {what} is written for slides")
        return source

    @contextmanager
    def file(self, suffix: str) -> Iterator[Path]:
        """Yield a temporary path, which becomes `<bag><suffix>` on success."""
        path = named_file(self.out, self.p.name, suffix)
        with write_lock(path), replacing(path) as temporary:
            yield temporary
        self.written.append(path)
