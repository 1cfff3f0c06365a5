"""Stage 5: sets of bags: a folder of stored bags, read on demand and cached, or bags in memory."""

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from ..core import (
    Bag,
    Graph,
    GraphOptions,
    GraphOrigin,
    GraphPlan,
    StoredBag,
    as_array,
    bag_limit,
    build_graph,
    graphs,
    is_there,
    max_bag_gb,
    resolve_kind,
    slice_order,
)
from ..errors import BagError, EmptyBag, InputError, hint
from .bag_notes import (
    BagNote,
    BagNotes,
    EstimatedStride,
    IsolatedPatches,
    LeftOut,
    MissingSlices,
    NoCoordinates,
    SlicesAtOnePosition,
    SlicesNotInOrder,
)
from .choices import MOST_CACHE_GB
from .labels import LabelTable
from .metadata import Metadata
from .overlay import overlaid

T = TypeVar("T")
SHOWN = 5
"""Maximum number of gaps of a scan that a note lists individually."""


class BagSet(ABC):
    """The bags of a folder, by name.

    No file is kept open. Copies made for worker processes start with an empty cache, so each worker
    has its own `cache_gb`.

    Args:
        folder: The folder that contains the bags.
        paths: The file of each bag, by name.
        graph: How graphs are built.
        cache_gb: Gigabytes (10⁹ bytes) of features and graphs to keep in memory; 0 disables it.
    """

    unit: Literal["px", "um"] = "px"
    """Unit of coordinates and stride: level-0 pixels; micrometres if the resolution is unknown."""
    tools: ClassVar[frozenset[str]] = frozenset()
    """The tools that write files of this format."""

    def __init__(
        self, folder: Path, paths: dict[str, Path], *, graph: GraphOptions, cache_gb: float
    ) -> None:
        if not 0 <= cache_gb <= MOST_CACHE_GB:
            raise InputError(f"cache_gb is {cache_gb:g}: give gigabytes, or 0 to disable the cache")
        self.folder = folder
        self.graph = graph
        self.graph_chosen = True
        """Whether somebody chose `graph`; False: it is the default, which a run replaces."""
        self.cache_gb = cache_gb
        self.max_bag_gb = max_bag_gb()
        """Largest size of a bag; kept here since worker processes do not inherit the setting."""
        self.names = tuple(sorted(paths))
        self.model_width: int | None = None
        """Width of the features that a model was trained on; None: that of the first usable bag."""
        self.notes: BagNotes = {}
        """Notes on bags that this process has read: missing slices, an estimated stride, isolated
        patches."""
        self.covariates: Mapping[str, Tensor] = {}
        """Encoded clinical covariates of the bags that have some, which `bag` adds."""
        self.overlay: Mapping[str, Path] = {}
        """Files of instance labels that override those in the bags' files."""
        self._files = paths
        self._cache = Cache(int(cache_gb * 1e9))
        self._shapes: dict[str, tuple[int, int]] = {}
        self._sealed: frozenset[str] = frozenset()
        self._why = ""

    def __len__(self) -> int:
        return len(self.names)

    def __getstate__(self) -> dict[str, Any]:
        # Each tensor sent to a worker takes a file descriptor, and the cache may hold thousands.
        return self.__dict__ | {"_cache": Cache(self._cache.limit)}

    def sealed(self, names: Iterable[str], *, why: str) -> "BagSet":
        """Return a view, with shared cache and notes, that refuses to read the named bags.

        For these, `bag` and `stored` raise InputError with the reason `why`. Their sizes and
        metadata remain available.
        """
        _ = self.in_dim  # computed now, as it may need the first bag, which may be sealed
        view = copy.copy(self)
        view._cache = self._cache  # `__getstate__` replaces it with an empty one
        view._sealed = self._sealed | frozenset(names)
        view._why = why
        return view

    @cached_property
    def in_dim(self) -> int:
        """Width of the features: the model's, or that of the first usable bag; all must have it."""
        if self.model_width is not None:
            return self.model_width
        return self._shape(self._first)[1]

    @cached_property
    def _first(self) -> str:
        error = EmptyBag(f"none of the {len(self)} bags in {self.folder} has an instance")
        for name in self.names:
            try:
                if self.size(name):
                    return name
            except BagError as problem:  # also raised where that bag is read
                error = problem
        raise error

    def size(self, name: str) -> int:
        """Return the number of instances in a bag, without reading its features."""
        return self._shape(name)[0]

    def empty(self) -> tuple[str, ...]:
        """Return bags without instances (for example, slides without tissue), and note them.

        Unreadable bags are not included; reading them raises an error.
        """
        empty_bags = []
        for name in self.names:
            try:
                is_empty = not self.size(name)
            except BagError as error:
                is_empty = isinstance(error, EmptyBag)
            if is_empty:
                empty_bags.append(name)
        self.leave_out(dict.fromkeys(empty_bags, "it has no instances"))
        return tuple(empty_bags)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Note that bags are not used, with the reason of each."""
        for name, reason in reasons.items():
            self.notes[name] = (LeftOut(reason=reason),)

    def bag(self, name: str) -> Bag:
        """Return a bag with its graph but no label; its tensors are shared and must not be changed.

        Raises:
            BagError: there is no such bag, its file cannot be used, or its width differs.
            GraphError: the coordinates are missing or contradict the stride.
            InputError: the bag is sealed.
        """
        bag = self._cache.get(self._cache.bags, self._open(name))
        if bag is None:
            bag = self._new_bag(name)
        if name in self.covariates:
            bag = replace(bag, covariates=self.covariates[name])
        return bag

    def check_width(self, name: str, width: int) -> None:
        """Raise BagError if the features of a bag have another width than those of the others."""
        if width == self.in_dim:
            return
        problem = f"bag {name!r} ({self._files[name]}) has {width} features per instance"
        if self.model_width is not None:
            raise BagError(
                f"{problem}, but the model was trained on {self.model_width}: extract them with "
                "the encoder it was trained on"
            )
        raise BagError(
            f"{problem}, {self._first!r} has {self.in_dim}: all must come from one encoder"
        )

    def _new_bag(self, name: str) -> Bag:
        """Read a bag and build its graph."""
        stored = self.stored(name)
        self.check_width(name, stored.features.shape[1])
        self._shapes[name] = stored.features.shape
        labels = stored.instance_labels
        coords = stored.coords
        bag = Bag(  # its tensors share memory with the arrays
            name=name,
            x=torch.from_numpy(stored.features),
            edges=torch.zeros(2, 0, dtype=torch.long),
            weights=torch.zeros(0),
            coords=None if coords is None else torch.from_numpy(coords),
            instance_labels=None if labels is None else torch.from_numpy(labels),
        )
        weights = self._cache.get(self._cache.weights, name)
        graph = build_graph(stored, options=self.graph, weights=weights)
        if weights is None:
            self._note(stored, graph)
            self._cache.put_weights(name, graph.weights)
        origin = GraphOrigin(
            options=self.graph, chosen=self.graph_chosen, kind=stored.kind, stride=stored.stride
        )
        plan = self._cache.get(self._cache.plans, name)
        if plan is None:
            plan = GraphPlan(graph.edges, len(bag), bag.coords)
        bag = replace(
            bag,
            edges=graph.edges,
            weights=graph.weights,
            stride=graph.stride,
            graph=(origin,),
            plan=plan,
        )
        self._cache.put_bag(name, bag)
        return bag

    def keep_plan(self, bag: Bag) -> None:
        """Keep the plan of a bag of this set for later readings, once its levels are made."""
        if bag.plan is not None and bag.plan.is_of(bag.edges):
            self._cache.put_plan(bag.name, bag.plan)

    def stored(self, name: str) -> StoredBag:
        """Return the checked content of a bag's file, without a graph; it is not cached.

        Raises:
            BagError: there is no such bag, or its file cannot be used.
            InputError: the bag is sealed.
        """
        with bag_limit(self.max_bag_gb):
            stored = self._read(self._open(name))
        return overlaid(stored, self.overlay[name]) if name in self.overlay else stored

    @abstractmethod
    def metadata(self, name: str) -> Metadata:
        """Return what the files state about a bag besides its instances.

        Raises:
            BagError: there is no such bag, or its file cannot be used.
        """

    def metadata_of(self, name: str) -> tuple[Metadata, ...]:
        """Return the metadata of each slide or scan of a bag: one, or all slides of a patient.

        Raises:
            BagError: there is no such bag, or its file cannot be used.
        """
        return (self.metadata(name),)

    def formats(self) -> frozenset[str]:
        """Return the tools that may have written these files, judging by the first file."""
        return self.tools

    def label_table(self) -> LabelTable | None:
        """Return the labels that the tool stores beside its features, if it does."""
        return None

    def at_level_0(
        self, bag: StoredBag, metadata: Metadata, remarks: list[str]
    ) -> tuple[StoredBag, Metadata]:
        """Return a bag with level-0 corners, for files that do not hold them; for `convert`.

        What is uncertain is appended to `remarks`.

        Raises:
            BagError: the resolution is needed but unknown, or contradicts the coordinates.
        """
        return bag, metadata

    @abstractmethod
    def _read(self, name: str) -> StoredBag:
        """Return the checked content of a bag's file."""

    @abstractmethod
    def _peek(self, name: str) -> tuple[int, int]:
        """Return the number of instances and features, without reading the features."""

    def _shape(self, name: str) -> tuple[int, int]:
        if name not in self._shapes:
            with bag_limit(self.max_bag_gb):
                shape = self._peek(self._known(name))
            if shape[1] == 0:
                raise BagError(
                    f"bag {name!r} ({self._files[name]}): its instances have no features: extract "
                    "that bag again"
                )
            self._shapes[name] = shape
        return self._shapes[name]

    def _open(self, name: str) -> str:
        if name in self._sealed:
            raise InputError(f"bag {name!r} of {self.folder} cannot be read here: {self._why}")
        return self._known(name)

    def _known(self, name: str) -> str:
        if name not in self._files:
            raise BagError(f"no bag named {name!r} in {self.folder}.{hint(name, self.names)}")
        is_there(self._files[name])  # raises for a broken link or a pipe
        return name

    def _note(self, stored: StoredBag, graph: Graph) -> None:
        """Note what is remarkable about a bag and its graph."""
        notes: list[BagNote] = []
        if stored.coords is None and self.graph.kind == "auto":
            notes.append(NoCoordinates())
        if stored.inferred_kind == "ct" and stored.coords is not None:
            notes += _slice_notes(stored.coords[:, 0])
        if graph.stride is not None and stored.stride is None and self.graph.stride is None:
            notes.append(EstimatedStride(stride=graph.stride))
        instances = len(stored.features)
        if instances >= graphs.SUSPICIOUS and resolve_kind(self.graph.kind, stored) == "grid":
            isolated = 1 - len(graph.edges.unique()) / instances
            if isolated > 0.5:
                notes.append(IsolatedPatches(share=isolated))
        if notes:
            self.notes[stored.name] = tuple(notes)


