"""FROC of a model: its predictions become detections, masks become lesions, and they are matched.

Where there is no mask, instance labels of patches can stand in: that is a patch-level approximation
(lesions are unions of whole patches) and no official figure; the result says which it is.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Shaped, UInt8

from ..errors import BagError, InputError
from ..statistics import Hits, Metric, froc_metrics
from .lesion_detections import Detections, detections, places
from .lesion_hits import hits
from .lesion_masks import DOWNSAMPLE, lesions
from .prediction import Prediction

NOTES = {
    "masks": "official rules on tumour masks",
    "patches": "patch-level approximation: lesions are unions of labelled patches, "
    "not comparable with official figures",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundLesions:
    """FROC of a set of slides, and what it was measured on."""

    metrics: dict[str, Metric]
    """As `froc_metrics` gives them."""
    source: Literal["masks", "patches"]
    slides: tuple[Hits, ...]

    @property
    def note(self) -> str:
        """One line for the foot of a table."""
        count = sum(s.lesions for s in self.slides)
        return f"{NOTES[self.source]}; {count} lesions on {len(self.slides)} slides"


def froc_of_predictions(
    predictions: Sequence[Prediction],
    masks: Mapping[str, Shaped[np.ndarray, "rows columns"] | None] | None,
    *,
    positive: Mapping[str, bool],
    find: Callable[[Prediction], Detections] = detections,
    groups: Mapping[str, Hashable] | None = None,
    bootstrap: int = 500,
    seed: int = 0,
) -> FoundLesions:
    """Detections of every slide against its lesions.

    Args:
        predictions: of the test slides, coordinates in level-0 pixels. Leave out slides whose
            annotation is not complete (CAMELYON16's test_114).
        masks: the level-5 tumour mask of each slide with tumour; None: instance labels stand in.
        positive: whether a slide has tumour; one that is missing here has none.
        find: the detections of a slide: `detections`, or a partial of it with other arguments.
        groups: patient of each slide; a slide that is missing here is its own.
        bootstrap: resamples of slides.
        seed: of the resamples.

    Raises:
        InputError: a tumour slide has no mask, or a detection lies outside it.
        BagError: a slide has no coordinates, or (without masks) no instance labels.
    """
    slides = []
    for p in predictions:
        found = find(p)
        mask = None if masks is None else masks.get(p.name)
        if mask is None and positive.get(p.name, False):
            if masks is not None:
                raise InputError(
                    f"slide {p.name!r} has tumour but no mask: give its level-5 mask, leave the "
                    "slide out, or give no masks at all (instance labels then stand in)"
                )
            mask = patch_mask(p)
        slides.append(hits(p.name, found, lesions=None if mask is None else lesions(mask)))
    return FoundLesions(
        metrics=froc_metrics(slides, groups=groups, bootstrap=bootstrap, seed=seed),
        source="patches" if masks is None else "masks",
        slides=tuple(slides),
    )


def patch_mask(prediction: Prediction) -> UInt8[np.ndarray, "rows columns"]:
    """A level-5 mask on which each positive patch is a square: what its instance labels know.

    Raises:
        BagError: the slide has no instance labels, or no coordinates in the plane.
    """
    if prediction.instance_labels is None:
        raise BagError(
            f"slide {prediction.name!r} has tumour but neither mask nor instance labels: "
            "give its mask, or leave it out"
        )
    corners, stride = places(prediction)
    first = np.rint(corners / DOWNSAMPLE).astype(np.int64)
    last = np.maximum(np.rint((corners + stride) / DOWNSAMPLE).astype(np.int64), first + 1)
    columns, rows = last.max(0)
    mask = np.zeros((rows, columns), dtype=np.uint8)
    tumour = prediction.instance_labels > 0
    for (x0, y0), (x1, y1) in zip(first[tumour], last[tumour], strict=True):
        mask[y0:y1, x0:x1] = 1
    return mask
