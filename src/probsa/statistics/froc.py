"""The official CAMELYON16 FROC: lesion sensitivity against false positives per slide.

By the rules of the organisers' script, a detection on a lesion is a hit, and the confidence of a
lesion is that of its best hit. A detection on isolated tumour cells (ITC) is ignored; any other
detection is a false positive. The score is the mean sensitivity at 1/4, 1/2, 1, 2, 4 and 8 false
positives per slide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from .metric import check

RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives per slide at which the sensitivity is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideHits:
    """The detections of one slide, matched with its lesions."""

    name: str
    best: Float[np.ndarray, " lesions"]
    """The highest confidence on each lesion and ITC (float64); 0 where there is no hit."""
    which: Int[np.ndarray, " lesions"]
    """The index of that detection (the first of equal ones); -1 without a hit, and for ITC."""
    isolated: Bool[np.ndarray, " lesions"]
    """Whether each lesion is ITC."""
    false: Float[np.ndarray, " false"]
    """Confidences of the false positives."""
    tumour: bool
    """Whether the slide has any tumour, ITC included."""

    @property
    def lesions(self) -> int:
        """The number of lesions to be found."""
        return int((~self.isolated).sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class Froc:
    """The curve, from the lowest threshold to above the highest one, and its summary."""

    false_positives: Float[np.ndarray, " points"]
    """Mean number per slide, over all slides."""
    sensitivity: Float[np.ndarray, " points"]
    at: dict[float, float]
    """Sensitivity at each of `RATES`."""
    score: float
    """The mean of these sensitivities."""


def froc(slides: Sequence[SlideHits]) -> Froc:
    """Return the FROC curve over all slides, including those without any detection.

    The organisers' script instead counts the files of detections, which leaves slides without a
    file out of the average. Slides whose only lesions are ITC count for false positives alone.

    The thresholds are the script's: the distinct confidences without the smallest. The smallest is
    usually the 0 of a missed lesion or of ITC; otherwise one real detection is never counted.
    Confidences of hits are float32 and those of false positives float64, so that 0.9 as a hit and
    0.9 as a false positive are two thresholds.

    Raises:
        InputError: there is no slide, or no lesion to find.
    """
    lesion_count = sum(s.lesions for s in slides)
    words = (
        f"FROC needs a lesion to find, and these {len(slides)} slides have none larger than "
        "isolated tumour cells: give slides with tumour, and their masks"
    )
    check({words: lesion_count > 0})
    false = np.sort(np.concatenate([s.false for s in slides]))
    # The script stores the confidences of lesions as float32 and compares them in float32.
    best = np.sort(np.concatenate([s.best for s in slides]).astype(np.float32))
    thresholds = np.unique(np.concatenate([false, best.astype(np.float64)]))[1:]
    true = len(best) - np.searchsorted(best, thresholds.astype(np.float32))
    false_positives = len(false) - np.searchsorted(false, thresholds)
    false_positives = np.append(false_positives, 0) / len(slides)
    sensitivity = np.append(true, 0) / lesion_count
    at_rates = np.interp(RATES, false_positives[::-1], sensitivity[::-1])
    return Froc(
        false_positives=false_positives,
        sensitivity=sensitivity,
        at=dict(zip(RATES, at_rates.tolist(), strict=True)),
        score=float(at_rates.mean()),
    )
