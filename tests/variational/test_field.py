"""The field posterior against dense matrices, torch's densities and its limits, in float64."""

import pytest
import torch
from support.random_bags import (
    F64,
    adjacency,
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
from probsa.core import elimination, grid
from probsa.errors import InputError
from probsa.models import build
from probsa.models._explanation import normal_points
from probsa.variational import Dirichlet, Field, Posterior, field, gmrf, priors


@pytest.fixture(params=["dense", "blocks"])
def path(request, monkeypatch):
    """Solve small bags as dense matrices, or all bags as several blocks.

    `blocks` makes bags of more than 3 instances count as large, with leaves of 4 instances.
    """
    if request.param == "blocks":
        monkeypatch.setattr(elimination, "DENSE", 3)
        monkeypatch.setattr(elimination, "LEAF", 4)
    return request.param


def lattice_bag(side=20, *, coords=True, seed=0):
    """Return a ragged slide: a lattice with 8 neighbours, without two corners and some patches.

    The corners far from the diagonal are cut off, and of the rest, a tenth is missing at random.
    """
    g = torch.Generator().manual_seed(seed)
    cells = torch.tensor([[x, y] for y in range(side) for x in range(side) if abs(x - y) < 15])
    cells = cells[torch.rand(len(cells), generator=g) > 0.1]
    edges = grid(cells, stride=1.0)
    return Bag(
        name=f"slide {coords}",
        x=torch.zeros(len(cells), 1, dtype=F64),
        edges=edges,
        weights=0.5 + torch.rand(edges.shape[1], generator=g, dtype=F64),
        coords=cells if coords else None,
    )


def bags_of_all_kinds():
    return [
        *graphs_of_all_kinds(),
        random_bag(60, seed=9, density=0.03, name="large"),
        chain_bag(50, torch.ones(49, dtype=F64)),
        random_bag(40, seed=11, density=0.0, name="no edges"),
    ]


def statements(n, seed=0):
    """Return ν and τ of n instances, which record gradients."""
    g = torch.Generator().manual_seed(seed)
    nu = torch.randn(n, generator=g, dtype=F64).requires_grad_()
    tau = torch.randn(n, generator=g, dtype=F64).exp().requires_grad_()
    return nu, tau


def statements_of_classes(n, classes=3):
    """Return constant statements of several classes, (n, classes) each."""
    nus = []
    taus = []
    for c in range(classes):
        nu, tau = statements(n, seed=c)
        nus.append(nu.detach())
        taus.append(tau.detach())
    return torch.stack(nus, 1), torch.stack(taus, 1)


def dense(bag, tau, *, kappa, ridge, laplacian="combinatorial"):
    """Return the precisions of the prior (P) and of the posterior (Q = P + diag τ) of a bag."""
    lap = dense_laplacian(bag, laplacian)
    p = 2 * kappa * (lap + ridge * torch.eye(len(lap), dtype=F64))
    return p, p + tau.diag()


@pytest.mark.parametrize(
    ("laplacian", "kappa", "ridge"),
    [("combinatorial", (0.7, 0.7), 0.05), ("normalized", (0.1, 5.0), 0.01)],
)
def test_moments_energy_kl_and_gradients_are_those_of_dense_matrices(
    path, monkeypatch, laplacian, kappa, ridge
):
    monkeypatch.setattr(gmrf, "PROBES", 20_000)
    bag_list = bags_of_all_kinds()
    bags = packed(bag_list)
    nu, tau = statements(len(bags.x))
    kappa = torch.linspace(*kappa, len(bag_list), dtype=F64)
    prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    means = []
    variances = []
    kls = []
    energies = []
    tied_counts = []
    for bag, k, v, t in zip(bag_list, kappa, split(nu, bags), split(tau, bags), strict=True):
        p, precision = dense(bag, t, kappa=k, ridge=ridge, laplacian=laplacian)
        # Q m = diag(τ) ν
        m = torch.linalg.solve(precision, t * v)
        s = torch.linalg.inv(precision)
        means.append(m)
        variances.append(s.diagonal())
        # E[fᵀPf] = mᵀPm + tr(PS), of the instances that have a neighbour
        is_tied = adjacency(bag).sum(1) > 0
        energies.append(((m * (p @ m) + (p * s).sum(1)) * is_tied).sum() / (2 * k))
        tied_counts.append(is_tied.double().sum())
        dense_q = MultivariateNormal(m, precision_matrix=precision)
        dense_prior = MultivariateNormal(torch.zeros_like(m), precision_matrix=p)
        kls.append(kl_divergence(dense_q, dense_prior))
    with torch.no_grad():
        q = Field(nu, tau, prior=prior, bags=bags)
        torch.testing.assert_close(q.mean, torch.cat(means), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(q.variance, torch.cat(variances), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            q.kl(prior, bags, exact=True), torch.stack(kls), rtol=1e-8, atol=1e-8
        )
        energy, tied_count = q.expected_energy
        torch.testing.assert_close(energy, torch.stack(energies), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(tied_count, torch.stack(tied_counts))
    # where gradients are recorded, those of the KL and of variances come from probes
    q = Field(nu, tau, prior=prior, bags=bags)
    weights = torch.arange(1, len(bag_list) + 1, dtype=F64)

    def gradients(value):
        return torch.autograd.grad(
            value.sum(), (nu, tau), retain_graph=True, materialize_grads=True
        )

    for actual, expected, exact in (
        (q.mean.sin(), torch.cat(means).sin(), True),
        (q.variance.sin(), torch.cat(variances).sin(), path == "dense"),
        (weights * q.kl(prior, bags), weights * torch.stack(kls), path == "dense"),
        (weights * q.expected_energy.energy, weights * torch.stack(energies), path == "dense"),
    ):
        for a, b in zip(gradients(actual), gradients(expected), strict=True):
            tolerance = (1e-9 if exact else 0.03) * float(b.abs().max())
            torch.testing.assert_close(a, b, rtol=1e-8, atol=tolerance)


@pytest.mark.parametrize("coords", [True, False])
def test_a_slide_is_solved_exactly_with_and_without_coordinates(coords):
    bag = lattice_bag(40, coords=coords)
    bags = pack([bag, lattice_bag(20)] if coords else [bag])
    nu, tau = (v.detach() for v in statements(len(bags.x)))
    q = Field(nu, tau, prior=Dirichlet(kappa=0.7, ridge=0.05), bags=bags)
    n = len(bag.x)
    precision = dense(bag, tau[:n], kappa=0.7, ridge=0.05)[1]
    fronts = q._gmrf._factors[-1].fronts
    assert n > 2 * elimination.DENSE and len(fronts) > 3
    # about n log n numbers, and not the n² of a dense matrix
    assert sum(f.inverse.numel() + f.border.numel() for f in fronts) < 110 * n
    mean = torch.linalg.solve(precision, tau[:n] * nu[:n])
    torch.testing.assert_close(q.mean[:n], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.variance[:n], torch.linalg.inv(precision).diagonal())
    torch.testing.assert_close(q._gmrf.log_determinants()[0], precision.logdet())


def test_the_gradient_of_a_slides_kl_is_near_the_exact_one_with_new_probes_in_each_step():
    bag = lattice_bag(30)
    bags = pack([bag])
    nu, tau = statements(len(bags.x))
    p, precision = dense(bag, tau, kappa=0.5, ridge=0.05)
    s = torch.linalg.inv(precision)
    m = s @ (tau * nu)
    # the KL without ½ log|L + εI|, which `kl` leaves out too, and without −n / 2; log 2κ is 0
    exact = (m @ p @ m + (p * s).sum() + precision.logdet()) / 2
    expected = torch.autograd.grad(exact, (nu, tau))
    gradients = []
    for _ in range(3):
        prior = Dirichlet(kappa=0.5, ridge=0.05)
        kl = Field(nu, tau, prior=prior, bags=bags).kl(prior, bags) + len(nu) / 2
        assert float(kl.detach()) == pytest.approx(float(exact.detach()), rel=0.01)
        by_nu, by_tau = torch.autograd.grad(kl.sum(), (nu, tau))
        torch.testing.assert_close(by_nu, expected[0])
        assert float((by_tau - expected[1]).norm() / expected[1].norm()) < 0.05
        gradients.append(by_tau)
    assert not torch.equal(gradients[0], gradients[1])


def test_samples_have_the_mean_and_the_covariance(path):
    bag = random_bag(8, seed=4, density=0.4)
    bags = packed([bag, random_bag(5, seed=5)])
    nu, tau = (v.detach() for v in statements(13))
    q = Field(nu, tau, prior=Dirichlet(kappa=0.8, ridge=0.02), bags=bags)
    f = q.rsample(200_000, generator=torch.Generator().manual_seed(0))
    covariance = torch.linalg.inv(dense(bag, tau[:8], kappa=0.8, ridge=0.02)[1])
    assert float((f.mean(1) - q.mean).abs().max()) < 0.01
    scale = covariance.diagonal().sqrt()
    correlation_error = (torch.cov(f[:8]) - covariance) / (scale[:, None] * scale)
    assert float(correlation_error.abs().max()) < 0.015
    assert float(torch.cov(f)[:8, 8:].abs().max()) < 0.015  # bags are independent


def test_gradients_of_expectations_over_samples_are_unbiased(path):
    """For E[fᵀAf], the gradient is known; that of many samples must agree within its error."""
    n = 12
    samples = 500
    repeats = 60
    bag = random_bag(n, seed=6, density=0.3)
    g = torch.Generator().manual_seed(2)
    a = torch.randn(n, n, generator=g, dtype=F64)
    a = a + a.T
    nu, tau = statements(n)
    precision = dense(bag, tau, kappa=0.5, ridge=0.05)[1]
    m = torch.linalg.solve(precision, tau * nu)
    expected = torch.autograd.grad(m @ a @ m + (a * torch.linalg.inv(precision)).sum(), (nu, tau))
    estimates = []
    for _ in range(repeats):
        q = Field(nu, tau, prior=Dirichlet(kappa=0.5, ridge=0.05), bags=packed([bag]))
        f = q.rsample(samples, generator=g).T
        value = ((f @ a) * f).sum(1).mean()
        estimates.append(torch.stack(torch.autograd.grad(value, (nu, tau))))
    gradients = torch.stack(estimates)
    error = gradients.std(0) / repeats**0.5
    z = (gradients.mean(0) - torch.stack(expected)) / error
    assert float(z.abs().max()) < 4.5


def test_several_classes_are_fields_with_the_kappa_of_each_bag(path):
    bags = packed([random_bag(9, seed=1), random_bag(14, seed=2)])
    prior = Dirichlet(kappa=torch.tensor([0.2, 3.0], dtype=F64))
    nu, tau = statements_of_classes(23)
    q = Field(nu, tau, prior=prior, bags=bags)
    classes = [Field(nu[:, c], tau[:, c], prior=prior, bags=bags) for c in range(3)]

    def kl(field):
        return field.kl(prior, bags, exact=True)

    def energy(field):
        return torch.stack(field.expected_energy)

    close = torch.testing.assert_close
    close(q.mean, torch.stack([field.mean for field in classes], 1))
    close(q.variance, torch.stack([field.variance for field in classes], 1))
    close(kl(q), torch.stack([kl(field) for field in classes]).sum(0))
    close(energy(q), torch.stack([energy(field) for field in classes]).sum(0))
    noise = torch.randn(23, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    samples = [field.rsample(4, noise=noise) for field in classes]
    close(q.rsample(4, noise=noise), torch.stack(samples, 2))


def test_float32_statements_give_float32_results_of_double_accuracy():
    bags = packed([random_bag(40, seed=2, density=0.2)])
    nu, tau = (v.detach().float() for v in statements(40))
    prior = Dirichlet()
    q = Field(nu, tau, prior=prior, bags=bags)
    full = Field(nu.double(), tau.double(), prior=prior, bags=bags)
    f = q.rsample(2)
    assert isinstance(q, Posterior)
    assert q.mean.dtype == f.dtype == q.kl(prior, bags).dtype == torch.float32
    torch.testing.assert_close(q.mean, full.mean.float())
    torch.testing.assert_close(q.variance, full.variance.float())


def test_no_ridge_another_prior_and_graphs_that_are_too_large_are_refused(monkeypatch):
    bags = packed([random_bag(3)])
    with pytest.raises(InputError, match="ridge"):
        Field(*statements(3), prior=Dirichlet(ridge=0.0), bags=bags)
    q = Field(*statements(3), prior=Dirichlet(kappa=1.0), bags=bags)
    with pytest.raises(InputError, match="prior"):
        q.kl(Dirichlet(kappa=2.0), bags)
    monkeypatch.setattr(elimination, "LARGEST", 1000)
    bags = pack([lattice_bag(30)])
    q = Field(*statements(len(bags.x)), prior=Dirichlet(), bags=bags)
    with pytest.raises(InputError, match="'slide True'"):
        q.mean  # noqa: B018


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
    for module in (field, priors):
        monkeypatch.setattr(module, "full_dtype", lambda device: torch.float32)
    chains = []
    for n in (7, 300):
        rows = torch.arange(n)
        chains.append(
            Bag(
                name=str(n),
                x=torch.randn(n, 4),
                coords=rows[:, None].float(),
                y=n % 2,
                edges=torch.stack([rows[:-1], rows[1:]]),
                weights=torch.ones(n - 1),
            )
        )
    bags = pack(chains)
    model = build(name, in_dim=4, embed=8, attention_dim=4, samples=3, predict_samples=5)
    bags.elimination.make()
    normal_points(1)  # constants, made once on the host
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
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            q = Field(nu, tau, prior=prior, bags=bags)
            f = q.rsample(2, noise=torch.ones(30, 2))
            results.append((q.kl(prior, bags), q.variance, q.mean, f))
    for plain, autocast in zip(*results, strict=True):
        assert torch.equal(plain, autocast)


def test_a_matrix_that_is_not_positive_definite_gives_nan_for_its_bag_alone(path):
    """A factorisation that breaks off leaves finite numbers, which would pass as results."""
    bags = packed([random_bag(30, seed=3, density=0.2), random_bag(30, seed=4, density=0.2)])
    nu, tau = (v.detach() for v in statements(60))
    tau[12] = -100.0
    q = Field(nu, tau, prior=Dirichlet(), bags=bags)
    assert q.kl(q.prior, bags).isnan().tolist() == [True, False]
    for value in (q.mean, q.rsample(1)):
        first, second = value.split(30)
        assert first.isnan().any() and second.isfinite().all()


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
def test_the_weight_of_neighbours_is_that_of_the_mean(path, laplacian):
    """The derivative of m_n by ν_j is the weight of instance j in m_n."""
    bag_list = bags_of_all_kinds()
    bags = packed(bag_list)
    nu, tau = statements(len(bags.x))
    prior = Dirichlet(kappa=0.7, ridge=0.05, laplacian=laplacian)
    bag_weights = split(Field(nu, tau, prior=prior, bags=bags).neighbour_weight, bags)
    for bag, weight, t in zip(bag_list, bag_weights, split(tau.detach(), bags), strict=True):
        precision = dense(bag, t, kappa=0.7, ridge=0.05, laplacian=laplacian)[1]
        # m = S diag(τ) ν: row n has the weights of all instances in m_n
        weights = torch.linalg.inv(precision) * t
        others = 1 - weights.diagonal() / weights.sum(1)
        torch.testing.assert_close(weight, others, rtol=1e-9, atol=1e-9)
        has_neighbours = adjacency(bag).sum(1) > 0
        assert torch.equal(weight > 0, has_neighbours) and bool((weight >= 0).all())


def test_the_weight_of_neighbours_of_several_classes_is_their_mean():
    bags = packed([random_bag(9, seed=1)])
    prior = Dirichlet(kappa=0.4, ridge=0.05)
    nu, tau = statements_of_classes(9)
    weight = Field(nu, tau, prior=prior, bags=bags).neighbour_weight
    class_weights = []
    for c in range(3):
        q = Field(nu[:, c], tau[:, c], prior=prior, bags=bags)
        class_weights.append(q.neighbour_weight)
    torch.testing.assert_close(weight, torch.stack(class_weights).mean(0))


def test_a_bag_that_diverged_leaves_the_others_as_they_are():
    """Bags of similar sizes are nodes of the same levels, filled up to equal widths."""
    bags = pack(
        [lattice_bag(24, seed=k) for k in range(3)] + [random_bag(n, features=1) for n in (40, 35)]
    )
    sizes = bags.sizes
    assert min(sizes[:3]) > elimination.DENSE
    trees = bags.elimination.trees(torch.device("cpu"))
    assert sorted(list(tree.bags) for tree in trees) == [[0, 1, 2], [3, 4]]
    nu, tau = (v.detach() for v in statements(sum(sizes)))
    prior = Dirichlet(kappa=0.5, ridge=0.05)
    noise = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    whole = Field(nu, tau, prior=prior, bags=bags)
    broken = tau.clone()
    start = 0
    for n, is_broken in zip(sizes, (True, False, False, False, True), strict=True):
        if is_broken:
            broken[start : start + n] = torch.nan
        start += n
    q = Field(nu, broken, prior=prior, bags=bags)
    rows = broken.isfinite()
    assert bool(q.mean[~rows].isnan().all())
    for mine, theirs in (
        (q.mean, whole.mean),
        (q.variance, whole.variance),
        (q.rsample(3, noise=noise), whole.rsample(3, noise=noise)),
    ):
        assert torch.equal(mine[rows], theirs[rows])
    kl = q.kl(prior, bags)
    assert kl.isnan().tolist() == [True, False, False, False, True]
