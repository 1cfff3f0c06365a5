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
BLOCK = 96
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


def block_order(edges: np.ndarray, n: int) -> BlockOrder:
    """Return an order in which edges join instances of the same or of consecutive blocks.

    Args:
        edges: (2, e), each pair once.
        n: number of instances.
    """
    if n <= DENSE:
        return BlockOrder(np.arange(n), [n])
    level = _levels(edges, n)
    order = np.argsort(level, kind="stable")
    counts = np.bincount(level)
    block = (counts.cumsum() - 1) // BLOCK
    sizes = np.bincount(block, weights=counts).astype(int)
    return BlockOrder(order, sizes[sizes > 0].tolist())


def _levels(edges: np.ndarray, n: int) -> np.ndarray:
    """Return the breadth-first level of each instance; components follow one another."""
    ones = np.ones(edges.shape[1])
    graph = sp.coo_matrix((ones, (edges[0], edges[1])), shape=(n, n)).tocsr()
    parts, part = connected_components(graph, directed=False)
    first = np.unique(part, return_index=True)[1]
    # levels from an end of a component are narrower than levels from somewhere inside
    for _ in range(2):
        depth = dijkstra(graph, directed=False, indices=first, unweighted=True, min_only=True)
        depth = depth.astype(np.int64)
        farthest = np.lexsort((depth, part))
        first = farthest[np.cumsum(np.bincount(part, minlength=parts)) - 1]
    depths = depth[first] + 1
    return depth + (np.cumsum(depths) - depths)[part]
