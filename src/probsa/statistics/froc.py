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


def froc(slides: Sequence[SlideHits], *, weights: Sequence[float] | None = None) -> Froc:
    """Return the FROC curve over all slides, including those without any detection.

    The organisers' script instead counts the files of detections, which leaves slides without a
    file out of the average. Slides whose only lesions are ITC count for false positives alone.

    The thresholds are the script's: the distinct confidences without the smallest. The smallest is
    usually the 0 of a missed lesion or of ITC; otherwise one real detection is never counted.
    Confidences of hits are float32 and those of false positives float64, so that 0.9 as a hit and
    0.9 as a false positive are two thresholds.

    `weights` are those of the slides, as in a resample; None for equal weights.

    Raises:
        InputError: there is no slide, or no lesion to find.
    """
    pairs = [(s, 1.0) for s in slides]
    if weights is not None:
        pairs = [(s, w) for s, w in zip(slides, weights, strict=True) if w > 0]
    lesion_count = sum(w * s.lesions for s, w in pairs)
    words = (
        f"FROC needs a lesion to find, and these {len(slides)} slides have none larger than "
        "isolated tumour cells: give slides with tumour, and their masks"
    )
    check({words: lesion_count > 0})
    false = np.concatenate([s.false for s, _ in pairs])
    # The script stores the confidences of lesions as float32 and compares them in float32.
    best = np.concatenate([s.best for s, _ in pairs]).astype(np.float32)
    of_false = np.repeat([w for _, w in pairs], [len(s.false) for s, _ in pairs])
    of_best = np.repeat([w for _, w in pairs], [len(s.best) for s, _ in pairs])
    thresholds = np.unique(np.concatenate([false, best.astype(np.float64)]))[1:]
    true = _weight_from(best, of_best, thresholds.astype(np.float32))
    false_positives = _weight_from(false, of_false, thresholds)
    false_positives = np.append(false_positives, 0) / sum(w for _, w in pairs)
    sensitivity = np.append(true, 0) / lesion_count
    at_rates = np.interp(RATES, false_positives[::-1], sensitivity[::-1])
    return Froc(
        false_positives=false_positives,
        sensitivity=sensitivity,
        at=dict(zip(RATES, at_rates.tolist(), strict=True)),
        score=float(at_rates.mean()),
    )


def _weight_from(
    confidence: Float[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
    thresholds: Float[np.ndarray, " thresholds"],
) -> Float[np.ndarray, " thresholds"]:
    """Return the total weight of the confidences at or above each threshold."""
    order = np.argsort(confidence)
    below = np.append(0.0, np.cumsum(weight[order]))
    return below[-1] - below[np.searchsorted(confidence[order], thresholds)]
