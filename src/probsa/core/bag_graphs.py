"""The graph of one bag, from its arrays: the same for stored bags and for arrays in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import BagError, EmptyBag, GraphError, InputError, UnknownName
from . import graphs
from .graph_options import GraphKind, GraphOptions
from .options import check_value
from .store import (
    BagKind,
    StoredBag,
    as_coordinates,
    as_features,
    as_instance_labels,
    validate_bag,
)

GraphChoice: TypeAlias = GraphOptions | Mapping[str, Any] | str | None
"""How a graph is built: options, the same by name, the name of a kind, or None for defaults."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The edges of one bag with their weights, and the stride used to build them."""

    edges: Int[Tensor, "2 e"]
    weights: Float[Tensor, " e"]
    stride: float | None

    @property
    def nbytes(self) -> int:
        return self.edges.nbytes + self.weights.nbytes


def as_graph_options(choice: object) -> GraphOptions:
    """Return the options of a graph.

    Args:
        choice: a `GraphChoice`: options, a mapping from their names (as in run files), the name of
            a kind, or None.

    Raises:
        UnknownName: an option does not exist.
        InputError: a value is not one of the choices, or lies outside its limits.
    """
    if isinstance(choice, GraphOptions):
        return choice
    if isinstance(choice, str):
        choice = {"kind": choice}
    if choice is not None and not isinstance(choice, Mapping):
        raise InputError(
            f"graph is {choice!r}; expected a kind such as 'knn', or options such as "
            "{'kind': 'knn', 'weight_scale': 'degree'}"
        )
    values: dict[str, Any] = dict(choice or {})
    known = GraphOptions.__dataclass_fields__
    for name, value in values.items():
        if name not in known:
            raise UnknownName("option of a graph", str(name), known)
        check_value(name, value, known[name].type)
    return GraphOptions(**values)


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


def stored_arrays(
    name: str,
    features: object,
    coords: object = None,
    *,
    instance_labels: object = None,
    kind: BagKind | None = None,
    stride: float | int | None = None,
) -> StoredBag:
    """Return arrays or tensors as the content of a bag, after the checks of bags in files.

    Memory is shared where the arrays can be used as they are.

    Raises:
        BagError: the bag is empty, its numbers of rows differ, or a value is not usable.
    """
    x = np.asarray([] if features is None else as_array(features))
    if x.shape[:1] == (0,):
        raise EmptyBag(f"bag {name!r} is empty: a bag needs at least one instance. Leave it out")
    source = f"bag {name!r}"
    try:
        places = None if coords is None else as_coordinates(as_array(coords))
    except BagError as error:
        raise BagError(f"{source}: {error}") from error
    labels = None
    if instance_labels is not None:
        labels = as_instance_labels(as_array(instance_labels), source=source)
    bag = StoredBag(
        name=name,
        features=as_features(x, source=source),
        coords=places,
        instance_labels=labels,
        kind=kind,
        stride=None if stride is None else float(stride),
    )
    return validate_bag(bag)


def as_array(values: object) -> Shaped[np.ndarray, "..."]:
    """Return the values of a tensor (on any device), an array or nested lists, writable."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    # PyTorch warns of memory that cannot be written to, such as joblib's memory maps
    return array if array.flags.writeable else array.copy()
