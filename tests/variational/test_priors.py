"""The Dirichlet prior, computed from the edge list, equals its dense matrix."""

import itertools
import math

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
from probsa.variational import Dirichlet

LAPLACIANS = ["combinatorial", "normalized"]
PRIORS = list(itertools.product(LAPLACIANS, [0.5, 3.0], [0.0, 0.01, 0.7]))


def dense_half(bag, *, laplacian, kappa, ridge):
    """Return ½Q = κ(L + εI)."""
    lap = dense_laplacian(bag, laplacian)
    return kappa * (lap + ridge * torch.eye(len(lap), dtype=F64))


def noise(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=F64)


def close(got, want, *, tol=1e-12):
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)


@pytest.mark.parametrize(("laplacian", "kappa", "ridge"), PRIORS)
def test_it_is_the_dense_matrix(laplacian, kappa, ridge):
    given = graphs_of_all_kinds()
    bags, prior = packed(given), Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    f = noise(len(bags.x)).requires_grad_()
    energy = prior.energy(f, bags)
    weights = 1 + noise(len(given), 1).square()
    (energy * weights).sum().backward()
    parts = [split(v, bags) for v in (f.detach(), f.grad, prior.precision(bags, dtype=F64)[0])]
    for b, (bag, own, gradient, diagonal) in enumerate(zip(given, *parts, strict=True)):
        half = dense_half(bag, laplacian=laplacian, kappa=kappa, ridge=ridge)
        close(energy[b].detach(), own @ half @ own)
        close(gradient, 2 * weights[b] * half @ own)
        close(diagonal, 2 * half.diagonal())
        if ridge:
            log_determinant = torch.linalg.slogdet(2 * half)[1]
            close(prior.log_determinant(bags)[b], log_determinant, tol=1e-11)


def test_without_a_ridge_the_null_direction_is_left_out_of_the_determinant():
    names = ("complete", "random", "chain", "single")
    connected = [b for b in graphs_of_all_kinds() if b.name in names]
    got = Dirichlet(kappa=3.0, ridge=0.0).log_determinant(packed(connected))
    for bag, value in zip(connected, got, strict=True):
        eigenvalues = torch.linalg.eigvalsh(6 * dense_laplacian(bag, "combinatorial"))
        close(value, eigenvalues[1:].log().sum(), tol=1e-11)


@pytest.mark.parametrize(
    ("laplacian", "energy"), [("combinatorial", 20.553235), ("normalized", 8.072199)]
)
def test_golden_energy_of_a_chain_of_six(laplacian, energy):
    """Specification of the local baselines, 10.6."""
    bags = pack([chain_bag(6, 1 + 0.1 * torch.arange(5, dtype=F64))])
    mu = [-1.9390778, -3.3672083, 0.04245467, 0.28317261, 1.8578168, 0.53969929]
    got = Dirichlet(ridge=0.0, laplacian=laplacian).energy(torch.tensor(mu, dtype=F64), bags)
    assert float(got) == pytest.approx(energy, abs=1e-6)


@pytest.mark.parametrize("laplacian", LAPLACIANS)
def test_single_precision_weights_lose_nothing_that_they_hold(laplacian):
    given = [
        Bag(name=b.name, x=b.x[:, :1].float(), edges=b.edges, weights=b.weights.float())
        for b in graphs_of_all_kinds()
    ]
    prior, bags = Dirichlet(laplacian=laplacian), pack(given)
    f = noise(len(bags.x))
    energy, diagonal = prior.energy(f, bags), split(prior.precision(bags, dtype=F64)[0], bags)
    for b, (bag, own) in enumerate(zip(given, split(f, bags), strict=True)):
        half = dense_half(bag, laplacian=laplacian, kappa=1.0, ridge=0.01)
        close(energy[b], own @ half @ own)
        close(diagonal[b], 2 * half.diagonal())


def test_a_large_chain_takes_memory_of_its_edges():
    n, prior = 50_000, Dirichlet(ridge=0.0)
    weights = [torch.ones(k, dtype=F64) for k in (n - 1, 0)]
    bags = pack([chain_bag(n, weights[0]), chain_bag(1, weights[1])])
    assert prior.energy(torch.arange(n + 1, dtype=F64), bags).tolist() == [n - 1, 0]
    assert prior.energy(torch.full((n + 1,), 3.0, dtype=F64), bags).tolist() == [0, 0]
    # A path has one spanning tree: the non-zero eigenvalues of 2L have the product n · 2^(n − 1).
    want = math.log(n) + (n - 1) * math.log(2)
    assert float(prior.log_determinant(bags)[0]) == pytest.approx(want, rel=1e-11)


def determinant(**options):
    kinds = [b for b in graphs_of_all_kinds() if b.name in ("complete", "edgeless")]
    return lambda: Dirichlet(ridge=0.0, **options).log_determinant(packed(kinds))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Dirichlet(kappa=0.0), "kappa is 0.0; expected more than 0"),
        (lambda: Dirichlet(kappa=math.nan), "kappa is nan; expected more than 0"),
        (lambda: Dirichlet(ridge=-0.1), "ridge is -0.1; expected at least 0"),
        (lambda: Dirichlet(laplacian="random"), "'combinatorial' or 'normalized'"),
        (determinant(), "'edgeless' has 4 connected components and ridge is 0"),
        (determinant(laplacian="normalized"), "needs the combinatorial Laplacian"),
    ],
)
def test_a_prior_that_is_none_is_refused(call, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        call()
