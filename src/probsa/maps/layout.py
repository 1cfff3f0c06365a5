"""Stage 10: the position of each instance: on a lattice of cells, as a free square, or in a strip.

Layouts have neither colours nor a scale: `place` computes positions, `to_raster` fills in values.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from ..core import check_stride
from ..errors import BagError, GraphError, InputError
from ..evaluation import Prediction

LINE = 80
"""Largest number of instances without coordinates drawn as one strip; more are wrapped into
lines."""
MOST_CELLS = 16_000_000
"""Largest lattice; patches on larger ones (such as two distant groups) are drawn as squares, whose
cost does not grow with the gaps."""
WIDEST_GAP = 10
"""Largest number of missing slices that a strip draws to scale; wider gaps are drawn this wide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The positions of n instances, in the unit of the axes: x to the right, y downwards."""

    corners: Float[np.ndarray, "n 2"]
    """Top-left (x, y) of each instance."""
    size: float
    """Side length of an instance's square."""
    cells: Int[np.ndarray, "n 2"] | None
    """(row, column) on one lattice that starts at the first corner; None if there is no such
    lattice."""
    strip: bool
    """Whether the instances form one row of slices rather than a plane."""
    x_label: str
    y_label: str = ""
    numbers: tuple[str, ...] = ()
    """Labels below the instances of a strip."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Bounds (left, right, bottom, top) of all squares; top < bottom."""
        left, top = self.corners.min(0)
        right, bottom = self.corners.max(0) + self.size
        return float(left), float(right), float(bottom), float(top)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of (rows, columns) of squares that fit into the extent."""
        left, right, bottom, top = self.extent
        rows, columns = np.rint(np.array([bottom - top, right - left]) / self.size).astype(int)
        return int(rows), int(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueRaster:
    """Values on the lattice of a bag; NaN where the bag has no instance."""

    image: Float[np.ndarray, "rows columns"]
    extent: tuple[float, float, float, float]
    """(left, right, bottom, top) in the unit of the coordinates; top < bottom."""


def place(p: Prediction) -> Layout:
    """Return the positions of a bag's instances, chosen by its kind and its coordinates.

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
    if (
        coords.ndim != 2
        or len(coords) != n
        or coords.shape[1] not in (1, 2)
        or not np.isfinite(coords).all()
    ):
        raise BagError(
            f"bag {p.name!r}: its coordinates have shape {p.coords.shape} or are not finite; "
            f"a map needs ({n}, 2) corners of patches or ({n}, 1) positions of slices"
        )
    return _slices(coords[:, 0]) if coords.shape[1] == 1 else _patches(coords, stride=p.stride)


def to_raster(p: Prediction, values: Shaped[np.ndarray, " n"]) -> ValueRaster:
    """Return the values of a bag's instances as an image: one pixel per patch or slice, NaN
    elsewhere.

    Raises:
        InputError: The patches do not lie on a single lattice, so they can only be drawn as
            squares.
    """
    layout = place(p)
    if layout.cells is None:
        raise InputError(
            f"bag {p.name!r}: its patches do not lie on a single lattice, so they form no image; "
            "render_map draws them as squares"
        )
    return fill(layout, values)


def fill(layout: Layout, values: Shaped[np.ndarray, " n"]) -> ValueRaster:
    """Return the values on the lattice of a layout as an image."""
    assert layout.cells is not None, "only a lattice can be filled"
    image = np.full(layout.shape, np.nan)
    image[layout.cells[:, 0], layout.cells[:, 1]] = values
    return ValueRaster(image=image, extent=layout.extent)


def _in_order(n: int) -> Layout:
    if n <= LINE:
        return _strip(np.arange(n), numbers=[str(k) for k in range(n)], label="instance")
    width = int(np.ceil(np.sqrt(2 * n)))
    cells = np.stack(np.divmod(np.arange(n), width), axis=1)
    return Layout(
        corners=cells[:, ::-1].astype(np.float64),
        size=1.0,
        cells=cells,
        strip=False,
        x_label=f"instance, in lines of {width} (the bag has no coordinates)",
        y_label="line",
    )


def _slices(position: np.ndarray) -> Layout:
    """Place slices in row order; a step of k units leaves room for k − 1 missing slices."""
    step = np.abs(np.diff(position))
    unit = float(np.median(step[step > 0])) if (step > 0).any() else 1.0
    jump = np.maximum(1, np.rint(step / unit)).astype(np.int64)
    columns = np.r_[0, np.minimum(jump, WIDEST_GAP + 1).cumsum()].astype(np.int64)
    missing = int((jump - 1).sum())
    note = f" ({missing} missing)" if missing else ""
    return _strip(columns, numbers=[f"{v:g}" for v in position], label=f"slice number{note}")


def _strip(columns: np.ndarray, *, numbers: list[str], label: str) -> Layout:
    cells = np.stack([np.zeros_like(columns), columns], axis=1)
    return Layout(
        corners=cells[:, ::-1].astype(np.float64),
        size=1.0,
        cells=cells,
        strip=True,
        x_label=label,
        numbers=tuple(numbers),
    )


def _patches(coords: np.ndarray, *, stride: float | None) -> Layout:
    side = _stride(coords, stride=stride)
    return Layout(
        corners=coords,
        size=side,
        cells=_cells(coords, side),
        strip=False,
        x_label="x (level-0 pixels)",
        y_label="y (level-0 pixels)",
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
        return measured if _cells(coords, measured) is not None else float(stride or measured)


def _cells(coords: np.ndarray, stride: float) -> np.ndarray | None:
    """Return the (row, column) of each patch, or None if they do not fit a lattice one to one."""
    cells = np.rint((coords - coords.min(0)) / stride).astype(np.int64)
    if np.prod(cells.max(0) + 1.0) > MOST_CELLS:
        return None
    if np.abs(coords - coords.min(0) - cells * stride).max() > 0.02 * stride:
        return None
    number = cells[:, 0] * (cells[:, 1].max() + 1) + cells[:, 1]  # sorts faster than pairs
    return cells[:, ::-1] if len(np.unique(number)) == len(cells) else None
