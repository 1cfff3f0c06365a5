"""Maps of instances: the grid cell of each instance, and the cells in windows around others.

Cells are a sorted list, not a dense array, so empty space between pieces of tissue costs nothing.
Shapes: n instances, t cells, o windows, k2 cells in a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import Bags, check_stride, segment_index, segment_max
from ..errors import BagError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """The cells that serve as tokens, for all maps of a batch, sorted by bag and row."""

    bag: Int[Tensor, " t"]
    row: Int[Tensor, " t"]
    col: Int[Tensor, " t"]
    heights: tuple[int, ...]
    """Height of each bag's map; `widths` likewise."""
    widths: tuple[int, ...]
    sizes: tuple[int, ...]
    """Number of tokens of each bag."""

    def __len__(self) -> int:
        return len(self.bag)

    @property
    def width(self) -> Int[Tensor, " t"]:
        """The width of each cell's map."""
        return torch.tensor(self.widths, device=self.bag.device)[self.bag]

    def find(
        self, bag: Int[Tensor, " *w"], row: Int[Tensor, " *w"], col: Int[Tensor, " *w"]
    ) -> Int[Tensor, " *w"]:
        """Return the index of each given cell, or `len(cells)` if it is not one of the tokens."""
        if not len(self):
            return torch.zeros_like(row)
        high, wide = (torch.tensor(v, device=row.device)[bag] for v in (self.heights, self.widths))
        inside = (row >= 0) & (row < high) & (col >= 0) & (col < wide)
        keys = self._key(self.bag, self.row, self.col)
        wanted = self._key(bag, row, col)
        index = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        return torch.where(inside & (keys[index] == wanted), index, len(keys))

    def windows(self, centres: "Cells", *, size: int, stride: int = 1) -> Int[Tensor, "o k2"]:
        """Return the cells of the window around each centre, row by row, as `find` does.

        The centre (i, j) lies on the cell (stride · i, stride · j).
        """
        reach = torch.arange(size, device=self.bag.device) - size // 2
        row = (centres.row * stride)[:, None, None] + reach[:, None]
        col = (centres.col * stride)[:, None, None] + reach
        row, col = torch.broadcast_tensors(row, col)
        return self.find(centres.bag[:, None, None].expand_as(row), row, col).flatten(1)

    def _key(self, bag: Tensor, row: Tensor, col: Tensor) -> Tensor:
        return (bag * max(self.heights) + row) * max(self.widths) + col

    def around(
        self, finer: "Cells", *, stride: int
    ) -> tuple[Int[Tensor, "f four"], Float[Tensor, "f four"]]:
        """Return the four cells around each cell of a finer map, and their bilinear weights."""
        bag = finer.bag
        high, wide = (torch.tensor(v, device=bag.device)[bag] for v in (self.heights, self.widths))
        places, weights = [], []
        for i, part_i in _ends(finer.row, stride):
            for j, part_j in _ends(finer.col, stride):
                places.append(self.find(bag, i.minimum(high - 1), j.minimum(wide - 1)))
                weights.append(part_i * part_j)
        return torch.stack(places, 1), torch.stack(weights, 1)


def _ends(at: Tensor, stride: int) -> list[tuple[Tensor, Tensor]]:
    low = at.div(stride, rounding_mode="floor")
    part = (at - low * stride).double() / stride
    return [(low, 1 - part), (low + (part > 0), part)]


def cells_at(
    bag: Int[Tensor, " c"],
    row: Int[Tensor, " c"],
    col: Int[Tensor, " c"],
    *,
    heights: Sequence[int],
    widths: Sequence[int],
) -> Cells:
    """Return the distinct cells among these, sorted."""
    high, wide = max(heights), max(widths)
    key = ((bag * high + row) * wide + col).unique()
    bag = key.div(high * wide, rounding_mode="floor")
    return Cells(
        bag=bag,
        row=key.div(wide, rounding_mode="floor") - bag * high,
        col=key % wide,
        heights=tuple(heights),
        widths=tuple(widths),
        sizes=tuple(torch.bincount(bag, minlength=len(heights)).tolist()),
    )


def every_cell(
    heights: Sequence[int], widths: Sequence[int], *, device: torch.device | None = None
) -> Cells:
    """Return all cells of each map."""
    sizes = tuple(h * w for h, w in zip(heights, widths, strict=True))
    bag = segment_index(sizes, device)
    starts = torch.tensor([0, *sizes], device=device).cumsum(0)
    index = torch.arange(sum(sizes), device=device) - starts[bag]
    wide = torch.tensor(widths, device=device)[bag]
    row = index.div(wide, rounding_mode="floor")
    return Cells(
        bag=bag, row=row, col=index - row * wide,
        heights=tuple(heights), widths=tuple(widths), sizes=sizes,
    )  # fmt: skip


