"""Stage 5: bags of instances, concatenated into mini-batches without padding or masks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import BagError
from .bag_graphs import GraphChoice, as_graph_options, build_graph, stored_arrays
from .graphs import degrees, undirected
from .segments import segment_index
from .store import BagKind

Label = int | float | Tensor | None


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
            coords: (n, 2) level-0 corners of patches, or (n, 1) or (n,) positions of slices.
            label: Class index of the bag; None if it is not known.
            name: Name of the bag, which also seeds the noise of its prediction.
            graph: A kind (`"knn"`) or options of `GraphOptions` by name (`{"weight_scale":
                "degree"}`). By default the 8 adjacent patches, the chain of slices, or no edges
                without coordinates, with the weights 1 / ‖x_i − x_j‖.
            stride: Distance between adjacent patches; None: it is estimated from `coords`.
            instance_labels: (n,) whole numbers, -1 if unknown; used for evaluation only.
            kind: `ct` or `slide`; None: `ct` if `coords` has one column.

        Raises:
            BagError: the arrays are empty, not finite, or do not fit one another.
            GraphError: the coordinates are missing or contradict the stride.
            InputError, UnknownName: an option of the graph cannot be used.
        """
        stored = stored_arrays(
            name, features, coords, instance_labels=instance_labels, kind=kind, stride=stride
        )
        built = build_graph(stored, options=as_graph_options(graph))
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


def pack(bags: Sequence[Bag]) -> Bags:
    """Concatenate bags, shifting the rows in edges and arcs; dtypes are kept.

    `y` is int64, or float if any label is a float, and None if no bag has a label. An integer label
    of 0 or 1 works with one logit as well as with two. Labels with several targets each are stacked
    to (bags, targets); NaN, the sign for a missing target, is kept.

    Raises:
        BagError: there are no bags, a bag is empty, values are not finite, numbers of rows do not
            agree, or bags differ in width, in the shape of their labels, in their covariates, or in
            whether they have them.
    """
    if not bags:
        raise BagError("pack() got no bags: give at least one")
    for bag in bags:
        _check(bag, width=bags[0].x.shape[1])
    sizes = [len(bag.x) for bag in bags]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    starts = offsets.tolist()
    graphs = [_unique_graph(bag) for bag in bags]
    return Bags(
        x=torch.cat([bag.x for bag in bags]),
        offsets=offsets.to(bags[0].x.device),
        edges=torch.cat([e + start for (e, _), start in zip(graphs, starts, strict=False)], dim=1),
        weights=torch.cat([w for _, w in graphs]),
        y=_labels([bag.y for bag in bags], bags[0].x.device),
        names=tuple(bag.name for bag in bags),
        coords=_concatenate(bags, "coords"),
        stride=tuple(bag.stride for bag in bags)
        if any(bag.stride is not None for bag in bags)
        else None,
        arcs=_concatenate(bags, "arcs", starts=starts),
        arc_weights=_concatenate(bags, "arc_weights"),
        instance_labels=_concatenate(bags, "instance_labels"),
        slide=_concatenate(bags, "slide"),
        covariates=_covariates(bags),
    )


