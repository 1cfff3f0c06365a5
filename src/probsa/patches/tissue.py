"""Find tissue with CLAM's saturation rule, at a given resolution or at a level.

After Lu et al. 2021 (10.1038/s41551-020-00682-w). Except with its presets, it differs from CLAM in
using a physical resolution, areas in µm², outlines along pixel borders, and a closing without
offset. Slides without outlines and large images are accepted.
"""

from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8

from ..errors import MissingExtra, SlideError
from ..slides import Slide, resolution_advice
from .options import TissueOptions
from .polygons import Polygon, Tissue, ring_area
from .reduction import Picture, reduced, whole_level

REFERENCE = 512
"""Side in level-0 pixels of the square that is CLAM's unit of area."""
CLAM_DOWNSAMPLE = 64
CLAM_PIXELS = 100_000_000
"""CLAM refuses larger masks; here the mask is made smaller, with a note."""
FINER = 2
"""Subdivision of mask pixels before outlining. Outlines run through pixel centres, and those of the
parts are a quarter of a pixel from the border instead of a half."""


def find_tissue(slide: Slide, options: TissueOptions | None = None) -> Tissue:
    """Find the pieces of tissue on a slide; a slide without tissue is not an error.

    Raises:
        SlideError: the resolution is required but unknown, or the level does not exist.
        RegionError: more than half of the slide cannot be decoded.
    """
    options = options or TissueOptions()
    if options.needs_mpp and slide.mpp is None:
        raise SlideError(
            f"{slide.path}: tissue is found at a resolution in µm per pixel, and that of the slide "
            f"is unknown: {resolution_advice(slide)}, or a preset that uses level-0 "
            "pixels (--preset clam-biopsy)"
        )
    picture, notes = _picture(slide, options)
    mask, otsu = _mask(picture.pixels, options)
    if otsu is not None and otsu < options.threshold:
        notes.append(
            f"Otsu's threshold is {otsu:g} of 255, below {options.threshold}: "
            "the slide may not contain any tissue."
        )
    if picture.lost:
        notes.append(
            f"{len(picture.lost)} regions cannot be decoded at level {picture.level} and count as "
            f"background, the first at {picture.lost[0][:2]}."
        )
    return Tissue(
        polygons=tuple(_pieces(mask, options, slide=slide, scale=picture.scale)),
        slide_size=slide.size,
        level=picture.level,
        scale=picture.scale,
        notes=tuple(notes),
    )


def _picture(slide: Slide, options: TissueOptions) -> tuple[Picture, list[str]]:
    """Return the image to segment, and notes on it."""
    if options.resolution is not None:
        assert slide.mpp is not None
        return reduced(slide, scale=options.resolution / slide.mpp), []
    level = _clam_level(slide) if options.level is None else options.level
    if level >= len(slide.levels):
        raise SlideError(
            f"{slide.path}: there is no level {level} to find tissue at; "
            f"its levels are 0 to {len(slide.levels) - 1}"
        )
    here = slide.levels[level]
    if here.width * here.height <= CLAM_PIXELS:
        return whole_level(slide, level), []
    note = (
        f"Level {level} has {here.width}x{here.height} pixels, more than CLAM accepts; tissue is "
        f"found on an image {CLAM_DOWNSAMPLE} times smaller than the slide."
    )
    return reduced(slide, scale=float(CLAM_DOWNSAMPLE)), [note]


def _clam_level(slide: Slide) -> int:
    """Return the level before the first with a larger downsample, as OpenSlide chooses it."""
    beyond = [k for k, level in enumerate(slide.levels) if level.downsample > CLAM_DOWNSAMPLE]
    return max(beyond[0] - 1, 0) if beyond else len(slide.levels) - 1


