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
    place = np.empty(coords.T.shape, np.int64)  # of each instance along each axis
    for axis, c in enumerate(coords.T):
        place[axis, np.lexsort([*coords.T, c])] = np.arange(n)
    depth = np.full(n, bottom, np.int8)
    node = np.empty(n, np.int64)
    part = np.zeros(n, np.int64)  # the part of the graph that an instance is in, of 2^k
    active = np.arange(n)  # the instances that are in no separator yet
    i, j = edges  # the edges between these
    for k in range(bottom):
        # every part is cut along the axis in which the parts are longest now
        axis = reach.argmax()
        reach[axis] /= 2
        # the first half of a part's instances becomes part 2m, the second one 2m + 1
        active = active[np.argsort(part[active] * n + place[axis, active])]
        count = np.bincount(part[active], minlength=2**k)
        rank = np.arange(len(active)) - (count.cumsum() - count).repeat(count)
        part[active] = 2 * part[active] + (2 * rank >= count.repeat(count))
        # an edge between both halves is cut by taking out its end in the first half
        apart = part[i] ^ part[j]
        cut = np.flatnonzero(apart == 1)
        separator = np.where(part[i[cut]] & 1, j[cut], i[cut])
        depth[separator] = k
        node[separator] = part[separator] >> 1
        part[separator] = -1
        active = active[part[active] >= 0]
        within = np.flatnonzero(apart == 0)
        i = i[within]
        j = j[within]
    node[active] = part[active]
    return levels_of(edges, depth, node)


def _distances(edges: Int[np.ndarray, "2 e"], n: int) -> Shaped[np.ndarray, "n 2"]:
    """Return two coordinates of each instance, from its distances in the graph to four far ends.

    For a square lattice, these are its axes.
    """
    graph = coo_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n)).tocsr()
    parts, part = connected_components(graph, directed=False)
    last = np.bincount(part, minlength=parts).cumsum() - 1
    distances: list[np.ndarray] = []
    nearest = np.zeros(n)
    for k in range(5):
        # of each connected component, the instance that is farthest from the ends so far
        end = np.lexsort((nearest, part))[last]
        away = dijkstra(graph, directed=False, indices=end, unweighted=True, min_only=True)
        # the first start is arbitrary, and is forgotten when an end is found
        nearest = away if k < 2 else np.minimum(nearest, away)
        distances.append(away)
    _, a, b, c, d = distances
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
    n = len(depth)
    bottom = int(depth.max())
    # the ends of each edge: the deeper one, whose level has the edge's entry, and the other
    low, high = np.where(depth[edges[0]] > depth[edges[1]], edges, edges[::-1])
    by_depth = np.argsort(depth[low], kind="stable")
    level_edges = np.split(by_depth, np.bincount(depth[low], minlength=bottom + 1).cumsum()[:-1])
    # A boundary has the instances above that an edge of the node leads to, and those that it
    # inherits from its children. A member is one number, node * n + instance.
    members = [np.empty(0, np.int64)] * (bottom + 2)
    for k in range(bottom, 0, -1):
        leaving = level_edges[k][depth[high[level_edges[k]]] < k]
        from_children = members[k + 1][depth[members[k + 1] % n] < k]
        inherited = from_children // n // 2 * n + from_children % n
        # sorted and distinct; np.unique would hash the numbers, which takes longer
        merged = np.sort(np.r_[node[low[leaving]] * n + high[leaving], inherited])
        members[k] = merged[np.r_[True, merged[1:] != merged[:-1]][: len(merged)]]
    row = np.empty(n, np.int64)  # of each instance in the matrix of its own node
    tables = []
    columns = []
    for k in range(bottom + 1):
        instances = np.flatnonzero(depth == k)
        instances = instances[np.argsort(node[instances], kind="stable")]
        nodes = roots * 2**k
        pivots, row[instances] = _table(
            node[instances], instances, nodes=nodes, filler=n, multiple=multiple
        )
        boundary, column = _table(*np.divmod(members[k], n), nodes=nodes, filler=n)
        tables.append((pivots, boundary))
        columns.append(column + pivots.shape[1])

    def rows(k: int, matrix: np.ndarray, instance: np.ndarray) -> np.ndarray:
        """Return the row of each instance in the matrix of a node at depth k."""
        place = row[instance]
        above = np.flatnonzero(depth[instance] < k)  # in the boundary, behind the pivots
        key = matrix[above] * n + instance[above]
        place[above] = columns[k][np.searchsorted(members[k], key)]
        return place

    levels = []
    for k, (pivots, boundary) in enumerate(tables):
        matrix, instance = np.divmod(members[k], n)
        in_parent = rows(k - 1, matrix // 2, instance)
        above, _ = _table(matrix, in_parent, nodes=len(pivots), filler=0)
        i = low[level_edges[k]]
        j = high[level_edges[k]]
        # the larger row first: entries are below the diagonal
        column_of, row_of = np.sort([row[i], rows(k, node[i], j)], 0)
        level = Level(
            pivots=pivots,
            boundary=boundary,
            above=above,
            edges=level_edges[k],
            entries=np.stack([node[i], row_of, column_of]),
        )
        levels.append(level)
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
