"""The order in which the fields of a batch are eliminated: made on the host, once for each graph.

What depends on a bag's graph alone is its `GraphPlan`, which is kept with the graph. `Elimination`
joins the plans of a batch: bags of equal depth and similar sizes are the nodes of the same levels,
so that the number of operations does not grow with the number of bags.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from ..errors import InputError
from .dissection import Level, dissect, levels_of

DENSE = 256
"""Bags of at most this many instances are not dissected."""
STEP = 16
"""Small bags are filled up to a multiple of this many instances, and computed together."""
LEAF = 80
"""Largest number of instances of a leaf of larger bags."""
PER_DOUBLING = 2
"""Groups of larger bags between one size and the double: those of a group are filled up alike."""
LARGEST = 1 << 29
"""Largest number of elements of a bag's matrices: 4 GB in double precision."""

Shapes = tuple[tuple[int, ...], ...]
"""Those of the arrays of a level."""


class GraphPlan:
    """What is computed once of the graph of a bag, and kept as long as the graph is.

    Args:
        edges: (2, e) the edges, each once.
        n: Number of instances.
        coords: Their positions; None if they have none.
    """

    def __init__(
        self, edges: Int[Tensor, "2 e"], n: int, coords: Shaped[Tensor, "n axes"] | None
    ) -> None:
        self.edges = edges
        self.n = n
        self._coords = coords
        self._levels: list[Level] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # a process that gets the plan needs the levels or what they are made of, not both
        if self._levels is None:
            return self.__dict__
        return self.__dict__ | {"_coords": None}

    @property
    def nbytes(self) -> int:
        """The bytes of the levels; 0 while they are not made."""
        total = 0
        for level in self._levels or ():
            arrays = (level.pivots, level.boundary, level.above, level.edges, level.entries)
            total += sum(array.nbytes for array in arrays)
        return total

    def is_of(self, edges: Int[Tensor, "2 e"]) -> bool:
        """Return whether these are the same edges in the same order."""
        if edges is self.edges:
            return True
        on_host = edges.device.type == "cpu"  # another device is not asked
        return on_host and edges.shape == self.edges.shape and torch.equal(edges, self.edges)

    @property
    def is_small(self) -> bool:
        """Whether the bag is one dense block."""
        return self.n <= DENSE

    def levels(self, *, name: str) -> list[Level]:
        """Return the levels of a bag that is not small; the first call computes them.

        Raises:
            InputError: the matrices would have more than `LARGEST` elements.
        """
        if self._levels is None:
            coords = None if self._coords is None else self._coords.cpu().numpy().astype(float)
            levels = dissect(self.edges.cpu().numpy(), self.n, coords=coords, leaf=LEAF)
            elements = sum(len(level.pivots) * level.size**2 for level in levels)
            if elements > LARGEST:
                raise InputError(
                    f"bag {name!r} of {self.n:,} instances needs {8e-9 * elements:.0f} GB for a "
                    "field posterior, because no small part of its graph separates the rest. Use a "
                    "posterior other than `field`, or edges between near instances"
                )
            self._levels = levels
        return self._levels


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedLevel:
    """A level of several trees, its nodes bag by bag; indices are those of the whole batch."""

    pivots: Int[Tensor, "nodes p"]
    """Packed rows of the instances of each node; for fillers the row after the last one, a 0."""
    pivots_to: Int[Tensor, "nodes p"]
    """The same rows to write to; for fillers the row after that one, which nobody reads. So NaN of
    one bag cannot reach others."""
    boundary: Int[Tensor, "nodes b"]
    boundary_to: Int[Tensor, "nodes b"]
    """As `pivots_to`."""
    above: Int[Tensor, "nodes b"]
    """The row of each boundary instance in the matrix of the parent node."""
    base: Int[Tensor, "nodes b"]
    """Where that row begins in the matrices of the level above, in flat indices."""
    places: Int[Tensor, " entries"]
    """Where entries of Q stand in the level's matrices, in flat indices."""
    values: Int[Tensor, " entries"]
    """Which these are: of [the diagonal, 1, the pairs]."""

    @property
    def size(self) -> int:
        """The number of rows of a matrix."""
        return self.pivots.shape[1] + self.boundary.shape[1]


class Tree(NamedTuple):
    """The levels of bags that are eliminated together, the root first."""

    levels: Sequence[JoinedLevel]
    bags: Sequence[int]
    """The bags' numbers, one for each root."""