def _slice_notes(coords: Shaped[np.ndarray, " n"]) -> list[BagNote]:
    """Return what is irregular about the positions of the slices of a scan."""
    if len(coords) < 2:
        return []
    notes: list[BagNote] = []
    order = slice_order(coords)
    displaced_rows = np.flatnonzero(order != np.arange(len(order)))
    if len(displaced_rows):
        notes.append(SlicesNotInOrder(first_row=int(displaced_rows[0])))
    positions, slices_at = np.unique(coords, return_counts=True)
    shared = np.flatnonzero(slices_at > 1)
    if len(shared):
        first = shared[0]
        note = SlicesAtOnePosition(
            position=float(positions[first]),
            slices=int(slices_at[first]),
            other_positions=len(shared) - 1,
        )
        notes.append(note)
    steps = np.diff(positions)
    median_step = float(np.median(steps)) if len(steps) else 0.0
    # spacings vary a little, but a missing slice doubles one
    large_steps = np.flatnonzero(steps > 1.5 * median_step)
    if len(large_steps):
        gaps = [(float(positions[k]), float(positions[k + 1])) for k in large_steps[:SHOWN]]
        more_gaps = len(large_steps) - len(gaps)
        notes.append(MissingSlices(gaps=tuple(gaps), more_gaps=more_gaps, step=median_step))
    return notes


