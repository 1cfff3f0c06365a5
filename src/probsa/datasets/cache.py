"""Byte-bounded cache of bags and graphs; bags are evicted before graphs."""

from collections import OrderedDict

from ..core import Bag, Graph


class Cache:
    """Bags and graphs by name, evicted in least-recently-used order.

    A graph takes about 1 % of the bytes of its bag, but building it takes longer than reading the
    bag. Graphs are therefore evicted only once no bags are left.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bags: OrderedDict[str, Bag] = OrderedDict()
        self.graphs: OrderedDict[str, Graph] = OrderedDict()
        self.bytes = 0

    def bag(self, name: str) -> Bag | None:
        """Return a bag, if cached, and mark it as the most recently used."""
        if name in self.bags:
            self.bags.move_to_end(name)
        return self.bags.get(name)

    def graph(self, name: str) -> Graph | None:
        """Return a graph, if cached, and mark it as the most recently used."""
        if name in self.graphs:
            self.graphs.move_to_end(name)
        return self.graphs.get(name)

    def put_graph(self, name: str, graph: Graph) -> None:
        """Store a graph, unless it alone exceeds the limit."""
        if graph.nbytes > self.limit:
            return
        self.graphs[name] = graph
        self.bytes += graph.nbytes
        self._shrink()

    def put_bag(self, name: str, bag: Bag) -> None:
        """Store a bag, unless it cannot fit beside the graphs even after evicting all bags."""
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
    """Return the size of a bag without its graph, which is counted separately."""
    parts = (bag.x, bag.coords, bag.instance_labels)
    return sum(p.nbytes for p in parts if p is not None)
