"""Lists of cells against dense maps; relative positions against their literal definition."""

import pytest
import torch
import torch.nn.functional as F
from support.dense_setmil import bucket_matrices, g
from support.random_bags import F64

from probsa.errors import InputError
from probsa.layers.cells import cells_at, every_cell, reduced
from probsa.layers.irpe import Places, Relation, attend, bucket_tables, piecewise

HEIGHTS, WIDTHS = (5, 1, 9), (7, 1, 3)


def some_cells(seed: int = 0):
    """Return about half of the cells of three maps, in a random order and with repeats."""
    every = every_cell(HEIGHTS, WIDTHS)
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(len(every), generator=generator) < 0.5
    kept[35] = True  # the only cell of its map
    at = kept.nonzero()[:, 0].repeat(2)
    at = at[torch.randperm(len(at), generator=generator)]
    return cells_at(every.bag[at], every.row[at], every.col[at], heights=HEIGHTS, widths=WIDTHS)


def dense(cells) -> list[torch.Tensor]:
    """Return, per bag, the index of each cell, `len(cells)` where there is none."""
    maps = [
        torch.full((h, w), len(cells)) for h, w in zip(cells.heights, cells.widths, strict=True)
    ]
    for k in range(len(cells)):
        maps[int(cells.bag[k])][cells.row[k], cells.col[k]] = k
    return maps


def test_cells_are_sorted_once_each_and_counted():
    cells = some_cells()
    keys = list(zip(cells.bag.tolist(), cells.row.tolist(), cells.col.tolist(), strict=True))
    assert keys == sorted(set(keys))
    assert cells.sizes == tuple((m < len(cells)).sum().item() for m in dense(cells))
    assert torch.equal(cells.find(cells.bag, cells.row, cells.col), torch.arange(len(cells)))


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (5, 1), (7, 1), (5, 2), (7, 3)])
@pytest.mark.parametrize("whole", [True, False])
def test_windows_are_those_of_unfold(size, stride, whole):
    cells = every_cell(HEIGHTS, WIDTHS) if whole else some_cells()
    centres = reduced(cells, size=size, stride=stride, whole=whole)
    index = cells.windows(centres, size=size, stride=stride)
    missing, wants, places = len(cells), [], []
    for b, m in enumerate(dense(cells)):
        padded = F.pad(m, [size // 2] * 4, value=missing)
        u = F.unfold(padded[None, None].double(), size, stride=stride)[0].T.long()
        wide = (m.shape[1] - 1) // stride + 1
        for k, window in enumerate(u):
            if whole or bool((window < missing).any()):
                wants.append(window)
                places.append((b, k // wide, k % wide))
    assert torch.equal(index, torch.stack(wants))
    found = zip(centres.bag.tolist(), centres.row.tolist(), centres.col.tolist(), strict=True)
    assert list(found) == places


# relative positions


def test_the_piecewise_index():
    assert piecewise(torch.arange(16)).tolist() == [0, 1, 2, 2] + [3] * 12
    assert piecewise(-torch.arange(16)).tolist() == [0, -1, -2, -2] + [-3] * 12
    x = torch.arange(-300, 300)
    assert piecewise(x).tolist() == [g(v) for v in x.tolist()]


def test_the_buckets_of_a_grid_of_four():
    """The first row of the specification's 4 × 4 fixture."""
    at = torch.arange(16)
    ids = Places(row=at // 4, col=at % 4).buckets(bucket_tables("euc"), slice(0, 16))
    assert ids[0, 0].tolist() == [3, 4, 5, 5, 4, 4, 5, 5, 5, 5, 5, 6, 5, 5, 6, 6]


@pytest.mark.parametrize("method", ["euc", "quant", "product", "cross"])
@pytest.mark.parametrize("first", [True, False])
def test_buckets_of_any_places(method, first):
    """Offsets reach far beyond the table's ±4, and queries come in blocks."""
    generator = torch.Generator().manual_seed(0)
    row, col = torch.randint(0, 30, (2, 40), generator=generator)
    places = Places(row=row, col=col, first=first)
    want = torch.stack(bucket_matrices(method, row.tolist(), col.tolist(), first=first))
    t = want.shape[1]
    parts = [places.buckets(bucket_tables(method), slice(s, min(s + 7, t))) for s in range(0, t, 7)]
    assert torch.equal(torch.cat(parts, 1), want)


def test_a_bias_on_values_is_refused():
    with pytest.raises(InputError, match="values take vectors"):
        Relation(method="euc", mode="bias", on="qkv")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_without_positions_is_softmax(dropout):
    q, k, v = torch.randn(3, 2, 6, 4, dtype=F64)
    at = torch.arange(6)
    torch.manual_seed(0)
    places = Places(row=at, col=at)
    out = attend(q, k, v, scale=0.3, relative=None, places=places, dropout=dropout)
    want = (0.3 * q @ k.transpose(1, 2)).softmax(2) @ v
    assert torch.allclose(out, want) == (not dropout)
    none = Places(row=at[:0], col=at[:0])
    assert attend(q[:, :0], k[:, :0], v[:, :0], scale=0.3, relative=None, places=none).numel() == 0
