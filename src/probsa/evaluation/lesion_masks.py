"""Find the lesions of a tumour mask, by the rules of the CAMELYON16 organisers.

Annotations are dilated by 37.5 µm, so that areas within 75 µm of each other form one lesion, and
holes are filled. Lesions are 8-connected regions. Those with a major axis below 275 µm are isolated
tumour cells (ITC), on which detections count neither as hits nor as false positives.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from scipy import ndimage

from ..errors import BagError, InputError
from .lesion_detections import places
from .prediction import Prediction

LEVEL0_UM = 0.243
"""Micrometres per level-0 pixel, which the organisers' script uses for every slide."""
LEVEL = 5
DOWNSAMPLE = 2**LEVEL
"""Level-0 pixels per side of a mask pixel."""
MERGE_UM = 75.0
ITC_UM = 275.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesions:
    """The lesions of one slide; a normal slide has none."""

    labels: Int[np.ndarray, "rows columns"]
    """0 outside lesions, otherwise the number of the lesion, from 1."""
    axes: Float[np.ndarray, " lesions"]
    """Major axes of lesions 1, 2, … in mask pixels."""
    isolated: Bool[np.ndarray, " lesions"]
    """Whether each lesion is ITC."""
    pixel_um: float
    """Micrometres per mask pixel."""

    @property
    def count(self) -> int:
        """Number of lesions to be found, without ITC."""
        return int((~self.isolated).sum())


def find_lesions(
    mask: Shaped[np.ndarray, "rows columns"], *, pixel_um: float = LEVEL0_UM * DOWNSAMPLE
) -> Lesions:
    """Return the lesions of a tumour mask.

    Args:
        mask: nonzero where there is tumour; at level 5 for the official metrics.
        pixel_um: micrometres per mask pixel.

    Raises:
        InputError: the mask has no pixels, or `pixel_um` is not positive.
    """
    if mask.size == 0 or not pixel_um > 0:
        raise InputError(
            f"a mask of shape {mask.shape} with pixels of {pixel_um} µm: expected some pixels "
            "(level 5 of the slide) of positive size"
        )
    tumour = mask != 0
    if not tumour.any():  # the distance to tumour would be undefined
        return Lesions(
            labels=np.zeros(mask.shape, dtype=np.int64),
            axes=np.zeros(0),
            isolated=np.zeros(0, dtype=bool),
            pixel_um=float(pixel_um),
        )
    reach = MERGE_UM / (pixel_um * 2)
    # Most of a slide is far from all tumour and need not be searched.
    window = _bounding_box(tumour, margin=int(reach) + 2)
    near = np.asarray(ndimage.distance_transform_edt(~tumour[window])) < reach
    window_labels = np.zeros(near.shape, dtype=np.int64)
    ndimage.label(ndimage.binary_fill_holes(near), structure=np.ones((3, 3)), output=window_labels)
    labels = np.zeros(mask.shape, dtype=np.int64)
    labels[window] = window_labels
    axes = major_axes(window_labels)
    return Lesions(
        labels=labels, axes=axes, isolated=axes < ITC_UM / pixel_um, pixel_um=float(pixel_um)
    )


def major_axes(labels: Int[np.ndarray, "rows columns"]) -> Float[np.ndarray, " regions"]:
    """Return the major axes of regions 1, 2, … in pixels, from their second central moments.

    The axis is that of the ellipse with the same moments, 4 √λ, where λ is the larger eigenvalue of
    the covariance of the region's pixel centres. A single pixel has 0, as in scikit-image.
    """
    y, x = np.nonzero(labels)
    region = labels[y, x]
    count = np.bincount(region, minlength=1)[1:].astype(np.float64)

    def mean(value: np.ndarray) -> np.ndarray:
        return np.bincount(region, weights=value, minlength=1)[1:] / count

    # Centred before squaring, because squares of coordinates would lose digits.
    dy, dx = y - mean(y)[region - 1], x - mean(x)[region - 1]
    yy, xx, xy = mean(dy * dy), mean(dx * dx), mean(dx * dy)
    largest = (yy + xx) / 2 + np.sqrt(((yy - xx) / 2) ** 2 + xy**2)
    return 4 * np.sqrt(largest)


def _bounding_box(tumour: Bool[np.ndarray, "rows columns"], *, margin: int) -> tuple[slice, slice]:
    spans = [np.flatnonzero(tumour.any(axis=k)) for k in (1, 0)]
    rows, columns = (slice(max(int(s[0]) - margin, 0), int(s[-1]) + margin + 1) for s in spans)
    return rows, columns


def patch_mask(prediction: Prediction) -> UInt8[np.ndarray, "rows columns"]:
    """Return a level-5 mask on which each positive patch is a square.

    It approximates a tumour mask for slides that have only instance labels.

    Raises:
        BagError: the slide has no instance labels, or no 2-D coordinates.
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