IN_MEMORY = Path("in-memory")
"""Stands for the folder of bags that have none."""


class BagList(BagSet):
    """Bags in memory, by name; their graphs and features are used as they are.

    Args:
        bags: The bags, at least one, each with a name of its own.

    Raises:
        InputError: There are no bags.
        BagError: Two bags have the same name.
    """

    def __init__(self, bags: Sequence[Bag]) -> None:
        if not bags:
            raise InputError("there are no bags: give at least one")
        self._bags = {}
        for bag in bags:
            plan = bag.plan or GraphPlan(bag.edges, len(bag), bag.coords)
            self._bags[bag.name] = replace(bag, plan=plan)
        super().__init__(
            IN_MEMORY, dict.fromkeys(self._bags, IN_MEMORY), graph=GraphOptions(), cache_gb=0.0
        )
        if len(self._bags) < len(bags):
            names = [bag.name for bag in bags]
            twice = next(name for name in names if names.count(name) > 1)
            raise BagError(f"two bags are named {twice!r}: give each a name of its own")

    def bag(self, name: str) -> Bag:
        """Return a bag; see `BagSet.bag`."""
        bag = self._bags[self._open(name)]
        self.check_width(name, bag.x.shape[1])
        return bag

    def metadata(self, name: str) -> Metadata:
        coords = self._bags[self._known(name)].coords
        if coords is None:
            return Metadata()
        return Metadata(kind="ct" if coords.shape[1] == 1 else "slide")

    def _read(self, name: str) -> StoredBag:
        bag = self._bags[name]
        labels = bag.instance_labels
        return StoredBag(
            name=name,
            features=as_array(bag.x),
            coords=None if bag.coords is None else as_array(bag.coords),
            instance_labels=None if labels is None else as_array(labels),
            stride=bag.stride,
        )

    def _peek(self, name: str) -> tuple[int, int]:
        instances, width = self._bags[name].x.shape
        return int(instances), int(width)


