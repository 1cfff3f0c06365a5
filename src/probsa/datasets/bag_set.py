"""Stage 5: a folder of stored bags, read when needed and cached within a stated size."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Shaped

from ..core import Bag, BagKind, GraphKind, StoredBag, WeightKind, graphs
from ..errors import BagError, EmptyBag, GraphError, InputError, hint
from .cache import Cache, Graph
from .metadata import Metadata
from .overlay import Overlay

SHOWN = 5
"""Gaps of a scan that a note lists one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOptions:
    """Who is whose neighbour, and how strongly.

    `auto` chains the slices of a scan, joins the 8 adjacent patches of a slide, and joins nothing
    where there are no coordinates.
    """

    kind: GraphKind = "auto"
    weights: WeightKind = "inverse"
    weight_scale: float | None = None
    """s of `inverse` weights; None: the bag's median distance between neighbours."""
    neighbours: int = 8
    """k of `knn`."""
    stride: float | None = None
    """Level-0 pixels between neighbouring patches; None: as the files state, else estimated."""


class BagSet(ABC):
    """The bags of a folder, by name.

    Nothing is held open, and copies made for worker processes start with an empty cache, so each
    worker has `cache_gb` of its own.

    Args:
        folder: where the bags are.
        files: the file of each bag, by name.
        graph: how graphs are built.
        cache_gb: gigabytes (10⁹ bytes) of features and graphs kept in memory; 0 keeps none.
    """

    unit: Literal["px", "um"] = "px"
    """Of coordinates and stride: level-0 pixels, or micrometres where the resolution is unknown."""

    def __init__(
        self, folder: Path, files: dict[str, Path], *, graph: GraphOptions, cache_gb: float
    ) -> None:
        if cache_gb < 0:
            raise InputError(f"cache_gb is {cache_gb:g}: give gigabytes, 0 to keep nothing")
        if graph.neighbours < 1:
            raise InputError(f"neighbours is {graph.neighbours}: give 1 or more")
        for what, value in (("stride", graph.stride), ("weight_scale", graph.weight_scale)):
            if value is not None and not value > 0:
                raise InputError(f"{what} is {value:g}: give a positive number, or none")
        self.folder = folder
        self.graph = graph
        self.cache_gb = cache_gb
        self.names = tuple(sorted(files))
        self.notes: dict[str, str] = {}
        """What is worth knowing of the bags that this process has read: missing slices, an
        estimated stride, a slide of scattered patches."""
        self.overlay: Overlay | None = None
        """Labels of instances that go before what the files hold."""
        self._files = files
        self._cache = Cache(int(cache_gb * 1e9))
        self._shapes: dict[str, tuple[int, int]] = {}
        self._kinds: dict[str, BagKind] = {}
        self._sealed: frozenset[str] = frozenset()
        self._why = ""

    def __len__(self) -> int:
        return len(self.names)

    def __getstate__(self) -> dict[str, Any]:
        # A tensor sent to a worker holds a file descriptor: thousands would exhaust them.
        return self.__dict__ | {"_cache": Cache(self._cache.limit)}

    def sealed(self, names: Iterable[str], *, why: str) -> "BagSet":
        """A view of the same bags (cache and notes shared) that refuses to read these.

        `bag` and `stored` raise InputError with the bag and `why`, until `unseal` is called; how
        many instances a bag has, and what its file states, is no secret.
        """
        _ = self.in_dim  # else of the first bag, which may be a sealed one
        view = copy.copy(self)
        view._cache = self._cache  # which a copy for a worker process leaves behind
        view._sealed, view._why = self._sealed | frozenset(names), why
        return view

    def unseal(self) -> None:
        """Every bag of this view can be read from now on."""
        self._sealed = frozenset()

    @cached_property
    def in_dim(self) -> int:
        """Width of the features: that of the first usable bag, which every other must have."""
        return self._shape(self._first)[1]

    @cached_property
    def _first(self) -> str:
        why = EmptyBag(f"none of the {len(self)} bags in {self.folder} has an instance")
        for name in self.names:
            try:
                if self.size(name):
                    return name
            except BagError as e:  # said where that bag is read
                why = e
        raise why

    def size(self, name: str) -> int:
        """Instances of a bag, without reading its features."""
        return self._shape(name)[0]

    def empty(self) -> tuple[str, ...]:
        """Bags without instances (no tissue was found, say), noted as left out.

        A bag that cannot be read is not among them: that is said where it is read.
        """
        found = []
        for name in self.names:
            try:
                without = self.size(name) == 0
            except EmptyBag:
                without = True
            except BagError:
                continue
            if without:
                found.append(name)
                self.notes[name] = "left out: it has no instances"
        return tuple(found)

    def stored_kind(self, name: str) -> BagKind:
        """What the instances are: patches of a slide or slices of a scan."""
        if name not in self._kinds:
            self._kinds[name] = self._read(self._known(name)).inferred_kind
        return self._kinds[name]

    def bag(self, name: str) -> Bag:
        """One bag with its graph and without its label; its tensors are shared, not to be changed.

        Raises:
            BagError: no bag of that name, a file that cannot be used, or another width.
            GraphError: the coordinates contradict the stride, or there are none to build from.
            InputError: the bag is sealed.
        """
        cached = self._cache.bag(self._open(name))
        if cached is not None:
            return cached
        stored = self.stored(name)
        width = stored.features.shape[1]
        if width != self.in_dim:
            raise BagError(
                f"bag {name!r} ({self._files[name]}) has {width} features an instance, "
                f"{self._first!r} has {self.in_dim}: all must come from one encoder"
            )
        self._shapes[name] = (len(stored.features), width)
        self._kinds[name] = stored.inferred_kind
        bag = _as_bag(stored)
        graph = self._cache.graph(name)
        if graph is None:
            graph = build_graph(bag, stored, options=self.graph)
            self._note(stored, graph)
            self._cache.put_graph(name, graph)
        bag = replace(bag, edges=graph.edges, weights=graph.weights, stride=graph.stride)
        self._cache.put_bag(name, bag)
        return bag

    def stored(self, name: str) -> StoredBag:
        """The checked content of a bag's file, without a graph, not kept.

        Raises:
            BagError: no bag of that name, or a file that cannot be used.
            InputError: the bag is sealed.
        """
        stored = self._read(self._open(name))
        return stored if self.overlay is None else self.overlay.over(stored)

    @abstractmethod
    def metadata(self, name: str) -> Metadata:
        """What the files state of a bag beside its rows.

        Raises:
            BagError: no bag of that name, or a file that cannot be used.
        """

    @abstractmethod
    def formats(self) -> frozenset[str]:
        """Which tools' files these can be, by the first of them."""

    @abstractmethod
    def _read(self, name: str) -> StoredBag:
        """The checked content of a bag's file."""

    @abstractmethod
    def _peek(self, name: str) -> tuple[int, int]:
        """Instances and width, without reading the features."""

    def _shape(self, name: str) -> tuple[int, int]:
        if name not in self._shapes:
            self._shapes[name] = self._peek(self._known(name))
        return self._shapes[name]

    def _open(self, name: str) -> str:
        if name in self._sealed:
            raise InputError(f"bag {name!r} of {self.folder} cannot be read here: {self._why}")
        return self._known(name)

    def _known(self, name: str) -> str:
        if name not in self._files:
            raise BagError(f"no bag named {name!r} in {self.folder}.{hint(name, self.names)}")
        return name

    def _note(self, stored: StoredBag, graph: Graph) -> None:
        found = []
        if stored.coords is None and self.graph.kind == "auto":
            found.append("no coordinates, so none of its instances has a neighbour")
        if stored.inferred_kind == "ct" and stored.coords is not None:
            found += _gaps(stored.coords[:, 0])
        if graph.stride is not None and stored.stride is None and self.graph.stride is None:
            found.append(f"stride estimated as {graph.stride:g}")
        n = len(stored.features)
        if n >= graphs.SUSPICIOUS and _resolved(self.graph.kind, stored) == "grid":
            alone = 1 - len(graph.edges.unique()) / n
            if alone > 0.5:
                found.append(f"{alone:.0%} of the patches have no neighbour")
        if found:
            self.notes[stored.name] = "; ".join(found)


