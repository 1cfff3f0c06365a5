"""Stage 5: bags of instances, packed one after another: no padding, so no masks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..errors import BagError
from .graphs import degrees, undirected
from .segments import segment_index

T = TypeVar("T")
Label = int | float | Tensor | None


def _accepting_pitch(cls: type[T]) -> type[T]:
    """Let the constructor take `pitch`, the name that `stride` had before rooms."""
    construct = cls.__init__

    @wraps(construct)
    def __init__(self: T, **given: Any) -> None:
        if "pitch" in given:
            given["stride"] = given.pop("pitch")
        construct(self, **given)

    cls.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]
    return cls


@_accepting_pitch
@dataclass(frozen=True, kw_only=True, slots=True)
class Bag:
    """One slide or scan: N instances and the undirected graph of their neighbourhood.

    `edges` (2, E) may hold a pair in both directions or twice, and self-loops: `pack` keeps each
    pair once (i < j), refuses weights that disagree, and drops self-loops.
    `arcs` (2, A) are (target row, source column) for methods whose neighbourhoods are directed.
    """

    name: str
    x: Float[Tensor, "n features"]
    edges: Int[Tensor, "2 e"]
    weights: Float[Tensor, " e"]
    y: Label = None
    coords: Shaped[Tensor, "n axes"] | None = None
    """Level-0 (x, y) of each patch's top-left corner, or (n, 1) slice positions."""
    stride: float | None = None
    """Distance between neighbouring patches, in the unit of `coords`; None: estimate it."""
    arcs: Int[Tensor, "2 a"] | None = None
    arc_weights: Float[Tensor, " a"] | None = None
    instance_labels: Int[Tensor, " n"] | None = None
    """Never used in training."""

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bags:
    """A mini-batch of bags with `n` instances in all; bag b is `x[offsets[b]:offsets[b + 1]]`."""

    x: Float[Tensor, "n features"]
    offsets: Int[Tensor, " bags_plus_1"]
    edges: Int[Tensor, "2 e"]
    """Undirected, each pair once, i < j, no self-loops; rows of `x`; one bag after another."""
    weights: Float[Tensor, " e"]
    y: Float[Tensor, " bags"] | Int[Tensor, " bags"] | None
    names: tuple[str, ...]
    coords: Shaped[Tensor, "n axes"] | None = None
    stride: tuple[float | None, ...] | None = None
    arcs: Int[Tensor, "2 a"] | None = None
    arc_weights: Float[Tensor, " a"] | None = None
    instance_labels: Int[Tensor, " n"] | None = None
    sizes: tuple[int, ...] = field(init=False)
    """Instances in each bag, as plain numbers: loops over bags need no device round trip."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.offsets.diff().tolist()))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def bag(self) -> Int[Tensor, " n"]:
        """The bag number of each instance, ascending."""
        return segment_index(self.sizes, self.x.device)

    @property
    def degrees(self) -> Float[Tensor, " n"]:
        """D_n = Σ_i A_ni."""
        return degrees(self.edges, self.weights, len(self.x))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Bags":
        """The same bags elsewhere; `dtype` is for the features (halves travel, floats compute)."""
        moved = {
            f.name: value.to(device)
            for f in fields(self)
            if f.init and isinstance(value := getattr(self, f.name), Tensor)
        }
        if dtype is not None:
            moved["x"] = moved["x"].to(dtype)
        return replace(self, **moved)


def pack(bags: Sequence[Bag]) -> Bags:
    """Concatenates bags; rows in edges and arcs are shifted to match. Dtypes are kept.

    Labels become float where all are float or the bags carry none of class type: an `int` label
    of 0 or 1 serves one logit as well as two, so `y` is int64 unless a label is a float.

    Raises:
        BagError: no bags, an empty bag, values that are not finite, rows that do not agree, or bags
            that disagree in width or in having a label.
    """
    if not bags:
        raise BagError("pack() got no bags: give at least one")
    for b in bags:
        _check(b, width=bags[0].x.shape[1])
    sizes = [len(b.x) for b in bags]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    start = offsets.tolist()
    graphs = [_graph(b) for b in bags]
    return Bags(
        x=torch.cat([b.x for b in bags]),
        offsets=offsets.to(bags[0].x.device),
        edges=torch.cat([e + s for (e, _), s in zip(graphs, start, strict=False)], dim=1),
        weights=torch.cat([w for _, w in graphs]),
        y=_labels([b.y for b in bags], bags[0].x.device),
        names=tuple(b.name for b in bags),
        coords=_joined(bags, "coords"),
        stride=tuple(b.stride for b in bags) if any(b.stride is not None for b in bags) else None,
        arcs=_joined(bags, "arcs", shift=start),
        arc_weights=_joined(bags, "arc_weights"),
        instance_labels=_joined(bags, "instance_labels"),
    )


def _check(b: Bag, *, width: int) -> None:
    n = len(b.x)
    if n == 0:
        raise BagError(f"bag {b.name!r} is empty: a bag needs at least one instance")
    if b.x.shape[1] != width:
        raise BagError(f"bag {b.name!r} has {b.x.shape[1]} features, the first one {width}")
    _check_lengths(b, n)
    # one NaN or inf makes the sum one; a sum that overflows for itself is looked at more closely
    total = b.x.sum(dtype=torch.float32 if b.x.element_size() < 4 else None)
    if not bool(total.isfinite()) and not bool(b.x.isfinite().all()):
        row = int((~b.x.isfinite()).any(1).nonzero()[0])
        raise BagError(f"bag {b.name!r}: its features hold NaN or inf, first in row {row}")
    for name, rows in (("edges", b.edges), ("arcs", b.arcs)):
        if rows is not None and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < n:
            raise BagError(
                f"bag {b.name!r}: {name} name row {int(rows.max())} (or a negative one), "
                f"but it has {n} instances"
            )


def _check_lengths(b: Bag, n: int) -> None:
    pairs = b.edges.shape[1]
    arcs = None if b.arcs is None else b.arcs.shape[1]
    for name, value, expected in (
        ("weights", b.weights, pairs),
        ("arc_weights", b.arc_weights, arcs),
        ("coords", b.coords, n),
        ("instance_labels", b.instance_labels, n),
    ):
        if value is not None and len(value) != expected:
            raise BagError(
                f"bag {b.name!r}: {name} has {len(value)} rows where {expected} are expected "
                f"({n} instances, {pairs} edges)"
            )


def _graph(b: Bag) -> tuple[Tensor, Tensor]:
    i, j = b.edges
    if bool((i < j).all()):  # the common case, already as stored: only repeats are left to look for
        key = i * len(b.x) + j
        if bool((key[1:] > key[:-1]).all()):
            return b.edges, b.weights
    return undirected(b.edges, b.weights, name=b.name)


def _labels(labels: Sequence[Label], device: torch.device) -> Tensor | None:
    missing = [y is None for y in labels]
    if all(missing):
        return None
    if any(missing):
        raise BagError("some bags of the batch have a label and some have none")
    y = torch.stack([torch.as_tensor(y).reshape(()) for y in labels]).to(device)
    return y if y.is_floating_point() else y.long()


def _joined(bags: Sequence[Bag], name: str, *, shift: Sequence[int] | None = None) -> Tensor | None:
    """The optional tensor `name` of all bags, or None unless every bag has it.

    Arcs decide what a method computes: a batch in which some bags have none is refused.
    """
    parts = [getattr(b, name) for b in bags]
    if name.startswith("arc") and len({p is None for p in parts}) == 2:
        without = next(b.name for b, p in zip(bags, parts, strict=True) if p is None)
        raise BagError(
            f"some bags of the batch have {name} and bag {without!r} has none: a bag's result "
            "would depend on its batch-mates. Give them to all bags, or to none"
        )
    if any(p is None for p in parts):
        return None
    if shift is None:
        return torch.cat(parts)
    return torch.cat([p + s for p, s in zip(parts, shift, strict=False)], dim=1)
