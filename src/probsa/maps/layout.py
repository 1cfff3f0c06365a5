"""Stage 10: where each instance is drawn: a lattice of cells, free squares, or a strip.

Scale-free and without colours: `place` says where, `raster` puts values there.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from ..core import check_stride
from ..errors import BagError, GraphError, InputError
from ..evaluation import Prediction

LINE = 80
"""Instances without coordinates that still fit one strip; more are wrapped like text."""
MOST_CELLS = 16_000_000
"""Beyond this a lattice is a mistake (two far islands): squares cost only what they cover."""
WIDEST_GAP = 10
"""Missing slices that a strip draws one by one; more are drawn as this many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The place of each of n instances, in the unit of its axes: x right, y down."""

    corners: Float[np.ndarray, "n 2"]
    """Top-left (x, y)."""
    size: float
    """Side of an instance's square."""
    cells: Int[np.ndarray, "n 2"] | None
    """(row, column) on one lattice from the first corner; None: they lie on no lattice."""
    strip: bool
    """One row of slices rather than a plane."""
    x_label: str
    y_label: str = ""
    numbers: tuple[str, ...] = ()
    """Of a strip: what to write under each instance."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """(left, right, bottom, top) of all squares; top < bottom."""
        left, top = self.corners.min(0)
        right, bottom = self.corners.max(0) + self.size
        return float(left), float(right), float(bottom), float(top)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of squares that fit into the extent."""
        left, right, bottom, top = self.extent
        rows, columns = np.rint(np.array([bottom - top, right - left]) / self.size).astype(int)
        return int(rows), int(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Raster:
    """Values on the lattice of a bag; NaN where the bag has no instance."""

    image: Float[np.ndarray, "rows columns"]
    extent: tuple[float, float, float, float]
    """(left, right, bottom, top) in the unit of the coordinates; top < bottom."""


def place(p: Prediction) -> Layout:
    """Where the instances of a bag are drawn: by its kind, and by what its coordinates allow.

    Raises:
        BagError: no instances, or coordinates of another shape or not finite.
    """
    n = len(p.attention_mean)
    if n == 0:
        raise BagError(f"bag {p.name!r} has no instances: there is nothing to draw")
    if p.coords is None:
        return _in_order(n)
    c = np.asarray(p.coords, dtype=np.float64)
    if c.ndim != 2 or len(c) != n or c.shape[1] not in (1, 2) or not np.isfinite(c).all():
        raise BagError(
            f"bag {p.name!r}: its coordinates have shape {p.coords.shape} or are not finite; "
            f"a map needs ({n}, 2) corners of patches or ({n}, 1) positions of slices"
        )
    return _slices(c[:, 0]) if c.shape[1] == 1 else _patches(c, stride=p.stride)


def raster(p: Prediction, values: Shaped[np.ndarray, " n"]) -> Raster:
    """The values of a bag's instances as an image: one pixel a patch (or slice), NaN elsewhere.

    Raises:
        InputError: the patches lie on no single lattice (they can only be drawn as squares).
    """
    layout = place(p)
    if layout.cells is None:
        raise InputError(
            f"bag {p.name!r}: its patches lie on no single lattice, so they make no image; "
            "render_map draws them as squares"
        )
    return fill(layout, values)


def fill(layout: Layout, values: Shaped[np.ndarray, " n"]) -> Raster:
    """The same for a layout on a lattice."""
    assert layout.cells is not None, "only a lattice can be filled"
    image = np.full(layout.shape, np.nan)
    image[layout.cells[:, 0], layout.cells[:, 1]] = values
    return Raster(image=image, extent=layout.extent)


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
    """Row order counts; a step of k units leaves room for k − 1 missing slices."""
    step = np.abs(np.diff(position))
    unit = float(np.median(step[step > 0])) if (step > 0).any() else 1.0
    jump = np.maximum(1, np.rint(step / unit)).astype(np.int64)
    at = np.r_[0, np.minimum(jump, WIDEST_GAP + 1).cumsum()].astype(np.int64)
    missing = int((jump - 1).sum())
    note = f" ({missing} missing)" if missing else ""
    return _strip(at, numbers=[f"{v:g}" for v in position], label=f"slice number{note}")


def _strip(at: np.ndarray, *, numbers: list[str], label: str) -> Layout:
    cells = np.stack([np.zeros_like(at), at], axis=1)
    return Layout(
        corners=cells[:, ::-1].astype(np.float64),
        size=1.0,
        cells=cells,
        strip=True,
        x_label=label,
        numbers=tuple(numbers),
    )


def _patches(c: np.ndarray, *, stride: float | None) -> Layout:
    p = _stride(c, stride=stride)
    return Layout(
        corners=c,
        size=p,
        cells=_cells(c, p),
        strip=False,
        x_label="x (level-0 pixels)",
        y_label="y (level-0 pixels)",
    )


def _stride(c: np.ndarray, *, stride: float | None) -> float:
    """The stated stride, unless the coordinates contradict it by lying on a lattice of another.

    A picture can follow the coordinates; refusing a wrong stride is the business of the graph.
    """
    if len(c) < 2:
        return float(stride or 1.0)
    try:
        return check_stride(torch.from_numpy(c), stride=stride)
    except GraphError:
        seen = check_stride(torch.from_numpy(c), stride=None)
        return seen if _cells(c, seen) is not None else float(stride or seen)


def _cells(c: np.ndarray, stride: float) -> np.ndarray | None:
    """(row, column) of each patch; None if they lie on no lattice of this stride, one a cell."""
    cells = np.rint((c - c.min(0)) / stride).astype(np.int64)
    if np.prod(cells.max(0) + 1.0) > MOST_CELLS:
        return None
    if np.abs(c - c.min(0) - cells * stride).max() > 0.02 * stride:
        return None
    return cells[:, ::-1] if len(np.unique(cells, axis=0)) == len(cells) else None
