"""Graphs against brute force over all pairs; weights and degrees against dense loops."""

import csv
import gzip
import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refused
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from probsa.core import chain, check_stride, degrees, edge_weights, grid, slice_order
from probsa.core.graphs import _distances, knn
from probsa.errors import GraphError

Pairs = set[tuple[int, int]]


def pairs(edges: Tensor) -> Pairs:
    """Return the edges as a set, after checking that they are sorted, unique, and i < j."""
    assert edges.dtype == torch.long
    pairs = [(int(i), int(j)) for i, j in edges.T]
    assert pairs == sorted(set(pairs))
    assert all(i < j for i, j in pairs)
    return set(pairs)


def within(coords: np.ndarray, radius: float) -> Pairs:
    n = len(coords)
    return {
        (i, j)
        for i in range(n)
        for j in range(i + 1, n)
        if math.dist(coords[i], coords[j]) <= radius
    }


def adjacent(cells: np.ndarray) -> Pairs:
    n = len(cells)
    return {
        (i, j) for i in range(n) for j in range(i + 1, n) if np.abs(cells[i] - cells[j]).max() == 1
    }


def lattice(columns: int, rows: int, *, step: int = 1) -> Tensor:
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1) * step


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_chain_joins_each_slice_with_the_next(n):
    assert pairs(chain(n)) == {(i, i + 1) for i in range(n - 1)}


cell = st.tuples(st.integers(0, 9), st.integers(0, 9))
block = {(x, y) for x in range(3, 7) for y in range(3, 7)}


@settings(max_examples=150, deadline=None)
@given(
    # With the block, at least 10 % of the gaps equal the stride; with few cells, none may.
    cells=st.sets(cell, max_size=60).map(block.union) | st.sets(cell, max_size=4),
    stride=st.sampled_from([1.0, 37.0, 512.0, 0.25]),
    origin=st.tuples(st.integers(-5, 5), st.integers(-5, 5)),
    seed=st.integers(0, 99),
)
def test_on_a_lattice_the_8_adjacent_patches_are_joined(cells, stride, origin, seed):
    order = np.random.default_rng(seed).permutation(len(cells))
    c = np.array(sorted(cells)).reshape(-1, 2)[order]
    coords = torch.from_numpy((c + np.array(origin)) * stride)
    expected = adjacent(c)
    assert pairs(grid(coords, stride=stride)) == expected
    assert expected == within(c * stride, math.sqrt(2) * stride)


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 4), st.integers(1, 4)),
        min_size=2,
        max_size=5,
        # pieces that share a row may look like a finer lattice, see the next test
        unique_by=(lambda p: p[0] % 512, lambda p: p[1] % 512),
    )
)
def test_off_one_lattice_all_pairs_within_the_radius_are_joined(pieces):
    """CLAM starts a lattice at every contour; pieces may overlap or even coincide."""
    parts = [lattice(w, h, step=512) + torch.tensor([x, y]) for x, y, w, h in pieces]
    coords = torch.cat(parts)
    expected = within(coords.numpy(), math.sqrt(2) * 512 * 1.02)
    if not expected and len(coords) >= 10:
        return
    assert pairs(grid(coords, stride=512.0)) == expected


@pytest.mark.parametrize(
    ("coords", "expected"),
    [
        ([], set()),
        ([[7, 7]], set()),
        ([[0, 0], [512, 512]], {(0, 1)}),
        ([[0, 0], [2048, 0]], set()),
    ],
)
def test_bags_of_no_one_and_two_patches(coords, expected):
    c = torch.tensor(coords, dtype=torch.long).reshape(-1, 2)
    assert pairs(grid(c, stride=512.0)) == expected
    x = torch.randn(len(c), 3, generator=torch.Generator().manual_seed(0))
    weights = edge_weights(x, grid(c, stride=512.0), scale="median")
    assert weights.tolist() == pytest.approx(
        [1.0] * len(expected), rel=1e-6
    )  # the only distance is its own median
    assert degrees(grid(c, stride=512.0), weights, len(c)).sum() == 2 * len(expected)


def test_the_same_tissue_at_20x_and_40x_has_the_same_graph():
    cells = lattice(8, 10)
    slow = grid(cells * 512, stride=512.0)
    fast = grid(cells * 1024, stride=1024.0)
    assert slow.shape[1] == 7 * 10 + 8 * 9 + 2 * 7 * 9  # across, down, two diagonals
    assert torch.equal(slow, fast)
    assert torch.equal(slow, grid(cells * 1024))  # estimated
    coords = torch.cat([lattice(3, 3, step=512), torch.tensor([[512, 512]])])
    edges = pairs(grid(coords, stride=512.0))
    assert (4, 9) in edges
    assert {(i, 9) for i in range(9)} <= edges
    piece = lattice(4, 4, step=512)
    coords = torch.cat([piece, piece + torch.tensor([11, 0])])  # gaps of 11 and 501, none of 512
    edges = pairs(grid(coords, stride=512.0))
    assert edges == within(coords.numpy(), math.sqrt(2) * 512 * 1.02)


