"""Stage 2: the patches of a slide: their geometry, the two kinds of grid, and their pixels."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image

from ..errors import InputError, SlideError, UnknownResolution
from ..slides import Slide, resolution_advice
from .options import PatchSettings, Rule
from .pixels import factors, level_for, means
from .polygons import Polygon, Tissue, locate, raster, window

FINEST = 2
"""Largest number of patch pixels that one slide pixel may cover, in each direction."""
SAMPLES = 32
"""Test points along a patch's side: for 512 pixels of 0.5 µm, one per pixel of our mask."""
MOST_SAMPLES = 2**24
"""Largest number of test points per slide; very small patches get fewer points each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patches:
    """The squares of a slide that contain tissue, in a defined order."""

    coords: Int[np.ndarray, "n 2"]
    """Level-0 (x, y) of each top-left corner, int64."""
    size: int
    """Side in pixels, as an encoder receives the patch."""
    size_level0: float
    """Side in level-0 pixels: size · mpp / mpp_level0, not rounded."""
    overlap: int
    """Overlap of neighbours, in pixels of `size`; the stride is size − overlap of these pixels."""
    mpp: float | None
    """Micrometres per pixel of `size`; None if patches are defined in level-0 pixels."""
    mpp_level0: float | None
    slide_size: tuple[int, int]
    """(width, height) of the slide at level 0."""

    def __len__(self) -> int:
        return len(self.coords)

    @property
    def stride(self) -> float:
        """Distance between neighbouring patches in level-0 pixels."""
        return self.size_level0 * (self.size - self.overlap) / self.size

    @property
    def attributes(self) -> dict[str, object]:
        """TRIDENT's attributes of `coords`, plus the exact stride, which TRIDENT rounds."""
        return {
            "patch_size": self.size,
            "patch_size_level0": round(self.size_level0),
            "size_level0": self.size_level0,
            "level0_magnification": None if self.mpp_level0 is None else 10 / self.mpp_level0,
            "target_magnification": None if self.mpp is None else 10 / self.mpp,
            "overlap": self.overlap,
            "level0_width": self.slide_size[0],
            "level0_height": self.slide_size[1],
            "mpp": self.mpp,
            "mpp_level0": self.mpp_level0,
            "pitch": self.stride,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Size and step of the patches on a slide, in level-0 pixels (horizontal, vertical)."""

    size: tuple[float, float]
    step: tuple[float, float]
    level: int
    """The level from which the pixels are read."""
    factor: float
    """Its downsampling factor."""


def patch_geometry(slide: Slide, settings: PatchSettings) -> Geometry:
    """Return the size of a patch, the distance to the next one, and where it is read.

    Raises:
        SlideError: the resolution is required but unknown or too coarse, or the level does not
            exist.
    """
    mpp = settings.mpp
    if mpp is None:
        if settings.level >= len(slide.levels):
            raise SlideError(
                f"{slide.path}: there is no level {settings.level} to cut patches at; "
                f"its levels are 0 to {len(slide.levels) - 1}"
            )
        level = slide.levels[settings.level]
        scale = level.downsample, level.downsample
        if settings.grid == "contour":  # as in CLAM, 3.9999 becomes 3
            width, height = slide.size
            scale = float(width // level.width), float(height // level.height)
    elif slide.mpp is None:
        raise UnknownResolution(
            f"{slide.path}: patches at {mpp:g} µm per pixel cannot be cut, because the "
            f"resolution is unknown: {resolution_advice(slide)}, or a clam-* preset without --mpp "
            "(level-0 pixels)"
        )
    elif mpp * FINEST < slide.mpp:
        raise SlideError(
            f"{slide.path}: its pixels are {slide.mpp:g} µm, more than {FINEST} times as large as "
            f"the {mpp:g} µm requested (--mpp): the patches would be mostly interpolated. "
            f"Give --mpp {slide.mpp:g} or more for this slide"
        )
    else:
        scale = mpp / slide.mpp, mpp / slide.mpp
    step = settings.size - settings.overlap
    if step * min(scale) < 1:
        raise InputError(
            f"{slide.path}: patches would be {step * min(scale):g} level-0 pixels apart, less than "
            "one: give a smaller overlap"
        )
    at = level_for(slide, scale[0])
    return Geometry(
        size=(settings.size * scale[0], settings.size * scale[1]),
        step=(step * scale[0], step * scale[1]),
        level=at,
        factor=slide.levels[at].downsample,
    )


def cut(slide: Slide, tissue: Tissue, settings: PatchSettings) -> Patches:
    """Cut the patches of a slide; without tissue there are none.

    The global grid is ordered row by row. The contour grid has CLAM's order: piece by piece, and
    within a piece column by column.

    Raises:
        SlideError: The settings do not fit the slide.
        InputError: The tissue belongs to a slide of another size.
    """
    if tissue.slide_size != slide.size:
        raise InputError(
            f"{slide.path}: the slide is {slide.size[0]}x{slide.size[1]}, but its tissue was "
            f"found on {tissue.slide_size[0]}x{tissue.slide_size[1]}: they belong to two slides"
        )
    patch = patch_geometry(slide, settings)
    lattices = []
    if settings.grid == "global":
        width, height = slide.size
        lattices.append(_Lattice(tissue.polygons, left=0, top=0, right=width, bottom=height))
    else:
        for polygon in tissue.polygons:
            left, top, right, bottom = polygon.box
            lattice = _Lattice((polygon,), left=left, top=top, right=right + 1, bottom=bottom + 1)
            lattices.append(lattice)
    # without padding, up to where the whole patch, whose corner is rounded, is on the slide
    last_x = np.inf if settings.padding else slide.size[0] - patch.size[0] + 0.5
    last_y = np.inf if settings.padding else slide.size[1] - patch.size[1] + 0.5
    coords = [np.zeros((0, 2), np.int64)]
    for lattice in lattices:
        x = _corners(lattice.left, min(lattice.right, last_x), step=patch.step[0])
        y = _corners(lattice.top, min(lattice.bottom, last_y), step=patch.step[1])
        is_patch = _contains_tissue(
            lattice.polygons, x, y, excluded=tissue.excluded, settings=settings, patch=patch
        )
        if settings.grid == "global":
            rows, columns = np.nonzero(is_patch.T)
        else:
            columns, rows = np.nonzero(is_patch)
        coords.append(np.stack([x[columns], y[rows]], axis=1))
    return Patches(
        coords=np.concatenate(coords),
        size=settings.size,
        size_level0=patch.size[0],
        overlap=settings.overlap,
        mpp=settings.mpp,
        mpp_level0=slide.mpp,
        slide_size=slide.size,
    )


class _Lattice(NamedTuple):
    """A lattice of squares over some pieces of tissue; their corners begin at (left, top)."""

    polygons: tuple[Polygon, ...]
    left: int
    top: int
    right: int
    """No corner lies here or further to the right."""
    bottom: int
    """No corner lies here or further down."""


def _corners(start: int, end: float, *, step: float) -> Int[np.ndarray, " n"]:
    """Return the coordinates from `start` on that are less than `end`, rounded to pixels."""
    # subtract a little, because a quotient that is whole may be rounded up
    count = max(0, math.ceil((end - start) / step - 1e-9))
    return start + np.rint(np.arange(count) * step).astype(np.int64)


def _contains_tissue(
    polygons: tuple[Polygon, ...],
    x: Int[np.ndarray, " columns"],
    y: Int[np.ndarray, " rows"],
    *,
    excluded: tuple[Polygon, ...],
    settings: PatchSettings,
    patch: Geometry,
) -> Bool[np.ndarray, "columns rows"]:
    """Return which squares of the lattice with corners (x[i], y[j]) become patches."""
    inside = np.zeros((len(x), len(y)), bool)
    if not inside.size:  # no padding, and the slide is smaller than a patch
        return inside
    if settings.rule == "share":
        shares = tissue_shares(
            polygons,
            (int(x[0]), int(y[0])),
            step=patch.step,
            counts=inside.shape,
            size=patch.size[0],
            excluded=excluded,
        )
        return (shares > 0) & (shares >= settings.min_tissue - 1e-9)
    side = round(patch.size[0])
    for polygon in polygons:
        i, j = window(polygon.outer, x, y, before=side)
        inside[i, j] |= by_points(polygon, x[i], y[j], size=side, rule=settings.rule)
    if excluded:  # by their centres, as CLAM rejects squares in holes
        inside &= ~raster(excluded, x + side / 2, y + side / 2, border=False)
    return inside


def tissue_shares(
    polygons: tuple[Polygon, ...],
    origin: tuple[int, int],
    *,
    step: tuple[float, float],
    counts: tuple[int, ...],
    size: float,
    excluded: tuple[Polygon, ...] = (),
) -> Float[np.ndarray, "columns rows"]:
    """Return the share of each square's area that is tissue, from points at its cell centres.

    `origin` is the corner of the first square, `counts` the numbers of squares, `step` and `size`
    their distance and side. The area outside the slide and `excluded` areas contain no tissue.
    """
    # the whole lattice is divided into cells, of which each square has n by n
    width = (counts[0] - 1) * step[0] + size
    height = (counts[1] - 1) * step[1] + size
    n = max(1, min(SAMPLES, int(size / math.sqrt(width * height / MOST_SAMPLES))))
    cell = size / n
    points = []
    square_means = []
    for axis, length in enumerate((width, height)):
        cells = math.ceil(length / cell - 1e-9)
        points.append(origin[axis] + (np.arange(cells) + 0.5) * cell)
        # where each square begins, in cells; rounding removes the error of the division, and the
        # last square does not end beyond the last cell
        low = np.round(np.arange(counts[axis]) * (step[axis] / cell), 9)
        low = np.minimum(low, cells - n)
        square_means.append(means(low, low + n, cells))
    inside = raster(polygons, *points)
    if excluded:
        inside &= ~raster(excluded, *points, border=False)
    return square_means[0] @ inside.astype(np.float64) @ square_means[1].T


def by_points(
    polygon: Polygon,
    x: Int[np.ndarray, " columns"],
    y: Int[np.ndarray, " rows"],
    *,
    size: int,
    rule: Rule,
) -> Bool[np.ndarray, "columns rows"]:
    """Apply CLAM's test to the squares with corners (x[i], y[j]) and one piece of tissue.

    Points on the border count as inside. A square whose centre lies in a hole is rejected.
    """
    half = size // 2
    quarter = half // 2
    if rule == "basic":
        offsets = [0]
    elif rule == "center" or quarter == 0:
        offsets = [half]
    else:
        offsets = [half - quarter, half + quarter]
    hits = [locate(polygon.outer, x + a, y + b) >= 0 for a in offsets for b in offsets]
    inside = np.all(hits, axis=0) if rule == "four_pt_hard" else np.any(hits, axis=0)
    for hole in polygon.holes:
        inside &= locate(hole, x + size / 2, y + size / 2) <= 0
    return inside


def read_patch(slide: Slide, patches: Patches, i: int) -> UInt8[np.ndarray, "size size 3"]:
    """Return patch `i` as RGB; pixels outside the slide are white.

    The patch is read at the coarsest level that is not coarser than the patch. At the patch's own
    resolution, pixels are returned as stored. If the factor is an integer, pixels are averaged
    (Pillow's BOX), as in the pyramids of scanners. Otherwise Pillow's HAMMING is used, whose
    weights fall off smoothly, because BOX would weight neighbouring pixels unevenly. Neither filter
    overshoots at edges, as LANCZOS does.

    Raises:
        RegionError: The slide cannot be decoded in this region.
    """
    size = patches.size
    level = level_for(slide, patches.size_level0 / size)
    # corner (x, y) and extent (width, height) of the patch in pixels of the level
    downsamples = np.array(factors(slide, level))
    corner = patches.coords[i] / downsamples
    extent = patches.size_level0 / downsamples
    factor = max(1, round(extent[0] / size))
    # if a whole factor is wrong by at most half a pixel over the whole patch: no interpolation
    is_whole = np.abs(extent - factor * size).max() <= 0.5
    if is_whole:
        corner = np.rint(corner)
        extent = np.full(2, factor * size)
    first = np.floor(corner)
    width, height = (int(n) for n in np.ceil(corner + extent - 1e-6) - first)
    # readers use this factor for corners, in both directions
    x, y = (round(v * slide.levels[level].downsample) for v in first.tolist())
    pixels = slide.read(x=x, y=y, level=level, width=width, height=height)
    if is_whole and factor == 1:
        return pixels
    # rounding may put the box slightly beyond the region, which Pillow refuses
    box_start = corner - first
    box_end = np.minimum(box_start + extent, (width, height))
    resampling = Image.Resampling.BOX if is_whole else Image.Resampling.HAMMING
    image = Image.fromarray(pixels)
    patch = image.resize((size, size), resampling, box=(*box_start, *box_end))
    return np.asarray(patch).copy()
