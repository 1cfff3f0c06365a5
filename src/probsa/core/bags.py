"""Stage 5: bags of instances, concatenated into mini-batches without padding or masks.

The slides of a patient are joined to one bag: they share a softmax, but no edge joins two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import BagError
from .elimination import Elimination, GraphPlan
from .graph_options import GraphChoice, GraphOrigin, as_graph_options
from .graphs import build_graph, degrees, undirected
from .segments import Segments
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
    plan: GraphPlan | None = None
    """What is computed once of these edges; None if nothing is kept. Of other edges, it is not
    used."""

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
        coords_tensor = None
        if stored.coords is not None:
            coords_tensor = torch.from_numpy(stored.coords)
        labels_tensor = None
        if stored.instance_labels is not None:
            labels_tensor = torch.from_numpy(stored.instance_labels)
        return cls(
            name=name,
            x=torch.from_numpy(stored.features),
            edges=built.edges,
            weights=built.weights,
            y=label,
            coords=coords_tensor,
            stride=built.stride,
            instance_labels=labels_tensor,
            graph=(origin,),
            plan=GraphPlan(built.edges, len(stored.features), coords_tensor),
        )

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bags:
    """A mini-batch of bags with `n` instances in total; bag b is `x[offsets[b]:offsets[b + 1]]`.

    Whatever the host must know of the batch in a step is made when the bags are packed, so that no
    step waits for a device.
    """

    x: Float[Tensor, "n features"]
    segments: Segments
    """Which rows belong to which bag."""
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
    host_coords: Shaped[Tensor, "n axes"] | None = None
    """`coords` in the memory of the CPU, wherever the others are."""
    elimination: Elimination
    """How a field on the bags' graphs is eliminated."""
    label_range: tuple[float, float] | None = None
    """The smallest and the largest label, as the host knows them; None if there is no label."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Segments:
        """Number of instances in each bag: `segments` is a tuple of them."""
        return self.segments

    @property
    def offsets(self) -> Int[Tensor, " bags_plus_1"]:
        """The first row of each bag, and the number of rows."""
        return self.segments.offsets

    @property
    def bag(self) -> Int[Tensor, " n"]:
        """The index of each instance's bag, ascending."""
        return self.segments.bag

    @property
    def degrees(self) -> Float[Tensor, " n"]:
        """The degree of each instance, D_n = Σ_i A_ni."""
        return degrees(self.edges, self.weights, len(self.x))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Bags":
        """Return the bags on another device; `dtype`, if given, applies to the features only.

        The features travel in the type that they have. A copy from pinned memory is not waited for.
        """
        non_blocking = self.x.is_pinned()
        moved: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name != "host_coords" and isinstance(value, Tensor | Segments | Elimination):
                moved[f.name] = value.to(device, non_blocking=non_blocking)
        if dtype is not None:
            moved["x"] = moved["x"].to(dtype)
        return replace(self, **moved)

    def pin_memory(self) -> "Bags":
        """Return the bags in pinned memory, from which a GPU copies while the host goes on."""
        pinned: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name != "host_coords" and isinstance(value, Tensor | Segments | Elimination):
                pinned[f.name] = value.pin_memory()
        return replace(self, **pinned)


def as_array(values: object) -> Shaped[np.ndarray, "..."]:
    """Return the values of a tensor (on any device), an array or nested lists, writable."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.dtype == torch.bfloat16:  # NumPy has no such type
            values = values.float()
        values = values.numpy()
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
    _compare(
        bags,
        "features",
        "labels",
        "covariates",
        "arcs",
        "arc weights",
        thing="bag",
        advice="all bags of a batch must have the same, or the result of one depends on the others",
    )
    for bag in bags:
        check_bag(bag)
    bags = [replace(bag, **_unique_graph(bag)) for bag in bags]
    device = bags[0].x.device
    labels = _labels(bags)
    strides = tuple(bag.stride for bag in bags)
    has_strides = any(stride is not None for stride in strides)
    covariates = [bag.covariates for bag in bags if bag.covariates is not None]
    tensors = _join_tensors(bags)
    coords = tensors["coords"]
    return Bags(
        **tensors,
        host_coords=None if coords is None else coords.cpu(),
        segments=Segments.of([len(bag) for bag in bags], device),
        elimination=Elimination([_plan(bag) for bag in bags], [bag.name for bag in bags]),
        y=None if labels is None else labels.to(device),
        label_range=_label_range(labels),
        names=tuple(bag.name for bag in bags),
        stride=strides if has_strides else None,
        covariates=torch.stack(covariates) if covariates else None,
    )


def _plan(bag: Bag) -> GraphPlan:
    """Return the plan that is kept with a bag's edges, or a new one."""
    if bag.plan is not None and bag.plan.is_of(bag.edges):
        return bag.plan
    return GraphPlan(bag.edges, len(bag), bag.coords)