class Cache:
    """Bags, plans and edge weights by name, evicted in least-recently-used order.

    The weights of a graph take about 0.5 % of the bytes of a bag, and its plan of elimination about
    3 %, but making them takes several times as long as reading the bag, while edges are found again
    in a few milliseconds. Plans are therefore evicted only once no bags are left, and weights only
    once no plans are left.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bags: OrderedDict[str, Bag] = OrderedDict()
        self.weights: OrderedDict[str, Tensor] = OrderedDict()
        self.plans: OrderedDict[str, GraphPlan] = OrderedDict()
        self.bytes = 0

    def get(self, kind: OrderedDict[str, T], name: str) -> T | None:
        """Return a bag or weights, if cached, and mark them as the most recently used."""
        if name in kind:
            kind.move_to_end(name)
        return kind.get(name)

    def put_weights(self, name: str, weights: Tensor) -> None:
        """Store the edge weights of a bag, unless they alone exceed the limit."""
        if weights.nbytes > self.limit:
            return
        self.weights[name] = weights
        self.bytes += weights.nbytes
        self._shrink()

    def put_plan(self, name: str, plan: GraphPlan) -> None:
        """Store a plan whose levels are made, unless it is there or alone exceeds the limit."""
        if name in self.plans or not 0 < plan.nbytes <= self.limit:
            return
        self.plans[name] = plan
        self.bytes += plan.nbytes
        self._shrink()

    def put_bag(self, name: str, bag: Bag) -> None:
        """Store a bag, unless it cannot fit beside the others even after evicting all bags."""
        kept = sum(w.nbytes for w in self.weights.values())
        kept += sum(plan.nbytes for plan in self.plans.values())
        if _bytes(bag) + kept > self.limit:
            return
        self.bags[name] = bag
        self.bytes += _bytes(bag)
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self.limit and self.bags:
            self.bytes -= _bytes(self.bags.popitem(last=False)[1])
        while self.bytes > self.limit and self.plans:
            self.bytes -= self.plans.popitem(last=False)[1].nbytes
        while self.bytes > self.limit:
            self.bytes -= self.weights.popitem(last=False)[1].nbytes


def _bytes(bag: Bag) -> int:
    """Return the size of a bag without its edge weights, which are counted separately."""
    parts = (bag.x, bag.coords, bag.edges, bag.instance_labels)
    return sum(p.nbytes for p in parts if p is not None)
