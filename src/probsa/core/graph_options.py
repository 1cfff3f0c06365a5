"""The options of the graph of neighbouring instances; imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..errors import InputError, UnknownName
from .options import PositiveFloat, PositiveInt, check_options, convert_value

GraphKind = Literal["auto", "chain", "grid", "knn", "none"]
WeightKind = Literal["inverse", "exp", "rbf", "binary"]
WeightScale = Literal["median", "degree"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOptions:
    """Which instances of a bag are neighbours, and how strongly they are connected.

    Raises:
        InputError: a value is not one of the choices, or lies outside its limits.
    """

    kind: GraphKind = "auto"
    """Which instances are neighbours: 'chain' joins each slice of a scan to the next in position
    (in row order without positions), 'grid' joins the 8 adjacent patches of a slide, 'knn' joins
    the nearest by coordinates, 'none' joins nothing; 'auto' chooses chain or grid by the file, or
    none if the file has no coordinates."""
    edge_weights: WeightKind = "inverse"
    """How the weight of an edge decreases with the distance between the features of its two
    instances; 'binary' gives every edge the weight 1."""
    weight_scale: WeightScale | PositiveFloat | None = 1.0
    """Scale of the edge weights. With a number s, 'inverse' weights are s / d for the distance d; 1
    gives the paper's weights. 'median' sets s to the median distance of each bag, so that weights
    are near 1. 'degree' divides the weights of each bag by the mean sum of weights at an instance
    with neighbours, so that the prior is equally strong on chains, grids and nearest-neighbour
    graphs. null is the same as 'median'."""
    neighbours: PositiveInt = 8
    """Number of nearest neighbours k in a 'knn' graph."""
    stride: PositiveFloat | None = None
    """Distance between neighbouring patches in level-0 pixels. By default, the stride in the file,
    or an estimate from the coordinates if the file has none."""

    def __post_init__(self) -> None:
        if self.weight_scale is None:
            object.__setattr__(self, "weight_scale", "median")
        check_options(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOrigin:
    """How the graph of a bag was made, so that another one can be made in its place."""

    options: GraphOptions
    chosen: bool
    """Whether somebody chose these options; False: they are defaults, and a run replaces them."""
    kind: Literal["slide", "ct"] | None = None
    """What the bag was stated to be; None if nothing was stated."""
    stride: float | None = None
    """The stride that was stated with the coordinates, in their unit; None: it was estimated."""


GraphChoice: TypeAlias = GraphOptions | Mapping[str, Any] | str | None
"""How a graph is built: options, the same by name, the name of a kind, or None for defaults."""


def as_graph_options(choice: object) -> GraphOptions:
    """Return the options of a graph, from a `GraphChoice`.

    Raises:
        UnknownName: an option does not exist.
        InputError: a value is not one of the choices, or lies outside its limits.
    """
    if isinstance(choice, GraphOptions):
        return choice
    if choice is None:
        return GraphOptions()
    values = {"kind": choice} if isinstance(choice, str) else choice
    if not isinstance(values, Mapping):
        raise InputError(
            f"graph is {choice!r}; expected a kind such as 'knn', or options such as "
            "{'kind': 'knn', 'weight_scale': 'degree'}"
        )
    options = GraphOptions.__dataclass_fields__
    for name in values:
        if name not in options:
            raise UnknownName("option of a graph", str(name), options)
    return convert_value(dict(values), GraphOptions, key="graph")
