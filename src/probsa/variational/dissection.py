"""Nested dissection (George 1973): an order of elimination in which sparse factors stay sparse.

A separator cuts the graph in two, and each half is cut again: a binary tree of separators, whose
leaves are what is left. Leaves are eliminated first. The rows of a node's instances then only have
entries in its *boundary*: the instances of nodes above it to which its subtree has edges.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int, Shaped
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components, dijkstra


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The 2^k nodes at depth k; the children of node m are the nodes 2m and 2m + 1 at depth k + 1.

    Each node has a square matrix of p + b rows: its instances (*pivots*), then its boundary. Nodes
    with fewer of them are filled up with n, the number of instances of the graph.
    """

    pivots: Int[np.ndarray, "nodes p"]
    boundary: Int[np.ndarray, "nodes b"]
    places: Int[np.ndarray, "nodes b"]
    """The row of each boundary instance in the matrix of the parent node; 0 for fillers."""
    diagonal: Int[np.ndarray, "nodes p"]
    """Where the diagonal entries lie in the level's matrices."""
    edges: Int[np.ndarray, " e_k"]
    """The edges whose entries are in the level's matrices."""
    entries: Int[np.ndarray, " e_k"]
    """Where the entries of these edges lie, below the diagonal."""

    @property
    def size(self) -> int:
        """The number of rows of each matrix."""
        return self.pivots.shape[1] + self.boundary.shape[1]

    def packed(self, n: int, *, start: int, first_edge: int, filler: int) -> "Level":
        """Return the level of a graph of n instances as part of a batch that begins elsewhere."""
        pivots, boundary = (
            np.where(v == n, filler, v + start) for v in (self.pivots, self.boundary)
        )
        return replace(self, pivots=pivots, boundary=boundary, edges=self.edges + first_edge)


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
    return _levels(edges, depth, node, bottom)


def _distances(edges: Int[np.ndarray, "2 e"], n: int) -> Shaped[np.ndarray, "n 2"]:
    """Return two coordinates of each instance: distances in the graph from far ends."""
    graph = coo_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n)).tocsr()
    parts, part = connected_components(graph, directed=False)

    def distance(starts: np.ndarray) -> np.ndarray:
        return dijkstra(graph, directed=False, indices=starts, unweighted=True, min_only=True)

    def farthest(value: np.ndarray) -> np.ndarray:
        return np.lexsort((value, part))[np.bincount(part, minlength=parts).cumsum() - 1]

    one_end = distance(farthest(distance(farthest(np.zeros(n)))))
    other_end = distance(farthest(one_end))
    return np.stack([one_end, distance(farthest(np.minimum(one_end, other_end)))], 1)


def _levels(
    edges: Int[np.ndarray, "2 e"],
    depth: Int[np.ndarray, " n"],
    node: Int[np.ndarray, " n"],
    bottom: int,
) -> list[Level]:
    """Return the levels of a tree from the depth of each instance and its node there."""
    n = len(depth)
    i, j = edges
    low, high = np.where(depth[i] > depth[j], edges, edges[::-1])
    by_depth = np.argsort(depth[low], kind="stable")
    at = np.split(by_depth, np.bincount(depth[low], minlength=bottom + 1).cumsum()[:-1])
    across = [edge[depth[low[edge]] > depth[high[edge]]] for edge in at]
    # a member of a boundary is one number, node * n + instance
    members = [np.empty(0, np.int64)] * (bottom + 2)
    for k in range(bottom, 0, -1):
        of_children = members[k + 1][depth[members[k + 1] % n] < k]
        inherited = of_children // n // 2 * n + of_children % n
        members[k] = np.unique(np.r_[node[low[across[k]]] * n + high[across[k]], inherited])
    slot, levels = np.zeros(n, np.int64), []
    before = 0, np.empty(0, np.int64)
    for k in range(bottom + 1):
        own = np.flatnonzero(depth == k)
        own = own[np.argsort(node[own], kind="stable")]
        pivots, slot[own] = _table(node[own], own, nodes=2**k, filler=n)
        of_node, instance = np.divmod(members[k], n)
        boundary, of_member = _table(of_node, instance, nodes=2**k, filler=n)
        p, size = pivots.shape[1], pivots.shape[1] + boundary.shape[1]

        row = slot[instance]
        further = np.flatnonzero(depth[instance] < k - 1)
        key = of_node[further] // 2 * n + instance[further]
        row[further] = before[0] + before[1][np.searchsorted(members[k - 1], key)]
        places = np.zeros_like(boundary)
        places[of_node, of_member] = row

        i, j = low[at[k]], high[at[k]]
        row, column = np.maximum(slot[i], slot[j]), np.minimum(slot[i], slot[j])
        over = np.flatnonzero(depth[i] > depth[j])
        column[over] = slot[i[over]]
        key = np.searchsorted(members[k], node[i[over]] * n + j[over])
        row[over] = p + of_member[key]
        levels.append(
            Level(
                pivots=pivots, boundary=boundary, places=places,
                diagonal=np.arange(2**k)[:, None] * size**2 + np.arange(p) * (size + 1),
                edges=at[k], entries=node[i] * size**2 + row * size + column,
            )
        )  # fmt: skip
        before = p, of_member
    return levels


def _table(
    node: Int[np.ndarray, " m"], instance: Int[np.ndarray, " m"], *, nodes: int, filler: int
) -> tuple[Int[np.ndarray, "nodes width"], Int[np.ndarray, " m"]]:
    """Return a row of instances for each node, and the column of each; nodes are in order."""
    count = np.bincount(node, minlength=nodes)
    column = np.arange(len(node)) - (count.cumsum() - count)[node]
    table = np.full((nodes, count.max(initial=0)), filler)
    table[node, column] = instance
    return table, column
