"""The cache: its byte limit, the order of eviction, and copies for workers."""

import pickle
from pathlib import Path

import numpy as np
import torch

from probsa.core import Bag, Graph, GraphOptions, StoredBag, graphs, write_bag
from probsa.datasets import open_bags
from probsa.datasets.bag_set import Cache
from probsa.datasets.formats.hdf5 import Hdf5Bags

N = 12
WIDTH = 5
CORNERS = np.stack([np.arange(N) % 4, np.arange(N) // 4], axis=1)


def lattice_edges() -> torch.Tensor:
    return graphs.grid(torch.from_numpy(CORNERS), stride=1.0)


def slides(folder: Path, *, width: int = WIDTH) -> Path:
    """Three bags of equal size."""
    for i, name in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(N, width)).astype(np.float32)
        write_bag(folder / f"{name}.h5", features=x, coords=CORNERS * 1024, kind="slide")
    return folder


class Counting(Hdf5Bags):
    """Record which bags are read and which graphs are built."""

    def __init__(self, folder: Path, *, cache_gb: float) -> None:
        paths = {path.stem: path for path in folder.glob("*.h5")}
        super().__init__(folder, paths, graph=GraphOptions(), cache_gb=cache_gb)
        self.read: list[str] = []

    def _read(self, name: str) -> StoredBag:
        self.read.append(name)
        return super()._read(name)


BAG_BYTES = N * WIDTH * 4 + N * 2 * 8
GRAPH_BYTES = lattice_edges().shape[1] * (2 * 8 + 4)


def counted(folder: Path, *, bags: float, graphs_kept: int) -> Counting:
    """Return a cache whose limit is the exact size of some bags and graphs."""
    return Counting(folder, cache_gb=(bags * BAG_BYTES + graphs_kept * GRAPH_BYTES) / 1e9)


def test_bags_are_read_once_while_they_fit(tmp_path, monkeypatch):
    bags = counted(slides(tmp_path), bags=3, graphs_kept=3)
    first = [bags.bag(n) for n in "abc"]
    monkeypatch.delattr(graphs, "grid")
    assert all(bags.bag(n) is b for n, b in zip("abc", first, strict=True))
    assert bags.read == ["a", "b", "c"]


def test_the_least_recently_used_bag_goes_and_its_graph_stays(tmp_path, monkeypatch):
    bags = counted(slides(tmp_path), bags=2, graphs_kept=3)
    edges = lattice_edges()
    bags.bag("a"), bags.bag("b"), bags.bag("a")
    third = bags.bag("c")
    before = bags.bag("a")
    assert bags.read == ["a", "b", "c"]  # c replaced b
    monkeypatch.delattr(graphs, "grid")
    again = bags.bag("b")
    assert bags.read == ["a", "b", "c", "b"]
    assert torch.equal(again.edges, edges)
    assert torch.equal(again.weights, graphs.edge_weights(again.x, again.edges))
    assert bags.bag("a") is before
    assert bags.bag("c") is not third


def test_a_bag_larger_than_the_cache_is_read_each_time_and_its_graph_built_once(
    tmp_path, monkeypatch
):
    bags = counted(slides(tmp_path), bags=0.9, graphs_kept=1)
    edges = lattice_edges()
    bags.bag("a")
    monkeypatch.delattr(graphs, "grid")
    assert torch.equal(bags.bag("a").edges, edges)
    assert bags.read == ["a", "a"]


def test_the_cache_never_holds_more_than_it_says():
    generator = np.random.default_rng(0)
    cache = Cache(10_000)
    dropped = {"bags": 0, "graphs": 0}
    for step in range(600):
        name = str(generator.integers(40))
        n = int(generator.choice([1, 5, 20, 60, 600]))
        before = (set(cache.bags), set(cache.graphs))
        if cache.get(cache.bags, name) is None:
            edges = graphs.chain(n)  # 600 of them exceed the limit
            graph = Graph(edges=edges, weights=torch.ones(n - 1), stride=None)
            if cache.get(cache.graphs, name) is None:
                cache.put_graph(name, graph)
            x = torch.zeros(n, 20)
            cache.put_bag(name, Bag(name=name, x=x, edges=edges, weights=graph.weights))
        cached_bytes = sum(b.x.nbytes for b in cache.bags.values())
        cached_bytes += sum(g.edges.nbytes + g.weights.nbytes for g in cache.graphs.values())
        assert cached_bytes == cache.bytes <= 10_000, step
        if n == 600:
            assert (set(cache.bags), set(cache.graphs)) == before  # nothing was evicted
        dropped["bags"] += len(before[0] - set(cache.bags))
        dropped["graphs"] += len(before[1] - set(cache.graphs))
    assert min(dropped.values()) > 5  # both kinds were evicted


def test_copies_for_workers_are_small_and_read_for_themselves(tmp_path):
    bags = open_bags(slides(tmp_path, width=20_000))
    before = [bags.bag(n) for n in bags.names]
    sent = pickle.dumps(bags)
    assert len(sent) < 5_000
    copy = pickle.loads(sent)
    for b in before:
        assert torch.equal(copy.bag(b.name).x, b.x)
        assert torch.equal(copy.bag(b.name).edges, b.edges)
    assert all(bags.bag(b.name) is b for b in before)  # the original cache is unchanged
