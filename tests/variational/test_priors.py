"""The Dirichlet prior, computed from the edge list, equals its dense matrix."""

import itertools

import pytest
import torch
from support.random_bags import (
    F64,
    chain_bag,
    dense_laplacian,
    graphs_of_all_kinds,
    packed,
    split,
    types_not_executed,
)

from probsa import Bag, pack
from probsa.errors import InputError
from probsa.variational.priors import Dirichlet

LAPLACIANS = ["combinatorial", "normalized"]
PRIORS = list(itertools.product(LAPLACIANS, [0.5, 1.0, 3.0], [0.0, 0.01, 0.7]))

# A chain of six instances: specification of the local baselines, 10.6.
CHAIN = 1 + 0.1 * torch.arange(5, dtype=F64)
MU = torch.tensor(
    [-1.9390778, -3.3672083, 0.04245467, 0.28317261, 1.8578168, 0.53969929], dtype=F64
)


def dense_half(bag, *, laplacian, kappa, ridge):
    """Return ½Q = κ(L + εI)."""
    lap = dense_laplacian(bag, laplacian)
    return kappa * (lap + ridge * torch.eye(len(lap), dtype=F64))


def noise(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize(("laplacian", "kappa", "ridge"), PRIORS)
def test_energy_and_its_gradient_are_those_of_the_dense_matrix(laplacian, kappa, ridge):
    given = graphs_of_all_kinds()
    bags = packed(given)
    prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    f = noise(len(bags.x)).requires_grad_()
    energy = prior.energy(f, bags)
    halves = [dense_half(b, laplacian=laplacian, kappa=kappa, ridge=ridge) for b in given]
    weights = 1 + noise(len(given), 1).square()
    (energy * weights).sum().backward()
    for b, (own, half) in enumerate(zip(split(f.detach(), bags), halves, strict=True)):
        torch.testing.assert_close(energy[b].detach(), own @ half @ own, rtol=1e-12, atol=1e-12)
        grad = split(f.grad, bags)[b]
        torch.testing.assert_close(grad, 2 * weights[b] * half @ own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("laplacian", "kappa", "ridge"), PRIORS)
def test_diagonal_is_the_diagonal(laplacian, kappa, ridge):
    given = graphs_of_all_kinds()
    got = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian).diagonal(packed(given))
    want = [dense_half(b, laplacian=laplacian, kappa=kappa, ridge=ridge).diagonal() for b in given]
    torch.testing.assert_close(got, torch.cat(want), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("laplacian", LAPLACIANS)
def test_energy_passes_gradcheck(laplacian):
    bags = packed(graphs_of_all_kinds())
    prior = Dirichlet(ridge=0.1, laplacian=laplacian)
    f = noise(len(bags.x)).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: prior.energy(t, bags), (f,))


@pytest.mark.parametrize(("laplacian", "kappa", "ridge"), PRIORS)
def test_precision_is_twice_the_half_and_sparse(laplacian, kappa, ridge):
    given = graphs_of_all_kinds()
    bags = packed(given)
    prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    for b, bag in enumerate(given):
        q = prior.precision(bags, b)
        half = dense_half(bag, laplacian=laplacian, kappa=kappa, ridge=ridge)
        torch.testing.assert_close(torch.from_numpy(q.toarray()), 2 * half, rtol=1e-13, atol=1e-14)
        assert q.nnz <= 2 * bag.edges.shape[1] + len(bag.x)


@pytest.mark.parametrize(("laplacian", "kappa", "ridge"), [p for p in PRIORS if p[2] > 0])
def test_log_determinant_with_a_ridge_is_the_dense_one(laplacian, kappa, ridge):
    given = graphs_of_all_kinds()
    got = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian).log_determinant(packed(given))
    halves = [dense_half(b, laplacian=laplacian, kappa=kappa, ridge=ridge) for b in given]
    want = torch.stack([torch.linalg.slogdet(2 * h)[1] for h in halves])
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 3.0])
def test_without_a_ridge_the_null_direction_is_left_out(kappa):
    connected = [
        b for b in graphs_of_all_kinds() if b.name in ("complete", "random", "chain", "single")
    ]
    prior = Dirichlet(kappa=kappa, ridge=0.0)
    got = prior.log_determinant(packed(connected))
    for bag, value in zip(connected, got, strict=True):
        eigenvalues = torch.linalg.eigvalsh(2 * kappa * dense_laplacian(bag, "combinatorial"))
        assert abs(float(eigenvalues[0])) < 1e-12
        torch.testing.assert_close(value, eigenvalues[1:].log().sum(), rtol=1e-11, atol=1e-11)


