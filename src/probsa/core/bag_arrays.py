"""Stage 5: bags from what is given in Python: `Bag`s, arrays, or pairs of arrays and coordinates.

A graph that nobody chose is made anew as a run makes its graphs. One that somebody chose otherwise
is refused: a model was trained on one kind of graph, and another gives another prediction.
"""

import hashlib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from ..errors import BagError, GraphError
from .bags import Bag, as_array
from .graph_options import GraphOptions, GraphOrigin
from .graphs import build_graph, resolve_kind
from .store import StoredBag

EXPECTED = (
    "expected probsa.Bag, an array (instances, features), or a pair (features, coords) as a tuple"
)
PAIR = 2
"""Number of entries of a pair: features and coordinates."""


def is_pair(item: object) -> bool:
    """Return whether this is a tuple of features and coordinates, and not one of bags."""
    return (
        isinstance(item, tuple) and len(item) == PAIR and not isinstance(item[0], Bag | tuple | str)
    )


def as_bag(
    item: Any,
    coords: Any = None,
    *,
    place: str,
    graph: GraphOptions | None,
    name: str | None = None,
    stride: float | None = None,
) -> Bag:
    """Return a bag whose graph was made as a run makes its graphs.

    An array without a name is named by a digest of its values, so that its prediction does not
    depend on the other bags or on their order: a bag's name seeds the noise.

    Args:
        item: A `Bag`, an array or tensor (n, features), or a tuple (features, coords).
        coords: Coordinates of an array, see `Bag.from_arrays`.
        place: What messages call an array without a name, such as `3`.
        graph: How graphs are built; None: not known, so that a `Bag` is used as it is.
        name: Name of an array.
        stride: Distance between adjacent patches of an array, in the unit of its coordinates;
            None: it is estimated.

    Raises:
        BagError: the bag cannot be used; its place or name is in the message.
        GraphError: coordinates contradict the stride, or a `Bag` was made with another graph.
    """
    if isinstance(item, Bag):
        for what, value in (("coordinates", coords), ("name", name), ("stride", stride)):
            if value is not None:
                raise BagError(
                    f"bag {item.name!r} has its own {what}: leave them out for a probsa.Bag"
                )
        if len(item) == 0:
            raise BagError(f"bag {item.name!r} is empty: a bag needs at least one instance")
        return item if graph is None else with_graph(item, graph)
    if isinstance(item, tuple):
        if len(item) != PAIR or coords is not None:
            also = " and has coords too" if coords is not None else ""
            raise BagError(f"bag {place} is a tuple of {len(item)} entries{also}; {EXPECTED}")
        item, coords = item
    try:
        features = as_array(item)
    except ValueError as error:  # rows of different lengths
        raise BagError(f"bag {place} is not an array ({error}); {EXPECTED}") from error
    bag = Bag.from_arrays(features, coords, name=name or place, graph=graph, stride=stride)
    return bag if name else replace(bag, name=_digest(bag))


def with_graph(bag: Bag, options: GraphOptions) -> Bag:
    """Return the bag with a graph that is made with these options.

    A bag whose edges were given as they are, without options, is returned as it is.

    Raises:
        GraphError: the graph was made with other options that somebody chose, or coordinates are
            missing or contradict the stride.
    """
    slides: list[StoredBag] = []
    for k, origin in enumerate(bag.graph):
        slides.append(_stored(bag, origin, part=k if len(bag.graph) > 1 else None))
    current: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for stored, origin in zip(slides, bag.graph, strict=True):
        new_options = _effective(options, stored)
        for key, value in _effective(origin.options, stored).items():
            if key in new_options and value != new_options[key]:
                current[key] = value
                expected[key] = new_options[key]
    if not current:
        return bag
    if any(origin.chosen for origin in bag.graph):
        current_words = ", ".join(f"{key} {value!r}" for key, value in current.items())
        expected_words = ", ".join(f"{key} {value!r}" for key, value in expected.items())
        raise GraphError(
            f"bag {bag.name!r} has a graph with {current_words}, but the model was trained on "
            f"graphs with {expected_words}, and would predict something else: make the bag without "
            "`graph`, or give the pair (features, coords), and the graph of the training is built"
        )
    edges: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    strides: set[float | None] = set()
    start = 0
    for stored in slides:
        graph = build_graph(stored, options=options)
        edges.append(graph.edges + start)
        weights.append(graph.weights)
        strides.add(graph.stride)
        start += len(stored.features)
    return replace(
        bag,
        edges=torch.cat(edges, dim=1).to(bag.x.device),
        weights=torch.cat(weights).to(bag.x.device),
        stride=strides.pop() if len(strides) == 1 else None,
        graph=tuple(replace(origin, options=options) for origin in bag.graph),
    )


def _stored(bag: Bag, origin: GraphOrigin, *, part: int | None) -> StoredBag:
    """Return what the graph of a bag, or of one of its slides, is built from."""
    rows = slice(None)
    if part is not None:
        assert bag.slide is not None  # only joined bags have several origins
        rows = (bag.slide == part).cpu().numpy()
    return StoredBag(
        name=bag.name,
        features=as_array(bag.x)[rows],
        coords=None if bag.coords is None else as_array(bag.coords)[rows],
        kind=origin.kind,
        stride=origin.stride,
    )


def _effective(options: GraphOptions, stored: StoredBag) -> dict[str, Any]:
    """Return the options that determine the graph of this bag."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    values["kind"] = resolve_kind(options.kind, stored)
    if options.stride is None:
        values["stride"] = stored.stride
    if values["kind"] != "knn":
        del values["neighbours"]
    if values["kind"] == "none":
        del values["edge_weights"], values["weight_scale"]
    return values


def _digest(bag: Bag) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in (bag.x, bag.coords):
        if part is not None:
            array = as_array(part)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