def opencv() -> Any:
    """Return OpenCV, which belongs to an optional extra."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("opencv-python-headless", "slides") from error
    return cv2


def _mask(
    pixels: UInt8[np.ndarray, "height width 3"], options: TissueOptions
) -> tuple[UInt8[np.ndarray, "height width"], float | None]:
    """Return a mask with 255 for tissue, and Otsu's threshold if it was used."""
    cv2 = opencv()
    saturation = np.ascontiguousarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)[..., 1])
    if options.median > 1:
        saturation = cv2.medianBlur(saturation, options.median)
    kind = cv2.THRESH_BINARY
    if options.method == "otsu":
        kind += cv2.THRESH_OTSU
    used, mask = cv2.threshold(saturation, options.threshold, 255, kind)
    if options.closing:
        square = np.ones((options.closing, options.closing), np.uint8)
        before = options.closing // 2
        # an even square has no centre, so CLAM's closing shifts the tissue by one mask pixel
        after = before if options.resolution is None else options.closing - 1 - before
        mask = cv2.dilate(mask, square, anchor=(before, before))
        mask = cv2.erode(mask, square, anchor=(after, after))
    return mask, float(used) if options.method == "otsu" else None


def _pieces(
    mask: UInt8[np.ndarray, "height width"],
    options: TissueOptions,
    *,
    slide: Slide,
    scale: tuple[float, float],
) -> list[Polygon]:
    """Return the sufficiently large outlines of a mask at level 0, in OpenCV's order."""
    if options.resolution is None:  # as in CLAM: every pixel of the outline, through its centre
        finer, compact = 1, False
    else:
        finer, compact = FINER, True
        mask = mask.repeat(finer, axis=0).repeat(finer, axis=1)
    pixel_x, pixel_y = scale[0] / finer, scale[1] / finer
    if options.unit == "patches":
        unit = float(int(REFERENCE**2 / (pixel_x * pixel_y)))
    else:
        assert slide.mpp is not None
        unit = 1 / (pixel_x * pixel_y * slide.mpp**2)
    least, least_hole = options.min_area * unit, options.min_hole * unit
    polygons = []
    for outer, holes in _outlines(mask, compact=compact):
        net = ring_area(outer) - sum(ring_area(hole) for hole in holes)
        if net == 0 or not net > least:
            continue
        largest = sorted(holes, key=ring_area, reverse=True)[: options.max_holes]
        kept_holes = [hole for hole in largest if ring_area(hole) > least_hole]
        shift = 0.5 if compact else 0.0
        at_level_0 = [
            _scaled(r, scale=(pixel_x, pixel_y), shift=shift) for r in (outer, *kept_holes)
        ]
        polygons.append(Polygon(outer=at_level_0[0], holes=tuple(at_level_0[1:])))
    return polygons


def _outlines(
    mask: UInt8[np.ndarray, "height width"], *, compact: bool
) -> list[tuple[Shaped[np.ndarray, "points 2"], list[Shaped[np.ndarray, "_ 2"]]]]:
    """Return each outline with its holes, in pixels of the mask."""
    cv2 = opencv()
    how = cv2.CHAIN_APPROX_SIMPLE if compact else cv2.CHAIN_APPROX_NONE
    rings, tree = cv2.findContours(mask, cv2.RETR_CCOMP, how)
    if tree is None:
        return []
    parents = tree.reshape(-1, 4)[:, 3]
    inner: dict[int, list[np.ndarray]] = {}
    for k in np.flatnonzero(parents >= 0):
        inner.setdefault(int(parents[k]), []).append(rings[k].reshape(-1, 2))
    return [(rings[k].reshape(-1, 2), inner.get(int(k), [])) for k in np.flatnonzero(parents == -1)]


def _scaled(
    ring: Shaped[np.ndarray, "points 2"], *, scale: tuple[float, float], shift: float
) -> Shaped[np.ndarray, "points 2"]:
    """Scale a ring to level 0; without a shift, truncate as CLAM does."""
    at = (ring + shift) * np.array(scale)
    return at.astype(np.int32) if shift == 0 else np.rint(at).astype(np.int32)
