"""Stage 10: the positions of a bag's instances, and the one raster that maps, exports and the
viewer draw them on.

A square of one colour is one patch: nothing is smoothed or interpolated. Of overlapping patches,
each keeps the middle of its square; where these still overlap, the later row is on top.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int

from ..core import check_stride, slice_order
from ..errors import BagError, GraphError, InputError
from ..evaluation import Prediction

LINE = 80
"""Largest number of instances without coordinates drawn as one strip; more are wrapped into
lines."""
WIDEST_GAP = 10
"""Largest number of missing slices that a strip draws to scale; wider gaps are drawn this wide."""
MOST_CELLS = 16_000_000
"""Largest raster that is made finer to place the patches better."""
MOST_STEPS = 2**31
"""Largest number of strides between two patches: pairs of such numbers are one int64."""
FINEST = 8
"""Largest number of cells along a side of a patch."""
ROUNDING = 1.0
"""Level-0 pixels by which corners, which are whole pixels, may leave their lattice; at most a
quarter of the stride."""
TOLERANCE = 0.02
"""The same as a share of the stride."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lattice:
    """The lattice of a bag's instances."""

    index: Int[np.ndarray, "n 2"]
    """(column, row) of each instance."""
    left: float
    top: float
    """Position of the top-left corner of cell (0, 0)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The positions of n instances, in the unit of the axes: x to the right, y downwards."""

    corners: Float[np.ndarray, "n 2"]
    """Top-left (x, y) of each instance; of patches in level-0 pixels."""
    side: float
    """Side length of an instance's square."""
    stride: float
    """Distance between neighbouring instances; less than the side if patches overlap."""
    strip: bool = False
    """Whether the instances form one row of slices rather than a plane."""
    x_label: str = "x (pixels)"
    y_label: str = "y (pixels)"
    numbers: tuple[str, ...] = ()
    """Labels below the instances of a strip."""

    @property
    def cells(self) -> tuple[Float[np.ndarray, "n 2"], float]:
        """Corners and side of the coloured squares: the middle of each patch, as wide as the
        stride.

        Corners are whole pixels: if the stride is not a whole number, some neighbours are one pixel
        further apart.
        """
        if self.stride < self.side:
            return self.corners + (self.side - self.stride) / 2, self.stride
        if self.stride < self.side + 1:  # adjacent, up to rounding: no gap may be left
            return self.corners, float(np.ceil(self.stride - 1e-6))
        return self.corners, self.side

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Bounds (left, right, bottom, top) of all squares; top < bottom."""
        left, top = self.corners.min(0)
        right, bottom = self.corners.max(0) + self.side
        return float(left), float(right), float(bottom), float(top)

    @property
    def lattice(self) -> Lattice | None:
        """The lattice of the squares; None if they lie on none or two share a cell."""
        corners, _ = self.cells
        low = corners.min(0)
        steps = np.rint((corners - low) / self.stride)
        if steps.max() > MOST_STEPS:  # a damaged stride
            return None
        index = steps.astype(np.int64)
        offset = corners - low - index * self.stride
        # corners are rounded if the stride is not a whole number, that of the first one as well
        centre = (offset.min(0) + offset.max(0)) / 2
        number = index[:, 0] * (index[:, 1].max() + 1) + index[:, 1]  # sorts faster than pairs
        if np.abs(offset - centre).max() > self.allowed or len(np.unique(number)) < len(number):
            return None
        left, top = (low + centre).tolist()
        return Lattice(index=index, left=left, top=top)

    @property
    def allowed(self) -> float:
        """Largest distance between an instance and its cell."""
        return max(TOLERANCE * self.stride, min(ROUNDING, self.stride / 4))


@dataclass(frozen=True, kw_only=True, slots=True)
class Raster:
    """A raster of square cells, each owned by one instance or by none.

    Cell (i, j) covers [left + j·cell, left + (j + 1)·cell) × [top + i·cell, …).
    """

    owners: Int[np.ndarray, "height width"]
    """Row of the instance that owns each cell; −1 for none."""
    left: float
    top: float
    """Position of the top-left corner."""
    cell: float
    """Side length of a cell."""
    misplaced: float
    """Largest distance between an instance's corner and that of its cells."""

    def fill(self, values: Float[np.ndarray, " n"]) -> Float32[np.ndarray, "height width"]:
        """Return the value of each cell; NaN where there is no instance."""
        return np.append(values.astype(np.float32), np.float32(np.nan))[self.owners]


