"""Stage 4: the graph of neighbouring instances: who is next to whom, and how alike they look.

Every graph here is undirected with each pair stored once (i < j), sorted, without self-loops, so
Σ over edges is the paper's ½ Σ_ij. Built once per bag, vectorised, without any N×N array.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from scipy.spatial import KDTree
from torch import Tensor

from ..errors import BagError, GraphError
from .graph_options import WeightKind

ENOUGH = 8
"""Gaps between patches of one row or column below which the coordinates prove no stride wrong."""
SUSPICIOUS = 10
"""Patches of a slide that cannot all lie apart: from here on a graph without edges is refused."""
CROWDED = 32
"""Neighbours a patch on average (8 is a full lattice) from which on a graph is refused."""
AGREES = 0.02
"""Relative difference within which two distances are the same."""


def chain(n: int) -> Int[Tensor, "2 e"]:
    """Each slice with the next, in row order."""
    i = torch.arange(max(n - 1, 0))
    return torch.stack([i, i + 1])


def grid(
    coords: Shaped[Tensor, "n 2"], *, stride: float | None = None, name: str = "bag"
) -> Int[Tensor, "2 e"]:
    """The 8 adjacent patches, by coordinates (top-left corners, any unit).

    On one lattice neighbours are looked up by cell; otherwise (CLAM starts a lattice at every
    tissue contour) all pairs within √2 · stride are joined.

    Args:
        coords: corners, in the unit of `stride`.
        stride: distance between neighbours; None estimates it.
        name: named in errors.

    Raises:
        GraphError: the stride contradicts the coordinates, or many patches have no neighbour.
    """
    c = coords.double().numpy()
    if len(c) < 2:
        return torch.zeros(2, 0, dtype=torch.long)
    p = check_stride(coords, stride=stride, name=name)
    cells = np.rint((c - c.min(0)) / p).astype(np.int64)
    on_lattice = np.abs(c - c.min(0) - cells * p).max() <= AGREES * p
    found = _lattice_pairs(cells) if on_lattice else None
    edges = _radius_pairs(c, np.sqrt(2) * p, name=name) if found is None else found
    if edges.shape[1] == 0 and len(c) >= SUSPICIOUS:
        raise GraphError(
            f"{name}: none of its {len(c)} patches has a neighbour at a stride of {p:g}. "
            "The stride is probably in other pixels than the coordinates (target magnification "
            "instead of level 0): give --stride in the unit of the coordinates, or --graph none"
        )
    return torch.from_numpy(edges)


def knn(coords: Shaped[Tensor, "n axes"], *, k: int = 8) -> Int[Tensor, "2 e"]:
    """Each instance with its k nearest by coordinates; a pair is joined if either names it."""
    n = len(coords)
    if n < 2:
        return torch.zeros(2, 0, dtype=torch.long)
    c = coords.double().numpy()
    near = np.asarray(KDTree(c).query(c, k=min(k + 1, n))[1])
    rows = np.broadcast_to(np.arange(n)[:, None], near.shape)
    other = near != rows
    other[other.all(axis=1), -1] = False  # of instances at one spot, k + 1 may come before oneself
    return torch.from_numpy(_once(np.stack([rows[other], near[other]]), n))


def check_stride(
    coords: Shaped[Tensor, "n 2"], *, stride: float | None, name: str = "bag"
) -> float:
    """The stated stride if the coordinates agree with it; the estimated one if none is stated.

    They disagree if the commonest distance within rows and columns is another one, by more than
    2 %. Not if it is larger and the stated one occurs as well (the patches are only sparse), nor
    if it is smaller and not the rule (the lattices of CLAM's contours lie over one another).

    Raises:
        GraphError: they disagree; the message names the likely cause.
    """
    c = coords.double().numpy()
    gaps = _gaps(c)
    if stride is None:
        return _commonest(gaps) if len(gaps) else _nearest(c)
    if len(gaps) < ENOUGH:
        return float(stride)
    usual = _commonest(gaps)
    ratio = usual / stride
    agree = abs(ratio - 1) <= AGREES
    sparse = ratio > 1 and np.mean(np.abs(gaps / stride - 1) <= AGREES) >= 0.1
    mixed = ratio < 1 and np.mean(np.abs(gaps / usual - 1) <= AGREES) <= 0.6
    if agree or sparse or mixed:
        return float(stride)
    cause = (
        "the stated size is probably at the target magnification, not at level 0"
        if ratio > 1
        else "the patches probably overlap, or the size belongs to another run"
    )
    raise GraphError(
        f"{name}: patches are stated to lie {stride:g} apart, but the coordinates say "
        f"{usual:g} ({ratio:.3g} times that): {cause}. Give --stride"
    )


def _commonest(gaps: np.ndarray) -> float:
    """The distance that most gaps agree with: a median would double on sparse patches."""
    ranked = np.sort(gaps)
    first = np.searchsorted(ranked, ranked * (1 - AGREES))
    last = np.searchsorted(ranked, ranked * (1 + AGREES), side="right")
    best = int(np.argmax(last - first))
    return float(np.median(ranked[first[best] : last[best]]))


def _nearest(c: np.ndarray) -> float:
    """Median distance to the nearest other patch, where no two share a row or a column."""
    if len(c) < 2:
        return 1.0
    return float(np.median(KDTree(c).query(c, k=2)[0][:, 1])) or 1.0


def _gaps(c: np.ndarray) -> np.ndarray:
    """Distances between consecutive patches of the same row, and of the same column."""
    found = []
    for along, across in ((0, 1), (1, 0)):
        order = np.lexsort((c[:, along], c[:, across]))
        step = np.diff(c[order, along])
        found.append(step[(np.diff(c[order, across]) == 0) & (step > 0)])
    return np.concatenate(found)


def _lattice_pairs(cells: np.ndarray) -> np.ndarray | None:
    """Pairs of adjacent cells; None if two patches share a cell (the lattice does not tell)."""
    width = cells[:, 0].max() + 3  # a free column on either side: no pair wraps around
    key = cells[:, 1] * width + cells[:, 0]
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    if (np.diff(ranked) == 0).any():
        return None
    pairs = []
    for step in (1, width - 1, width, width + 1):
        at = np.searchsorted(ranked, ranked + step)
        hit = np.flatnonzero(ranked[np.minimum(at, len(ranked) - 1)] == ranked + step)
        pairs.append(np.stack([order[hit], order[at[hit]]]))
    return _once(np.concatenate(pairs, axis=1), len(cells))


def _radius_pairs(c: np.ndarray, radius: float, *, name: str) -> np.ndarray:
    """Pairs within `radius`, to 2 %; counted first, since patches at one spot give n² of them."""
    tree = KDTree(c)
    degree = tree.count_neighbors(tree, radius * (1 + AGREES)) / len(c) - 1
    if degree > CROWDED:
        raise GraphError(
            f"{name}: its {len(c)} patches have {degree:.3g} neighbours on average within "
            f"{radius:.4g}, where 8 are expected: the stride is too large for the coordinates, or "
            "they were never filled in. Give --stride in their unit, or --graph knn"
        )
    return _once(tree.query_pairs(radius * (1 + AGREES), output_type="ndarray").T, len(c))


def _once(pairs: np.ndarray, n: int) -> np.ndarray:
    """Each pair once as i < j, sorted, no self-loops."""
    low, high = pairs.min(0), pairs.max(0)
    # Sorted by hand: np.unique hashes whole numbers, at a hundred times the cost of the sort.
    key = np.sort((low.astype(np.int64) * n + high)[low != high])
    key = key[np.diff(key, prepend=-1) > 0]
    return np.stack(np.divmod(key, n))


def undirected(
    edges: Int[Tensor, "2 e"], weights: Float[Tensor, " e"], *, name: str = "bag"
) -> tuple[Int[Tensor, "2 m"], Float[Tensor, " m"]]:
    """Each pair once: self-loops dropped, repeats merged if their weights agree.

    Raises:
        BagError: a pair is given twice with different weights.
    """
    keep = edges[0] != edges[1]
    low, high = edges[:, keep].amin(0), edges[:, keep].amax(0)
    width = int(high.max()) + 1 if len(high) else 1
    key, group = torch.unique(low * width + high, return_inverse=True)
    w = weights[keep]
    merged = w.new_zeros(len(key)).scatter(0, group, w)
    if bool((~torch.isclose(merged[group], w, rtol=1e-5, atol=0)).any()):
        at = int((~torch.isclose(merged[group], w, rtol=1e-5, atol=0)).nonzero()[0])
        raise BagError(
            f"bag {name!r}: the pair ({int(low[at])}, {int(high[at])}) is given more than once "
            f"with different weights ({float(w[at]):g} and {float(merged[group[at]]):g})"
        )
    return torch.stack([key // width, key % width]), merged


def degrees(edges: Int[Tensor, "2 e"], weights: Float[Tensor, " e"], n: int) -> Float[Tensor, " n"]:
    """D_n = Σ_i A_ni, from pairs stored once."""
    d = weights.new_zeros(n)
    return d.index_add(0, edges[0], weights).index_add_(0, edges[1], weights)


def edge_weights(
    x: Float[Tensor, "n features"],
    edges: Int[Tensor, "2 e"],
    *,
    kind: WeightKind = "inverse",
    scale: float | None = None,
) -> Float[Tensor, " e"]:
    """How alike two neighbours look: specification 6, from the features as stored.

    d = ‖x_i − x_j‖, m = the bag's median d.
    `inverse` s / max(d, 10⁻³ m), s = `scale` or m (then weights lie near 1 whatever the encoder);
    `exp` exp(−d / P); `rbf` exp(−d² / 2m²); `binary` 1.
    """
    if kind == "binary" or edges.shape[1] == 0:
        return torch.ones(edges.shape[1])
    d = _distances(x, edges)
    median = float(np.median(d.numpy()))
    if kind == "exp":
        return (-d / x.shape[1]).exp()
    if median == 0:  # at least half of the neighbours are identical: nothing to scale by
        return torch.ones_like(d)
    if kind == "rbf":
        return (-d.square() / (2 * median**2)).exp()
    return (median if scale is None else scale) / d.clamp_min(1e-3 * median)


def _distances(x: Tensor, edges: Tensor, *, block: int = 256) -> Float[Tensor, " e"]:
    """Blockwise: the differences of 80,000 edges at P = 2048 would be 650 MB at once.

    Into one tensor made beforehand: small results kept between large temporary ones leave holes
    that the allocator cannot use again, as large in sum as what the blocks were to save.
    """
    d = torch.empty(edges.shape[1])
    for start in range(0, edges.shape[1], block):
        i, j = edges[:, start : start + block]
        d[start : start + block] = x[i].float().sub_(x[j]).norm(dim=1)
    return d