def test_a_stride_is_checked_against_the_coordinates():
    coords = lattice(8, 10, step=1024)
    refused(GraphError, "slide_7.* 512 .* 1024 ", grid, coords, stride=512.0, name="slide_7")
    with pytest.raises(GraphError, match=r" 512 .* 256 "):
        grid(lattice(8, 10, step=256), stride=512.0)
    with pytest.raises(GraphError, match=" 525 "):  # 2.5 % off, as with a rounded magnification
        grid(lattice(8, 10, step=525), stride=512.0)
    assert grid(lattice(8, 10, step=517), stride=512.0).shape[1] == 268  # 1 % off
    keep = torch.from_numpy(np.random.default_rng(0).random(900) < 0.3)
    coords = lattice(30, 30, step=512)[keep]
    gaps = np.diff(np.sort(coords[coords[:, 1] == 0, 0].numpy()))
    assert np.median(gaps) > 512  # the median of the gaps would contradict the stride
    assert check_stride(coords, stride=512.0) == 512
    assert check_stride(coords, stride=None) == 512
    refused(GraphError, " 512 ", check_stride, coords, stride=256.0)
    coords = torch.tensor([[0, 0], [300, 400], [600, 800], [900, 1200]])
    assert check_stride(coords, stride=None) == 500
    assert check_stride(coords[:1], stride=None) == 1
    assert check_stride(coords[:0], stride=None) == 1
    far = torch.arange(12)[:, None] * torch.tensor([5000, 7001])
    with pytest.raises(GraphError, match="s1"):
        grid(far, stride=512.0, name="s1")
    unfilled = torch.zeros(50_000, 2, dtype=torch.long)
    with pytest.raises(GraphError, match="50000 patches"):
        grid(unfilled, stride=512.0)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 30), k=st.integers(1, 9), axes=st.integers(1, 2), seed=st.integers(0, 99))
def test_k_nearest_neighbours(n, k, axes, seed):
    c = np.random.default_rng(seed).normal(size=(n, axes))
    expected = set()
    for i in range(n):
        others = sorted((math.dist(c[i], c[j]), j) for j in range(n) if j != i)
        expected |= {(min(i, j), max(i, j)) for _, j in others[:k]}
    assert pairs(knn(torch.from_numpy(c), k=k)) == expected


def test_instances_at_one_spot_have_k_neighbours_and_not_themselves():
    edges = pairs(knn(torch.zeros(30, 2), k=1))
    assert all(any(i in pair for pair in edges) for i in range(30))
    assert len(edges) <= 30


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 99))
def test_degrees_are_the_row_sums_of_the_dense_matrix(n, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(n, n, generator=generator, dtype=torch.float64)
    a = (a * (a > 0.5)).triu(1)
    edges = a.nonzero().T
    torch.testing.assert_close(
        degrees(edges, a[edges[0], edges[1]], n), (a + a.T).sum(1), rtol=1e-12, atol=0
    )


def dense_weight(x: np.ndarray, edges: Tensor, kind: str, scale: float | str) -> np.ndarray:
    d = [math.sqrt(sum((a - b) ** 2 for a, b in zip(x[i], x[j], strict=True))) for i, j in edges.T]
    m = float(np.median(d))
    numerator = {"median": m, "degree": 1.0}.get(scale, scale)
    formula = {
        "inverse": lambda v: numerator / max(v, 1e-3 * m),
        "exp": lambda v: math.exp(-v / x.shape[1]),
        "rbf": lambda v: math.exp(-(v**2) / (2 * m**2)),
        "binary": lambda _: 1.0,
    }[kind]
    weights = np.array([formula(v) for v in d])
    if scale != "degree":
        return weights
    adjacency = np.zeros((len(x), len(x)))
    for (i, j), w in zip(edges.T.tolist(), weights, strict=True):
        adjacency[i, j] = adjacency[j, i] = w
    degrees = adjacency.sum(1)
    return weights / degrees[degrees > 0].mean()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [4, 5])  # 29 and 38 edges: an odd and an even number
@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("inverse", "median"),
        ("inverse", 1.0),
        ("inverse", 3.0),
        *((kind, 1.0) for kind in ("exp", "rbf", "binary")),
        *((kind, "degree") for kind in ("inverse", "exp", "rbf", "binary")),
    ],
)
def test_weights_follow_their_formulas(kind, scale, columns, dtype):
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(columns * 3, 7, generator=generator).to(dtype)
    x[1] = x[0]  # a distance of 0 is clamped
    edges = grid(lattice(columns, 3))
    weights = edge_weights(x, edges, kind=kind, scale=scale)
    expected = dense_weight(x.double().numpy(), edges, kind, scale)
    assert weights.dtype == torch.float32
    np.testing.assert_allclose(weights.numpy(), expected, rtol=2e-6)


