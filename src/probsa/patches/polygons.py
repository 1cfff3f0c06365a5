"""Tissue polygons at level 0, and tests of which points of a lattice lie inside them.

The tests are vectorised over all points of a lattice and all edges of a ring.
"""

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
    def area(self) -> float:
        """Area in level-0 pixels, without the holes."""
        return ring_area(self.outer) - sum(ring_area(hole) for hole in self.holes)

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """Bounding box (left, top, right, bottom)."""
        (left, top), (right, bottom) = self.outer.min(0), self.outer.max(0)
        return int(left), int(top), int(right), int(bottom)


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
    notes: tuple[str, ...] = ()
    """Remarks for the user, as sentences."""

    def __len__(self) -> int:
        return len(self.polygons)

    @property
    def area(self) -> float:
        """Area in level-0 pixels; overlapping pieces count twice."""
        return sum((polygon.area for polygon in self.polygons), start=0.0)


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
    quotient of integers below 2^53 that is such a number is exact in float64.

    Args:
        ring: vertices in order; the last one is connected to the first.
        xs: x coordinates, ascending.
        ys: y coordinates, ascending.
    """
    a = ring.astype(np.float64)
    b = np.roll(a, -1, axis=0)
    columns, rows = len(xs), len(ys)
    # an edge crosses the rows from its upper end to its lower end, which is excluded
    first = np.searchsorted(ys, np.minimum(a[:, 1], b[:, 1]))
    last = np.searchsorted(ys, np.maximum(a[:, 1], b[:, 1]))
    edge, row = _pairs(first, last)
    start, end = a[edge], b[edge]
    share = (ys[row] - start[:, 1]) * (end[:, 0] - start[:, 0]) / (end[:, 1] - start[:, 1])
    at = start[:, 0] + share
    right = np.searchsorted(xs, at)  # points with an index below `right` are left of the crossing
    crossings = np.zeros(
        (columns + 1, rows), np.uint8
    )  # only the parity matters, so overflow is harmless
    np.add.at(crossings, (right, row), 1)
    odd = np.cumsum(crossings[::-1], axis=0, dtype=np.uint8)[::-1][1:] % 2
    location = np.where(odd, 1, -1).astype(np.int8)

    level = a[:, 1] == b[:, 1]
    left_x = np.concatenate([at, a[:, 0], np.minimum(a[level, 0], b[level, 0])])
    right_x = np.concatenate([at, a[:, 0], np.maximum(a[level, 0], b[level, 0])])
    line = np.concatenate([ys[row], a[:, 1], a[level, 1]])
    at_row = np.searchsorted(ys, line)
    there = np.flatnonzero(at_row < rows)
    there = there[ys[at_row[there]] == line[there]]
    touching, column = _pairs(
        np.searchsorted(xs, left_x[there]), np.searchsorted(xs, right_x[there], side="right")
    )
    location[column, at_row[there][touching]] = 0
    return location


def _pairs(
    first: Int[np.ndarray, " n"], last: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """Return all pairs (i, k) with first[i] <= k < last[i]."""
    many = np.maximum(last - first, 0)
    i = np.repeat(np.arange(len(many)), many)
    k = np.arange(len(i)) - np.repeat(np.cumsum(many) - many, many) + first[i]
    return i, k


def raster(
    polygons: tuple[Polygon, ...],
    xs: Float[np.ndarray, " columns"],
    ys: Float[np.ndarray, " rows"],
) -> Shaped[np.ndarray, "columns rows"]:
    """Return True where (xs[i], ys[j]) lies in tissue or on its border."""
    inside = np.zeros((len(xs), len(ys)), bool)
    for polygon in polygons:
        i, j = window(polygon.box, xs, ys)
        x, y = xs[i], ys[j]
        if len(x) == 0 or len(y) == 0:
            continue
        here = locate(polygon.outer, x, y) >= 0
        for hole in polygon.holes:
            (left, top), (right, bottom) = hole.min(0), hole.max(0)
            p, q = window((int(left), int(top), int(right), int(bottom)), x, y)
            if p.start < p.stop and q.start < q.stop:
                here[p, q] &= locate(hole, x[p], y[q]) <= 0
        inside[i, j] |= here
    return inside


def window(
    box: tuple[int, int, int, int],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
) -> tuple[slice, slice]:
    """Return the ranges of ascending xs and ys inside (left, top, right, bottom)."""
    left, top, right, bottom = box
    across = slice(*(int(k) for k in _ends(xs, left, right)))
    down = slice(*(int(k) for k in _ends(ys, top, bottom)))
    return across, down


def _ends(values: Shaped[np.ndarray, " n"], low: int, high: int) -> tuple[np.intp, np.intp]:
    return np.searchsorted(values, low), np.searchsorted(values, high, side="right")
