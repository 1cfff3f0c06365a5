"""Tissue polygons at level 0, and which points of a lattice lie inside them.

The tests are vectorised over all points of a lattice and all edges of a ring.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Int8, Shaped


@dataclass(frozen=True, kw_only=True, eq=False)
class Polygon:
    """One piece of tissue: its outline and holes, as rings without a repeated last point."""

    outer: Int[np.ndarray, "points 2"]
    """Level-0 (x, y), int32."""
    holes: tuple[Int[np.ndarray, "_ 2"], ...] = ()

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """Bounding box (left, top, right, bottom)."""
        (left, top), (right, bottom) = self.outer.min(0), self.outer.max(0)
        return int(left), int(top), int(right), int(bottom)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnShapes:
    """What a file of drawn shapes contains, as counts by name."""

    tissue: Mapping[str, int]
    """Number of polygons that count as tissue, by class; the name is empty without a class."""
    excluded: Mapping[str, int]
    """Number of polygons that are excluded from the tissue, by class."""
    without_area: Mapping[str, int]
    """Number of shapes that are left out because they have no area, by kind: `Point`, …"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tissue:
    """The tissue of a slide; without polygons, there is none."""

    polygons: tuple[Polygon, ...]
    slide_size: tuple[int, int]
    """(width, height) at level 0."""
    level: int | None = None
    """Level that the mask was computed from; None if the polygons come from a file."""
    scale: tuple[float, float] | None = None
    """Level-0 pixels per pixel of the mask (horizontal, vertical)."""
    excluded: tuple[Polygon, ...] = ()
    """Areas that are no tissue although they lie in one of `polygons`, such as artefacts."""
    drawn: "DrawnShapes | None" = None
    """The shapes of the file that the polygons come from; None if they were found."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, as sentences."""

    def __len__(self) -> int:
        return len(self.polygons)


def ring_area(ring: Int[np.ndarray, "points 2"]) -> float:
    """Return the area inside a ring of either orientation."""
    x, y = ring.astype(np.float64).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def locate(
    ring: Int[np.ndarray, "points 2"],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
) -> Int8[np.ndarray, "columns rows"]:
    """Return 1 where (xs[i], ys[j]) is inside the ring, 0 on the ring, and -1 outside.

    The result equals that of OpenCV's pointPolygonTest. It is exact for multiples of 1/2, because a
    quotient of integers below 2^53 that is such a number is exact in float64. `xs` and `ys` ascend.
    """
    a = ring.astype(np.float64)
    b = np.roll(a, -1, axis=0)
    # an edge crosses the rows from its upper end to its lower end, which is excluded
    low, high = np.minimum(a, b), np.maximum(a, b)
    edge, row = pairs(np.searchsorted(ys, low[:, 1]), np.searchsorted(ys, high[:, 1]))
    (x, y), (to_x, to_y) = a[edge].T, b[edge].T
    at = x + (ys[row] - y) * (to_x - x) / (to_y - y)
    # the parity of the crossings to the right; an overflow does not change it
    crossings = np.zeros((len(xs) + 1, len(ys)), np.uint8)
    np.add.at(crossings, (np.searchsorted(xs, at), row), 1)
    odd = np.cumsum(crossings[:0:-1], axis=0, dtype=np.uint8)[::-1] % 2
    location = np.where(odd, 1, -1).astype(np.int8)

    # points on the ring: at crossings, at vertices, and along horizontal edges
    level = low[:, 1] == high[:, 1]
    left = np.concatenate([at, a[:, 0], low[level, 0]])
    right = np.concatenate([at, a[:, 0], high[level, 0]])
    line = np.concatenate([ys[row], a[:, 1], a[level, 1]])
    left, right, line = np.stack([left, right, line])[:, np.isin(line, ys)]
    i, column = pairs(np.searchsorted(xs, left), np.searchsorted(xs, right, side="right"))
    location[column, np.searchsorted(ys, line)[i]] = 0
    return location


def pairs(
    first: Int[np.ndarray, " n"], last: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """Return all pairs (i, k) with first[i] <= k < last[i]."""
    many = np.maximum(last - first, 0)
    i = np.repeat(np.arange(len(many)), many)
    return i, np.arange(len(i)) - np.repeat(np.cumsum(many) - many - first, many)


def raster(
    polygons: tuple[Polygon, ...],
    xs: Float[np.ndarray, " columns"],
    ys: Float[np.ndarray, " rows"],
    *,
    border: bool = True,
) -> Shaped[np.ndarray, "columns rows"]:
    """Return True where (xs[i], ys[j]) lies in a polygon; xs and ys ascend.

    `border` says whether points on the border lie in it.
    """
    inside = np.zeros((len(xs), len(ys)), bool)
    least = 0 if border else 1
    for polygon in polygons:
        i, j = window(polygon.outer, xs, ys)
        here = locate(polygon.outer, xs[i], ys[j]) >= least
        for hole in polygon.holes:
            p, q = window(hole, xs[i], ys[j])
            here[p, q] &= locate(hole, xs[i][p], ys[j][q]) <= -least
        inside[i, j] |= here
    return inside


def window(
    ring: Int[np.ndarray, "points 2"],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
    *,
    before: int = 0,
) -> tuple[slice, slice]:
    """Return the ranges of ascending xs and ys in the box of a ring, and up to `before` it."""
    ends = zip((xs, ys), ring.min(0) - before, ring.max(0), strict=True)
    across, down = (
        slice(np.searchsorted(v, low), np.searchsorted(v, high, side="right"))
        for v, low, high in ends
    )
    return across, down