def reduced(cells: Cells, *, size: int, stride: int, whole: bool) -> Cells:
    """Return the windows that contain a cell, as the cells of a smaller map.

    Args:
        cells: The cells to cover.
        size: Side of a window, in cells.
        stride: Distance between the centres of neighbouring windows.
        whole: Return all windows of the map, including empty ones.
    """
    heights = [(h - 1) // stride + 1 for h in cells.heights]
    widths = [(w - 1) // stride + 1 for w in cells.widths]
    device = cells.bag.device
    if whole:
        return every_cell(heights, widths, device=device)
    reach = size // 2
    high, wide = (torch.tensor(v, device=device)[cells.bag] for v in (heights, widths))
    bags, rows, cols = [], [], []
    for i, fits_i in _seen_from(cells.row, high, reach=reach, stride=stride):
        for j, fits_j in _seen_from(cells.col, wide, reach=reach, stride=stride):
            kept = fits_i & fits_j
            bags.append(cells.bag[kept])
            rows.append(i[kept])
            cols.append(j[kept])
    return cells_at(
        torch.cat(bags), torch.cat(rows), torch.cat(cols), heights=heights, widths=widths
    )


def _seen_from(
    at: Tensor, count: Tensor, *, reach: int, stride: int
) -> list[tuple[Int[Tensor, " t"], Bool[Tensor, " t"]]]:
    """Return the windows i with |stride · i − at| ≤ reach on one axis, and whether each exists."""
    first = -((reach - at).div(stride, rounding_mode="floor"))
    windows = [first + k for k in range(2 * reach // stride + 1)]
    return [(i, (i >= 0) & (i < count) & (i * stride <= at + reach)) for i in windows]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The cell of each instance of a batch."""

    cells: Cells
    place: Int[Tensor, " n"]
    """Index of each instance's cell."""

    def scatter(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "t d"]:
        """Return the mean of the instances in each cell; 0 in an empty cell."""
        t = len(self.cells)
        total = h.new_zeros(t, h.shape[1]).index_add(0, self.place, h)
        shared = torch.bincount(self.place, minlength=t).clamp_min(1)
        return total / shared[:, None].to(h.dtype)


def lay_out(bags: Bags, *, packed: bool, whole: bool) -> Layout:
    """Place the instances on the grid of their coordinates.

    Args:
        bags: Bags with coordinates.
        packed: Move the occupied cells together, row by row, into a square.
        whole: Keep empty cells as well.
    """
    bag = bags.bag
    row, col = grid_cells(bags)
    heights, widths = _extents(row, bags), _extents(col, bags)
    if packed:
        occupied = cells_at(bag, row, col, heights=heights, widths=widths)
        heights = widths = [isqrt(max(n - 1, 0)) + 1 for n in occupied.sizes]
        starts = torch.tensor([0, *occupied.sizes], device=bag.device).cumsum(0)
        rank = occupied.find(bag, row, col) - starts[bag]
        side = torch.tensor(widths, device=bag.device)[bag]
        row = rank.div(side, rounding_mode="floor")
        col = rank - row * side
    if whole:
        cells = every_cell(heights, widths, device=bag.device)
    else:
        cells = cells_at(bag, row, col, heights=heights, widths=widths)
    return Layout(cells=cells, place=cells.find(bag, row, col))


def _extents(at: Tensor, bags: Bags) -> list[int]:
    return [int(v) + 1 for v in segment_max(at.double(), bags.sizes).tolist()]


def grid_cells(bags: Bags) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return row and column of each instance: ⌊(coords − min) / stride⌉ within its bag.

    The slices of a scan form one column.

    Raises:
        BagError: If coordinates have more than two axes or are not finite, or a stride is invalid.
    """
    coords = bags.coords
    assert coords is not None, "models check this"
    if coords.shape[1] not in (1, 2) or not bool(coords.isfinite().all()):
        raise BagError(
            f"bag {bags.names[0]!r} (or another of its batch): coordinates are finite (x, y) or "
            f"slice positions, not {coords.shape[1]} numbers per instance, NaN or inf"
        )
    c = coords.double()
    start = -segment_max(-c, bags.sizes)
    strides = torch.tensor(_strides(bags, coords), dtype=c.dtype, device=c.device)
    bag = bags.bag
    cell = ((c - start[bag]) / strides[bag][:, None]).round().long()
    if cell.shape[1] == 1:
        return cell[:, 0], torch.zeros_like(cell[:, 0])
    return cell[:, 1], cell[:, 0]


def _strides(bags: Bags, coords: Tensor) -> list[float]:
    strides = []
    known = bags.stride or (None,) * len(bags)
    for name, stride, c in zip(bags.names, known, coords.split(list(bags.sizes)), strict=True):
        if stride is None:
            flat = c if c.shape[1] == 2 else torch.cat([c, torch.zeros_like(c)], 1)
            stride = check_stride(flat.detach().cpu(), stride=None, name=name)
        if not 0 < stride < float("inf"):
            raise BagError(f"bag {name!r}: its stride is {stride}, not a distance above 0")
        strides.append(float(stride))
    return strides
