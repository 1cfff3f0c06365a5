"""What was read and built, kept within a number of bytes: features first to go, graphs last."""

from collections import OrderedDict
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from ..core import Bag


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The neighbourhood of one bag, and the stride that it was built with."""

    edges: Int[Tensor, "2 e"]
    weights: Float[Tensor, " e"]
    stride: float | None

    @property
    def nbytes(self) -> int:
        return self.edges.nbytes + self.weights.nbytes


class Cache:
    """Bags and graphs by name, the least recently used dropped first.

    A graph takes about a hundredth of its bag's bytes but longer to build than the bag takes to
    read, so graphs are kept apart: bags are dropped until everything fits, and only then graphs.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bags: OrderedDict[str, Bag] = OrderedDict()
        self.graphs: OrderedDict[str, Graph] = OrderedDict()
        self.bytes = 0

    def bag(self, name: str) -> Bag | None:
        """The bag, if it is still here; it becomes the most recently used."""
        if name in self.bags:
            self.bags.move_to_end(name)
        return self.bags.get(name)

    def graph(self, name: str) -> Graph | None:
        """The graph, if it is still here; it becomes the most recently used."""
        if name in self.graphs:
            self.graphs.move_to_end(name)
        return self.graphs.get(name)

    def put_graph(self, name: str, graph: Graph) -> None:
        """Keeps a graph unless it alone is larger than the limit."""
        if graph.nbytes > self.limit:
            return
        self.graphs[name] = graph
        self.bytes += graph.nbytes
        self._shrink()

    def put_bag(self, name: str, bag: Bag) -> None:
        """Keeps a bag where it fits beside the graphs; a larger one would drop all for nothing."""
        if _bytes(bag) + sum(g.nbytes for g in self.graphs.values()) > self.limit:
            return
        self.bags[name] = bag
        self.bytes += _bytes(bag)
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self.limit and self.bags:
            self.bytes -= _bytes(self.bags.popitem(last=False)[1])
        while self.bytes > self.limit:
            self.bytes -= self.graphs.popitem(last=False)[1].nbytes


def _bytes(bag: Bag) -> int:
    """Of the bag without its graph, which is counted by itself."""
    parts = (bag.x, bag.coords, bag.instance_labels)
    return sum(p.nbytes for p in parts if p is not None)
