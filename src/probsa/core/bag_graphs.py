"""The graph of one bag, from its arrays: the same for stored bags and for arrays in memory."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import GraphError
from . import graphs
from .graph_options import GraphKind, GraphOptions
from .store import StoredBag


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The edges of one bag with their weights, and the stride used to build them."""

    edges: Int[Tensor, "2 e"]
    weights: Float[Tensor, " e"]
    stride: float | None

    @property
    def nbytes(self) -> int:
        return self.edges.nbytes + self.weights.nbytes


def resolve_kind(kind: GraphKind, bag: StoredBag) -> GraphKind:
    """Return the kind of graph that a bag gets, in place of 'auto'."""
    if kind != "auto":
        return kind
    if bag.inferred_kind == "ct":
        return "chain"
    if bag.coords is None:
        return "none"
    return "chain" if bag.coords.shape[1] == 1 else "grid"


def build_graph(stored: StoredBag, *, options: GraphOptions) -> Graph:
    """Build the graph of one bag; see `GraphOptions`.

    Raises:
        GraphError: the graph needs coordinates that are missing or contradict the stride.
    """
    kind, name = resolve_kind(options.kind, stored), stored.name
    stride = stored.stride if options.stride is None else options.stride
    x = torch.from_numpy(stored.features)
    coords = None if stored.coords is None else torch.from_numpy(stored.coords)
    if kind in ("grid", "knn") and coords is None:
        raise GraphError(
            f"bag {name!r} has no coordinates, which the graph {kind!r} is built from: "
            "give --graph chain or --graph none"
        )
    if kind == "chain":
        edges = graphs.chain(len(x))
    elif kind == "grid" and coords is not None:
        if coords.shape[1] != 2:
            raise GraphError(
                f"bag {name!r} has one coordinate per instance, but the graph 'grid' needs x "
                "and y: give --graph chain"
            )
        if len(x) > 1:
            stride = graphs.check_stride(coords, stride=stride, name=name)
        edges = graphs.grid(coords, stride=stride, name=name)
    elif kind == "knn" and coords is not None:
        edges = graphs.knn(coords, k=options.neighbours)
    else:
        edges = torch.zeros(2, 0, dtype=torch.long)
    scale = options.weight_scale
    assert scale is not None  # GraphOptions reads null as 'median'
    weights = graphs.edge_weights(x, edges, kind=options.edge_weights, scale=scale)
    return Graph(edges=edges, weights=weights, stride=stride)


def as_array(values: object) -> Shaped[np.ndarray, "..."]:
    """Return the values of a tensor (on any device), an array or nested lists, writable."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    # PyTorch warns of memory that cannot be written to, such as joblib's memory maps
    return array if array.flags.writeable else array.copy()
