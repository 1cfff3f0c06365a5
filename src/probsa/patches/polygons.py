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
        left, top = self.outer.min(0)
        right, bottom = self.outer.max(0)
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
    """Return the area inside a ring of either orientation, by Gauss's formula."""
    x, y = ring.astype(np.float64).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def locate(
    ring: Int[np.ndarray, "points 2"],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
) -> Int8[np.ndarray, "columns rows"]:
    """Return 1 where (xs[i], ys[j]) is inside the ring, 0 on the ring, and -1 outside.

    `xs` and `ys` ascend. The result equals that of OpenCV's pointPolygonTest. It is exact for
    points at multiples of 1/2: whether such a point is on the ring depends on quotients of integers
    below 2^53, and float64 holds a quotient exactly if it is a multiple of 1/2.
    """
    start = ring.astype(np.float64)
    end = np.roll(start, -1, axis=0)
    # an edge crosses the rows from its end with the lower y up to its other end, which is excluded
    low = np.minimum(start, end)
    high = np.maximum(start, end)
    edge, row = pairs(np.searchsorted(ys, low[:, 1]), np.searchsorted(ys, high[:, 1]))
    x, y = start[edge].T
    to_x, to_y = end[edge].T
    crossing_x = x + (ys[row] - y) * (to_x - x) / (to_y - y)
    # crossings[i] counts those in (xs[i - 1], xs[i]]; an overflow keeps the parity
    crossings = np.zeros((len(xs) + 1, len(ys)), np.uint8)
    np.add.at(crossings, (np.searchsorted(xs, crossing_x), row), 1)
    # a point is inside if the number of crossings to its right, those from i + 1 on, is odd
    from_the_right = crossings[:0:-1]
    crossings_to_the_right = np.cumsum(from_the_right, axis=0, dtype=np.uint8)[::-1]
    location = np.where(crossings_to_the_right % 2, 1, -1).astype(np.int8)

    # points on the ring: at crossings, at vertices, and along horizontal edges
    horizontal = low[:, 1] == high[:, 1]
    left = np.concatenate([crossing_x, start[:, 0], low[horizontal, 0]])
    right = np.concatenate([crossing_x, start[:, 0], high[horizontal, 0]])
    segment_y = np.concatenate([ys[row], start[:, 1], start[horizontal, 1]])
    is_in_row = np.isin(segment_y, ys)
    first_column = np.searchsorted(xs, left[is_in_row])
    end_column = np.searchsorted(xs, right[is_in_row], side="right")
    segment_row = np.searchsorted(ys, segment_y[is_in_row])
    segment, column = pairs(first_column, end_column)
    location[column, segment_row[segment]] = 0
    return location


def pairs(
    start: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """Return all pairs (i, k) with start[i] <= k < stop[i]."""
    counts = np.maximum(stop - start, 0)
    i = np.repeat(np.arange(len(counts)), counts)
    # a pair's number among those of its i, counted from 0
    first_pair = np.cumsum(counts) - counts
    number = np.arange(len(i)) - first_pair[i]
    return i, start[i] + number


def raster(
    polygons: tuple[Polygon, ...],
    xs: Float[np.ndarray, " columns"],
    ys: Float[np.ndarray, " rows"],
    *,
    border: bool = True,
) -> Shaped[np.ndarray, "columns rows"]:
    """Return True where (xs[i], ys[j]) lies in a polygon.

    Args:
        polygons: The polygons.
        xs: Ascending x coordinates.
        ys: Ascending y coordinates.
        border: Whether points on the border of a polygon or of a hole lie in the polygon.
    """
    inside = np.zeros((len(xs), len(ys)), bool)
    # `locate` is 0 on a ring; the inside of a hole is outside the polygon, hence the minus below
    least_location = 0 if border else 1
    for polygon in polygons:
        columns, rows = window(polygon.outer, xs, ys)
        box_x = xs[columns]
        box_y = ys[rows]
        in_polygon = locate(polygon.outer, box_x, box_y) >= least_location
        for hole in polygon.holes:
            hole_columns, hole_rows = window(hole, box_x, box_y)
            location = locate(hole, box_x[hole_columns], box_y[hole_rows])
            in_polygon[hole_columns, hole_rows] &= location <= -least_location
        inside[columns, rows] |= in_polygon
    return inside


def window(
    ring: Int[np.ndarray, "points 2"],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
    *,
    before: int = 0,
) -> tuple[slice, slice]:
    """Return the ranges of ascending xs and ys that lie in the box of a ring.

    The box is extended by `before` to the left and to the top.
    """
    left, top = ring.min(0) - before
    right, bottom = ring.max(0)
    columns = slice(np.searchsorted(xs, left), np.searchsorted(xs, right, side="right"))
    rows = slice(np.searchsorted(ys, top), np.searchsorted(ys, bottom, side="right"))
    return columns, rows
