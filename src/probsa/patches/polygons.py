"""Polygons of tissue at level 0, and which points of a lattice lie in them.

Vectorised: all points of a lattice against all edges of a ring, without a loop over either.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Int8, Shaped


@dataclass(frozen=True, kw_only=True, eq=False)
class Polygon:
    """One piece of tissue: its outline and its holes, rings without a repeated end."""

    outer: Int[np.ndarray, "points 2"]
    """int32 level-0 (x, y)."""
    holes: tuple[Int[np.ndarray, "_ 2"], ...] = ()

    @cached_property
    def area(self) -> float:
        """Level-0 pixels, net of the holes."""
        return ring_area(self.outer) - sum(ring_area(hole) for hole in self.holes)

    @cached_property
    def box(self) -> tuple[int, int, int, int]:
        """(left, top, right, bottom): the smallest and the largest coordinates."""
        (left, top), (right, bottom) = self.outer.min(0), self.outer.max(0)
        return int(left), int(top), int(right), int(bottom)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tissue:
    """The tissue of a slide; no polygons: there is none."""

    polygons: tuple[Polygon, ...]
    slide_size: tuple[int, int]
    """(width, height) at level 0."""
    level: int | None = None
    """What the mask was made from; None: the polygons come from a file."""
    scale: tuple[float, float] | None = None
    """Level-0 pixels per pixel of the mask, across and down."""
    notes: tuple[str, ...] = ()
    """What a reader should know, in sentences."""

    def __len__(self) -> int:
        return len(self.polygons)

    @property
    def area(self) -> float:
        """Level-0 pixels; pieces that lie over one another count twice."""
        return sum((polygon.area for polygon in self.polygons), start=0.0)


def ring_area(ring: Int[np.ndarray, "points 2"]) -> float:
    """The area inside a ring, whichever way round it goes."""
    x, y = ring.astype(np.float64).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def locate(
    ring: Int[np.ndarray, "points 2"],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
) -> Int8[np.ndarray, "columns rows"]:
    """1 where (xs[i], ys[j]) is inside of the ring, 0 where it is on it, -1 where it is outside.

    The same as OpenCV's pointPolygonTest, exact for coordinates that are multiples of a half: a
    quotient of integers below 2^53 is a float64 itself wherever it is such a number.

    Args:
        ring: vertices in order; the last is joined to the first.
        xs: ascending.
        ys: ascending.
    """
    a = ring.astype(np.float64)
    b = np.roll(a, -1, axis=0)
    columns, rows = len(xs), len(ys)
    # an edge crosses the rows from its upper end up to, but without, its lower end
    first = np.searchsorted(ys, np.minimum(a[:, 1], b[:, 1]))
    last = np.searchsorted(ys, np.maximum(a[:, 1], b[:, 1]))
    edge, row = _spread(first, last)
    start, end = a[edge], b[edge]
    share = (ys[row] - start[:, 1]) * (end[:, 0] - start[:, 0]) / (end[:, 1] - start[:, 1])
    at = start[:, 0] + share
    right = np.searchsorted(xs, at)  # points left of the crossing are those before `right`
    crossings = np.zeros((columns + 1, rows), np.uint8)  # only their parity matters: it may wrap
    np.add.at(crossings, (right, row), 1)
    odd = np.cumsum(crossings[::-1], axis=0, dtype=np.uint8)[::-1][1:] % 2
    found = np.where(odd, 1, -1).astype(np.int8)

    level = a[:, 1] == b[:, 1]
    left_x = np.concatenate([at, a[:, 0], np.minimum(a[level, 0], b[level, 0])])
    right_x = np.concatenate([at, a[:, 0], np.maximum(a[level, 0], b[level, 0])])
    line = np.concatenate([ys[row], a[:, 1], a[level, 1]])
    at_row = np.searchsorted(ys, line)
    there = np.flatnonzero(at_row < rows)
    there = there[ys[at_row[there]] == line[there]]
    touching, column = _spread(
        np.searchsorted(xs, left_x[there]), np.searchsorted(xs, right_x[there], side="right")
    )
    found[column, at_row[there][touching]] = 0
    return found


def _spread(
    first: Int[np.ndarray, " n"], last: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """Every (i, k) with first[i] <= k < last[i]."""
    many = np.maximum(last - first, 0)
    i = np.repeat(np.arange(len(many)), many)
    k = np.arange(len(i)) - np.repeat(np.cumsum(many) - many, many) + first[i]
    return i, k


def raster(
    polygons: tuple[Polygon, ...],
    xs: Float[np.ndarray, " columns"],
    ys: Float[np.ndarray, " rows"],
) -> Shaped[np.ndarray, "columns rows"]:
    """Whether (xs[i], ys[j]) lies in tissue, or on its border; bool."""
    found = np.zeros((len(xs), len(ys)), bool)
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
        found[i, j] |= here
    return found


def window(
    box: tuple[int, int, int, int],
    xs: Shaped[np.ndarray, " columns"],
    ys: Shaped[np.ndarray, " rows"],
) -> tuple[slice, slice]:
    """The part of ascending xs and ys that lies in (left, top, right, bottom)."""
    left, top, right, bottom = box
    across = slice(*(int(k) for k in _ends(xs, left, right)))
    down = slice(*(int(k) for k in _ends(ys, top, bottom)))
    return across, down


def _ends(values: Shaped[np.ndarray, " n"], low: int, high: int) -> tuple[np.intp, np.intp]:
    return np.searchsorted(values, low), np.searchsorted(values, high, side="right")
