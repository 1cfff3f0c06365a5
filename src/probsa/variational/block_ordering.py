"""An elimination order for sparse precision matrices: blocks that only touch the next block.

Breadth-first levels of a graph have edges within a level and between neighbouring levels only, so
a precision matrix sorted by level is block tridiagonal, whatever the graph. A lattice of n patches
has levels of about √n patches; a chain has levels of one, which are merged into larger blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

DENSE = 256
"""Bags of at most this many instances are one block."""
BLOCK = 64
"""Levels are merged into blocks of about this many instances; a wider level is one block."""


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """A permutation of the instances of a bag, cut into consecutive blocks."""

    order: np.ndarray
    """(n,): the instance at each position."""
    sizes: Sequence[int]
    """Number of instances of each block."""

    @property
    def stored(self) -> int:
        """Number of elements of the diagonal and subdiagonal blocks."""
        own = sum(n * n for n in self.sizes)
        return own + sum(a * b for a, b in zip(self.sizes, self.sizes[1:], strict=False))


def block_order(edges: np.ndarray, n: int, *, coords: np.ndarray | None = None) -> BlockOrder:
    """Return an order in which edges join instances of the same or of consecutive blocks.

    Args:
        edges: (2, e), each pair once.
        n: number of instances.
        coords: (n, axes): with them the levels are strips across the bag, as the rows of a
            lattice, where those are narrower than breadth-first levels.
    """
    if n <= DENSE:
        return BlockOrder(np.arange(n), [n])
    found = [] if coords is None else [_strips(edges, c) for c in coords.T]
    if not found or min(map(_widest, found)) > 2 * np.sqrt(n):
        found.append(_levels(edges, n))
    level = min(found, key=_widest)
    order = np.argsort(level, kind="stable")
    counts = np.bincount(level)
    block = (counts.cumsum() - 1) // BLOCK
    sizes = np.bincount(block, weights=counts).astype(int)
    return BlockOrder(order, sizes[sizes > 0].tolist())


def _widest(level: np.ndarray) -> int:
    return int(np.bincount(level).max())


def _strips(edges: np.ndarray, coordinate: np.ndarray) -> np.ndarray:
    """Return the strip of each instance along an axis; a strip is as wide as the longest edge."""
    i, j = edges
    reach = np.abs(coordinate[i] - coordinate[j]).max(initial=0)
    values = coordinate - coordinate.min()
    if reach == 0:  # no edge crosses: every value is a level of its own
        return np.unique(values, return_inverse=True)[1]
    # slightly narrower strips would let a rounding error put an edge's ends two strips apart
    strip = np.floor(values / (reach * (1 + 1e-9))).astype(np.int64)
    return np.unique(strip, return_inverse=True)[1]


def _levels(edges: np.ndarray, n: int) -> np.ndarray:
    """Return the breadth-first level of each instance; components follow one another."""
    ones = np.ones(edges.shape[1])
    graph = sp.coo_matrix((ones, (edges[0], edges[1])), shape=(n, n)).tocsr()
    parts, part = connected_components(graph, directed=False)
    first = np.unique(part, return_index=True)[1]
    # levels from an end of a component are narrower than levels from somewhere inside
    depth = np.zeros(n, np.int64)
    for _ in range(2):
        depth = dijkstra(graph, directed=False, indices=first, unweighted=True, min_only=True)
        depth = depth.astype(np.int64)
        farthest = np.lexsort((depth, part))
        first = farthest[np.cumsum(np.bincount(part, minlength=parts)) - 1]
    depths = depth[first] + 1
    return depth + (np.cumsum(depths) - depths)[part]
