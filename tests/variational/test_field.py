"""The field posterior against dense matrices, torch's densities and its limits, in float64."""

import pytest
import torch
from support.random_bags import (
    F64,
    chain_bag,
    dense_laplacian,
    graphs_of_all_kinds,
    packed,
    random_bag,
    split,
)
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probsa import Bag, pack
from probsa.core.graphs import grid
from probsa.errors import InputError
from probsa.models import build
from probsa.variational import (
    block_cholesky,
    block_ordering,
    field,
    field_solvers,
    learned_prior,
)
from probsa.variational.field import Field
from probsa.variational.posteriors import Diagonal, Posterior
from probsa.variational.priors import Dirichlet

LAPLACIANS = ["combinatorial", "normalized"]


@pytest.fixture(params=["dense", "blocks"])
def path(request, monkeypatch):
    """Solve small bags as dense matrices, or all bags as several blocks."""
    if request.param == "blocks":
        monkeypatch.setattr(block_ordering, "DENSE", 3)
        monkeypatch.setattr(field_solvers, "DENSE", 3)
        monkeypatch.setattr(block_ordering, "BLOCK", 4)
    return request.param


def bags_of_all_kinds():
    return [
        *graphs_of_all_kinds(),
        random_bag(60, seed=9, density=0.03, name="large"),
        chain_bag(50, torch.ones(49, dtype=F64)),
        random_bag(40, seed=11, density=0.0, name="no edges"),
    ]


