"""CAMELYON16's lesions: what the organisers make of a tumour mask before detections are counted.

Annotations grow by 37.5 µm to each side, so that what lies within 75 µm is one lesion; holes are
filled; 8-connected pixels are one lesion. Those whose major axis stays below 275 µm are isolated
tumour cells (ITC), which count neither as hits nor as false positives.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy import ndimage

from ..errors import InputError

LEVEL0_UM = 0.243
"""Micrometres of a level-0 pixel, of every slide, in the organisers' script."""
LEVEL = 5
DOWNSAMPLE = 2**LEVEL
"""Level-0 pixels along the side of a mask pixel."""
MERGE_UM = 75.0
ITC_UM = 275.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesions:
    """The lesions of one slide; a normal slide has none."""

    labels: Int[np.ndarray, "rows columns"]
    """0 where there is no lesion, else its number from 1."""
    axes: Float[np.ndarray, " lesions"]
    """Major axis in mask pixels, of lesion 1, 2, …"""
    isolated: Bool[np.ndarray, " lesions"]
    """Which are ITC."""
    pixel_um: float
    """Micrometres of a mask pixel."""

    @property
    def count(self) -> int:
        """Lesions that a method should find: without ITC."""
        return int((~self.isolated).sum())


def lesions(
    mask: Shaped[np.ndarray, "rows columns"], *, pixel_um: float = LEVEL0_UM * DOWNSAMPLE
) -> Lesions:
    """The lesions of a tumour mask, by the organisers' rules.

    Args:
        mask: tumour where not 0; at level 5 for the official figures.
        pixel_um: micrometres of a mask pixel.

    Raises:
        InputError: the mask is empty of pixels, or `pixel_um` is not positive.
    """
    if mask.size == 0 or not pixel_um > 0:
        raise InputError(
            f"a mask of shape {mask.shape} with pixels of {pixel_um} µm: expected some pixels "
            "(level 5 of the slide) of positive size"
        )
    tumour = mask != 0
    if not tumour.any():  # there the distance to tumour is undefined
        none = np.zeros(0)
        return Lesions(
            labels=np.zeros(mask.shape, dtype=np.int64),
            axes=none,
            isolated=none.astype(bool),
            pixel_um=float(pixel_um),
        )
    reach = MERGE_UM / (pixel_um * 2)
    # What lies further from all tumour is no lesion: most of a slide.
    window = _around(tumour, margin=int(reach) + 2)
    near = np.asarray(ndimage.distance_transform_edt(~tumour[window])) < reach
    here = np.zeros(near.shape, dtype=np.int64)
    ndimage.label(ndimage.binary_fill_holes(near), structure=np.ones((3, 3)), output=here)
    labels = np.zeros(mask.shape, dtype=np.int64)
    labels[window] = here
    axes = major_axes(here)
    return Lesions(
        labels=labels, axes=axes, isolated=axes < ITC_UM / pixel_um, pixel_um=float(pixel_um)
    )


def major_axes(labels: Int[np.ndarray, "rows columns"]) -> Float[np.ndarray, " regions"]:
    """The major axis of regions 1, 2, … in pixels, from their second central moments.

    The full axis of the ellipse with the same moments: 4 √λ, λ the larger eigenvalue of the
    covariance of the region's pixel centres (as scikit-image defines it: a single pixel has 0).
    """
    y, x = np.nonzero(labels)
    region = labels[y, x]
    count = np.bincount(region, minlength=1)[1:].astype(np.float64)

    def mean(value: np.ndarray) -> np.ndarray:
        return np.bincount(region, weights=value, minlength=1)[1:] / count

    # Around each region's centre first: squares of whole coordinates would lose digits.
    dy, dx = y - mean(y)[region - 1], x - mean(x)[region - 1]
    yy, xx, xy = mean(dy * dy), mean(dx * dx), mean(dx * dy)
    largest = (yy + xx) / 2 + np.sqrt(((yy - xx) / 2) ** 2 + xy**2)
    return 4 * np.sqrt(largest)


def _around(tumour: Bool[np.ndarray, "rows columns"], *, margin: int) -> tuple[slice, slice]:
    """The box of what is True, grown to each side."""
    spans = [np.flatnonzero(tumour.any(axis=k)) for k in (1, 0)]
    rows, columns = (slice(max(int(s[0]) - margin, 0), int(s[-1]) + margin + 1) for s in spans)
    return rows, columns
