"""The graph of a predicted bag, rebuilt from its stored coordinates.

Slices (one coordinate, or a scan without coordinates) form a chain in row order, and patches form a
lattice with 8 neighbours. These are the default graphs of training; other graphs are not rebuilt.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from ..core import chain, check_stride, grid
from ..errors import BagError, GraphError
from .prediction import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """The graph of one bag of n instances."""

    edges: Int[np.ndarray, "2 e"]
    """Each pair once."""
    cells: Int[np.ndarray, "n 2"]
    """(row, column) on the lattice, from 0; slices are a single row."""
    to_edge: Float[np.ndarray, " n"]
    """Steps to the nearest instance with a missing neighbour (8 on a lattice, 2 in a chain)."""

    @classmethod
    def of(cls, p: Prediction) -> "Neighbours":
        """Rebuild the graph of a bag.

        Raises:
            BagError: the bag has no coordinates and is not a scan.
            GraphError: stride and coordinates contradict each other.
        """
        n = len(p.degree)
        if p.coords is None and p.kind != "ct":
            raise BagError(
                f"bag {p.name!r} has no coordinates, so its neighbours are unknown: "
                "store them with the features and predict again"
            )
        if p.coords is None or p.coords.shape[1] == 1:
            edges = chain(n).numpy()
            cells, full = np.stack([np.zeros(n, np.int64), np.arange(n)], axis=1), 2
        else:
            corners = torch.from_numpy(p.coords.astype(np.float64))
            stride = check_stride(corners, stride=p.stride, name=p.name)
            edges = grid(corners, stride=stride, name=p.name).numpy()
            c = corners.numpy()
            cells, full = np.rint((c - c.min(0)) / stride).astype(np.int64)[:, ::-1], 8
        at_edge = np.bincount(edges.ravel(), minlength=n) < full
        return cls(edges=edges, cells=cells, to_edge=steps_from(at_edge, edges=edges))


def neighbours_or_reason(p: Prediction) -> Neighbours | str:
    """Return the graph of a bag, or the reason why it is unknown."""
    try:
        return Neighbours.of(p)
    except (BagError, GraphError) as error:
        return str(error)


def steps_from(
    sources: Bool[np.ndarray, " n"], *, edges: Int[np.ndarray, "2 e"]
) -> Float[np.ndarray, " n"]:
    """Return the length of the shortest path from each instance to a source; inf without one."""
    n = len(sources)
    if not sources.any():
        return np.full(n, np.inf)
    graph = coo_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(n, n)).tocsr()
    steps = dijkstra(
        graph, directed=False, unweighted=True, indices=np.flatnonzero(sources), min_only=True
    )
    return np.asarray(steps, dtype=np.float64)


def near_boundary(
    labels: Shaped[np.ndarray, " n"], *, edges: Int[np.ndarray, "2 e"], steps: int = 2
) -> Bool[np.ndarray, " n"]:
    """Return which labelled instances have one with the opposite label within `steps` steps."""
    lesion, healthy = labels > 0, labels == 0
    return (lesion & (steps_from(healthy, edges=edges) <= steps)) | (
        healthy & (steps_from(lesion, edges=edges) <= steps)
    )