def _labels(bags: Sequence[Bag]) -> Tensor | None:
    """Return the labels of bags as one tensor of the host; None if no bag has one."""
    labels: list[Tensor] = []
    for bag in bags:
        if bag.y is not None:
            label = torch.as_tensor(bag.y).cpu()
            # a label of one value is a number, whatever its shape
            labels.append(label.reshape(()) if label.numel() == 1 else label.flatten())
    if not labels:
        return None
    y = torch.stack(labels)
    return y if y.is_floating_point() else y.long()


def _label_range(labels: Tensor | None) -> tuple[float, float] | None:
    """Return the smallest and the largest of some labels; NaN if one of them is missing."""
    if labels is None:
        return None
    values = labels.numpy()
    return float(values.min()), float(values.max())


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
    first = bags[0]
    names = tuple(bag.name for bag in bags)
    for k, bag in enumerate(bags):
        if bag.name in names[:k]:
            raise BagError(f"{patient} has two slides named {bag.name!r}: rename one")
        if bag.slides:
            raise BagError(
                f"{patient}: bag {bag.name!r} is itself joined from {len(bag.slides)} slides: give "
                "the slides"
            )
        if not _have_equal_covariates(first, bag):
            raise BagError(
                f"{patient}: slides {first.name!r} and {bag.name!r} have different covariates: "
                "give the patient's to both, or to none"
            )
    _compare(
        bags,
        "features",
        "coordinates per instance",
        "arcs",
        "arc weights",
        thing="slide",
        where=f"{patient}: ",
        advice="the slides of a patient must agree",
    )
    if any(bag.instance_labels is not None for bag in bags):
        bags = [_with_instance_labels(bag) for bag in bags]
    sizes = torch.tensor([len(bag) for bag in bags])
    slide = torch.arange(len(bags)).repeat_interleave(sizes).to(first.x.device)
    strides = {bag.stride for bag in bags}
    origins: tuple[GraphOrigin, ...] = ()
    # the edges of a slide whose origin is not known cannot be made anew
    if all(bag.graph for bag in bags):
        origins = tuple(chain.from_iterable(bag.graph for bag in bags))
    tensors: dict[str, Any] = _join_tensors(bags) | {"slide": slide}
    return Bag(
        **tensors,
        name=name,
        y=y,
        stride=strides.pop() if len(strides) == 1 else None,
        slides=names,
        covariates=first.covariates,
        graph=origins,
    )


def _have_equal_covariates(bag: Bag, other: Bag) -> bool:
    if bag.covariates is None or other.covariates is None:
        return bag.covariates is other.covariates
    return torch.equal(bag.covariates, other.covariates)


def _with_instance_labels(bag: Bag) -> Bag:
    """Return a bag with instance labels: its own, or -1 for every instance."""
    if bag.instance_labels is not None:
        return bag
    unknown = torch.full((len(bag),), -1, dtype=torch.long, device=bag.x.device)
    return replace(bag, instance_labels=unknown)