def repeat_bags(bags: Bags, count: int) -> Bags:
    """Return `count` copies of the bags, one after another, without features: only with graphs.

    For the classes of a model, which have values of their own for the instances of the same bags.
    """
    n, e = len(bags.x), bags.edges.shape[1]
    shift = n * torch.arange(count, device=bags.edges.device).repeat_interleave(e)
    starts = n * torch.arange(count, device=bags.offsets.device)[:, None]
    offsets = (starts + bags.offsets[:-1]).flatten()
    end = offsets.new_tensor([n * count])
    return replace(
        bags,
        x=bags.x.new_empty(n * count, 0),
        offsets=torch.cat([offsets, end]),
        edges=bags.edges.repeat(1, count) + shift,
        weights=bags.weights.repeat(count),
        y=None if bags.y is None else torch.cat([bags.y] * count),
        names=bags.names * count,
        coords=None if bags.coords is None else bags.coords.repeat(count, 1),
        stride=None,
        arcs=None,
        arc_weights=None,
        instance_labels=None,
        slide=None if bags.slide is None else bags.slide.repeat(count),
        covariates=None if bags.covariates is None else bags.covariates.repeat(count, 1),
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

    def restricted(pairs: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor | None]:
        new = row_of[pairs]
        kept = (new >= 0).all(0)
        return new[:, kept], None if values is None else values[kept]

    edges, weights = restricted(bag.edges, bag.weights)
    arcs, arc_weights = bag.arcs, bag.arc_weights
    if arcs is not None:
        arcs, arc_weights = restricted(arcs, arc_weights)
    assert weights is not None
    return replace(
        bag,
        x=bag.x[rows],
        edges=edges,
        weights=weights,
        coords=None if bag.coords is None else bag.coords[rows],
        arcs=arcs,
        arc_weights=arc_weights,
        instance_labels=None if bag.instance_labels is None else bag.instance_labels[rows],
        slide=None if bag.slide is None else bag.slide[rows],
    )


def _check(bag: Bag, *, width: int) -> None:
    instances = len(bag.x)
    if instances == 0:
        raise BagError(f"bag {bag.name!r} is empty: a bag needs at least one instance")
    if bag.x.shape[1] != width:
        raise BagError(f"bag {bag.name!r} has {bag.x.shape[1]} features, the first one {width}")
    _check_lengths(bag, instances)
    # A NaN or inf anywhere makes the sum non-finite; a sum may also overflow, so check again.
    total = bag.x.sum(dtype=torch.float32 if bag.x.element_size() < 4 else None)
    if not bool(total.isfinite()) and not bool(bag.x.isfinite().all()):
        row = int((~bag.x.isfinite()).any(1).nonzero()[0])
        raise BagError(f"bag {bag.name!r}: its features hold NaN or inf, first in row {row}")
    for name, rows in (("edges", bag.edges), ("arcs", bag.arcs)):
        if (
            rows is not None
            and rows.numel()
            and not 0 <= int(rows.min()) <= int(rows.max()) < instances
        ):
            raise BagError(
                f"bag {bag.name!r}: {name} name row {int(rows.max())} (or a negative one), "
                f"but it has {instances} instances"
            )
    slide = bag.slide
    if slide is not None and not 0 <= int(slide.min()) <= int(slide.max()) < len(bag.slides):
        raise BagError(
            f"bag {bag.name!r}: slide holds {int(slide.min())} to {int(slide.max())}, but slides "
            f"has {len(bag.slides)} names: expected indices into it"
        )


def _check_lengths(bag: Bag, instances: int) -> None:
    pairs = bag.edges.shape[1]
    arcs = None if bag.arcs is None else bag.arcs.shape[1]
    for name, value, expected in (
        ("weights", bag.weights, pairs),
        ("arc_weights", bag.arc_weights, arcs),
        ("coords", bag.coords, instances),
        ("instance_labels", bag.instance_labels, instances),
        ("slide", bag.slide, instances),
    ):
        if value is not None and len(value) != expected:
            raise BagError(
                f"bag {bag.name!r}: {name} has {len(value)} rows where {expected} are expected "
                f"({instances} instances, {pairs} edges)"
            )


def _unique_graph(bag: Bag) -> tuple[Tensor, Tensor]:
    i, j = bag.edges
    if bool((i < j).all()):  # the common case: edges as stored, so only repeats must be excluded
        key = i * len(bag.x) + j
        if bool((key[1:] > key[:-1]).all()):
            return bag.edges, bag.weights
    return undirected(bag.edges, bag.weights, name=bag.name)


def _labels(labels: Sequence[Label], device: torch.device) -> Tensor | None:
    missing = [y is None for y in labels]
    if all(missing):
        return None
    if any(missing):
        raise BagError("some bags of the batch have a label and some have none")
    tensors = [torch.as_tensor(y) for y in labels]
    # a label of one value is a number, whatever its shape
    tensors = [y.reshape(()) if y.numel() == 1 else y for y in tensors]
    shapes = sorted({tuple(y.shape) for y in tensors})
    if len(shapes) > 1 or len(shapes[0]) > 1:
        raise BagError(
            f"the labels of the batch have the shapes {', '.join(map(str, shapes))}: expected a "
            "number for each bag, or for each a tensor (targets,) of the same length"
        )
    y = torch.stack(tensors).to(device)
    return y if y.is_floating_point() else y.long()


def _covariates(bags: Sequence[Bag]) -> Tensor | None:
    """Stack the covariates; they change the result, so all bags have them or none has."""
    rows = [bag.covariates for bag in bags]
    first = rows[0]
    for bag, row in zip(bags, rows, strict=True):
        if (row is None) != (first is None) or (
            row is not None and first is not None and row.shape != first.shape
        ):
            counts = [0 if r is None else len(r) for r in (row, first)]
            raise BagError(
                f"bag {bag.name!r} has {counts[0]} covariates, bag {bags[0].name!r} has "
                f"{counts[1]}: encode the covariates of all bags with one encoder"
            )
        if row is not None and not bool(row.isfinite().all()):
            raise BagError(
                f"bag {bag.name!r}: its covariates hold NaN or inf: encode missing values first"
            )
    return None if first is None else torch.stack([row for row in rows if row is not None])


def _concatenate(
    bags: Sequence[Bag], name: str, *, starts: Sequence[int] | None = None
) -> Tensor | None:
    """Concatenate the optional tensor `name` of all bags; None unless every bag has it.

    Arcs change what a method computes, so a batch in which only some bags have them is rejected.
    """
    parts = [getattr(bag, name) for bag in bags]
    if name.startswith("arc") and len({part is None for part in parts}) == 2:
        without = next(bag.name for bag, part in zip(bags, parts, strict=True) if part is None)
        raise BagError(
            f"some bags of the batch have {name} and bag {without!r} has none: a bag's result "
            "would depend on the rest of its batch. Give them to all bags, or to none"
        )
    if any(part is None for part in parts):
        return None
    if starts is None:
        return torch.cat(parts)
    return torch.cat([part + start for part, start in zip(parts, starts, strict=False)], dim=1)
