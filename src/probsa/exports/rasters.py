"""Stage 10: the patches of a bag as a raster of cells, which OME-TIFF and DICOM store.

Cell (i, j) covers the level-0 pixels [left + j·cell, left + (j + 1)·cell) × [top + i·cell, …).
Nothing is interpolated, and cells without a patch are NaN.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

from ..errors import InputError
from ..maps import Squares, owners_on_grid

MOST_CELLS = 16_000_000
"""Largest raster that is made finer to place the patches better."""
FINEST = 8
"""Largest number of cells along a side of a patch."""
ROUNDING = 1.0
"""Level-0 pixels by which corners, which are whole pixels, may leave their lattice."""
TOLERANCE = 0.02
"""The same as a share of the stride."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lattice:
    """The lattice of a bag's patches."""

    index: Int[np.ndarray, "n 2"]
    """(column, row) of each patch."""
    left: float
    top: float
    """Level-0 position of the top-left corner of cell (0, 0)."""


def lattice_of(patches: Squares) -> Lattice | None:
    """Return the lattice of the patches, or None if they lie on none or two share a cell."""
    corners, _ = patches.cells
    low = corners.min(0)
    index = np.rint((corners - low) / patches.stride).astype(np.int64)
    offset = corners - low - index * patches.stride
    # corners are rounded if the stride is not a whole number, that of the first one as well
    centre = (offset.min(0) + offset.max(0)) / 2
    if np.abs(offset - centre).max() > _allowed(patches):
        return None
    if len(np.unique(index, axis=0)) < len(index):
        return None
    left, top = (low + centre).tolist()
    return Lattice(index=index, left=left, top=top)


def _allowed(patches: Squares) -> float:
    return max(TOLERANCE * patches.stride, ROUNDING)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRaster:
    """A raster of square cells, each owned by one patch or by none."""

    owners: Int[np.ndarray, "height width"]
    """Row of the patch that owns each cell; −1 for none."""
    left: float
    top: float
    """Level-0 position of the top-left corner."""
    cell: float
    """Side length of a cell in level-0 pixels."""
    misplaced: float
    """Largest distance between a patch's corner and that of its cells, in level-0 pixels."""

    def fill(self, values: Float[np.ndarray, " n"]) -> Float32[np.ndarray, "height width"]:
        """Return the value of each cell."""
        return np.append(values.astype(np.float32), np.float32(np.nan))[self.owners]


def raster_of_slide(patches: Squares, *, size: tuple[int, int]) -> CellRaster:
    """Return the raster that begins at the slide's corner (0, 0) and covers the whole slide.

    A patch is one cell if the patches lie on multiples of their stride, else 2, 4 or 8 cells wide.

    Args:
        patches: The patches.
        size: (width, height) of the slide at level 0.
    """
    return _finest_needed(patches, corner=(0.0, 0.0), reach=(float(size[0]), float(size[1])))


def raster_of_patches(patches: Squares) -> CellRaster:
    """Return the raster that begins at the first patch: exact if the patches lie on a lattice."""
    corners, side = patches.cells
    lattice = lattice_of(patches)
    left, top = corners.min(0).tolist() if lattice is None else (lattice.left, lattice.top)
    reach = tuple((corners.max(0) + side).tolist())
    return _finest_needed(patches, corner=(left, top), reach=reach)


def _finest_needed(
    patches: Squares, *, corner: tuple[float, float], reach: tuple[float, ...]
) -> CellRaster:
    """Return the raster whose cells are halved until they place the patches well enough."""
    corners, _ = patches.cells
    offsets = corners - np.array(corner)
    parts = 1
    while parts < FINEST and _misplaced(offsets, patches.stride / parts) > _allowed(patches):
        finer = patches.stride / (2 * parts)
        if math.prod((end - start) / finer for start, end in zip(corner, reach, strict=True)) > (
            MOST_CELLS
        ):
            break
        parts *= 2
    return _raster(patches, corner=corner, cell=patches.stride / parts, reach=reach)


def _raster(
    patches: Squares, *, corner: tuple[float, float], cell: float, reach: tuple[float, ...]
) -> CellRaster:
    width, height = (
        max(1, math.ceil((end - start) / cell - 0.05))
        for start, end in zip(corner, reach, strict=True)
    )
    if height * width > 4 * MOST_CELLS:
        raise InputError(
            f"a raster of {width:,} × {height:,} cells of {cell:g} pixels is too large: the stored "
            "stride of the patches is probably wrong"
        )
    corners, _ = patches.cells
    return CellRaster(
        owners=owners_on_grid(patches, corner=corner, cell=cell, shape=(height, width)),
        left=corner[0],
        top=corner[1],
        cell=cell,
        misplaced=_misplaced(corners - np.array(corner), cell),
    )


def _misplaced(offsets: Float[np.ndarray, "n 2"], cell: float) -> float:
    return float(np.abs(offsets - np.rint(offsets / cell) * cell).max())
