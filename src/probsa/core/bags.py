"""Stage 5: bags of instances, concatenated into mini-batches without padding or masks.

The slides of a patient are joined to one bag: they share a softmax, but no edge joins two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import BagError
from .graph_options import GraphChoice, GraphOrigin, as_graph_options
from .graphs import build_graph, degrees, undirected
from .segments import segment_index
from .store import BagKind, make_bag

Label = int | float | Tensor | None

ROWS = ("x", "coords", "instance_labels", "slide")
"""Fields with a row for each instance."""
PAIRS = {"edges": "weights", "arcs": "arc_weights"}
"""Fields with pairs of rows, which are shifted where bags are joined, and the values of these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bag:
    """One slide or scan: N instances and the undirected graph of their neighbourhoods.

    `edges` (2, E) may repeat a pair, in either direction, and may contain self-loops: `pack` keeps
    each pair once (i < j), rejects weights that disagree, and drops self-loops.
    `arcs` (2, A) holds (target row, source column) for methods with directed neighbourhoods.
    """

    name: str
    x: Float[Tensor, "n features"]
    edges: Int[Tensor, "2 e"]
    weights: Float[Tensor, " e"]
    y: Label = None
    """A number, or a tensor (targets,); one value counts as a number. NaN marks a missing one."""
    coords: Shaped[Tensor, "n axes"] | None = None
    """Level-0 (x, y) of each patch's top-left corner, or slice positions of shape (n, 1)."""
    stride: float | None = None
    """Distance between neighbouring patches in the unit of `coords`; None: it is estimated."""
    arcs: Int[Tensor, "2 a"] | None = None
    arc_weights: Float[Tensor, " a"] | None = None
    instance_labels: Int[Tensor, " n"] | None = None
    """For evaluation only; never used in training."""
    slide: Int[Tensor, " n"] | None = None
    """Index into `slides` of each instance, in a bag of several slides (`join_bags`)."""
    slides: tuple[str, ...] = ()
    """Names of the slides of the bag; empty unless the bag was joined from slides."""
    covariates: Float[Tensor, " d"] | None = None
    """Encoded clinical covariates of the bag's patient."""
    graph: tuple[GraphOrigin, ...] = ()
    """How the graph was made, one entry per slide; empty if the edges were given as they are."""

    @classmethod
    def from_arrays(
        cls,
        features: object,
        coords: object = None,
        label: Label = None,
        *,
        name: str = "bag",
        graph: GraphChoice = None,
        stride: float | int | None = None,
        instance_labels: object = None,
        kind: BagKind | None = None,
    ) -> "Bag":
        """Return a bag with its graph, which is built as for bags in files.

        Arrays may be NumPy arrays, tensors or nested lists. Features are float32 (float16 stays).

        Args:
            features: (n, features), one row per instance.
            coords: (n, 2) level-0 corners of patches, or (n, 1) or (n,) positions of slices, whose
                rows may be in any order.
            label: Class index of the bag; None if it is not known.
            name: Name of the bag, which also seeds the noise of its prediction.
            graph: A kind (`"knn"`) or options of `GraphOptions` by name (`{"weight_scale":
                "degree"}`). By default the 8 adjacent patches, the chain of slices, or no edges
                without coordinates, with the weights 1 / ‖x_i − x_j‖; the predictor of a run
                replaces a graph that was made by default with one like those of the run.
            stride: Distance between adjacent patches; None: it is estimated from `coords`.
            instance_labels: (n,) whole numbers, -1 if unknown; used for evaluation only.
            kind: `ct` or `slide`; None: `ct` if `coords` has one column.

        Raises:
            BagError: the arrays are empty, not finite, or do not fit one another.
            GraphError: the coordinates are missing or contradict the stride.
            InputError, UnknownName: an option of the graph cannot be used.
        """
        stored = make_bag(
            name,
            as_array([] if features is None else features),
            coords=None if coords is None else as_array(coords),
            instance_labels=None if instance_labels is None else as_array(instance_labels),
            kind=kind,
            stride=None if stride is None else float(stride),
        )
        options = as_graph_options(graph)
        built = build_graph(stored, options=options)
        origin = GraphOrigin(
            options=options, chosen=graph is not None, kind=kind, stride=stored.stride
        )
        labels = stored.instance_labels
        return cls(
            name=name,
            x=torch.from_numpy(stored.features),
            edges=built.edges,
            weights=built.weights,
            y=label,
            coords=None if stored.coords is None else torch.from_numpy(stored.coords),
            stride=built.stride,
            instance_labels=None if labels is None else torch.from_numpy(labels),
            graph=(origin,),
        )

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bags:
    """A mini-batch of bags with `n` instances in total; bag b is `x[offsets[b]:offsets[b + 1]]`."""

    x: Float[Tensor, "n features"]
    offsets: Int[Tensor, " bags_plus_1"]
    edges: Int[Tensor, "2 e"]
    """Rows of `x`, bag by bag; undirected, each pair once with i < j, no self-loops."""
    weights: Float[Tensor, " e"]
    y: (
        Float[Tensor, " bags"]
        | Int[Tensor, " bags"]
        | Float[Tensor, "bags targets"]
        | Int[Tensor, "bags targets"]
        | None
    )
    names: tuple[str, ...]
    coords: Shaped[Tensor, "n axes"] | None = None
    stride: tuple[float | None, ...] | None = None
    arcs: Int[Tensor, "2 a"] | None = None
    arc_weights: Float[Tensor, " a"] | None = None
    instance_labels: Int[Tensor, " n"] | None = None
    slide: Int[Tensor, " n"] | None = None
    """Index of each instance's slide within its bag; None unless every bag states its slides."""
    covariates: Float[Tensor, "bags d"] | None = None
    sizes: tuple[int, ...] = field(init=False)
    """Number of instances in each bag, as Python ints, so that loops need no device transfer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.offsets.diff().tolist()))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def bag(self) -> Int[Tensor, " n"]:
        """The index of each instance's bag, ascending."""
        return segment_index(self.sizes, self.x.device)

    @property
    def degrees(self) -> Float[Tensor, " n"]:
        """The degree of each instance, D_n = Σ_i A_ni."""
        return degrees(self.edges, self.weights, len(self.x))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Bags":
        """Return the bags on another device; `dtype`, if given, applies to the features only."""
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if f.init and isinstance(value := getattr(self, f.name), Tensor)
        }
        if dtype is not None:
            moved["x"] = moved["x"].to(dtype)
        return replace(self, **moved)


