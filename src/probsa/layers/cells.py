"""Maps of instances: which cell of its bag's grid each is in, and what lies in the windows around.

Cells are a sorted list, never a dense array: two pieces of tissue far apart cost what they hold.
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
    """The cells of a batch's maps that are tokens: bag by bag, each row by row."""

    bag: Int[Tensor, " t"]
    row: Int[Tensor, " t"]
    col: Int[Tensor, " t"]
    heights: tuple[int, ...]
    """Of each bag's map."""
    widths: tuple[int, ...]
    sizes: tuple[int, ...]
    """Tokens of each bag."""

    def __len__(self) -> int:
        return len(self.bag)

    @property
    def width(self) -> Int[Tensor, " t"]:
        """The width of each cell's map."""
        return torch.tensor(self.widths, device=self.bag.device)[self.bag]

    def find(
        self, bag: Int[Tensor, " *w"], row: Int[Tensor, " *w"], col: Int[Tensor, " *w"]
    ) -> Int[Tensor, " *w"]:
        """Which cell this is; `len(cells)` where it is beyond the map, or none of them."""
        if not len(self):
            return torch.zeros_like(row)
        high, wide = (torch.tensor(v, device=row.device)[bag] for v in (self.heights, self.widths))
        inside = (row >= 0) & (row < high) & (col >= 0) & (col < wide)
        keys = self._key(self.bag, self.row, self.col)
        wanted = self._key(bag, row, col)
        at = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        return torch.where(inside & (keys[at] == wanted), at, len(keys))

    def windows(self, centres: "Cells", *, size: int, stride: int = 1) -> Int[Tensor, "o k2"]:
        """What lies around each centre, row by row; `len(cells)` for a cell that is none.

        The centre (i, j) sits on the cell (stride · i, stride · j).
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
        """The four centres around each cell of the finer map, and their bilinear weights."""
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
    """Each of these cells once, sorted."""
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
    """The whole of each map."""
    sizes = tuple(h * w for h, w in zip(heights, widths, strict=True))
    bag = segment_index(sizes, device)
    starts = torch.tensor([0, *sizes], device=device).cumsum(0)
    at = torch.arange(sum(sizes), device=device) - starts[bag]
    wide = torch.tensor(widths, device=device)[bag]
    row = at.div(wide, rounding_mode="floor")
    return Cells(
        bag=bag, row=row, col=at - row * wide,
        heights=tuple(heights), widths=tuple(widths), sizes=sizes,
    )  # fmt: skip


def reduced(cells: Cells, *, size: int, stride: int, whole: bool) -> Cells:
    """The windows of `size` cells, `stride` apart, that see a cell (`whole`: all of the map's)."""
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
    """Windows along one axis with |stride · i − at| ≤ reach, and where there is such a one."""
    first = -((reach - at).div(stride, rounding_mode="floor"))
    found = [first + k for k in range(2 * reach // stride + 1)]
    return [(i, (i >= 0) & (i < count) & (i * stride <= at + reach)) for i in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where the instances of a batch are."""

    cells: Cells
    place: Int[Tensor, " n"]
    """The cell of each instance; `len(cells)` if it was cropped away."""

    def scatter(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "t d"]:
        """Instances into their cells: 0 in an empty one, the mean where several share one."""
        t = len(self.cells)
        total = h.new_zeros(t + 1, h.shape[1]).index_add(0, self.place, h)
        shared = torch.bincount(self.place, minlength=t + 1).clamp_min(1)
        return (total / shared[:, None].to(h.dtype))[:t]


def lay_out(bags: Bags, *, canvas: int | None, packed: bool, whole: bool) -> Layout:
    """Instances on the grid of their coordinates.

    Args:
        canvas: maps are cropped about their centre, or centred, to this many cells a side;
            None: as large as the coordinates say.
        packed: cells that hold something are moved together, row by row, into a square.
        whole: empty cells are cells as well.
    """
    bag = bags.bag
    row, col = grid_cells(bags)
    heights, widths = _extents(row, bags), _extents(col, bags)
    if packed:
        held = cells_at(bag, row, col, heights=heights, widths=widths)
        heights = widths = [isqrt(max(n - 1, 0)) + 1 for n in held.sizes]
        starts = torch.tensor([0, *held.sizes], device=bag.device).cumsum(0)
        rank = held.find(bag, row, col) - starts[bag]
        side = torch.tensor(widths, device=bag.device)[bag]
        row = rank.div(side, rounding_mode="floor")
        col = rank - row * side
    if canvas is not None:
        row, col = (
            at + torch.tensor([centred(v, canvas) for v in extents], device=bag.device)[bag]
            for at, extents in ((row, heights), (col, widths))
        )
        heights = widths = [canvas] * len(bags)
    high, wide = (torch.tensor(v, device=bag.device)[bag] for v in (heights, widths))
    kept = (row >= 0) & (row < high) & (col >= 0) & (col < wide)
    if whole:
        cells = every_cell(heights, widths, device=bag.device)
    else:
        cells = cells_at(bag[kept], row[kept], col[kept], heights=heights, widths=widths)
    return Layout(cells=cells, place=cells.find(bag, row, col))


def centred(extent: int, canvas: int) -> int:
    """By how much a map moves to lie about the centre: half of what is free, or of what is cut."""
    return (canvas - extent) // 2 if extent <= canvas else -((extent - canvas) // 2)


def _extents(at: Tensor, bags: Bags) -> list[int]:
    return [int(v) + 1 for v in segment_max(at.double(), bags.sizes).tolist()]


def grid_cells(bags: Bags) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """(row, column) of each instance: ⌊(coords − min) / stride⌉ in its bag; slices are one column.

    Raises:
        BagError: coordinates of more than two axes or not finite, a stride that is no distance.
    """
    coords = bags.coords
    assert coords is not None, "the model has checked"
    if coords.shape[1] not in (1, 2) or not bool(coords.isfinite().all()):
        raise BagError(
            f"bag {bags.names[0]!r} (or another of its batch): coordinates are finite (x, y) or "
            f"slice positions, not {coords.shape[1]} numbers an instance, NaN or inf"
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
    found = []
    stated = bags.stride or (None,) * len(bags)
    for name, stride, own in zip(bags.names, stated, coords.split(list(bags.sizes)), strict=True):
        if stride is None:
            flat = own if own.shape[1] == 2 else torch.cat([own, torch.zeros_like(own)], 1)
            stride = check_stride(flat.detach().cpu(), stride=None, name=name)
        if not 0 < stride < float("inf"):
            raise BagError(f"bag {name!r}: its stride is {stride}, not a distance above 0")
        found.append(float(stride))
    return found