def statements(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    nu = torch.randn(n, generator=g, dtype=F64).requires_grad_()
    tau = torch.randn(n, generator=g, dtype=F64).exp().requires_grad_()
    return nu, tau


def dense(bag, tau, *, kappa, ridge, laplacian):
    """Return P and Q of a bag."""
    lap = dense_laplacian(bag, laplacian)
    p = 2 * kappa * (lap + ridge * torch.eye(len(lap), dtype=F64))
    return p, p + tau.diag()


@pytest.mark.parametrize("laplacian", LAPLACIANS)
@pytest.mark.parametrize(("kappa", "ridge"), [(0.7, 0.05), (3.0, 0.01)])
def test_moments_kl_and_their_gradients_are_those_of_dense_matrices(path, laplacian, kappa, ridge):
    given = bags_of_all_kinds()
    bags = packed(given)
    nu, tau = statements(len(bags.x))
    prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    q = Field(nu, tau, prior=prior, bags=bags)
    kl = q.kl(prior, bags, exact=True)
    means, variances, kls = [], [], []
    for bag, v, t in zip(given, split(nu, bags), split(tau, bags), strict=True):
        p, precision = dense(bag, t, kappa=kappa, ridge=ridge, laplacian=laplacian)
        m = torch.linalg.solve(precision, t * v)
        means.append(m)
        variances.append(torch.linalg.inv(precision).diagonal())
        own = MultivariateNormal(m, precision_matrix=precision)
        other = MultivariateNormal(torch.zeros_like(m), precision_matrix=p)
        kls.append(kl_divergence(own, other))
    torch.testing.assert_close(q.mean, torch.cat(means), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.variance, torch.cat(variances), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(kl, torch.stack(kls), rtol=1e-8, atol=1e-8)
    weights = torch.arange(1, len(given) + 1, dtype=F64)
    got = torch.autograd.grad((weights * kl).sum() + q.mean.sin().sum(), (nu, tau))
    expected = (weights * torch.stack(kls)).sum() + torch.cat(means).sin().sum()
    # of several blocks, the derivative of the variances is a central difference
    tolerance = 1e-9 if path == "dense" else 1e-6
    for a, b in zip(got, torch.autograd.grad(expected, (nu, tau)), strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=tolerance)


def test_the_gradient_of_the_kl_is_its_finite_difference(path):
    bags = packed([random_bag(30, seed=3, density=0.2)])
    nu, tau = statements(30)
    prior = Dirichlet(kappa=0.4, ridge=0.1)
    kl = Field(nu, tau, prior=prior, bags=bags).kl(prior, bags).sum()
    gradients = torch.autograd.grad(kl, (nu, tau))
    step = 1e-5
    for k, v in enumerate((nu, tau)):
        for n in (0, 7, 29):
            values = []
            for sign in (1, -1):
                moved = [w.detach().clone() for w in (nu, tau)]
                moved[k][n] += sign * step
                values.append(Field(*moved, prior=prior, bags=bags).kl(prior, bags).sum())
            slope = float(values[0] - values[1]) / (2 * step)
            assert float(gradients[k][n]) == pytest.approx(slope, rel=1e-5, abs=1e-8), v.shape


def test_samples_have_the_mean_and_the_covariance(path):
    bag = random_bag(8, seed=4, density=0.4)
    bags = packed([bag, random_bag(5, seed=5)])
    nu, tau = (v.detach() for v in statements(13))
    prior = Dirichlet(kappa=0.8, ridge=0.02)
    q = Field(nu, tau, prior=prior, bags=bags)
    f = q.rsample(200_000, generator=torch.Generator().manual_seed(0))
    precision = dense(bag, tau[:8], kappa=0.8, ridge=0.02, laplacian="combinatorial")[1]
    covariance = torch.linalg.inv(precision)
    assert float((f.mean(1) - q.mean).abs().max()) < 0.01
    scale = covariance.diagonal().sqrt()
    correlation_error = (torch.cov(f[:8]) - covariance) / (scale[:, None] * scale)
    assert float(correlation_error.abs().max()) < 0.015
    assert float(torch.cov(f)[:8, 8:].abs().max()) < 0.015  # bags are independent


def test_the_sampler_of_a_bag_gives_the_rows_of_all_samples(path):
    bags = packed(bags_of_all_kinds())
    q = Field(*statements(len(bags.x)), prior=Dirichlet(), bags=bags)
    noise = torch.randn(len(bags.x), 7, dtype=F64, generator=torch.Generator().manual_seed(1))
    f, sample = q.rsample(7, noise=noise), q.sampler(bags.sizes)
    for b, (own, eps) in enumerate(zip(split(f, bags), split(noise, bags), strict=True)):
        torch.testing.assert_close(sample(b, eps.T), own.T, rtol=1e-12, atol=1e-12)


def test_gradients_of_expectations_over_samples_are_unbiased(path):
    """For E[fᵀAf], the gradient is known; that of many samples must agree within its error."""
    n, drawn, repeats = 12, 500, 60
    bags = packed([random_bag(n, seed=6, density=0.3)])
    g = torch.Generator().manual_seed(2)
    a = torch.randn(n, n, generator=g, dtype=F64)
    a = a + a.T
    nu, tau = statements(n)
    p = dense(random_bag(n, seed=6, density=0.3), tau, kappa=0.5, ridge=0.05,
              laplacian="combinatorial")[0]  # fmt: skip
    precision = p + tau.diag()
    m = torch.linalg.solve(precision, tau * nu)
    expected = torch.autograd.grad(m @ a @ m + (a * torch.linalg.inv(precision)).sum(), (nu, tau))
    estimates = []
    for _ in range(repeats):
        q = Field(nu, tau, prior=Dirichlet(kappa=0.5, ridge=0.05), bags=bags)
        f = q.rsample(drawn, generator=g)
        value = (f * (a @ f)).sum(0).mean()
        estimates.append(torch.stack(torch.autograd.grad(value, (nu, tau))))
    each = torch.stack(estimates)
    error = each.std(0) / repeats**0.5
    z = (each.mean(0) - torch.stack(expected)) / error
    assert float(z.abs().max()) < 4.5


def test_of_one_instance_the_sample_moves_as_its_closed_form():
    bags = packed([random_bag(1, seed=1)])
    nu, tau = statements(1)
    q = Field(nu, tau, prior=Dirichlet(kappa=0.5, ridge=0.2), bags=bags)
    noise = torch.tensor([[0.7, -1.3]], dtype=F64)
    precision = 2 * 0.5 * 0.2 + tau
    closed = (tau * nu / precision)[:, None] + noise * precision.rsqrt()[:, None]
    torch.testing.assert_close(q.rsample(2, noise=noise), closed)
    for a, b in zip(
        torch.autograd.grad(q.rsample(2, noise=noise).sum(), (nu, tau)),
        torch.autograd.grad(closed.sum(), (nu, tau)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kappa", [1e-9, 1e-12])
def test_as_kappa_vanishes_it_becomes_diag(path, kappa):
    bags = packed(bags_of_all_kinds())
    nu, tau = statements(len(bags.x))
    prior = Dirichlet(kappa=kappa, ridge=0.01)
    q, diagonal = Field(nu, tau, prior=prior, bags=bags), Diagonal(nu, 1 / tau)
    torch.testing.assert_close(q.mean, nu, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(q.variance, 1 / tau, rtol=1e-6, atol=1e-6)
    noise = torch.randn(len(nu), 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    if path == "dense":  # the order of elimination does not mix independent instances
        torch.testing.assert_close(
            q.rsample(3, noise=noise), diagonal.rsample(3, noise=noise), rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(
        q.kl(prior, bags, exact=True), diagonal.kl(prior, bags, exact=True), rtol=1e-6, atol=1e-6
    )


def test_without_statements_it_is_the_prior_and_with_sharp_ones_a_point(path):
    bags = packed([random_bag(20, seed=7, density=0.2)])
    prior = Dirichlet(kappa=0.3, ridge=0.1)
    nu = torch.randn(20, dtype=F64, generator=torch.Generator().manual_seed(0))
    blind = Field(nu, torch.full_like(nu, 1e-12), prior=prior, bags=bags)
    p = dense(random_bag(20, seed=7, density=0.2), nu, kappa=0.3, ridge=0.1,
              laplacian="combinatorial")[0]  # fmt: skip
    torch.testing.assert_close(blind.variance, torch.linalg.inv(p).diagonal())
    assert float(blind.mean.abs().max()) < 1e-9
    assert float(blind.kl(prior, bags, exact=True)) == pytest.approx(0, abs=1e-8)
    sharp = Field(nu, torch.full_like(nu, 1e10), prior=prior, bags=bags)
    torch.testing.assert_close(sharp.mean, nu, rtol=1e-7, atol=1e-7)
    assert float(sharp.variance.max()) < 2e-10


def test_without_edges_it_is_diag_with_the_ridge(path):
    bags = packed([random_bag(30, seed=1, density=0.0)])
    nu, tau = statements(30)
    q = Field(nu, tau, prior=Dirichlet(kappa=2.0, ridge=0.05), bags=bags)
    torch.testing.assert_close(q.variance, 1 / (tau + 0.2))
    torch.testing.assert_close(q.mean, nu * tau / (tau + 0.2))


def test_a_bag_does_not_see_its_batch_mates(path):
    given = bags_of_all_kinds()
    bags = packed(given)
    nu, tau = statements(len(bags.x))
    prior = Dirichlet(kappa=0.5)
    q = Field(nu, tau, prior=prior, bags=bags)
    kl = q.kl(prior, bags)
    parts = [split(v, bags) for v in (nu, tau, q.mean, q.variance)]
    for b, (bag, v, t, mean, variance) in enumerate(zip(given, *parts, strict=True)):
        alone = packed([bag])
        own = Field(v, t, prior=prior, bags=alone)
        for got, expected in ((own.mean, mean), (own.variance, variance)):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(own.kl(prior, alone)[0], kl[b], rtol=1e-11, atol=1e-11)


def test_each_bag_can_have_its_own_kappa(path):
    bags = packed([random_bag(9, seed=1), random_bag(9, seed=1)])
    nu, tau = statements(9)
    both = Dirichlet(kappa=torch.tensor([0.1, 5.0], dtype=F64))
    q = Field(nu.repeat(2), tau.repeat(2), prior=both, bags=bags)
    for k, kappa in enumerate((0.1, 5.0)):
        own_bags, prior = packed([random_bag(9, seed=1)]), Dirichlet(kappa=kappa)
        own = Field(nu, tau, prior=prior, bags=own_bags)
        torch.testing.assert_close(split(q.mean, bags)[k], own.mean)
        torch.testing.assert_close(q.kl(both, bags)[k], own.kl(prior, own_bags)[0])


def test_the_expected_energy_is_that_of_dense_matrices(path):
    bag = random_bag(25, seed=8, density=0.2)
    bags = packed([bag])
    nu, tau = statements(25)
    q = Field(nu, tau, prior=Dirichlet(kappa=0.6, ridge=0.1), bags=bags)
    p, precision = dense(bag, tau, kappa=0.6, ridge=0.1, laplacian="combinatorial")
    m, s = torch.linalg.solve(precision, tau * nu), torch.linalg.inv(precision)
    expected = (m @ p @ m + (p * s).sum()) / 1.2
    torch.testing.assert_close(q.expected_energy[0], expected, rtol=1e-9, atol=1e-9)


def test_strips_and_levels_give_blocks_that_touch_only_the_next():
    cells = torch.tensor([[x, y] for y in range(30) for x in range(20) if (x - 9) ** 2 < 90 - y])
    edges = grid(cells, stride=1.0).numpy()
    n = len(cells)
    for coords in (cells.double().numpy(), None):
        order = block_ordering.block_order(edges, n, coords=coords)
        assert sorted(order.order) == list(range(n)) and sum(order.sizes) == n
        place = torch.empty(n, dtype=torch.long)
        place[torch.from_numpy(order.order)] = torch.arange(n)
        sizes = torch.tensor(order.sizes)
        block = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        i, j = block[place[torch.from_numpy(edges)]]
        assert len(sizes) > 2 and int((i - j).abs().max()) <= 1
        assert max(order.sizes) < 4 * block_ordering.BLOCK


def test_a_bag_without_edges_is_cut_into_small_blocks():
    order = block_ordering.block_order(torch.zeros(2, 0, dtype=torch.long).numpy(), 5000)
    assert max(order.sizes) <= 2 * block_ordering.BLOCK


def test_float32_statements_give_float32_results_of_double_accuracy():
    bags = packed([random_bag(40, seed=2, density=0.2)])
    nu, tau = (v.detach().float() for v in statements(40))
    prior = Dirichlet()
    q, full = (
        Field(v, t, prior=prior, bags=bags) for v, t in ((nu, tau), (nu.double(), tau.double()))
    )
    assert q.mean.dtype == q.rsample(2).dtype == q.kl(prior, bags).dtype == torch.float32
    torch.testing.assert_close(q.mean, full.mean.float())
    torch.testing.assert_close(q.variance, full.variance.float())


def test_it_is_a_posterior():
    bags = packed([random_bag(3)])
    assert isinstance(Field(*statements(3), prior=Dirichlet(), bags=bags), Posterior)


def test_no_ridge_and_another_prior_are_refused():
    bags = packed([random_bag(3)])
    with pytest.raises(InputError, match="ridge is 0"):
        Field(*statements(3), prior=Dirichlet(ridge=0.0), bags=bags)
    q = Field(*statements(3), prior=Dirichlet(kappa=1.0), bags=bags)
    with pytest.raises(InputError, match="only from the prior"):
        q.kl(Dirichlet(kappa=2.0), bags)


def test_the_derivative_of_marginals_by_differences_is_the_dense_one():
    g = torch.Generator().manual_seed(3)
    blocks = [torch.randn(1, 5, 5, generator=g, dtype=F64) for _ in range(3)]
    diagonal = [b @ b.mT + 8 * torch.eye(5, dtype=F64) for b in blocks]
    below = [torch.randn(1, 5, 5, generator=g, dtype=F64) for _ in range(2)]
    q = torch.block_diag(*[d[0] for d in diagonal])
    for k, b in enumerate(below):
        q[5 * k + 5 : 5 * k + 10, 5 * k : 5 * k + 5] = b[0]
        q[5 * k : 5 * k + 5, 5 * k + 5 : 5 * k + 10] = b[0].T
    factor = block_cholesky.BlockCholesky(diagonal, below)
    d = torch.randn(1, 15, generator=g, dtype=F64)
    s = torch.linalg.inv(q)
    torch.testing.assert_close(factor.marginals()[0], s.diagonal())
    expected = (s @ d[0].diag() @ s).diagonal()
    torch.testing.assert_close(factor.marginals_along(d)[0], expected, rtol=1e-6, atol=1e-9)
    assert float(factor.log_determinant) == pytest.approx(float(torch.logdet(q)))


def test_the_derivative_along_nothing_is_zero_however_large_the_precisions(path):
    """In joint training, a model with λ = 0 gives gradients that are exactly 0."""
    bags = packed([random_bag(30, seed=3, density=0.2)])
    (solver,) = field_solvers.solvers_of(
        torch.full((30,), 1e9, dtype=F64),
        entries=Dirichlet().entries(bags, dtype=F64),
        kappa=torch.ones(1, dtype=F64),
        bags=bags,
    )
    along = solver.marginals_along(torch.zeros(1, 30, dtype=F64))
    assert torch.equal(along, torch.zeros_like(along))


class NoDouble(TorchDispatchMode):
    """Fails at every tensor of float64, as a device without it does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for v in tree_leaves(out):
            assert not (isinstance(v, torch.Tensor) and v.dtype == F64), func
        return out


@pytest.mark.parametrize("name", ["evidence-field", "abmil-probsa-field"])
def test_a_step_and_a_prediction_need_no_float64_where_there_is_none(monkeypatch, name):
    """As on MPS; one of the bags has several blocks."""
    for module in (field, learned_prior):
        monkeypatch.setattr(module, "full_dtype", lambda device: torch.float32)
    i = torch.arange(299)
    bags = pack([
        Bag(
            name=str(n), x=torch.randn(n, 4), coords=torch.arange(n)[:, None].float(), y=n % 2,
            edges=torch.stack([i[: n - 1], i[: n - 1] + 1]), weights=torch.ones(n - 1),
        )
        for n in (7, 300)
    ])  # fmt: skip
    model = build(name, in_dim=4, embed=8, attention_dim=4, samples=3, predict_samples=5)
    with NoDouble():
        out = model(bags, generator=torch.Generator().manual_seed(0))
        sum(model.losses(out, bags).values()).backward()
        with torch.no_grad():
            model.update_statistics(model.batch_statistics(out, bags))
            predicted = model.eval()(bags)
    assert predicted.probability.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert float(model.attention.prior.log_kappa) != 0


def test_autocast_does_not_reach_the_linear_algebra_in_float32(monkeypatch, path):
    """As on MPS, where it is in float32, which autocast would turn into bfloat16."""
    monkeypatch.setattr(field, "full_dtype", lambda device: torch.float32)
    bags = packed([random_bag(30, seed=3, density=0.2)]).to("cpu", torch.float32)
    nu, tau = (v.detach().float() for v in statements(30))
    prior = Dirichlet(kappa=0.4, ridge=0.1)
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            q = Field(nu, tau, prior=prior, bags=bags)
            found.append((q.kl(prior, bags), q.variance, q.mean))
    for plain, autocast in zip(*found, strict=True):
        assert torch.equal(plain, autocast)


def test_a_matrix_that_is_not_positive_definite_gives_nan_for_its_bag_alone(path):
    """A factorisation that breaks off leaves finite numbers, which would pass as results."""
    bags = packed([random_bag(30, seed=3, density=0.2), random_bag(30, seed=4, density=0.2)])
    nu, tau = (v.detach() for v in statements(60))
    tau[12] = -100.0
    q = Field(nu, tau, prior=Dirichlet(), bags=bags)
    own, other = q.mean.split(30)
    assert own.isnan().any() and other.isfinite().all()
    assert q.kl(q.prior, bags).isnan().tolist() == [True, False]
    assert q.samples(torch.ones(120, dtype=F64))[:30].isnan().any()
