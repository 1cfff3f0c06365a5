"""Match the detections of a slide with its lesions, by the rules of the CAMELYON16 organisers."""

import numpy as np

from ..errors import InputError
from ..statistics import SlideHits
from .lesion_detections import Detections
from .lesion_masks import DOWNSAMPLE, Lesions


def match_detections(name: str, detections: Detections, *, lesions: Lesions | None) -> SlideHits:
    """Return the hits and false positives of one slide.

    Args:
        name: name of the slide.
        detections: detections in level-0 pixels; there may be none.
        lesions: the lesions; None for a normal slide, on which all detections are false positives.

    Raises:
        InputError: a detection lies outside the mask, or its confidence is nan or below 0.
    """
    confidence = detections.confidence.astype(np.float64)
    if not bool((confidence >= 0).all()):
        raise InputError(
            f"slide {name!r}: a detection has confidence {confidence[~(confidence >= 0)][0]:g}, "
            "but a lesion without a detection counts as 0: give confidences from 0 to 1"
        )
    if lesions is None:
        return SlideHits(
            name=name,
            best=np.zeros(0),
            which=np.zeros(0, dtype=np.int64),
            isolated=np.zeros(0, dtype=bool),
            false=confidence,
            tumour=False,
        )
    label = lesions.labels[_mask_pixels(name, detections, shape=lesions.labels.shape)]
    best = np.zeros(len(lesions.axes))
    which = np.full(len(lesions.axes), -1, dtype=np.int64)
    for i in np.argsort(-confidence, kind="stable"):
        lesion = label[i] - 1
        if lesion >= 0 and which[lesion] < 0 and not lesions.isolated[lesion]:
            best[lesion], which[lesion] = confidence[i], i
    return SlideHits(
        name=name,
        best=best,
        which=which,
        isolated=lesions.isolated,
        false=confidence[label == 0],
        tumour=True,
    )


def _mask_pixels(
    name: str, detections: Detections, *, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column of the mask pixel under each detection."""
    column = np.floor(detections.x / DOWNSAMPLE).astype(np.int64)
    row = np.floor(detections.y / DOWNSAMPLE).astype(np.int64)
    # Masks are rounded down to whole pixels; a detection on the rest counts for the last pixel.
    inside = (row >= 0) & (row <= shape[0]) & (column >= 0) & (column <= shape[1])
    if not inside.all():
        i = int(np.argmin(inside))
        raise InputError(
            f"slide {name!r}: the detection at ({detections.x[i]:g}, {detections.y[i]:g}) lies "
            f"outside the mask of {shape[1]} × {shape[0]} pixels of {DOWNSAMPLE} level-0 pixels: "
            "give coordinates at level 0, and the mask of level 5"
        )
    return np.minimum(row, shape[0] - 1), np.minimum(column, shape[1] - 1)