def build_graph(bag: Bag, stored: StoredBag, *, options: GraphOptions) -> Graph:
    """The graph of one bag; see `GraphOptions`.

    Raises:
        GraphError: the kind needs coordinates that are not there, or they contradict the stride.
    """
    kind = _resolved(options.kind, stored)
    stride = stored.stride if options.stride is None else options.stride
    coords = bag.coords
    if kind in ("grid", "knn") and coords is None:
        raise GraphError(
            f"bag {bag.name!r} has no coordinates, which the graph {kind!r} is built from: "
            "give --graph chain or --graph none"
        )
    if kind == "chain":
        edges = graphs.chain(len(bag))
    elif kind == "grid" and coords is not None:
        if coords.shape[1] != 2:
            raise GraphError(
                f"bag {bag.name!r} has one coordinate an instance, the graph 'grid' needs x and "
                "y: give --graph chain"
            )
        if len(bag) > 1:
            stride = graphs.check_stride(coords, stride=stride, name=bag.name)
        edges = graphs.grid(coords, stride=stride, name=bag.name)
    elif kind == "knn" and coords is not None:
        edges = graphs.knn(coords, k=options.neighbours)
    else:
        edges = torch.zeros(2, 0, dtype=torch.long)
    weights = graphs.edge_weights(bag.x, edges, kind=options.weights, scale=options.weight_scale)
    return Graph(edges=edges, weights=weights, stride=stride)