def place(p: Prediction, *, side: float | None = None) -> Layout:
    """Return the positions of a bag's instances, chosen by its kind and its coordinates.

    Args:
        p: The bag's prediction.
        side: Side length of a patch at level 0; None: the distance between neighbours, which is the
            same if patches do not overlap.

    Raises:
        BagError: The bag has no instances, or its coordinates are not finite or have the wrong
            shape.
    """
    n = len(p.attention_mean)
    if n == 0:
        raise BagError(f"bag {p.name!r} has no instances: there is nothing to draw")
    if p.coords is None:
        return _in_order(n)
    coords = np.asarray(p.coords, dtype=np.float64)
    has_shape = coords.ndim == 2 and len(coords) == n and coords.shape[1] in (1, 2)
    if not has_shape or not np.isfinite(coords).all():
        raise BagError(
            f"bag {p.name!r}: its coordinates have shape {p.coords.shape} or are not finite; "
            f"a map needs ({n}, 2) corners of patches or ({n}, 1) positions of slices"
        )
    if coords.shape[1] == 1:
        return _slices(coords[:, 0])
    stride = _stride(coords, stride=p.stride)
    return Layout(corners=coords, side=side or stride, stride=stride)


def squares(p: Prediction, *, side: float | None = None) -> Layout:
    """Return the positions of a bag's patches on its slide; see `place`.

    Raises:
        BagError: The bag has no instances, or its coordinates are unusable.
        InputError: The bag's instances have no positions on a slide.
    """
    if p.coords is None or p.coords.shape[-1] != 2:
        reason = "has no coordinates" if p.coords is None else "is a scan: its instances are slices"
        raise InputError(f"bag {p.name!r} {reason}, so it has no squares on a slide")
    return place(p, side=side)


def owners(
    layout: Layout, *, corner: tuple[float, float], cell: float, shape: tuple[int, int]
) -> Int[np.ndarray, "height width"]:
    """Return the row of the instance that owns each cell of a grid; −1 for none.

    Args:
        layout: The positions of the instances.
        corner: (x, y) of the grid's top-left corner.
        cell: Side length of a cell.
        shape: (height, width) of the grid in cells.
    """
    height, width = shape
    corners, side = layout.cells
    low = (corners - corner) / cell
    high = low + side / cell
    # both edges are rounded so that neighbours meet
    first = np.rint(low + 1e-9).astype(np.int64)
    last = np.rint(high + 1e-9).astype(np.int64)
    # a patch smaller than a cell gets the cell at its centre
    first = np.where(last > first, first, np.floor((low + high) / 2).astype(np.int64))
    # each patch has a cell of the grid, also if it lies beyond its edge
    first = first.clip(0, (width - 1, height - 1))
    last = np.minimum(np.maximum(last, first + 1), (width, height))
    rows = np.full((height, width), -1, np.int32)
    if (last == first + 1).all():
        rows[first[:, 1], first[:, 0]] = np.arange(len(first))
        return rows
    for row, ((x, y), (right, bottom)) in enumerate(zip(first, last, strict=True)):
        rows[y:bottom, x:right] = row
    return rows


