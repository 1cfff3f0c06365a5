"""Cut patches from tissue: the geometry of the patches, and the two kinds of grid."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from ..errors import InputError, SlideError
from ..slides import Slide, resolution_advice
from ._base import Patches
from .options import PatchSettings
from .polygons import Polygon, Tissue, window
from .reduction import level_for
from .rules import by_points, tissue_shares

FINEST = 2
"""Largest number of patch pixels that one slide pixel may cover, in each direction."""


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
    if settings.mpp is not None:
        scale = (_pixel(slide, settings.mpp),) * 2
    else:
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
    step = settings.size - settings.overlap
    at = level_for(slide, scale[0])
    result = Geometry(
        size=(settings.size * scale[0], settings.size * scale[1]),
        step=(step * scale[0], step * scale[1]),
        level=at,
        factor=slide.levels[at].downsample,
    )
    if min(result.step) < 1:
        raise InputError(
            f"{slide.path}: patches would be {min(result.step):g} level-0 pixels apart, less than "
            "one: give a smaller overlap"
        )
    return result


def _pixel(slide: Slide, mpp: float) -> float:
    """Return the size of a pixel of `mpp` micrometres in level-0 pixels."""
    if slide.mpp is None:
        raise SlideError(
            f"{slide.path}: patches at {mpp:g} µm per pixel cannot be cut, because the "
            f"resolution is unknown: {resolution_advice(slide)}, or a clam-* preset without --mpp "
            "(level-0 pixels)"
        )
    if mpp * FINEST < slide.mpp:
        raise SlideError(
            f"{slide.path}: its pixels are {slide.mpp:g} µm, more than {FINEST} times as large as "
            f"the {mpp:g} µm requested (--mpp): the patches would be mostly interpolated. "
            f"Give --mpp {slide.mpp:g} or more for this slide"
        )
    return mpp / slide.mpp


def cut(slide: Slide, tissue: Tissue, settings: PatchSettings) -> Patches:
    """Cut the patches of a slide; without tissue there are none.

    The global grid is ordered row by row. The contour grid has CLAM's order: piece by piece, and
    within a piece column by column.

    Raises:
        SlideError: the settings do not fit the slide.
        InputError: the tissue belongs to a slide of another size.
    """
    if tissue.slide_size != slide.size:
        raise InputError(
            f"{slide.path}: the slide is {slide.size[0]}x{slide.size[1]}, but its tissue was "
            f"found on {tissue.slide_size[0]}x{tissue.slide_size[1]}: they belong to two slides"
        )
    patch = patch_geometry(slide, settings)
    if settings.grid == "global":
        coords = _one_lattice(tissue, settings, patch=patch)
    else:
        pieces = [
            _lattice_of_piece(polygon, settings, patch=patch, slide_size=slide.size)
            for polygon in tissue.polygons
        ]
        coords = np.concatenate([np.zeros((0, 2), np.int64), *pieces])
    return Patches(
        coords=coords,
        size=settings.size,
        size_level0=patch.size[0],
        overlap=settings.overlap,
        mpp=settings.mpp,
        mpp_level0=slide.mpp,
        slide_size=slide.size,
    )


def corners(start: int, stop: float, step: float) -> Int[np.ndarray, " n"]:
    """Return start, start + step, … below stop, rounded individually to avoid drift."""
    n = max(0, int(np.ceil((stop - start) / step - 1e-9)))
    return start + np.rint(np.arange(n) * step).astype(np.int64)


def _one_lattice(
    tissue: Tissue, settings: PatchSettings, *, patch: Geometry
) -> Int[np.ndarray, "n 2"]:
    """Return the cells of the slide's lattice that contain tissue, row by row."""
    x, y = (
        corners(0, _stop(length, size, padding=settings.padding), step)
        for length, size, step in zip(tissue.slide_size, patch.size, patch.step, strict=True)
    )
    inside = np.zeros((len(x), len(y)), bool)
    if inside.size == 0:  # no padding, and the slide is smaller than a patch
        return np.zeros((0, 2), np.int64)
    if settings.rule == "share":
        inside = _enough(tissue.polygons, (0, 0), settings, patch=patch, counts=(len(x), len(y)))
    else:
        side = round(patch.size[0])
        for polygon in tissue.polygons:
            left, top, right, bottom = polygon.box
            i, j = window((left - side, top - side, right, bottom), x, y)
            inside[i, j] |= by_points(polygon, x[i], y[j], size=side, rule=settings.rule)
    rows, columns = np.nonzero(inside.T)
    return np.stack([x[columns], y[rows]], axis=1)


def _lattice_of_piece(
    polygon: Polygon,
    settings: PatchSettings,
    *,
    patch: Geometry,
    slide_size: tuple[int, int],
) -> Int[np.ndarray, "n 2"]:
    """Return CLAM's lattice: from the corner of the bounding box, column by column."""
    left, top, right, bottom = polygon.box
    stops = [right + 1.0, bottom + 1.0]
    if not settings.padding:
        limits = (
            _stop(length, size, padding=False)
            for length, size in zip(slide_size, patch.size, strict=True)
        )
        stops = [min(stop, limit) for stop, limit in zip(stops, limits, strict=True)]
    x = corners(left, stops[0], patch.step[0])
    y = corners(top, stops[1], patch.step[1])
    if len(x) == 0 or len(y) == 0:
        return np.zeros((0, 2), np.int64)
    if settings.rule == "share":
        counts = len(x), len(y)
        inside = _enough((polygon,), (left, top), settings, patch=patch, counts=counts)
    else:
        inside = by_points(polygon, x, y, size=round(patch.size[0]), rule=settings.rule)
    columns, rows = np.nonzero(inside)
    return np.stack([x[columns], y[rows]], axis=1)


def _enough(
    polygons: tuple[Polygon, ...],
    origin: tuple[int, int],
    settings: PatchSettings,
    *,
    patch: Geometry,
    counts: tuple[int, int],
) -> Bool[np.ndarray, "columns rows"]:
    shares = tissue_shares(polygons, origin, step=patch.step, counts=counts, size=patch.size[0])
    return (shares > 0) & (shares >= settings.min_tissue - 1e-9)


def _stop(length: int, size: float, *, padding: bool) -> float:
    """Return the limit of corners: the slide's edge, or where the whole patch is on the slide."""
    return float(length) if padding else length - size + 0.5  # corners are rounded
