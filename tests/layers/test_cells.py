"""Lists of cells against dense maps; relative positions against their literal definition."""

import pytest
import torch
import torch.nn.functional as F
from support.dense_setmil import bucket_matrix, g

from probsa.layers import Cells, Places
from probsa.layers.irpe import distance_buckets, piecewise

MAPS = [(5, 7), (1, 1), (9, 3)]


def some_cells(height: int, width: int) -> Cells:
    """Return about half of the cells of a map, given in a random order and with repeats."""
    g = torch.Generator().manual_seed(0)
    at = (torch.rand(height * width, generator=g) < 0.5).nonzero()[:, 0].repeat(2)
    at = torch.cat([at, torch.zeros(1).long()])
    at = at[torch.randperm(len(at), generator=g)]
    return Cells.among(at // width, at % width, height=height, width=width)


def dense(cells: Cells) -> torch.Tensor:
    """Return the index of each cell of the map, `len(cells)` where there is none."""
    m = torch.full((cells.height, cells.width), len(cells))
    m[cells.row, cells.col] = torch.arange(len(cells))
    return m


@pytest.mark.parametrize(("height", "width"), MAPS)
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (5, 1), (7, 1), (5, 2), (7, 3)])
@pytest.mark.parametrize("whole", [True, False])
def test_windows_are_those_of_unfold(height, width, size, stride, whole):
    cells = some_cells(height, width)
    keys = list(zip(cells.row.tolist(), cells.col.tolist(), strict=True))
    assert keys == sorted(set(keys))
    if whole:
        cells = Cells.among(cells.row, cells.col, height=height, width=width, whole=True)
    centres = cells.reduced(size=size, stride=stride, whole=whole)
    padded = F.pad(dense(cells), [size // 2] * 4, value=len(cells))
    want = F.unfold(padded[None, None].double(), size, stride=stride)[0].T.long()
    has_cells = (want < len(cells)).any(1)
    windows = torch.arange(len(want)) if whole else has_cells.nonzero()[:, 0]
    assert torch.equal(cells.windows(centres, size=size, stride=stride), want[windows])
    columns = (width - 1) // stride + 1
    assert torch.equal(centres.row, windows // columns)
    assert torch.equal(centres.col, windows % columns)


def test_the_piecewise_index():
    assert piecewise(torch.arange(16)).tolist() == [0, 1, 2, 2] + [3] * 12
    assert piecewise(-torch.arange(16)).tolist() == [0, -1, -2, -2] + [-3] * 12
    x = torch.arange(-300, 300)
    assert piecewise(x).tolist() == [g(v) for v in x.tolist()]


def test_the_buckets_of_a_grid_of_four():
    """The first row of the specification's 4 × 4 fixture."""
    at = torch.arange(16)
    ids = Places(row=at // 4, col=at % 4).buckets(distance_buckets(), slice(0, 16))
    assert ids[0].tolist() == [3, 4, 5, 5, 4, 4, 5, 5, 5, 5, 5, 6, 5, 5, 6, 6]


@pytest.mark.parametrize("first", [True, False])
def test_buckets_of_any_places(first):
    """Offsets reach far beyond the table's ±4, and queries come in blocks."""
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, 30, (2, 40), generator=generator)
    places = Places(row=row, col=col, has_class_token=first)
    want = bucket_matrix("euc", row.tolist(), col.tolist(), first=first)
    t = len(want)
    parts = [places.buckets(distance_buckets(), slice(s, min(s + 7, t))) for s in range(0, t, 7)]
    assert torch.equal(torch.cat(parts), want)
