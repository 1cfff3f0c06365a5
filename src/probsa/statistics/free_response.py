"""The official CAMELYON16 FROC: share of lesions found against false positives a slide.

The rules of the organisers' script: a detection on a lesion is a hit and the lesion's confidence is
its best one; on isolated tumour cells it is nothing; elsewhere it is a false positive. The score is
the mean sensitivity at 1/4, 1/2, 1, 2, 4 and 8 false positives a slide.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ..errors import InputError
from .bootstrap import Draws
from .metric import Metric, measured, undefined

RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives a slide at which sensitivity is read."""

Thresholds = Literal["official", "all"]
"""`official`: the distinct confidences without the smallest, where a missed lesion and every ITC
has confidence 0; without either, a real detection is not counted at any threshold. Confidences of
hits are float32, those of false positives float64, so 0.9 as a hit and as a false positive are two
thresholds. `all`: every confidence of a detection, all float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hits:
    """What the detections of one slide are worth."""

    name: str
    best: Float[np.ndarray, " lesions"]
    """The highest confidence on each lesion and ITC; 0 where there is none (float64)."""
    which: Int[np.ndarray, " lesions"]
    """The detection that gave it (the first of equal ones); -1 where there is none, and on ITC."""
    isolated: Bool[np.ndarray, " lesions"]
    """Which are ITC."""
    false: Float[np.ndarray, " false"]
    """Confidences of the false positives."""
    tumour: bool
    """Whether the slide has tumour at all, ITC included."""

    @property
    def lesions(self) -> int:
        """Lesions to be found."""
        return int((~self.isolated).sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class Froc:
    """The curve, from the lowest threshold to above the highest, and what is read from it."""

    false_positives: Float[np.ndarray, " points"]
    """A slide, on average over all slides."""
    sensitivity: Float[np.ndarray, " points"]
    at: dict[float, float]
    """Sensitivity at each of `RATES`."""
    score: float
    """Their mean."""
    slides: int
    lesions: int


def froc(slides: Sequence[Hits], *, thresholds: Thresholds = "official") -> Froc:
    """The curve over slides, all of them counted: also those without any detection.

    (The organisers' script counts the files of detections: a slide without a file is left out of
    the average there.) A lesion with ITC only is none: such slides count for false positives.

    Raises:
        InputError: no slide, or no lesion to find.
    """
    count = sum(s.lesions for s in slides)
    if not slides or count == 0:
        raise InputError(
            f"FROC needs a lesion to find, and these {len(slides)} slides have none larger than "
            "isolated tumour cells: give slides with tumour, and their masks"
        )
    false = np.concatenate([s.false for s in slides])
    best = np.concatenate([s.best for s in slides])
    real = np.concatenate([s.which >= 0 for s in slides])
    if thresholds == "official":
        # The script holds the confidences of lesions in float32 and compares in it.
        best = best.astype(np.float32)
        steps = np.unique(np.concatenate([false, best.astype(np.float64)]))[1:]
        true = _at_least(best, steps.astype(np.float32))
    else:
        steps = np.unique(np.concatenate([false, best[real]]))
        true = _at_least(best[real], steps)
    false_positives = np.append(_at_least(false, steps), 0) / len(slides)
    sensitivity = np.append(true, 0) / count
    read = np.interp(RATES, false_positives[::-1], sensitivity[::-1])
    return Froc(
        false_positives=false_positives,
        sensitivity=sensitivity,
        at=dict(zip(RATES, read.tolist(), strict=True)),
        score=float(read.mean()),
        slides=len(slides),
        lesions=count,
    )


def froc_metrics(
    slides: Sequence[Hits],
    *,
    thresholds: Thresholds = "official",
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> dict[str, Metric]:
    """`froc` (the score) and `sensitivity_at_<rate>` with intervals over slides.

    Slides (or `groups` of them) are drawn again, those with and without tumour apart; each resample
    has a curve of its own. Undefined, with the reason, where there is no lesion to find.
    """
    names = ("froc", *(f"sensitivity_at_{r:g}" for r in RATES))
    try:
        whole = froc(slides, thresholds=thresholds)
    except InputError as error:
        return dict.fromkeys(names, undefined(str(error)))
    draws = Draws.of(
        np.array([s.tumour for s in slides]),
        groups=None if groups is None else [groups.get(s.name, (s.name,)) for s in slides],
        resamples=bootstrap,
        seed=seed,
    )
    resampled = np.full((len(draws.counts), len(names)), np.nan)
    for row, counts in zip(resampled, draws.counts[:, draws.member], strict=True):
        again = [s for s, times in zip(slides, counts, strict=True) for _ in range(times)]
        if any(s.lesions for s in again):
            curve = froc(again, thresholds=thresholds)
            row[:] = [curve.score, *curve.at.values()]
    values = [whole.score, *whole.at.values()]
    return {n: measured(v, r) for n, v, r in zip(names, values, resampled.T, strict=True)}


def _at_least(value: np.ndarray, steps: np.ndarray) -> Int[np.ndarray, " steps"]:
    """How many values reach each step."""
    return len(value) - np.searchsorted(np.sort(value), steps, side="left")
