"""Stage 4: the graph of neighbouring instances, weighted by the similarity of their features.

Graphs are undirected; each pair is stored once (i < j), sorted, without self-loops, so a sum over
edges equals the paper's ½ Σ_ij. They are built once per bag, without any N×N array.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from scipy.spatial import KDTree
from torch import Tensor

from ..errors import BagError, GraphError
from .graph_options import GraphKind, GraphOptions, WeightKind, WeightScale
from .store import StoredBag

ENOUGH = 8
"""Fewest gaps between patches of one row or column that can contradict a stated stride."""
SUSPICIOUS = 10
"""Smallest number of patches for which a graph without edges is rejected."""
CROWDED = 32
"""Mean number of neighbours above which a graph is rejected; a full lattice has 8."""
DISTANCE_TOLERANCE = 0.02
"""Relative tolerance within which two distances count as equal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The edges of one bag with their weights, and the stride used to build them."""

    edges: Int[Tensor, "2 e"]
    weights: Float[Tensor, " e"]
    stride: float | None


def resolve_kind(kind: GraphKind, bag: StoredBag) -> GraphKind:
    """Return the kind of graph that a bag gets, in place of 'auto'."""
    if kind != "auto":
        return kind
    if bag.inferred_kind == "ct":
        return "chain"
    if bag.coords is None:
        return "none"
    return "chain" if bag.coords.shape[1] == 1 else "grid"


def build_graph(
    stored: StoredBag, *, options: GraphOptions, weights: Float[Tensor, " e"] | None = None
) -> Graph:
    """Build the graph of one bag; see `GraphOptions`.

    Args:
        stored: The bag.
        options: How its graph is built.
        weights: Weights that were made earlier of the same bag with the same options. They take
            most of the time; None: they are computed from the features.

    Raises:
        GraphError: the graph needs coordinates that are missing or contradict the stride.
    """
    name = stored.name
    kind = resolve_kind(options.kind, stored)
    stride = stored.stride if options.stride is None else options.stride
    x = torch.from_numpy(stored.features)
    if kind in ("grid", "knn") and stored.coords is None:
        raise GraphError(
            f"bag {name!r} has no coordinates, which the graph {kind!r} is built from: "
            "give --graph chain or --graph none"
        )
    coords = x[:, :0] if stored.coords is None else torch.from_numpy(stored.coords)
    if kind == "chain":
        one_axis = stored.coords is not None and stored.coords.shape[1] == 1
        edges = chain(len(x), coords[:, 0] if one_axis else None)
    elif kind == "knn":
        edges = knn(coords, k=options.neighbours)
    elif kind == "none":
        edges = torch.zeros(2, 0, dtype=torch.long)
    else:
        if coords.shape[1] != 2:
            raise GraphError(
                f"bag {name!r} has one coordinate per instance, but the graph 'grid' needs x "
                "and y: give --graph chain"
            )
        if len(x) > 1:
            stride = check_stride(coords, stride=stride, name=name)
        edges = grid(coords, stride=stride, name=name)
    if weights is None:
        scale = options.weight_scale
        assert scale is not None  # GraphOptions reads null as 'median'
        weights = edge_weights(x, edges, kind=options.edge_weights, scale=scale)
    return Graph(edges=edges, weights=weights, stride=stride)


def chain(n: int, positions: Shaped[Tensor, " n"] | None = None) -> Int[Tensor, "2 e"]:
    """Join each slice to the next in position; see `slice_order`.

    Args:
        n: Number of slices.
        positions: Position of each slice; None: they follow one another in row order.
    """
    order = np.arange(n) if positions is None else slice_order(positions.numpy())
    return torch.from_numpy(_unique_pairs(np.stack([order[:-1], order[1:]]), n))


def slice_order(positions: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the rows of a scan's slices, in the order of their positions.

    Slices at one position follow one another in row order. Rows whose positions never fall, or
    never rise, are in order already and stay as they are.
    """
    if (positions[1:] <= positions[:-1]).all():
        return np.arange(len(positions))
    return np.argsort(positions, kind="stable")


def grid(
    coords: Shaped[Tensor, "n 2"], *, stride: float | None = None, name: str = "bag"
) -> Int[Tensor, "2 e"]:
    """Join each patch to the 8 adjacent ones, by the coordinates of their top-left corners.

    If all patches lie on one lattice, neighbours are looked up by cell. Otherwise (CLAM starts a
    new lattice at every tissue contour), all pairs within √2 · stride are joined.

    Args:
        coords: Corners, in the same unit as `stride`.
        stride: Distance between neighbours; None estimates it.
        name: Name of the bag in error messages.

    Raises:
        GraphError: the stride contradicts the coordinates, no patch has a neighbour, or the
            patches have far too many.
    """
    corners = coords.double().numpy()
    if len(corners) < 2:
        return torch.zeros(2, 0, dtype=torch.long)
    spacing = check_stride(coords, stride=stride, name=name)
    cells = np.rint((corners - corners.min(0)) / spacing).astype(np.int64)
    on_lattice = (
        np.abs(corners - corners.min(0) - cells * spacing).max() <= DISTANCE_TOLERANCE * spacing
    )
    edges = _lattice_pairs(cells) if on_lattice else None
    if edges is None:
        edges = _radius_pairs(corners, np.sqrt(2) * spacing, name=name)
    if edges.shape[1] == 0 and len(corners) >= SUSPICIOUS:
        raise GraphError(
            f"{name}: none of its {len(corners)} patches has a neighbour at a stride of "
            f"{spacing:g}. The stride and the coordinates are probably in different pixels (target "
            "magnification instead of level 0): give --stride in the unit of the coordinates, or "
            "--graph none"
        )
    return torch.from_numpy(edges)