def as_array(values: object) -> Shaped[np.ndarray, "..."]:
    """Return the values of a tensor (on any device), an array or nested lists, writable."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(values)
    # PyTorch warns of memory that cannot be written to, such as joblib's memory maps
    return array if array.flags.writeable else array.copy()


def pack(bags: Sequence[Bag]) -> Bags:
    """Concatenate bags, shifting the rows in edges and arcs; dtypes are kept.

    `y` is int64, or float if any label is a float, and None if no bag has a label. An integer label
    of 0 or 1 works with one logit as well as with two. Labels with several targets each are stacked
    to (bags, targets); NaN, the sign for a missing target, is kept.

    Raises:
        BagError: there are no bags, a bag is empty, values are not finite, numbers of rows do not
            agree, or bags differ in width, in the shape of their labels, in their covariates or
            arcs, or in whether they have them.
    """
    if not bags:
        raise BagError("pack() got no bags: give at least one")
    advice = "all bags of a batch must have the same, or the result of one depends on the others"
    _compare("bag", bags, "features", "labels", "covariates", "arcs", "arc weights", advice=advice)
    for bag in bags:
        _check(bag)
    bags = [replace(bag, **_unique_graph(bag)) for bag in bags]
    device = bags[0].x.device
    labels = [torch.as_tensor(bag.y) for bag in bags if bag.y is not None]
    # a label of one value is a number, whatever its shape
    y = (
        torch.stack([y.reshape(()) if y.numel() == 1 else y.flatten() for y in labels])
        if labels
        else None
    )
    covariates = [bag.covariates for bag in bags if bag.covariates is not None]
    return Bags(
        **{name: _joined(bags, name) for name in (*ROWS, *PAIRS, *PAIRS.values())},
        offsets=torch.tensor([0, *(len(bag) for bag in bags)]).cumsum(0).to(device),
        y=None if y is None else (y if y.is_floating_point() else y.long()).to(device),
        names=tuple(bag.name for bag in bags),
        stride=tuple(bag.stride for bag in bags)
        if any(bag.stride is not None for bag in bags)
        else None,
        covariates=torch.stack(covariates) if covariates else None,
    )


def join_bags(name: str, bags: Sequence[Bag], *, y: Label) -> Bag:
    """Return the instances of several slides as one bag, in the order of the slides' names.

    The graph is block-diagonal: rows of edges and arcs are shifted, and nothing joins two slides.
    Coordinates stay those of each slide, so two instances at one place may lie on different slides;
    `Bag.slide` tells them apart. Instances without a known label get -1. The stride is kept if all
    slides have the same one. One slide gives a bag with the slide's own values.

    Args:
        name: Name of the patient; it seeds the noise of the prediction.
        bags: The slides, each with a name of its own. Their labels are not used.
        y: Label of the patient; None if it is not known.

    Raises:
        BagError: there are no slides; two have the same name; one was joined from slides itself;
            or they differ in the number of features or coordinates, in their covariates, or in
            whether they have coordinates or arcs.
    """
    patient = f"patient {name!r}"
    if not bags:
        raise BagError(f"{patient} has no slides: give at least one bag")
    bags = sorted(bags, key=lambda bag: bag.name)
    first, names = bags[0], tuple(bag.name for bag in bags)
    for k, bag in enumerate(bags):
        if bag.name in names[:k]:
            raise BagError(f"{patient} has two slides named {bag.name!r}: rename one")
        if bag.slides:
            raise BagError(
                f"{patient}: bag {bag.name!r} is itself joined from {len(bag.slides)} slides: give "
                "the slides"
            )
        both = [b.covariates for b in (bag, first) if b.covariates is not None]
        if len(both) == 1 or (both and not torch.equal(both[0], both[-1])):
            raise BagError(
                f"{patient}: slides {first.name!r} and {bag.name!r} have different covariates: "
                "give the patient's to both, or to none"
            )
    facts = ("features", "coordinates per instance", "arcs", "arc weights")
    _compare(f"{patient}: slide", bags, *facts, advice="the slides of a patient must agree")
    if any(bag.instance_labels is not None for bag in bags):
        unknown = [torch.full((len(b),), -1, dtype=torch.long, device=b.x.device) for b in bags]
        known = [bag.instance_labels for bag in bags]
        pairs = zip(bags, known, unknown, strict=True)
        bags = [replace(b, instance_labels=u if k is None else k) for b, k, u in pairs]
    sizes = torch.tensor([len(bag) for bag in bags])
    slide = torch.arange(len(bags)).repeat_interleave(sizes).to(first.x.device)
    joined = {name: _joined(bags, name) for name in (*ROWS, *PAIRS, *PAIRS.values())}
    strides = {bag.stride for bag in bags}
    # the edges of a slide whose origin is not known cannot be made anew
    origins = [bag.graph for bag in bags] if all(bag.graph for bag in bags) else []
    return Bag(
        **joined | {"slide": slide},
        name=name,
        y=y,
        stride=strides.pop() if len(strides) == 1 else None,
        slides=names,
        covariates=first.covariates,
        graph=tuple(chain.from_iterable(origins)),
    )


def repeat_bags(bags: Bags, count: int) -> Bags:
    """Return the graphs of `count` copies of the bags, one after another, without their features.

    For the classes of a model, which have values of their own for the instances of the same bags.
    """
    n, e = len(bags.x), bags.edges.shape[1]
    starts = n * torch.arange(count, device=bags.offsets.device)[:, None]
    offsets = (starts + bags.offsets[:-1]).flatten()
    return Bags(
        x=bags.x.new_empty(n * count, 0),
        offsets=torch.cat([offsets, offsets.new_tensor([n * count])]),
        edges=bags.edges.repeat(1, count)
        + n * torch.arange(count, device=bags.edges.device).repeat_interleave(e),
        weights=bags.weights.repeat(count),
        y=None,
        names=bags.names * count,
        coords=None if bags.coords is None else bags.coords.repeat(count, 1),
    )


def select_instances(bag: Bag, rows: Int[Tensor, " kept"]) -> Bag:
    """Return the bag with only the given instances; edges and arcs to others are dropped.

    The names of its slides are kept, also of slides of which no instance is left.

    Args:
        bag: The bag.
        rows: The rows to keep, each at most once, in the order of the new bag.
    """
    row_of = torch.full((len(bag),), -1, dtype=torch.long)
    row_of[rows] = torch.arange(len(rows))
    changes = {name: v[rows] for name in ROWS if (v := getattr(bag, name)) is not None}
    for name, of_values in PAIRS.items():
        pairs, values = getattr(bag, name), getattr(bag, of_values)
        if pairs is not None:
            new = row_of[pairs]
            kept = (new >= 0).all(0)
            changes |= {name: new[:, kept], of_values: None if values is None else values[kept]}
    # edges between the rows that are left cannot be told from their coordinates alone
    changes["graph"] = tuple(replace(origin, chosen=True) for origin in bag.graph)
    return replace(bag, **changes)


def _joined(bags: Sequence[Bag], name: str) -> Any:
    """Concatenate a tensor of all bags; None unless every bag has it."""
    parts = [getattr(bag, name) for bag in bags]
    if any(part is None for part in parts):
        return None
    if name not in PAIRS:
        return torch.cat(parts)
    starts = accumulate((len(bag) for bag in bags), initial=0)
    return torch.cat([part + start for part, start in zip(parts, starts, strict=False)], dim=1)


def _compare(what: str, bags: Sequence[Bag], *facts: str, advice: str) -> None:
    """Refuse bags that differ from the first one in what they have."""
    first, *rest = [(bag.name, _facts(bag)) for bag in bags]
    for name, own in rest:
        for fact in facts:
            if own[fact] != first[1][fact]:
                raise BagError(
                    f"{what} {name!r} has {own[fact]} {fact}, {what.rpartition(' ')[2]} "
                    f"{first[0]!r} has {first[1][fact]}: {advice}"
                )


def _facts(bag: Bag) -> dict[str, int | str]:
    return {
        "features": bag.x.shape[1],
        "coordinates per instance": 0 if bag.coords is None else bag.coords.shape[1],
        "covariates": 0 if bag.covariates is None else len(bag.covariates),
        "labels": 0 if bag.y is None else torch.as_tensor(bag.y).numel(),
        "arcs": "no" if bag.arcs is None else "some",
        "arc weights": "no" if bag.arc_weights is None else "some",
    }


def _check(bag: Bag) -> None:
    bag_, instances, pairs = f"bag {bag.name!r}", len(bag.x), bag.edges.shape[1]
    if instances == 0:
        raise BagError(f"{bag_} is empty: a bag needs at least one instance")
    expected = dict.fromkeys(ROWS, instances) | {"weights": pairs}
    expected["arc_weights"] = 0 if bag.arcs is None else bag.arcs.shape[1]
    for name, rows in expected.items():
        value = getattr(bag, name)
        if value is not None and len(value) != rows:
            raise BagError(
                f"{bag_}: {name} has {len(value)} rows where {rows} are expected "
                f"({instances} instances, {pairs} edges)"
            )
    # A NaN or inf anywhere makes the sum non-finite; a sum may also overflow, so check again.
    total = bag.x.sum(dtype=torch.float32 if bag.x.element_size() < 4 else None)
    if not bool(total.isfinite()) and not bool(bag.x.isfinite().all()):
        row = int((~bag.x.isfinite()).any(1).nonzero()[0])
        raise BagError(f"{bag_}: its features hold NaN or inf, first in row {row}")
    usable = bag.weights.isfinite() & (bag.weights >= 0)
    if not bool(usable.all()):
        k = int((~usable).nonzero()[0])
        pair = ", ".join(str(v) for v in bag.edges[:, k].tolist())
        raise BagError(
            f"{bag_}: the edge ({pair}) has the weight {float(bag.weights[k]):g}; expected a "
            "number of at least 0"
        )
    if bag.covariates is not None and not bool(bag.covariates.isfinite().all()):
        raise BagError(f"{bag_}: its covariates hold NaN or inf: encode missing values first")
    limits = {"edges": instances, "arcs": instances, "slide": len(bag.slides)}
    for name, limit in limits.items():
        index = getattr(bag, name)
        if index is not None and index.numel():
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= limit:
                raise BagError(
                    f"{bag_}: {name} holds the indices {low} to {high}, but it has {limit} "
                    f"{'slides' if name == 'slide' else 'instances'}"
                )


def _unique_graph(bag: Bag) -> dict[str, Tensor]:
    """Return the edges and weights of a bag with each pair once."""
    i, j = bag.edges
    edges, weights = bag.edges, bag.weights
    key = i * len(bag.x) + j
    # the common case: edges as stored, so only repeats must be excluded
    if not (bool((i < j).all()) and bool((key[1:] > key[:-1]).all())):
        edges, weights = undirected(edges, weights, name=bag.name)
    return {"edges": edges, "weights": weights}