def _resolved(kind: GraphKind, stored: StoredBag) -> GraphKind:
    if kind != "auto":
        return kind
    if stored.inferred_kind == "ct":
        return "chain"
    if stored.coords is None:
        return "none"
    return "chain" if stored.coords.shape[1] == 1 else "grid"


def _as_bag(stored: StoredBag) -> Bag:
    """Without copies: the tensors are views of what was read."""
    labels, coords = stored.instance_labels, stored.coords
    return Bag(
        name=stored.name,
        x=torch.from_numpy(stored.features),
        edges=torch.zeros(2, 0, dtype=torch.long),
        weights=torch.zeros(0),
        coords=None if coords is None else torch.from_numpy(coords),
        instance_labels=None if labels is None else torch.from_numpy(labels),
    )


def _gaps(position: Shaped[np.ndarray, " n"]) -> list[str]:
    """What is odd about the slices of a scan, in words."""
    step = np.diff(position)
    if len(step) == 0:
        return []
    found = []
    if (step <= 0).any() and (step >= 0).any():
        row = int(np.flatnonzero(np.sign(step) != np.sign(np.median(step)))[:1].sum()) + 1
        found.append(f"slice positions do not run one way (row {row}); chained in row order")
    there = np.unique(position)
    step = np.diff(there)
    usual = float(np.median(step)) if len(step) else 0.0
    wide = np.flatnonzero(step > 1.5 * usual)
    missing = []
    for i in wide[:SHOWN]:
        low, high = there[i], there[i + 1]
        if usual == 1 and high - low >= 2:
            missing.append(f"{low + 1:g}" if high - low < 3 else f"{low + 1:g}-{high - 1:g}")
        else:
            missing.append(f"between {low:g} and {high:g}")
    if missing:
        more = f" and {len(wide) - SHOWN} more gaps" if len(wide) > SHOWN else ""
        found.append(f"slices {', '.join(missing)}{more} missing")
    return found
