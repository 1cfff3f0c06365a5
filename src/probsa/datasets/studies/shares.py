"""Which share of each patch's pixels is annotated, counted at level 0."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from ...errors import SlideError
from ...patches import Polygon, raster
from ...slides import open_slide
from .annotations import Area

PAIRS = 1 << 22
"""Edges times patches that are compared at once."""


def polygon_share(
    area: Area, corners: Shaped[np.ndarray, "n 2"], *, side: float
) -> Float[np.ndarray, " n"]:
    """The share of each patch's pixels whose centres lie in the area.

    Pixels are only counted where an outline may cross the patch: elsewhere one pixel tells.

    Args:
        area: what is annotated.
        corners: level-0 (x, y) of each patch's top-left corner.
        side: of the patches, in level-0 pixels.
    """
    crossed = np.zeros(len(corners), bool)
    held = {kind: np.zeros(len(corners), bool) for kind in ("inside", "outside")}
    for kind, within in held.items():
        for polygon in getattr(area, kind):
            near = _touching(polygon, corners, side)
            cut = _crossed(polygon.outer, corners[near], side)
            crossed[near[cut]] = True
            whole = near[~cut]
            within[whole] |= _contains(polygon.outer, corners[whole] + side / 2)
    found = (held["inside"] & ~held["outside"]).astype(np.float64)
    for i in np.flatnonzero(crossed):
        xs, ys = _pixels(corners[i], side)
        drawn = raster(area.inside, xs, ys) & ~raster(area.outside, xs, ys)
        found[i] = drawn.mean()
    return found


def mask_share(
    path: Path,
    corners: Shaped[np.ndarray, "n 2"],
    *,
    side: float,
    positive: Collection[int],
    known: Collection[int],
    size: tuple[int, int] | None = None,
) -> tuple[Float[np.ndarray, " n"], tuple[int, ...]]:
    """The share of each patch's pixels whose value in a mask is positive, and unknown values.

    What of a patch lies outside of the slide is not positive.

    Args:
        path: an image as large as the slide at level 0, whose first channel holds the values.
        corners: level-0 (x, y) of each patch's top-left corner.
        side: of the patches, in level-0 pixels.
        positive: values that count.
        known: every value that may occur.
        size: (width, height) of the slide, where that is known.

    Raises:
        SlideError: the mask cannot be read or is of another size than the slide.
    """
    found = np.zeros(len(corners))
    counts = np.zeros(256, np.int64)
    with open_slide(path) as mask:
        width, height = mask.size
        if size is not None and size != mask.size:
            raise SlideError(
                f"{path} is {width}x{height} pixels, but its slide {size[0]}x{size[1]}: the mask "
                "is of another slide, or of another level"
            )
        for i, corner in enumerate(corners):
            xs, ys = _pixels(corner, side)
            left, top = max(int(xs[0]), 0), max(int(ys[0]), 0)
            right, bottom = min(int(xs[-1]) + 1, width), min(int(ys[-1]) + 1, height)
            if right <= left or bottom <= top:
                continue
            pixels = mask.read(x=left, y=top, level=0, width=right - left, height=bottom - top)
            here = np.bincount(pixels[..., 0].ravel(), minlength=256)
            counts += here
            found[i] = here[list(positive)].sum() / (len(xs) * len(ys))
    return found, tuple(sorted({int(v) for v in np.flatnonzero(counts)} - set(known)))


def _pixels(
    corner: Shaped[np.ndarray, "2"], side: float
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " rows"]]:
    """Centres of the pixels of a patch, across and down."""
    across, down = (
        np.arange(np.ceil(at - 0.5), np.ceil(at + side - 0.5)) + 0.5 for at in corner.tolist()
    )
    return across, down


def _touching(
    polygon: Polygon, corners: Shaped[np.ndarray, "n 2"], side: float
) -> Int[np.ndarray, " k"]:
    """The rows of the patches that the polygon's box overlaps."""
    left, top, right, bottom = polygon.box
    x, y = corners.T
    over = (x <= right) & (x + side >= left) & (y <= bottom) & (y + side >= top)
    return np.flatnonzero(over)


def _crossed(
    ring: Shaped[np.ndarray, "points 2"], corners: Shaped[np.ndarray, "n 2"], side: float
) -> Bool[np.ndarray, " n"]:
    """Whether the box of an edge meets each patch: where none does, no edge can."""
    low = np.minimum(ring, np.roll(ring, -1, axis=0))
    high = np.maximum(ring, np.roll(ring, -1, axis=0))
    step = max(1, PAIRS // len(ring))
    found = np.zeros(len(corners), bool)
    for start in range(0, len(corners), step):
        here = corners[start : start + step, None]
        meets = (low <= here + side) & (high >= here)
        found[start : start + step] = (meets[..., 0] & meets[..., 1]).any(axis=1)
    return found


def _contains(
    ring: Shaped[np.ndarray, "points 2"], points: Float[np.ndarray, "n 2"]
) -> Bool[np.ndarray, " n"]:
    """Whether points that are not on the ring lie in it."""
    from matplotlib.path import Path as Outline

    return Outline(ring).contains_points(points) if len(points) else np.zeros(0, bool)
