"""The cache: its byte limit, the order of eviction, and copies for workers."""

import pickle
from pathlib import Path

import numpy as np
import torch

from probsa.core import Bag, GraphOptions, StoredBag, graphs, write_bag
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


EDGES = lattice_edges().shape[1]
BAG_BYTES = N * WIDTH * 4 + N * 2 * 8 + EDGES * 2 * 8
WEIGHT_BYTES = EDGES * 4


def counted(folder: Path, *, bags: float, weights_kept: int) -> Counting:
    """Return a cache whose limit is the exact size of some bags and edge weights."""
    return Counting(folder, cache_gb=(bags * BAG_BYTES + weights_kept * WEIGHT_BYTES) / 1e9)


def forbid_weights(monkeypatch) -> None:
    """Make it an error to compute edge weights from features."""
    monkeypatch.delattr(graphs, "edge_weights")


def test_bags_are_read_once_while_they_fit(tmp_path, monkeypatch):
    bags = counted(slides(tmp_path), bags=3, weights_kept=3)
    first = [bags.bag(n) for n in "abc"]
    monkeypatch.delattr(graphs, "grid")
    assert all(bags.bag(n) is b for n, b in zip("abc", first, strict=True))
    assert bags.read == ["a", "b", "c"]


def test_the_least_recently_used_bag_goes_and_its_edge_weights_stay(tmp_path, monkeypatch):
    bags = counted(slides(tmp_path), bags=2, weights_kept=3)
    edges = lattice_edges()
    bags.bag("a"), bags.bag("b"), bags.bag("a")
    third = bags.bag("c")
    before = bags.bag("a")
    assert bags.read == ["a", "b", "c"]  # c replaced b
    edge_weights = graphs.edge_weights
    forbid_weights(monkeypatch)
    again = bags.bag("b")
    assert bags.read == ["a", "b", "c", "b"]
    assert torch.equal(again.edges, edges)
    assert torch.equal(again.weights, edge_weights(again.x, again.edges))
    assert bags.bag("a") is before
    assert bags.bag("c") is not third


def test_a_bag_larger_than_the_cache_is_read_each_time_and_its_weights_made_once(
    tmp_path, monkeypatch
):
    bags = counted(slides(tmp_path), bags=0.9, weights_kept=1)
    edges = lattice_edges()
    first = bags.bag("a")
    forbid_weights(monkeypatch)
    again = bags.bag("a")
    assert torch.equal(again.edges, edges) and torch.equal(again.weights, first.weights)
    assert again.stride == first.stride
    assert bags.read == ["a", "a"]


def test_the_cache_never_holds_more_than_it_says():
    generator = np.random.default_rng(0)
    cache = Cache(10_000)
    dropped = {"bags": 0, "weights": 0}
    for step in range(600):
        name = str(generator.integers(40))
        n = int(generator.choice([1, 5, 60, 240, 3000]))
        before = (set(cache.bags), set(cache.weights))
        if cache.get(cache.bags, name) is None:
            edges = graphs.chain(n)
            weights = torch.ones(n - 1)  # 2,999 of them exceed the limit
            if cache.get(cache.weights, name) is None:
                cache.put_weights(name, weights)
            x = torch.zeros(n, 20)
            cache.put_bag(name, Bag(name=name, x=x, edges=edges, weights=weights))
        cached_bytes = sum(b.x.nbytes + b.edges.nbytes for b in cache.bags.values())
        cached_bytes += sum(weights.nbytes for weights in cache.weights.values())
        assert cached_bytes == cache.bytes <= 10_000, step
        if n == 3000:
            assert (set(cache.bags), set(cache.weights)) == before  # nothing was evicted
        dropped["bags"] += len(before[0] - set(cache.bags))
        dropped["weights"] += len(before[1] - set(cache.weights))
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