class Elimination:
    """The joined plans of a batch, made when they are first asked for.

    Args:
        plans: The plan of each bag.
        names: Names of the bags, for messages.
    """

    def __init__(self, plans: Sequence[GraphPlan], names: Sequence[str]) -> None:
        self.plans = tuple(plans)
        self.names = tuple(names)
        self._shapes: list[tuple[Sequence[int], list[Shapes]]] = []
        """For each tree its bags, and the shapes of the arrays of each level."""
        self._indices: Tensor | None = None
        self._trees: list[Tree] | None = None
        self._repeated: dict[int, Elimination] = {1: self}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_trees": None, "_repeated": {}}  # views of `_indices`

    def repeated(self, copies: int) -> "Elimination":
        """Return the plans of some copies of the batch, one after another."""
        if copies not in self._repeated:
            self._repeated[copies] = Elimination(self.plans * copies, self.names * copies)
        return self._repeated[copies]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Elimination":
        """Return the same on another device; what is not made yet is made when it is asked for."""
        moved = Elimination(self.plans, self.names)
        if self._indices is not None:
            moved._shapes = self._shapes
            moved._indices = self._indices.to(device, non_blocking=non_blocking)
        return moved

    def pin_memory(self) -> "Elimination":
        """Return the same in memory from which a GPU reads while the host goes on."""
        moved = self.to("cpu")
        if moved._indices is not None:
            moved._indices = moved._indices.pin_memory()
        return moved

    def make(self) -> None:
        """Join the plans on the host, for example in a process that reads ahead.

        Raises:
            InputError: the matrices of a bag would have more than `LARGEST` elements.
        """
        if self._indices is not None:
            return
        shapes: list[tuple[Sequence[int], list[Shapes]]] = []
        arrays: list[np.ndarray] = []
        numbers: list[int] = []
        for bags, levels in self._groups():
            shapes.append((bags, [tuple(array.shape for array in level) for level in levels]))
            for level in levels:
                arrays += [array.ravel() for array in level]
            numbers += bags
        arrays.append(np.argsort(numbers))
        self._shapes = shapes
        # one tensor, so that one copy brings all of it to a device
        self._indices = torch.from_numpy(np.concatenate(arrays))

    def trees(self, device: torch.device) -> list[Tree]:
        """Return the trees, each of several bags, with their indices on a device."""
        self.make()
        assert self._indices is not None
        if self._indices.device != device:
            self._indices = self._indices.to(device, non_blocking=True)
            self._trees = None
        if self._trees is None:
            self._trees = self._views(self._indices)
        return self._trees

    def _views(self, indices: Int[Tensor, " i"]) -> list[Tree]:
        """Return the trees as views of all indices."""
        trees: list[Tree] = []
        start = 0
        for bags, level_shapes in self._shapes:
            levels: list[JoinedLevel] = []
            for shapes in level_shapes:
                views: dict[str, Tensor] = {}
                for name, shape in zip(Arrays._fields, shapes, strict=True):
                    stop = start + math.prod(shape)
                    views[name] = indices[start:stop].view(shape)
                    start = stop
                levels.append(JoinedLevel(**views))
            trees.append(Tree(levels, bags))
        return trees

    def in_order(self, of_trees: Tensor) -> Tensor:
        """Return values of bags, tree by tree, in the order of the batch."""
        assert self._indices is not None
        return of_trees.index_select(0, self._indices[-len(self.plans) :])

    def _groups(self) -> Iterator[tuple[Sequence[int], list["Arrays"]]]:
        """Yield the bags of each tree, and the arrays of its levels."""
        first_rows = list(accumulate((plan.n for plan in self.plans), initial=0))
        edge_counts = (plan.edges.shape[1] for plan in self.plans)
        first_edges = list(accumulate(edge_counts, initial=0))
        for bags in self._bags_of_trees():
            parts: list[Part] = []
            for b in bags:
                rows = np.arange(first_rows[b], first_rows[b + 1])
                edges = np.arange(first_edges[b], first_edges[b + 1])
                levels: Sequence[Level] = ()
                if not self.plans[b].is_small:
                    levels = self.plans[b].levels(name=self.names[b])
                parts.append(Part(levels, rows, edges))
            if self.plans[bags[0]].is_small:
                parts = [_dense_part([self.plans[b] for b in bags], parts)]
            yield bags, _joined(parts, filler=first_rows[-1])

    def _bags_of_trees(self) -> list[list[int]]:
        """Return the bags of each tree: those of similar sizes, in the order of first bags."""
        groups: dict[tuple[bool, int], list[int]] = {}
        for b, plan in enumerate(self.plans):
            size = -(-plan.n // STEP)
            if not plan.is_small:
                size = int(np.ceil(PER_DOUBLING * np.log2(plan.n / LEAF)))
            groups.setdefault((plan.is_small, size), []).append(b)
        return list(groups.values())


class Part(NamedTuple):
    """The levels of one or several bags with equal depths, in numbers of their own."""

    levels: Sequence[Level]
    rows: Int[np.ndarray, " n"]
    """The packed row of each instance."""
    edges: Int[np.ndarray, " e"]
    """The number of each edge in the batch."""


class Arrays(NamedTuple):
    """The arrays of a `JoinedLevel`."""

    pivots: Int[np.ndarray, "nodes p"]
    pivots_to: Int[np.ndarray, "nodes p"]
    boundary: Int[np.ndarray, "nodes b"]
    boundary_to: Int[np.ndarray, "nodes b"]
    above: Int[np.ndarray, "nodes b"]
    base: Int[np.ndarray, "nodes b"]
    places: Int[np.ndarray, " entries"]
    values: Int[np.ndarray, " entries"]


def _dense_part(plans: Sequence[GraphPlan], parts: Sequence[Part]) -> Part:
    """Return small bags as the roots of one level, without children."""
    sizes = [plan.n for plan in plans]
    starts = accumulate(sizes, initial=0)
    shifted = [plan.edges.cpu().numpy() + start for plan, start in zip(plans, starts, strict=False)]
    node = np.arange(len(plans)).repeat(sizes)
    depth = np.zeros(len(node), np.int64)
    levels = levels_of(
        np.concatenate(shifted, axis=1), depth, node, roots=len(plans), multiple=STEP
    )
    rows = np.concatenate([part.rows for part in parts])
    edges = np.concatenate([part.edges for part in parts])
    return Part(levels, rows, edges)


def _joined(parts: Sequence[Part], *, filler: int) -> list[Arrays]:
    """Return the levels of several parts of equal depth as one, filled up to equal widths.

    Args:
        parts: The parts.
        filler: The row that fills up nodes, the number of instances of the batch.
    """
    joined: list[Arrays] = []
    parent_width = 0  # pivots of a node of the level above
    parent_size = 0
    for k in range(len(parts[0].levels)):
        levels = [part.levels[k] for part in parts]
        width = max(level.pivots.shape[1] for level in levels)
        beyond = max(level.boundary.shape[1] for level in levels)
        size = width + beyond
        nodes = sum(len(level.pivots) for level in levels)
        pivots = np.full((nodes, width), filler)
        boundary = np.full((nodes, beyond), filler)
        above = np.zeros((nodes, beyond), np.int64)
        places: list[np.ndarray] = []
        values: list[np.ndarray] = []
        first = 0
        for part, level in zip(parts, levels, strict=True):
            last = first + len(level.pivots)
            rows = np.append(part.rows, filler)
            own_width = level.pivots.shape[1]
            own_beyond = level.boundary.shape[1]
            pivots[first:last, :own_width] = rows[level.pivots]
            boundary[first:last, :own_beyond] = rows[level.boundary]
            if k:
                own_parent_width = part.levels[k - 1].pivots.shape[1]
                above[first:last, :own_beyond] = _widened(
                    level.above, own_parent_width, parent_width
                )
            node, row, column = level.entries
            row = _widened(row, own_width, width)
            column = _widened(column, own_width, width)
            places.append(((node + first) * size + row) * size + column)
            values.append(filler + 1 + part.edges[level.edges])
            first = last
        node = np.arange(nodes)[:, None]
        diagonal = np.arange(width)
        places.append(((node * size + diagonal) * size + diagonal).ravel())
        values.append(pivots.ravel())
        # the children 2m and 2m + 1 add to the matrix m of the level above
        base = (node // 2 * parent_size + above) * parent_size
        arrays = Arrays(
            pivots=pivots,
            pivots_to=np.where(pivots == filler, filler + 1, pivots),
            boundary=boundary,
            boundary_to=np.where(boundary == filler, filler + 1, boundary),
            above=above,
            base=base,
            places=np.concatenate(places),
            values=np.concatenate(values),
        )
        joined.append(arrays)
        parent_width = width
        parent_size = size
    return joined


def _widened(place: np.ndarray, width: int, new_width: int) -> np.ndarray:
    """Return rows of matrices whose first part, the pivots, gets wider."""
    return np.where(place < width, place, place + (new_width - width))