def raster(
    layout: Layout,
    *,
    size: tuple[int, int] | None = None,
    finest: int = FINEST,
    longest: int | None = None,
) -> Raster:
    """Return the raster of a bag's instances; each is one cell if they lie on a lattice.

    Otherwise cells are halved until they place the instances well enough.

    Args:
        layout: The positions of the instances.
        size: (width, height) of the slide that the raster covers, from its corner (0, 0); None: the
            raster begins at the first instance and ends at the last.
        finest: Largest number of cells along a side of an instance.
        longest: Largest number of cells along a side of the raster, which may be coarser for that.

    Raises:
        InputError: The raster would be too large.
    """
    corners, side = layout.cells
    if size is not None:
        start = np.zeros(2)
        end = np.array(size, np.float64)
    else:
        lattice = layout.lattice
        start = corners.min(0) if lattice is None else np.array([lattice.left, lattice.top])
        end = corners.max(0) + side
    span = end - start
    offsets = corners - start

    def misplaced(cell: float) -> float:
        return float(np.abs(offsets - np.rint(offsets / cell) * cell).max())

    parts = 1
    while parts < finest and misplaced(layout.stride / parts) > layout.allowed:
        if math.prod(span / (layout.stride / (2 * parts))) > MOST_CELLS:
            break
        parts *= 2
    cell = layout.stride / parts
    if longest is not None:
        cell = max(cell, float(span.max()) / longest)
    # a last cell of which less than a twentieth is covered is left out
    width = max(1, math.ceil(span[0] / cell - 0.05))
    height = max(1, math.ceil(span[1] / cell - 0.05))
    if height * width > 4 * MOST_CELLS:
        raise InputError(
            f"a raster of {width:,} × {height:,} cells of {cell:g} pixels is too large: the stored "
            "stride of the patches is probably wrong"
        )
    left, top = start.tolist()
    return Raster(
        owners=owners(layout, corner=(left, top), cell=cell, shape=(height, width)),
        left=left,
        top=top,
        cell=cell,
        misplaced=misplaced(cell),
    )


def _in_order(n: int) -> Layout:
    """Place instances without coordinates by their order, in one strip or in several lines."""
    if n <= LINE:
        return _strip(np.arange(n), numbers=[str(k) for k in range(n)], label="instance")
    width = int(np.ceil(np.sqrt(2 * n)))  # about twice as wide as high
    line, place_in_line = np.divmod(np.arange(n), width)
    corners = np.stack([place_in_line, line], axis=1).astype(np.float64)
    label = f"instance, in lines of {width} (the bag has no coordinates)"
    return Layout(corners=corners, side=1.0, stride=1.0, x_label=label, y_label="line")


def _slices(position: np.ndarray) -> Layout:
    """Place slices by position; a step of k units leaves room for k − 1 missing slices."""
    order = slice_order(position)
    distance = np.abs(np.diff(position[order]))
    # the usual distance, which some missing slices do not change
    unit = float(np.median(distance[distance > 0])) if (distance > 0).any() else 1.0
    # slices at the same position stand side by side, too
    steps = np.clip(np.rint(distance / unit), 1, MOST_STEPS).astype(np.int64)
    columns = np.empty(len(position), np.int64)
    columns[order] = np.r_[0, np.minimum(steps, WIDEST_GAP + 1).cumsum()]
    missing = int((steps - 1).sum())
    note = f" ({missing} missing)" if missing else ""
    # predictions do not say whether a position is a number, millimetres or minutes
    return _strip(columns, numbers=[f"{v:g}" for v in position], label=f"position{note}")


def _strip(columns: np.ndarray, *, numbers: list[str], label: str) -> Layout:
    corners = np.stack([columns, np.zeros_like(columns)], axis=1).astype(np.float64)
    return Layout(
        corners=corners,
        side=1.0,
        stride=1.0,
        strip=True,
        numbers=tuple(numbers),
        x_label=label,
        y_label="",
    )


def _stride(coords: np.ndarray, *, stride: float | None) -> float:
    """Return the stored stride, unless the coordinates lie on a lattice with another stride.

    A map can follow the coordinates; only graph construction rejects a wrong stride.
    """
    if len(coords) < 2:
        return float(stride or 1.0)
    try:
        return check_stride(torch.from_numpy(coords), stride=stride)
    except GraphError:
        measured = check_stride(torch.from_numpy(coords), stride=None)
        if Layout(corners=coords, side=measured, stride=measured).lattice is not None:
            return measured
        return float(stride or measured)