def knn(coords: Shaped[Tensor, "n axes"], *, k: int = 8) -> Int[Tensor, "2 e"]:
    """Join each instance to its k nearest by coordinates; the union over both directions."""
    n = len(coords)
    if n < 2:
        return torch.zeros(2, 0, dtype=torch.long)
    points = coords.double().numpy()
    nearest_rows = np.asarray(KDTree(points).query(points, k=min(k + 1, n))[1])
    rows = np.broadcast_to(np.arange(n)[:, None], nearest_rows.shape)
    is_other = nearest_rows != rows
    # Where more than k + 1 instances coincide, a row may not be among its own nearest.
    is_other[is_other.all(axis=1), -1] = False
    return torch.from_numpy(_unique_pairs(np.stack([rows[is_other], nearest_rows[is_other]]), n))


def check_stride(
    coords: Shaped[Tensor, "n 2"], *, stride: float | None, name: str = "bag"
) -> float:
    """Return the stated stride if the coordinates agree with it, or an estimate if it is None.

    The stride is contradicted if the most common distance within rows and columns differs by more
    than 2 %, with two exceptions: it is larger but the stated one occurs as well (sparse patches),
    or it is smaller but not dominant (the lattices of CLAM's contours overlap).

    Raises:
        GraphError: the coordinates contradict the stride; the message names the likely cause.
    """
    corners = coords.double().numpy()
    gaps = _gaps(corners)
    if stride is None:
        return _most_common(gaps) if len(gaps) else _median_nearest(corners)
    if len(gaps) < ENOUGH:
        return float(stride)
    estimate = _most_common(gaps)
    ratio = estimate / stride
    agree = abs(ratio - 1) <= DISTANCE_TOLERANCE
    sparse = ratio > 1 and np.mean(np.abs(gaps / stride - 1) <= DISTANCE_TOLERANCE) >= 0.1
    mixed = ratio < 1 and np.mean(np.abs(gaps / estimate - 1) <= DISTANCE_TOLERANCE) <= 0.6
    if agree or sparse or mixed:
        return float(stride)
    cause = (
        "the stated size is probably at the target magnification, not at level 0"
        if ratio > 1
        else "the patches probably overlap, or the size belongs to another run"
    )
    raise GraphError(
        f"{name}: patches are stated to lie {stride:g} apart, but the coordinates say "
        f"{estimate:g} ({ratio:.3g} times that): {cause}. Give --stride"
    )


def _most_common(gaps: np.ndarray) -> float:
    """Return the distance that most gaps agree with; a median would double on sparse patches."""
    ranked = np.sort(gaps)
    first = np.searchsorted(ranked, ranked * (1 - DISTANCE_TOLERANCE))
    last = np.searchsorted(ranked, ranked * (1 + DISTANCE_TOLERANCE), side="right")
    best = int(np.argmax(last - first))
    return float(np.median(ranked[first[best] : last[best]]))


def _median_nearest(corners: np.ndarray) -> float:
    """Return the median distance to the nearest other patch, for patches without a lattice."""
    if len(corners) < 2:
        return 1.0
    return float(np.median(KDTree(corners).query(corners, k=2)[0][:, 1])) or 1.0


def _gaps(corners: np.ndarray) -> np.ndarray:
    """Return the distances between consecutive patches of each row and of each column."""
    gaps = []
    for along, across in ((0, 1), (1, 0)):
        order = np.lexsort((corners[:, along], corners[:, across]))
        step = np.diff(corners[order, along])
        gaps.append(step[(np.diff(corners[order, across]) == 0) & (step > 0)])
    return np.concatenate(gaps)


def _lattice_pairs(cells: np.ndarray) -> np.ndarray | None:
    """Return the pairs of adjacent cells; None if two patches share a cell."""
    width = cells[:, 0].max() + 3  # with a free column on either side, no pair wraps around
    key = cells[:, 1] * width + cells[:, 0]
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    if (np.diff(ranked) == 0).any():
        return None
    pairs = []
    for step in (1, width - 1, width, width + 1):
        position = np.searchsorted(ranked, ranked + step)
        hit = np.flatnonzero(ranked[np.minimum(position, len(ranked) - 1)] == ranked + step)
        pairs.append(np.stack([order[hit], order[position[hit]]]))
    return _unique_pairs(np.concatenate(pairs, axis=1), len(cells))


