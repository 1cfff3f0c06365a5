"""Conjugate gradients against the direct solver on the same bag."""

import pytest
import torch
from probsa.variational.sampling import noise_sizes, sample_major
from support.random_bags import F64, packed, random_bag

from probsa import Bag, pack
from probsa.core.graphs import grid
from probsa.errors import InputError
from probsa.variational import block_ordering, field_solvers, iterative_solver
from probsa.variational.field import Field
from probsa.variational.iterative_solver import IterativeSolver, quadratic_log
from probsa.variational.priors import Dirichlet

SIDE = 24


@pytest.fixture(params=["sparse", "edges"])
def bags(request, monkeypatch):
    """A slide, on a device with sparse matrices and on one without (MPS)."""
    if request.param == "edges":
        monkeypatch.setattr(iterative_solver, "has_sparse", lambda device: False)
    cells = torch.tensor([[x, y] for y in range(SIDE) for x in range(SIDE)])
    edges = grid(cells, stride=1.0)
    g = torch.Generator().manual_seed(0)
    weights = 0.5 + torch.rand(edges.shape[1], generator=g, dtype=F64)
    x = torch.zeros(SIDE * SIDE, 1, dtype=F64)
    return pack([Bag(name="slide", x=x, edges=edges, weights=weights, coords=cells)])


def statements(n):
    g = torch.Generator().manual_seed(1)
    nu = torch.randn(n, generator=g, dtype=F64).requires_grad_()
    tau = torch.rand(n, generator=g, dtype=F64).mul(3).add(0.1).requires_grad_()
    return nu, tau


def both(bags, monkeypatch, *, kappa=0.5):
    """Return the field of a slide by the direct and by the iterative solver, and its statements."""
    nu, tau = statements(len(bags.x))
    prior = Dirichlet(kappa=kappa)
    direct = Field(nu, tau, prior=prior, bags=bags)
    direct.mean  # noqa: B018 - the solver is chosen on first use
    monkeypatch.setattr(field_solvers, "LARGEST", 0)
    iterative = Field(nu, tau, prior=prior, bags=bags)
    assert isinstance(iterative._solvers[0], IterativeSolver)
    return direct, iterative, (nu, tau)


def test_means_and_their_gradients_are_equal(bags, monkeypatch):
    direct, iterative, values = both(bags, monkeypatch)
    torch.testing.assert_close(iterative.mean, direct.mean, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(q.mean.square().sum(), values) for q in (iterative, direct)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_estimated_variances_and_kl_lie_within_their_stated_errors(bags, monkeypatch):
    direct, iterative, _ = both(bags, monkeypatch)
    diagonal = iterative._solvers[0].diagonal
    neighbours = direct.variance - 1 / diagonal
    z = (iterative.variance - direct.variance) / (neighbours * (2 / 64) ** 0.5)
    z = z.detach()
    assert float(z.mean().abs()) < 0.3 and 0.7 < float(z.std()) < 1.3
    prior = direct.prior
    exact, estimate = (float(q.kl(prior, bags).detach()) for q in (direct, iterative))
    assert estimate == pytest.approx(exact, rel=0.02)


def test_the_gradient_of_the_kl_points_the_same_way(bags, monkeypatch):
    direct, iterative, values = both(bags, monkeypatch)
    a, b = (
        torch.cat(torch.autograd.grad(q.kl(q.prior, bags).sum(), values))
        for q in (iterative, direct)
    )
    assert float(torch.corrcoef(torch.stack([a, b]))[0, 1]) > 0.99


def test_samples_have_the_variances(bags, monkeypatch):
    direct, iterative, _ = both(bags, monkeypatch)
    f = iterative.rsample(800, generator=torch.Generator().manual_seed(2)).detach()
    ratio = f.var(1) / direct.variance.detach()
    assert float(ratio.mean()) == pytest.approx(1, abs=0.01)
    assert float(ratio.std()) == pytest.approx((2 / 800) ** 0.5, rel=0.2)
    assert float((f.mean(1) - direct.mean.detach()).abs().max()) < 0.2


def test_a_sample_takes_noise_of_instances_and_of_edges(bags, monkeypatch):
    iterative = both(bags, monkeypatch)[1]
    count = len(bags.x) + bags.edges.shape[1]
    assert iterative.noise_sizes(bags.sizes) == [count]
    noise = torch.randn(3, count, dtype=F64, generator=torch.Generator().manual_seed(3))
    f = iterative.sampler(bags.sizes)(0, noise)
    torch.testing.assert_close(iterative.samples(noise.flatten()), f.T, rtol=1e-6, atol=1e-6)


def test_the_logarithm_by_lanczos_is_the_dense_one():
    g = torch.Generator().manual_seed(4)
    a = torch.randn(40, 40, generator=g, dtype=F64)
    a = a @ a.T / 40 + torch.eye(40, dtype=F64)
    v = torch.randn(40, 5, generator=g, dtype=F64)
    values, vectors = torch.linalg.eigh(a)
    expected = ((vectors.T @ v).square() * values.log()[:, None]).sum(0)
    torch.testing.assert_close(quadratic_log(lambda x: a @ x, v, steps=40), expected)


def test_a_normalised_laplacian_is_refused(monkeypatch):
    monkeypatch.setattr(field_solvers, "DENSE", 3)
    monkeypatch.setattr(block_ordering, "DENSE", 3)
    monkeypatch.setattr(field_solvers, "LARGEST", 0)
    bags = packed([random_bag(30, seed=1, density=0.2)])
    prior = Dirichlet(laplacian="normalized")
    with pytest.raises(InputError, match="combinatorial"):
        Field(*statements(30), prior=prior, bags=bags).mean  # noqa: B018


def test_noise_with_a_row_for_each_instance_only_is_refused(bags, monkeypatch):
    _, iterative, _ = both(bags, monkeypatch)
    sizes = noise_sizes(iterative, bags.sizes)
    n, e = SIDE * SIDE, bags.edges.shape[1]
    assert sizes == [n + e]
    assert sample_major(torch.zeros(n + e, 3), sizes).shape == (3 * (n + e),)
    with pytest.raises(InputError, match=rf"noise has {n} rows, but a sample .* takes {n + e}"):
        sample_major(torch.zeros(n, 3), sizes)
