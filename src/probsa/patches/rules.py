"""Decide which squares of a lattice contain tissue, by area share or by CLAM's points.

Both rules are vectorised over the lattice.
"""

import math

import numpy as np
from jaxtyping import Bool, Float, Int

from .options import Rule
from .polygons import Polygon, locate, raster

SAMPLES = 32
"""Test points along a patch's side: for 512 pixels of 0.5 µm, one per pixel of our mask."""
MOST_SAMPLES = 2**24
"""Largest number of test points per slide; very small patches get fewer points each."""


def tissue_shares(
    polygons: tuple[Polygon, ...],
    origin: tuple[int, int],
    *,
    step: tuple[float, float],
    counts: tuple[int, int],
    size: float,
) -> Float[np.ndarray, "columns rows"]:
    """Return the share of each square's area that is tissue, from points at its cell centres.

    Args:
        polygons: pieces of tissue.
        origin: corner of the first square.
        step: distance between squares (horizontal, vertical).
        counts: number of squares (horizontal, vertical).
        size: side of a square; the area outside the slide contains no tissue.
    """
    columns, rows = counts
    width, height = ((n - 1) * s + size for n, s in zip(counts, step, strict=True))
    n = max(1, min(SAMPLES, int(size / math.sqrt(width * height / MOST_SAMPLES))))
    cell = size / n
    across, down = (np.arange(math.ceil(length / cell - 1e-9)) for length in (width, height))
    tissue = raster(polygons, origin[0] + (across + 0.5) * cell, origin[1] + (down + 0.5) * cell)
    sums = _sums_between(tissue, np.arange(columns) * (step[0] / cell), n)
    sums = _sums_between(sums.T, np.arange(rows) * (step[1] / cell), n).T
    return sums / n**2


def _sums_between(
    values: Bool[np.ndarray, "n m"] | Float[np.ndarray, "n m"],
    starts: Float[np.ndarray, " k"],
    length: int,
) -> Float[np.ndarray, "k m"]:
    """Return sums of values[start : start + length], also for fractional starts."""
    total = np.zeros((values.shape[0] + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=total[1:])
    ends = np.minimum(starts + length, values.shape[0])
    return _between(total, ends) - _between(total, starts)


def _between(total: Float[np.ndarray, "n m"], at: Float[np.ndarray, " k"]) -> np.ndarray:
    at = np.where(np.abs(at - np.rint(at)) < 1e-6, np.rint(at), at)
    low = np.floor(at).astype(np.int64)
    part = (at - low)[:, None]
    return total[low] * (1 - part) + total[np.minimum(low + 1, len(total) - 1)] * part


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
    quarter = int(half * 0.5)
    if rule == "basic":
        inside = locate(polygon.outer, x, y) >= 0
    elif rule == "center" or quarter == 0:
        inside = locate(polygon.outer, x + half, y + half) >= 0
    else:
        offsets = half - quarter, half + quarter
        hits = [locate(polygon.outer, x + a, y + b) >= 0 for a in offsets for b in offsets]
        inside = np.all(hits, axis=0) if rule == "four_pt_hard" else np.any(hits, axis=0)
    for hole in polygon.holes:
        inside &= locate(hole, x + size / 2, y + size / 2) <= 0
    return inside