def test_several_components_have_no_determinant_without_a_ridge():
    bags = packed([b for b in graphs_of_all_kinds() if b.name in ("complete", "edgeless")])
    with pytest.raises(InputError, match="'edgeless' has 4 connected components and ridge is 0"):
        Dirichlet(ridge=0.0).log_determinant(bags)
    with pytest.raises(InputError, match="needs the combinatorial Laplacian"):
        Dirichlet(ridge=0.0, laplacian="normalized").log_determinant(bags)


@pytest.mark.parametrize(
    ("laplacian", "energy"), [("combinatorial", 20.553235), ("normalized", 8.072199)]
)
def test_golden_energy_of_a_chain_of_six(laplacian, energy):
    bags = pack([chain_bag(6, CHAIN)])
    got = Dirichlet(ridge=0.0, laplacian=laplacian).energy(MU, bags)
    assert float(got) == pytest.approx(energy, abs=1e-6)


@pytest.mark.parametrize("laplacian", LAPLACIANS)
def test_single_precision_weights_lose_nothing_that_they_hold(laplacian):
    given = [
        Bag(name=b.name, x=b.x[:, :1].float(), edges=b.edges, weights=b.weights.float())
        for b in graphs_of_all_kinds()
    ]
    prior, bags = Dirichlet(laplacian=laplacian), pack(given)
    f = noise(len(bags.x))
    diagonal = prior.diagonal(bags, dtype=F64)
    for b, bag in enumerate(given):
        half = dense_half(bag, laplacian=laplacian, kappa=1.0, ridge=0.01)
        own = split(f, bags)[b]
        torch.testing.assert_close(
            prior.energy(f, bags)[b], own @ half @ own, rtol=1e-12, atol=1e-12
        )
        torch.testing.assert_close(split(diagonal, bags)[b], half.diagonal(), rtol=1e-13, atol=0)


def test_a_constant_is_free_but_for_the_ridge():
    bags = packed(graphs_of_all_kinds())
    f = torch.full((len(bags.x),), 3.0, dtype=F64)
    assert Dirichlet(ridge=0.0).energy(f, bags).tolist() == [0] * len(bags)
    ridge = Dirichlet(ridge=0.5, kappa=2.0).energy(f, bags)
    assert ridge.tolist() == pytest.approx([2 * 0.5 * 9 * n for n in bags.sizes])


def test_a_large_chain_takes_memory_of_its_edges():
    n = 50_000
    bags = pack(
        [chain_bag(n, torch.ones(n - 1, dtype=F64)), chain_bag(1, torch.ones(0, dtype=F64))]
    )
    f = torch.arange(n + 1, dtype=F64)
    prior = Dirichlet(ridge=0.0)
    assert prior.energy(f, bags).tolist() == [n - 1, 0]
    # A path has one spanning tree: the non-zero eigenvalues of 2L have the product n · 2^(n − 1).
    want = torch.log(torch.tensor(float(n), dtype=F64)) + (n - 1) * torch.log(
        torch.tensor(2.0, dtype=F64)
    )
    assert float(prior.log_determinant(bags)[0]) == pytest.approx(float(want), rel=1e-11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kappa": 0.0}, "kappa is 0.0; expected more than 0"),
        ({"kappa": float("nan")}, "kappa is nan; expected more than 0"),
        ({"ridge": -0.1}, "ridge is -0.1; expected at least 0"),
        ({"laplacian": "random"}, "'combinatorial' or 'normalized'"),
    ],
)
def test_a_prior_that_is_none_is_refused(arguments, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        Dirichlet(**arguments)
