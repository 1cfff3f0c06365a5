"""Nested dissection (George 1973): an order of elimination in which sparse factors stay sparse.

A separator cuts the graph in two, and each half is cut again: a binary tree of separators, whose
leaves are what is left. Leaves are eliminated first. The rows of a node's instances then only have
entries in its *boundary*: the instances of nodes above it to which its subtree has edges.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Shaped
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, dijkstra


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The 2^k nodes at depth k; the children of node m are the nodes 2m and 2m + 1 at depth k + 1.

    Each node has a square matrix, whose rows are its instances (*pivots*), then its boundary. Nodes
    with fewer of them are filled up with n, the number of instances of the graph.
    """

    pivots: Int[np.ndarray, "nodes p"]
    boundary: Int[np.ndarray, "nodes b"]
    above: Int[np.ndarray, "nodes b"]
    """The row of each boundary instance in the matrix of the parent node; 0 for fillers."""
    edges: Int[np.ndarray, " e_k"]
    """The edges whose entries are in the level's matrices."""
    entries: Int[np.ndarray, "3 e_k"]
    """The node, row and column of each of these entries, below the diagonal."""

    @property
    def size(self) -> int:
        """The number of rows of a matrix."""
        return self.pivots.shape[1] + self.boundary.shape[1]


def dissect(
    edges: Int[np.ndarray, "2 e"],
    n: int,
    *,
    coords: Shaped[np.ndarray, "n axes"] | None = None,
    leaf: int,
) -> list[Level]:
    """Return the levels of the tree of a graph, the root first.

    Args:
        edges: Each pair once.
        n: Number of instances.
        coords: Positions in space; without them, distances in the graph are used.
        leaf: Largest number of instances of a leaf.
    """
    bottom = max(0, int(np.ceil(np.log2(n / leaf))))
    coords = _distances(edges, n) if coords is None else coords
    reach = np.ptp(coords, 0).astype(float)
    place = np.empty(coords.T.shape, np.int64)
    """The place of each instance along each axis."""
    for axis, c in enumerate(coords.T):
        place[axis, np.lexsort([*coords.T, c])] = np.arange(n)
    depth, node = np.full(n, bottom, np.int8), np.empty(n, np.int64)
    part, active, (i, j) = np.zeros(n, np.int64), np.arange(n), edges
    for k in range(bottom):
        axis = reach.argmax()
        reach[axis] /= 2
        active = active[np.argsort(part[active] * n + place[axis, active])]
        count = np.bincount(part[active], minlength=2**k)
        rank = np.arange(len(active)) - (count.cumsum() - count).repeat(count)
        part[active] = 2 * part[active] + (2 * rank >= count.repeat(count))
        apart = part[i] ^ part[j]
        cut = np.flatnonzero(apart == 1)
        separator = np.where(part[i[cut]] & 1, j[cut], i[cut])
        depth[separator], node[separator] = k, part[separator] >> 1
        part[separator] = -1
        active = active[part[active] >= 0]
        within = np.flatnonzero(apart == 0)
        i, j = i[within], j[within]
    node[active] = part[active]
    return levels_of(edges, depth, node)


def _distances(edges: Int[np.ndarray, "2 e"], n: int) -> Shaped[np.ndarray, "n 2"]:
    """Return two coordinates of each instance, from its distances in the graph to four far ends.

    For a square lattice, these are its axes.
    """
    graph = coo_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n)).tocsr()
    parts, part = connected_components(graph, directed=False)
    last = np.bincount(part, minlength=parts).cumsum() - 1
    ends, nearest = [], np.zeros(n)
    for k in range(5):
        start = np.lexsort((nearest, part))[last]  # one end of each connected component
        away = dijkstra(graph, directed=False, indices=start, unweighted=True, min_only=True)
        nearest = away if k < 2 else np.minimum(nearest, away)
        ends.append(away)
    _, a, b, c, d = ends
    return np.stack([a - b + c - d, a - b - c + d], 1)


def levels_of(
    edges: Int[np.ndarray, "2 e"],
    depth: Int[np.ndarray, " n"],
    node: Int[np.ndarray, " n"],
    *,
    roots: int = 1,
    multiple: int = 1,
) -> list[Level]:
    """Return the levels of one or several trees from each instance's depth and its node there.

    The numbers of pivots are filled up to a multiple.
    """
    n, bottom = len(depth), int(depth.max())
    low, high = np.where(depth[edges[0]] > depth[edges[1]], edges, edges[::-1])
    by_depth = np.argsort(depth[low], kind="stable")
    at = np.split(by_depth, np.bincount(depth[low], minlength=bottom + 1).cumsum()[:-1])
    # a member of a boundary is one number, node * n + instance
    members = [np.empty(0, np.int64)] * (bottom + 2)
    for k in range(bottom, 0, -1):
        across = at[k][depth[high[at[k]]] < k]
        of_children = members[k + 1][depth[members[k + 1] % n] < k]
        inherited = of_children // n // 2 * n + of_children % n
        found = np.sort(np.r_[node[low[across]] * n + high[across], inherited])
        members[k] = found[np.r_[True, found[1:] != found[:-1]][: len(found)]]
    row, tables, columns = np.empty(n, np.int64), [], []
    for k in range(bottom + 1):
        own = np.flatnonzero(depth == k)
        own = own[np.argsort(node[own], kind="stable")]
        nodes = roots * 2**k
        pivots, row[own] = _table(node[own], own, nodes=nodes, filler=n, multiple=multiple)
        boundary, column = _table(*np.divmod(members[k], n), nodes=nodes, filler=n)
        tables.append((pivots, boundary))
        columns.append(column + pivots.shape[1])

    def rows(k: int, of_node: np.ndarray, instance: np.ndarray) -> np.ndarray:
        """Return the row of each instance in the matrix of a node at depth k."""
        found, further = row[instance], np.flatnonzero(depth[instance] < k)
        key = of_node[further] * n + instance[further]
        found[further] = columns[k][np.searchsorted(members[k], key)]
        return found

    levels = []
    for k, (pivots, boundary) in enumerate(tables):
        of_node, instance = np.divmod(members[k], n)
        in_parent = rows(k - 1, of_node // 2, instance)
        i, j = low[at[k]], high[at[k]]
        ends = np.sort([row[i], rows(k, node[i], j)], 0)
        levels.append(
            Level(
                pivots=pivots,
                boundary=boundary,
                above=_table(of_node, in_parent, nodes=len(pivots), filler=0)[0],
                edges=at[k],
                entries=np.stack([node[i], *ends[::-1]]),
            )
        )
    return levels


def _table(
    node: Int[np.ndarray, " m"],
    instance: Int[np.ndarray, " m"],
    *,
    nodes: int,
    filler: int,
    multiple: int = 1,
) -> tuple[Int[np.ndarray, "nodes width"], Int[np.ndarray, " m"]]:
    """Return a row of instances for each node, and the column of each; nodes are in order."""
    count = np.bincount(node, minlength=nodes)
    column = np.arange(len(node)) - (count.cumsum() - count)[node]
    width = -(-count.max(initial=0) // multiple) * multiple
    rows = np.full((nodes, width), filler)
    rows[node, column] = instance
    return rows, column