def repeat_bags(bags: Bags, count: int) -> Bags:
    """Return the graphs of `count` copies of the bags, one after another, without their features.

    For the classes of a model, which have values of their own for the instances of the same bags.
    """
    n = len(bags.x)
    first_rows = n * torch.arange(count, device=bags.edges.device)
    edges = bags.edges[:, None] + first_rows[:, None]
    return Bags(
        x=bags.x.new_empty(n * count, 0),
        segments=bags.segments.repeated(count),
        elimination=bags.elimination.repeated(count),
        edges=edges.flatten(1),
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
    new_row = torch.full((len(bag),), -1, dtype=torch.long)
    new_row[rows] = torch.arange(len(rows))
    changes: dict[str, Any] = {}
    for name in ROWS:
        tensor = getattr(bag, name)
        if tensor is not None:
            changes[name] = tensor[rows]
    for name, values_name in PAIRS.items():
        pairs = getattr(bag, name)
        if pairs is None:
            continue
        new_pairs = new_row[pairs]
        is_inside = (new_pairs >= 0).all(0)
        changes[name] = new_pairs[:, is_inside]
        values = getattr(bag, values_name)
        changes[values_name] = None if values is None else values[is_inside]
    # edges between the rows that are left cannot be told from their coordinates alone
    changes["graph"] = tuple(replace(origin, chosen=True) for origin in bag.graph)
    return replace(bag, **changes)


def _join_tensors(bags: Sequence[Bag]) -> dict[str, Any]:
    """Concatenate the tensors of bags by the names of their fields.

    A field is None unless every bag has it. Rows in edges and arcs are shifted.
    """
    joined: dict[str, Any] = {}
    for name in (*ROWS, *PAIRS, *PAIRS.values()):
        parts = [getattr(bag, name) for bag in bags]
        if any(part is None for part in parts):
            joined[name] = None
        elif name in PAIRS:
            starts = accumulate((len(bag) for bag in bags), initial=0)
            shifted = [part + start for part, start in zip(parts, starts, strict=False)]
            joined[name] = torch.cat(shifted, dim=1)
        else:
            joined[name] = torch.cat(parts)
    return joined


def _compare(bags: Sequence[Bag], *facts: str, thing: str, where: str = "", advice: str) -> None:
    """Refuse bags that differ from the first one in what they have.

    Args:
        bags: The bags.
        facts: What they must agree in, of the keys of `_facts`.
        thing: What messages call a bag.
        where: The patient, for messages.
        advice: What to do about it.
    """
    first = bags[0]
    expected = _facts(first)
    for bag in bags[1:]:
        counts = _facts(bag)
        for fact in facts:
            if counts[fact] != expected[fact]:
                raise BagError(
                    f"{where}{thing} {bag.name!r} has {counts[fact]} {fact}, {thing} "
                    f"{first.name!r} has {expected[fact]}: {advice}"
                )


def _facts(bag: Bag) -> dict[str, int | str]:
    """Return what bags are compared in, in words and numbers of messages."""
    return {
        "features": bag.x.shape[1],
        "coordinates per instance": 0 if bag.coords is None else bag.coords.shape[1],
        "covariates": 0 if bag.covariates is None else len(bag.covariates),
        "labels": 0 if bag.y is None else torch.as_tensor(bag.y).numel(),
        "arcs": "no" if bag.arcs is None else "some",
        "arc weights": "no" if bag.arc_weights is None else "some",
    }


def check_bag(bag: Bag) -> None:
    """Refuse a bag that `pack` cannot use.

    Raises:
        BagError: the bag is empty, its numbers of rows do not agree, a value is not finite, or an
            index is out of range.
    """
    where = f"bag {bag.name!r}"
    instances = len(bag.x)
    pairs = bag.edges.shape[1]
    if instances == 0:
        raise BagError(f"{where} is empty: a bag needs at least one instance")
    expected = dict.fromkeys(ROWS, instances) | {"weights": pairs}
    expected["arc_weights"] = 0 if bag.arcs is None else bag.arcs.shape[1]
    for name, rows in expected.items():
        value = getattr(bag, name)
        if value is not None and len(value) != rows:
            raise BagError(
                f"{where}: {name} has {len(value)} rows where {rows} are expected "
                f"({instances} instances, {pairs} edges)"
            )
    # A NaN or inf anywhere makes the sum non-finite; a sum may also overflow, so check again.
    total = bag.x.sum(dtype=torch.float32 if bag.x.element_size() < 4 else None)
    if not bool(total.isfinite()) and not bool(bag.x.isfinite().all()):
        row = int((~bag.x.isfinite()).any(1).nonzero()[0])
        raise BagError(f"{where}: its features hold NaN or inf, first in row {row}")
    usable = bag.weights.isfinite() & (bag.weights >= 0)
    if not bool(usable.all()):
        k = int((~usable).nonzero()[0])
        pair = ", ".join(str(v) for v in bag.edges[:, k].tolist())
        raise BagError(
            f"{where}: the edge ({pair}) has the weight {float(bag.weights[k]):g}; expected a "
            "number of at least 0"
        )
    if bag.covariates is not None and not bool(bag.covariates.isfinite().all()):
        raise BagError(f"{where}: its covariates hold NaN or inf: encode missing values first")
    limits = {"edges": instances, "arcs": instances, "slide": len(bag.slides)}
    for name, limit in limits.items():
        index = getattr(bag, name)
        if index is not None and index.numel():
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= limit:
                raise BagError(
                    f"{where}: {name} holds the indices {low} to {high}, but it has {limit} "
                    f"{'slides' if name == 'slide' else 'instances'}"
                )


def _unique_graph(bag: Bag) -> dict[str, Tensor]:
    """Return the edges and weights of a bag with each pair once."""
    i, j = bag.edges
    key = i * len(bag.x) + j
    # the common case: edges as stored, so only repeats must be excluded
    is_sorted = bool((i < j).all()) and bool((key[1:] > key[:-1]).all())
    if is_sorted:
        return {"edges": bag.edges, "weights": bag.weights}
    edges, weights = undirected(bag.edges, bag.weights, name=bag.name)
    return {"edges": edges, "weights": weights}
