"""The map of a bag: the grid cell of each instance, and the cells in windows around others.

Cells are a sorted list, not a dense array, so empty space between pieces of tissue costs nothing.
Shapes: n instances, t cells, o windows, k2 cells in a window.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Bags, check_stride
from ..errors import BagError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The cells of one map that serve as tokens, sorted by row and column."""

    row: Int[Tensor, " t"]
    col: Int[Tensor, " t"]
    height: int
    width: int

    @classmethod
    def among(
        cls, row: Tensor, col: Tensor, *, height: int, width: int, whole: bool = False
    ) -> "Cells":
        """Return the distinct cells among these; `whole`: every cell of the map."""
        if whole:
            key = torch.arange(height * width, device=row.device)
        else:
            key = (row * width + col).unique()
        return cls(row=key // width, col=key % width, height=height, width=width)

    def __len__(self) -> int:
        return len(self.row)

    def to(self, device: torch.device) -> "Cells":
        """Return the cells on another device, without waiting for it."""
        return Cells(
            row=self.row.to(device, non_blocking=True),
            col=self.col.to(device, non_blocking=True),
            height=self.height,
            width=self.width,
        )

    def find(self, row: Int[Tensor, " *w"], col: Int[Tensor, " *w"]) -> Int[Tensor, " *w"]:
        """Return the index of each given cell, or `len(cells)` if it is not one of the tokens."""
        keys = self.row * self.width + self.col
        key = row * self.width + col
        index = torch.searchsorted(keys, key.contiguous()).clamp_max(len(keys) - 1)
        # a column beyond the edge would have the key of a cell of another row
        inside = (col >= 0) & (col < self.width)
        return torch.where(inside & (keys[index] == key), index, len(keys))

    def windows(self, centres: "Cells", *, size: int, stride: int = 1) -> Int[Tensor, "o k2"]:
        """Return the cells of the window around each centre, row by row, as `find` does.

        The centre (i, j) lies on the cell (stride · i, stride · j).
        """
        reach = torch.arange(size, device=self.row.device) - size // 2
        row = (centres.row * stride)[:, None, None] + reach[:, None]
        col = (centres.col * stride)[:, None, None] + reach
        return self.find(*torch.broadcast_tensors(row, col)).flatten(1)

    def reduced(self, *, size: int, stride: int, whole: bool) -> "Cells":
        """Return the windows that contain a cell, as the cells of a smaller map.

        Args:
            size: Side of a window, in cells.
            stride: Distance between the centres of neighbouring windows.
            whole: Return all windows of the map, including empty ones.
        """
        height = (self.height - 1) // stride + 1
        width = (self.width - 1) // stride + 1
        rows, has_row = _centres(self.row, height, size=size, stride=stride)
        cols, has_col = _centres(self.col, width, size=size, stride=stride)
        # every pair of a centre on both axes
        contains = has_row[:, :, None] & has_col[:, None, :]
        row = rows[:, :, None].expand_as(contains)[contains]
        col = cols[:, None, :].expand_as(contains)[contains]
        return Cells.among(row, col, height=height, width=width, whole=whole)

    def interpolated(
        self, values: Float[Tensor, " t"], finer: "Cells", *, stride: int
    ) -> Float[Tensor, " f"]:
        """Return the values at the cells of a finer map, bilinear between these; 0 if missing."""
        padded = torch.nn.functional.pad(values, (0, 1))
        total = torch.zeros(len(finer), dtype=values.dtype, device=values.device)
        for i, weight_i in _neighbours(finer.row, stride, last=self.height - 1):
            for j, weight_j in _neighbours(finer.col, stride, last=self.width - 1):
                total = total + padded[self.find(i, j)] * (weight_i * weight_j).to(values.dtype)
        return total


def _centres(
    at: Int[Tensor, " t"], count: int, *, size: int, stride: int
) -> tuple[Int[Tensor, "t steps"], Bool[Tensor, "t steps"]]:
    """Return the centres i with |stride · i − at| ≤ size // 2 on one axis, and which exist."""
    reach = size // 2
    steps = torch.arange(2 * reach // stride + 1, device=at.device)
    i = -((reach - at) // stride)[:, None] + steps
    return i, (i >= 0) & (i < count) & (i * stride <= at[:, None] + reach)


def _neighbours(at: Tensor, stride: int, *, last: int) -> list[tuple[Tensor, Tensor]]:
    """Return the two centres around each cell on one axis, with their weights."""
    low = at // stride
    part = (at - low * stride).double() / stride
    high = low + (part > 0)
    return [(low.clamp_max(last), 1 - part), (high.clamp_max(last), part)]


def grid_cells(bags: Bags) -> list[tuple[Int[Tensor, " n"], Int[Tensor, " n"]]]:
    """Return row and column of each bag's instances: ⌊(coords − min) / stride⌉ within the bag.

    The slices of a scan form one column. All of it is computed and stays on the CPU, which must
    know the size of a map.

    Raises:
        BagError: If coordinates have more than two axes or are not finite, or a stride is invalid.
    """
    assert bags.coords is not None, "models check this"
    coords = bags.coords.cpu() if bags.host_coords is None else bags.host_coords
    strides = bags.stride or (None,) * len(bags)
    bag_coords = coords.split(list(bags.sizes))
    places = []
    for name, stride, c in zip(bags.names, strides, bag_coords, strict=True):
        if c.shape[1] not in (1, 2) or not bool(c.isfinite().all()):
            raise BagError(
                f"bag {name!r}: coordinates are finite (x, y) or slice positions, not "
                f"{c.shape[1]} numbers per instance, NaN or inf"
            )
        if c.shape[1] == 1:
            c = torch.cat([torch.zeros_like(c), c], 1)  # the slices of a scan are one column
        if stride is None:
            stride = check_stride(c, stride=None, name=name)
        if not 0 < stride < float("inf"):
            raise BagError(f"bag {name!r}: its stride is {stride}, not a distance above 0")
        c = c.double()
        cell = ((c - c.amin(0)) / stride).round().long()
        places.append((cell[:, 1], cell[:, 0]))
    return places