@pytest.mark.parametrize("kind", ["inverse", "rbf"])
def test_identical_neighbours_weigh_1(kind):
    x = torch.ones(6, 3)
    x[5] = 2  # most distances are 0, so their median is 0
    assert edge_weights(x, chain(6), kind=kind).tolist() == [1.0] * 5


def test_the_mean_degree_is_1_on_every_graph():
    """And isolated instances do not count."""
    c = torch.cat([lattice(6, 5, step=512), torch.tensor([[100_000, 0], [200_000, 0]])])
    x = torch.randn(len(c), 7, generator=torch.Generator().manual_seed(0))
    for edges in (chain(30), grid(c, stride=512.0), knn(c[:30], k=4)):
        weights = edge_weights(x, edges, scale="degree")
        degree = degrees(edges, weights.double(), len(x))
        assert float(degree[degree > 0].mean()) == pytest.approx(1, abs=1e-6)
        assert float(edge_weights(x, edges, scale="median").median()) == pytest.approx(1)


def test_distances_need_no_tensor_of_all_edges():
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                self.numel = max(self.numel, out.numel())
            return out

    x = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    edges = knn(x[:, :2], k=8)
    whole = (x[edges[0]] - x[edges[1]]).norm(dim=1)
    with Largest() as seen:
        blockwise = _distances(x, edges, block=100)
    torch.testing.assert_close(blockwise, whole, rtol=1e-6, atol=0)
    assert edges.shape[1] > 1500
    assert seen.numel <= max(100 * 32, edges.numel())


def test_real_slides_give_the_graph_of_all_pairs(shared_data):
    """Patches sampled on 29 slides of CAMELYON16, snapped to a grid of 1024 px."""
    centres: dict[str, list[tuple[int, int]]] = defaultdict(list)
    path = shared_data / "labels_splits" / "camelyon16_ncrf_valid_patch_coords.csv.gz"
    with gzip.open(path, "rt") as f:
        for row in csv.DictReader(f):
            centres[row["slide"]].append((int(row["x_center"]), int(row["y_center"])))
    assert len(centres) == 29
    for slide, points in centres.items():
        cells = np.unique(np.array(points) // 1024, axis=0)
        coords = torch.from_numpy(cells * 1024)
        edges = grid(coords, stride=1024.0, name=slide)
        assert len(cells) > 100
        i, j = np.triu_indices(len(cells), 1)
        near = np.abs(cells[i] - cells[j]).max(1) == 1
        np.testing.assert_array_equal(edges.numpy(), np.stack([i[near], j[near]]))
        assert torch.equal(grid(coords), edges)  # with an estimated stride
        with pytest.raises(GraphError, match=slide):
            grid(coords, stride=512.0, name=slide)


def test_weights_that_are_all_0_are_not_divided_by_their_degrees():
    x = torch.tensor([[0.0], [1e6], [3e6]])
    edges = torch.tensor([[0, 1], [1, 2]])
    assert edge_weights(x, edges, kind="exp", scale="degree").tolist() == [0, 0]


SERIES = {
    "numbers": np.arange(12),
    "uneven": np.cumsum([0.0, 2.5, 2.5, 5, 1, 1, 7.5, 2.5, 2.5, 0.5, 3]) - 40,
    "single precision": np.arange(9, dtype=np.float32) / 3,
    "one slice": np.array([7.0]),
    "two slices": np.array([7, 3]),
}


@pytest.mark.parametrize("order", ["rising", "falling", "as text", "shuffled"])
@pytest.mark.parametrize("series", SERIES)
def test_neighbours_of_a_slice_are_those_next_in_position(series, order):
    positions = np.sort(SERIES[series])
    rows = {
        "rising": np.arange(len(positions)),
        "falling": np.arange(len(positions))[::-1],
        "as text": np.array(sorted(range(len(positions)), key=str)),
        "shuffled": np.random.default_rng(3).permutation(len(positions)),
    }[order]
    edges = chain(len(rows), torch.from_numpy(positions[rows].copy()))
    by_position = {tuple(sorted((rows[i], rows[j]))) for i, j in pairs(edges)}
    assert by_position == {(i, i + 1) for i in range(len(positions) - 1)}
    if order in ("rising", "falling"):
        assert torch.equal(edges, chain(len(rows)))


@pytest.mark.parametrize(
    ("positions", "order"),
    [
        ([1, 2, 2, 3], [0, 1, 2, 3]),
        ([3, 2, 2, 1], [0, 1, 2, 3]),
        ([5, 5, 5], [0, 1, 2]),
        ([2, 3, 2, 1], [3, 0, 2, 1]),
        ([0.0, -0.0, -1.0, 0.0, 1.0], [2, 0, 1, 3, 4]),
    ],
)
def test_slices_at_one_position_follow_one_another_in_row_order(positions, order):
    assert slice_order(np.array(positions)).tolist() == order
    edges = pairs(chain(len(order), torch.tensor(positions)))
    assert edges == {tuple(sorted(pair)) for pair in pairwise(order)}