def _radius_pairs(corners: np.ndarray, radius: float, *, name: str) -> np.ndarray:
    """Return pairs within `radius` (+ 2 %); count first, as coinciding patches give n² pairs."""
    tree = KDTree(corners)
    degree = tree.count_neighbors(tree, radius * (1 + DISTANCE_TOLERANCE)) / len(corners) - 1
    if degree > CROWDED:
        raise GraphError(
            f"{name}: its {len(corners)} patches have {degree:.3g} neighbours on average within "
            f"{radius:.4g}, where 8 are expected: the stride is too large for the coordinates, or "
            "these are placeholders. Give --stride in their unit, or --graph knn"
        )
    return _unique_pairs(
        tree.query_pairs(radius * (1 + DISTANCE_TOLERANCE), output_type="ndarray").T, len(corners)
    )


def _unique_pairs(pairs: np.ndarray, n: int) -> np.ndarray:
    """Return each pair once as i < j, sorted, without self-loops."""
    low = pairs.min(0)
    high = pairs.max(0)
    # np.unique hashes integers, which takes a hundred times as long as this sort.
    key = np.sort((low.astype(np.int64) * n + high)[low != high])
    key = key[np.diff(key, prepend=-1) > 0]
    return np.stack(np.divmod(key, n))


def undirected(
    edges: Int[Tensor, "2 e"], weights: Float[Tensor, " e"], *, name: str = "bag"
) -> tuple[Int[Tensor, "2 m"], Float[Tensor, " m"]]:
    """Return each pair once: drop self-loops, and merge repeats whose weights agree.

    Raises:
        BagError: a pair is given more than once with different weights.
    """
    keep = edges[0] != edges[1]
    low = edges[:, keep].amin(0)
    high = edges[:, keep].amax(0)
    width = int(high.max()) + 1 if len(high) else 1
    key, group = torch.unique(low * width + high, return_inverse=True)
    w = weights[keep]
    merged = w.new_zeros(len(key)).scatter(0, group, w)
    conflicts = ~torch.isclose(merged[group], w, rtol=1e-5, atol=0)
    if bool(conflicts.any()):
        k = int(conflicts.nonzero()[0])
        raise BagError(
            f"bag {name!r}: the pair ({int(low[k])}, {int(high[k])}) is given more than once "
            f"with different weights ({float(w[k]):g} and {float(merged[group[k]]):g})"
        )
    return torch.stack([key // width, key % width]), merged


def degrees(edges: Int[Tensor, "2 e"], weights: Float[Tensor, " e"], n: int) -> Float[Tensor, " n"]:
    """Return D_n = Σ_i A_ni, from pairs stored once."""
    degree = weights.new_zeros(n)
    return degree.index_add(0, edges[0], weights).index_add_(0, edges[1], weights)


def edge_weights(
    x: Float[Tensor, "n features"],
    edges: Int[Tensor, "2 e"],
    *,
    kind: WeightKind = "inverse",
    scale: WeightScale | float = 1.0,
) -> Float[Tensor, " e"]:
    """Return the weight of each edge, by the similarity of its instances' stored features.

    With d = ‖x_i − x_j‖ and m = the median d of the bag: `inverse` is s / max(d, 10⁻³ m), where s
    is a number given as `scale`, or m for the scale 'median'; `exp` is exp(−d / P); `rbf` is
    exp(−d² / 2m²); `binary` is 1. Weights are 1 if m = 0. The scale 'degree' divides the weights of
    any kind by the mean degree of the instances that have neighbours, which is then 1. The smooth
    attention prior is thereby equally strong on graphs with few and with many edges.
    """
    if edges.shape[1] == 0:
        return torch.ones(0)
    weights = torch.ones(edges.shape[1])
    if kind != "binary":
        distance = _distances(x, edges)
        median = float(np.median(distance.numpy()))
        if kind == "exp":
            weights = (-distance / x.shape[1]).exp()
        # if half of the neighbours are identical, there is no scale
        elif kind == "rbf" and median:
            weights = (-distance.square() / (2 * median**2)).exp()
        elif median:
            if scale == "median":
                numerator = median
            else:
                numerator = 1.0 if scale == "degree" else scale
            weights = numerator / distance.clamp_min(1e-3 * median)
    if scale != "degree":
        return weights
    degree = degrees(edges, weights.double(), len(x))
    if not bool((degree > 0).any()):
        return weights  # `exp` of features that are far apart may be 0 everywhere
    return (weights / degree[degree > 0].mean()).to(weights.dtype)


def _distances(x: Tensor, edges: Tensor, *, block: int = 256) -> Float[Tensor, " e"]:
    """Compute ‖x_i − x_j‖ in blocks: at once, 80,000 edges at P = 2048 would take 650 MB.

    The result is allocated first. Small results allocated between large temporaries would fragment
    the heap and cost as much memory as the blocks save.
    """
    distance = torch.empty(edges.shape[1])
    for start in range(0, edges.shape[1], block):
        i, j = edges[:, start : start + block]
        distance[start : start + block] = x[i].float().sub_(x[j]).norm(dim=1)
    return distance
