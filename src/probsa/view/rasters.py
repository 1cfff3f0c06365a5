"""Stage 10: which patch each cell of a raster shows, so that all quantities share one geometry.

Patches on one lattice have a cell each. Others are drawn on cells of a quarter of their distance,
later patches over earlier ones. Of overlapping patches each keeps the middle of its square.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from ..maps import Layout, Squares

LONGEST = 8192
"""Largest number of cells along a side, within what browsers allow for a canvas."""
FINER = 4
"""Number of cells along the side of a patch that is not on a lattice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRaster:
    """The row of the patch that each cell shows.

    Cell (i, j) covers [x0 + j · cell, x0 + (j + 1) · cell) in x, in level-0 pixels; y likewise.
    """

    index: Int[np.ndarray, "height width"]
    """int32; −1 where there is no patch."""
    x0: float
    y0: float
    cell: float
    note: str = ""
    """What the page says about the drawing; empty for a plain lattice."""


def index_raster(layout: Layout, patches: Squares) -> IndexRaster:
    """Return the raster of a bag whose patches have positions on a slide.

    Args:
        layout: The positions of the bag's patches, from `maps.place`.
        patches: The same positions, with the side of a patch.
    """
    corners, side = patches.cells
    overlapping = patches.side > patches.stride
    note = "The patches overlap: each is drawn as the middle of its square." if overlapping else ""
    origin = corners.min(0)
    if layout.cells is not None and max(layout.shape) <= LONGEST:
        index = np.full(layout.shape, -1, np.int32)
        index[layout.cells[:, 0], layout.cells[:, 1]] = np.arange(len(corners))
        return IndexRaster(
            index=index, x0=float(origin[0]), y0=float(origin[1]), cell=layout.size, note=note
        )
    span = float((corners.max(0) + side - origin).max())
    cell = max(side / FINER, span / LONGEST)
    first = np.rint((corners - origin) / cell).astype(np.int64)
    count = max(1, round(side / cell))
    width, height = (first.max(0) + count).tolist()
    index = np.full((height, width), -1, np.int32)
    for row, (x, y) in enumerate(first.tolist()):
        index[y : y + count, x : x + count] = row
    free = (
        f"The patches are not on one lattice: they are drawn to {100 * cell / side:.0f} % of their "
        "side, later ones over earlier ones."
    )
    return IndexRaster(
        index=index,
        x0=float(origin[0]),
        y0=float(origin[1]),
        cell=cell,
        note=f"{note} {free}".strip(),
    )
