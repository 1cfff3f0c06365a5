"""Find tissue with CLAM's saturation rule, at a given resolution or at a level.

After Lu et al. 2021 (10.1038/s41551-020-00682-w). Except with its presets, it differs from CLAM in
using a physical resolution, areas in µm², outlines along pixel borders, and a closing without
offset. Slides without outlines and large images are accepted.
"""

import numpy as np
from jaxtyping import Int, UInt8

from ..errors import SlideError, UnknownResolution, imports_from
from ..slides import Slide, resolution_advice
from .options import TissueOptions
from .pixels import Picture, reduced, whole_level
from .polygons import Polygon, Tissue, ring_area

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
        raise UnknownResolution(
            f"{slide.path}: tissue is found at a resolution in µm per pixel, and that of the slide "
            f"is unknown: {resolution_advice(slide)}, or a preset that uses level-0 "
            "pixels (--preset clam-biopsy)"
        )
    picture, notes = _picture(slide, options)
    mask, threshold = _mask(picture.pixels, options)
    if options.method == "otsu" and threshold < options.threshold:
        notes.append(
            f"Otsu's threshold is {threshold:g} of 255, below {options.threshold}: "
            "the slide may not contain any tissue."
        )
    if picture.lost:
        notes.append(
            f"{len(picture.lost)} regions cannot be decoded at level {picture.level} and count as "
            f"background, the first at {picture.lost[0][:2]}."
        )
    return Tissue(
        polygons=tuple(_pieces(mask, options, mpp=slide.mpp, scale=picture.scale)),
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
    last = len(slide.levels) - 1
    level = options.level
    if level is None:
        level = _clam_level(slide)
    if level > last:
        raise SlideError(
            f"{slide.path}: there is no level {level} to find tissue at; its levels are 0 to {last}"
        )
    width = slide.levels[level].width
    height = slide.levels[level].height
    if width * height <= CLAM_PIXELS:
        return whole_level(slide, level), []
    note = (
        f"Level {level} has {width}x{height} pixels, more than CLAM accepts; tissue is "
        f"found on an image {CLAM_DOWNSAMPLE} times smaller than the slide."
    )
    return reduced(slide, scale=float(CLAM_DOWNSAMPLE)), [note]


def _clam_level(slide: Slide) -> int:
    """Return the level before the first that is too coarse, as OpenSlide chooses it for CLAM."""
    for k, level in enumerate(slide.levels):
        if level.downsample > CLAM_DOWNSAMPLE:
            return max(k - 1, 0)
    return len(slide.levels) - 1


def _mask(
    pixels: UInt8[np.ndarray, "height width 3"], options: TissueOptions
) -> tuple[UInt8[np.ndarray, "height width"], float]:
    """Return a mask with 255 for tissue, and the threshold of the saturation."""
    with imports_from("slides", "cv2"):
        import cv2
    saturation = np.ascontiguousarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)[..., 1])
    if options.median > 1:
        saturation = cv2.medianBlur(saturation, options.median)
    kind = cv2.THRESH_BINARY
    if options.method == "otsu":
        kind += cv2.THRESH_OTSU
    threshold, mask = cv2.threshold(saturation, options.threshold, 255, kind)
    if options.closing:
        square = np.ones((options.closing, options.closing), np.uint8)
        before = options.closing // 2
        # an even square has no centre, so CLAM's closing shifts the tissue by one mask pixel
        after = before if options.resolution is None else options.closing - 1 - before
        mask = cv2.dilate(mask, square, anchor=(before, before))
        mask = cv2.erode(mask, square, anchor=(after, after))
    return mask, threshold


def _pieces(
    mask: UInt8[np.ndarray, "height width"],
    options: TissueOptions,
    *,
    mpp: float | None,
    scale: tuple[float, float],
) -> list[Polygon]:
    """Return the sufficiently large outlines of a mask at level 0, in OpenCV's order."""
    import cv2

    if options.resolution is None:  # as in CLAM: every pixel of the outline, through its centre
        pixel = np.array(scale)
        shift = 0.0
        approximation = cv2.CHAIN_APPROX_NONE
        round_points = np.trunc
    else:
        pixel = np.array(scale) / FINER
        shift = 0.5
        approximation = cv2.CHAIN_APPROX_SIMPLE
        round_points = np.rint
        mask = mask.repeat(FINER, axis=0).repeat(FINER, axis=1)

    def to_level0(ring: Int[np.ndarray, "points 2"]) -> Int[np.ndarray, "points 2"]:
        return round_points((ring + shift) * pixel).astype(np.int32)

    # pixels of the mask per unit of area
    if options.unit == "patches":
        unit = float(int(REFERENCE**2 / pixel.prod()))
    else:
        assert mpp is not None
        unit = 1 / (pixel.prod() * mpp**2)
    rings, tree = cv2.findContours(mask, cv2.RETR_CCOMP, approximation)
    rings = [ring.reshape(-1, 2) for ring in rings]
    # the last of OpenCV's four numbers of a ring: the outline that it is a hole of, or -1
    parents = [] if tree is None else tree.reshape(-1, 4)[:, 3].tolist()
    holes_of: dict[int, list[np.ndarray]] = {}
    for ring, parent in zip(rings, parents, strict=True):
        holes_of.setdefault(parent, []).append(ring)
    polygons = []
    for k, outer in enumerate(rings):
        if parents[k] != -1:
            continue
        holes = sorted(holes_of.get(k, []), key=ring_area, reverse=True)
        area = ring_area(outer) - sum(map(ring_area, holes))
        if area <= options.min_area * unit:
            continue
        large_holes = []
        for hole in holes[: options.max_holes]:
            if ring_area(hole) > options.min_hole * unit:
                large_holes.append(to_level0(hole))
        polygons.append(Polygon(outer=to_level0(outer), holes=tuple(large_holes)))
    return polygons
