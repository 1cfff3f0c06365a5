"""The options of the graph of neighbouring instances; imports nothing heavy."""

from dataclasses import dataclass
from typing import Literal

from .options import PositiveFloat, PositiveInt, check_options

GraphKind = Literal["auto", "chain", "grid", "knn", "none"]
WeightKind = Literal["inverse", "exp", "rbf", "binary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOptions:
    """Which instances of a bag are neighbours, and how strongly they are connected.

    Raises:
        InputError: a value is not one of the choices, or lies outside its limits.
    """

    kind: GraphKind = "auto"
    """Which instances are neighbours: 'chain' joins consecutive slices of a scan, 'grid' joins the
    8 adjacent patches of a slide, 'knn' joins the nearest by coordinates, 'none' joins nothing;
    'auto' chooses chain or grid by the file, or none if the file has no coordinates."""
    edge_weights: WeightKind = "inverse"
    """How the weight of an edge decreases with the distance between the features of its two
    instances; 'binary' gives every edge the weight 1."""
    weight_scale: PositiveFloat | None = None
    """Scale s of 'inverse' weights. By default, the median distance in each bag, which gives
    weights near 1."""
    neighbours: PositiveInt = 8
    """Number of nearest neighbours k in a 'knn' graph."""
    stride: PositiveFloat | None = None
    """Distance between neighbouring patches in level-0 pixels. By default, the stride in the file,
    or an estimate from the coordinates if the file has none."""

    def __post_init__(self) -> None:
        check_options(self)
