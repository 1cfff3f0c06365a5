"""Products with the sparse adjacency and softmax aggregation equal their dense definitions."""

from dataclasses import replace

import pytest
import torch
from support.random_bags import (
    F64,
    adjacency,
    dense_laplacian,
    graphs_of_all_kinds,
    packed,
    random_bag,
)
from torch import Tensor

from probsa import pack
from probsa.layers import Arcs, aggregate_softmax, both_ways, graph, neighbourhoods, propagate

BAGS = graphs_of_all_kinds()
TOGETHER = packed(BAGS)
N = len(TOGETHER.x)


def dense(arcs: Arcs) -> Tensor:
    a = torch.zeros(len(arcs), len(arcs), dtype=arcs.weights.dtype)
    return a.index_put((arcs.rows, arcs.columns), arcs.weights, accumulate=True)


def directed_bags():
    """Return random arcs with repeats and loops; some instances have no incoming arc."""
    bags = []
    for k, n in enumerate((9, 1, 14)):
        g = torch.Generator().manual_seed(k)
        arcs = torch.randint(n, (2, 3 * n), generator=g)
        arcs[0] = arcs[0] // 2 * 2
        weights = torch.rand(3 * n, generator=g, dtype=F64)
        bags.append(replace(random_bag(n, seed=k), arcs=arcs, arc_weights=weights))
    return pack(bags)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_edges_become_the_symmetric_adjacency_and_arcs_its_rows_and_columns():
    same(dense(both_ways(TOGETHER)), torch.block_diag(*[adjacency(b) for b in BAGS]))
    blocks = [torch.eye(len(b.x), dtype=F64) - dense_laplacian(b, "normalised") for b in BAGS]
    same(dense(graph.normalised(both_ways(TOGETHER))), torch.block_diag(*blocks))
    bags = directed_bags()
    a = torch.zeros(24, 24, dtype=F64)
    a.index_put_((bags.arcs[0], bags.arcs[1]), bags.arc_weights, accumulate=True)
    same(dense(neighbourhoods(bags)), a)
    assert neighbourhoods(TOGETHER).columns.equal(both_ways(TOGETHER).columns)


@pytest.mark.parametrize("arcs", [both_ways(TOGETHER), neighbourhoods(directed_bags())])
def test_a_product_and_its_gradients(arcs):
    x = torch.randn(len(arcs), 3, dtype=F64, requires_grad=True)
    same(propagate(arcs, x), dense(arcs) @ x)
    assert torch.autograd.gradcheck(lambda x: propagate(arcs, x), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_keeps_its_type(dtype):
    arcs = both_ways(TOGETHER)
    x = torch.randn(N, 3, dtype=F64)
    actual = propagate(arcs, x.to(dtype))
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), dense(arcs) @ x, rtol=0.02, atol=0.05)


def softmax_by_loop(arcs: Arcs, m: Tensor, t: Tensor) -> Tensor:
    rows = []
    for i in range(len(arcs)):
        own = m[arcs.columns[arcs.rows == i]]
        rows.append((own * (t * own).softmax(0)).sum(0))
    return torch.stack(rows)


@pytest.mark.parametrize("spread", [1.0, 900.0, 40_000.0])
@pytest.mark.parametrize("arcs", [both_ways(TOGETHER), neighbourhoods(directed_bags())])
def test_softmax_aggregation_is_exact_however_far_messages_spread(arcs, spread, monkeypatch):
    """From 319 on (in float64), one shift per bag would give 0 / 0."""
    monkeypatch.setattr(graph, "BLOCK", 2 * len(arcs.rows))  # two channels at a time
    g = torch.Generator().manual_seed(0)
    m = (spread * torch.rand(len(arcs), 5, generator=g, dtype=F64)).requires_grad_()
    t = torch.tensor([1.3], dtype=F64, requires_grad=True)
    actual = aggregate_softmax(arcs, m, t)
    want = softmax_by_loop(arcs, m, t)
    assert bool((actual[dense(arcs).sum(1) == 0] == 0).all())
    weight = torch.randn(actual.shape, generator=g, dtype=F64)
    ours = torch.autograd.grad((actual * weight).sum(), (m, t))
    theirs = torch.autograd.grad((want * weight).sum(), (m, t))
    for a, b in zip((actual, *ours), (want, *theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12 * (1 + spread**2))


def test_a_bag_is_not_shifted_by_its_batch_mates():
    """A bag with large messages and one with small messages share a batch."""
    first, second = (random_bag(6, seed=seed, dtype=torch.float32) for seed in (1, 2))
    m = torch.rand(12, 3)
    t = torch.ones(1)
    m[6:] += 1e3
    together = aggregate_softmax(both_ways(pack([first, second])), m, t)
    alone = aggregate_softmax(both_ways(pack([first])), m[:6], t)
    assert torch.equal(together[:6], alone)


def test_no_arcs_at_all():
    arcs = both_ways(packed([BAGS[3], BAGS[4]]))
    m = torch.rand(5, 2, dtype=F64, requires_grad=True)
    t = torch.ones(1, dtype=F64, requires_grad=True)
    s = aggregate_softmax(arcs, m, t) + propagate(arcs, m)
    assert bool((s == 0).all())
    assert all(bool((g == 0).all()) for g in torch.autograd.grad(s.sum(), (m, t)))
