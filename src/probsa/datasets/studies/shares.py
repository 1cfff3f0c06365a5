"""Compute the share of each patch's pixels that is annotated, at level 0."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ...errors import SlideError
from ...patches import Polygon, raster
from ...slides import open_slide
from .annotations import Area

PAIRS = 1 << 22
"""Maximum number of (edge, patch) pairs compared at once."""


def polygon_share(
    area: Area, corners: Shaped[np.ndarray, "n 2"], *, side: float
) -> Float[np.ndarray, " n"]:
    """Return the share of each patch's pixels whose centres lie in the area.

    Pixels are counted only if an outline may cross the patch; otherwise one point decides.

    Args:
        area: The annotated area.
        corners: Level-0 (x, y) of each patch's top-left corner.
        side: Side of the patches in level-0 pixels.
    """
    crossed = np.zeros(len(corners), bool)
    contained = {kind: np.zeros(len(corners), bool) for kind in ("inside", "outside")}
    for kind, contains in contained.items():
        for polygon in getattr(area, kind):
            nearby = _touching(polygon, corners, side)
            cut = _crossed(polygon.outer, corners[nearby], side)
            crossed[nearby[cut]] = True
            uncut = nearby[~cut]
            contains[uncut] |= _contains(polygon.outer, corners[uncut] + side / 2)
    shares = (contained["inside"] & ~contained["outside"]).astype(np.float64)
    for i in np.flatnonzero(crossed):
        xs, ys = _pixels(corners[i], side)
        drawn = raster(area.inside, xs, ys) & ~raster(area.outside, xs, ys)
        shares[i] = drawn.mean()
    return shares


def mask_share(
    path: Path,
    corners: Shaped[np.ndarray, "n 2"],
    *,
    side: float,
    positive: Collection[int],
    known: Collection[int],
    size: tuple[int, int] | None = None,
) -> tuple[Float[np.ndarray, " n"], tuple[int, ...]]:
    """Return the share of each patch's pixels that a mask marks as positive, and unknown values.

    Pixels outside the slide count as negative.

    Args:
        path: An image as large as the slide at level 0, whose first channel holds the values.
        corners: Level-0 (x, y) of each patch's top-left corner.
        side: Side of the patches in level-0 pixels.
        positive: Values that count as positive.
        known: All values that may occur.
        size: (width, height) of the slide, if known.

    Raises:
        SlideError: the mask cannot be read, or its size differs from that of the slide.
    """
    shares = np.zeros(len(corners))
    counts = np.zeros(256, np.int64)
    with open_slide(path) as mask:
        width, height = mask.size
        if size is not None and size != mask.size:
            raise SlideError(
                f"{path} is {width}x{height} pixels, but its slide has {size[0]}x{size[1]}: the "
                "mask belongs to another slide or level"
            )
        for i, corner in enumerate(corners):
            xs, ys = _pixels(corner, side)
            left, top = max(int(xs[0]), 0), max(int(ys[0]), 0)
            right, bottom = min(int(xs[-1]) + 1, width), min(int(ys[-1]) + 1, height)
            if right <= left or bottom <= top:
                continue
            pixels = mask.read(x=left, y=top, level=0, width=right - left, height=bottom - top)
            patch_counts = np.bincount(pixels[..., 0].ravel(), minlength=256)
            counts += patch_counts
            shares[i] = patch_counts[list(positive)].sum() / (len(xs) * len(ys))
    return shares, tuple(sorted({int(v) for v in np.flatnonzero(counts)} - set(known)))


def _pixels(
    corner: Shaped[np.ndarray, "2"], side: float
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " rows"]]:
    """Return the centres of a patch's pixels, as x and y coordinates."""
    across, down = (
        np.arange(np.ceil(start - 0.5), np.ceil(start + side - 0.5)) + 0.5
        for start in corner.tolist()
    )
    return across, down


def _touching(
    polygon: Polygon, corners: Shaped[np.ndarray, "n 2"], side: float
) -> Int[np.ndarray, " k"]:
    """Return the rows of the patches that overlap the bounding box of the polygon."""
    left, top, right, bottom = polygon.box
    x, y = corners.T
    over = (x <= right) & (x + side >= left) & (y <= bottom) & (y + side >= top)
    return np.flatnonzero(over)


def _crossed(
    ring: Shaped[np.ndarray, "points 2"], corners: Shaped[np.ndarray, "n 2"], side: float
) -> Bool[np.ndarray, " n"]:
    """Return whether the bounding box of any edge overlaps each patch, so an edge may cross it."""
    low = np.minimum(ring, np.roll(ring, -1, axis=0))
    high = np.maximum(ring, np.roll(ring, -1, axis=0))
    step = max(1, PAIRS // len(ring))
    crossed = np.zeros(len(corners), bool)
    for start in range(0, len(corners), step):
        block = corners[start : start + step, None]
        meets = (low <= block + side) & (high >= block)
        crossed[start : start + step] = (meets[..., 0] & meets[..., 1]).any(axis=1)
    return crossed


def _contains(
    ring: Shaped[np.ndarray, "points 2"], points: Float[np.ndarray, "n 2"]
) -> Bool[np.ndarray, " n"]:
    """Return whether points lie in the ring; they must not be on its outline."""
    from matplotlib.path import Path as Outline

    return Outline(ring).contains_points(points) if len(points) else np.zeros(0, bool)
