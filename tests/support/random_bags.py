"""Bags with random graphs, and dense Laplacians as a reference."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import torch
from torch import Tensor

from probsa import Bag, Bags, pack

F64 = torch.float64


def random_bag(
    n: int,
    *,
    seed: int = 0,
    name: str | None = None,
    features: int = 5,
    dtype: torch.dtype = F64,
    density: float = 0.4,
    y: int | None = None,
) -> Bag:
    """Return a random bag; each pair is an edge with probability `density`, weight 0.2 to 2.2."""
    g = torch.Generator().manual_seed(seed)
    i, j = torch.triu_indices(n, n, 1)
    is_edge = torch.rand(len(i), generator=g) < density
    return Bag(
        name=name or f"bag{seed}",
        x=torch.randn(n, features, generator=g, dtype=F64).to(dtype),
        edges=torch.stack([i[is_edge], j[is_edge]]),
        weights=(torch.rand(int(is_edge.sum()), generator=g, dtype=F64) * 2 + 0.2).to(dtype),
        y=y,
    )


def chain_bag(n: int, weights: Tensor, *, name: str = "chain") -> Bag:
    """Return a chain of instances with one unused feature."""
    i = torch.arange(n - 1)
    return Bag(
        name=name,
        x=torch.zeros(n, 1, dtype=weights.dtype),
        edges=torch.stack([i, i + 1]),
        weights=weights,
    )


def adjacency(bag: Bag) -> Tensor:
    """Return the dense adjacency matrix A in float64 of a bag that stores each pair once."""
    a = torch.zeros(len(bag.x), len(bag.x), dtype=F64)
    i, j = bag.edges
    a[i, j] = bag.weights.double()
    return a + a.T


def dense_laplacian(bag: Bag, kind: str) -> Tensor:
    """Return D − A, or I − D^-½ A D^-½ with D^-½ = 0 for isolated instances."""
    a = adjacency(bag)
    d = a.sum(1)
    if kind == "combinatorial":
        return torch.diag(d) - a
    r = torch.where(d > 0, d, torch.ones_like(d)).rsqrt() * (d > 0)
    return torch.eye(len(a), dtype=F64) - r[:, None] * a * r[None, :]


def split(v: Tensor, bags: Bags) -> tuple[Tensor, ...]:
    """Split a packed tensor into bags."""
    return v.split(list(bags.sizes))


def graphs_of_all_kinds() -> list[Bag]:
    """Return connected, disconnected, edgeless and single-instance bags, and isolated instances."""
    return [
        random_bag(7, seed=1, density=1.0, name="complete"),
        random_bag(12, seed=2, density=0.35, name="random"),
        random_bag(9, seed=3, density=0.12, name="scattered"),
        random_bag(4, seed=4, density=0.0, name="edgeless"),
        random_bag(1, seed=5, name="single"),
        chain_bag(6, torch.arange(1, 6, dtype=F64)),
    ]


def packed(bags: list[Bag]) -> Bags:
    """Pack bags that may differ in their number of features, with only the first feature."""
    return pack([Bag(name=b.name, x=b.x[:, :1], edges=b.edges, weights=b.weights) for b in bags])


@contextmanager
def types_not_executed() -> Iterator[None]:
    """Disable jaxtyping's run-time checks, so that the library's own errors are raised."""
    jaxtyping.config.update("jaxtyping_disable", value=True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", value=False)
