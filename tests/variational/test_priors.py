"""The Dirichlet prior, computed from the edge list, equals its dense matrix; κ is estimated."""

import itertools
import math
from dataclasses import replace

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
    types_not_executed,
)
from torch.distributions import MultivariateNormal, kl_divergence

from probsa import pack
from probsa.errors import InputError
from probsa.models import Output, build
from probsa.variational import Diagonal, Dirac, Dirichlet, Field

LAPLACIANS = ["combinatorial", "normalized"]
PRIORS = list(itertools.product(LAPLACIANS, [0.5, 3.0], [0.0, 0.01, 0.7]))


def noise(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=F64)


def close(actual, want, *, tol=1e-12):
    torch.testing.assert_close(actual, want, rtol=tol, atol=tol)


@pytest.mark.parametrize(("laplacian", "kappa", "ridge"), PRIORS)
def test_it_is_the_dense_matrix(laplacian, kappa, ridge):
    bag_list = graphs_of_all_kinds()
    bags = packed(bag_list)
    prior = Dirichlet(kappa=kappa, ridge=ridge, laplacian=laplacian)
    f = noise(len(bags.x)).requires_grad_()
    energy = prior.energy(f, bags)
    diagonal, _ = prior.precision(bags, dtype=F64)
    weights = 1 + noise(len(bag_list), 1).square()
    (energy * weights).sum().backward()
    parts = [split(v, bags) for v in (f.detach(), f.grad, diagonal)]
    for b, (bag, f_b, gradient_b, diagonal_b) in enumerate(zip(bag_list, *parts, strict=True)):
        lap = dense_laplacian(bag, laplacian)
        q = 2 * kappa * (lap + ridge * torch.eye(len(lap), dtype=F64))
        close(energy[b].detach(), f_b @ q @ f_b / 2)
        close(gradient_b, weights[b] * q @ f_b)
        close(diagonal_b, q.diagonal())
        if ridge:
            close(prior.log_determinant(bags)[b], torch.linalg.slogdet(q)[1], tol=1e-11)


def test_a_large_chain_takes_memory_of_its_edges():
    n = 50_000
    prior = Dirichlet(ridge=0.0)
    chain = chain_bag(n, torch.ones(n - 1, dtype=F64))
    bags = pack([chain, chain_bag(1, torch.ones(0, dtype=F64))])
    assert prior.energy(torch.arange(n + 1, dtype=F64), bags).tolist() == [n - 1, 0]
    assert prior.energy(torch.full((n + 1,), 3.0, dtype=F64), bags).tolist() == [0, 0]
    # A path has one spanning tree: the non-zero eigenvalues of 2L have the product n · 2^(n − 1).
    want = math.log(n) + (n - 1) * math.log(2)
    assert float(prior.log_determinant(bags)[0]) == pytest.approx(want, rel=1e-11)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_derivative_of_the_kl_of_a_batch_vanishes_at_the_estimate_of_kappa(reduction):
    bag_list = [random_bag(n, seed=n, density=0.5) for n in (3, 8, 21)]
    bags = packed(bag_list)
    ridge = 0.05
    nu = noise(len(bags.x))
    tau = noise(len(bags.x), 1).exp()
    q = Field(nu, tau, prior=Dirichlet(kappa=0.7, ridge=ridge), bags=bags)
    model = build(
        "abmil-probsa-field", in_dim=4, ridge=ridge, kl_reduction=reduction, kappa_rate=1.0
    )
    total = model.batch_statistics(Output(logits=torch.zeros(3, 1, 1), attention=q), bags)
    model.update_statistics(total)
    kappa = (total[0] / (2 * total[1])).requires_grad_()
    terms = []
    for bag, mean_b, tau_b in zip(bag_list, split(q.mean, bags), split(tau, bags), strict=True):
        half = dense_laplacian(bag, "combinatorial") + ridge * torch.eye(len(tau_b), dtype=F64)
        dense_q = MultivariateNormal(mean_b, precision_matrix=2 * 0.7 * half + tau_b.diag())
        prior = MultivariateNormal(torch.zeros_like(tau_b), precision_matrix=2 * kappa * half)
        kl = kl_divergence(dense_q, prior)
        terms.append(kl / len(tau_b) if reduction == "mean" else kl)
    torch.stack(terms).mean().backward()
    assert abs(float(kappa.grad)) < 1e-10
    assert float(model.attention.prior.kappa) == pytest.approx(kappa.item(), rel=1e-6)


def exact_kl(q=None, **options):
    bags = packed([b for b in graphs_of_all_kinds() if b.name in ("complete", "edgeless")])
    q = q or Diagonal(noise(len(bags.x)), torch.ones(len(bags.x), dtype=F64))
    return lambda: q.kl(Dirichlet(**options), bags, exact=True)


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: Dirichlet(kappa=0.0), "kappa"),
        (lambda: Dirichlet(kappa=math.nan), "kappa"),
        (lambda: Dirichlet(ridge=-0.1), "ridge"),
        (lambda: Dirichlet(laplacian="random"), "laplacian"),
        (exact_kl(ridge=0.0), "'edgeless'.*ridge"),
        (exact_kl(ridge=0.0, laplacian="normalized"), "Laplacian"),
        (exact_kl(Dirac(noise(4))), "Dirac"),
    ],
)
def test_what_has_no_value_is_refused(call, fact):
    with types_not_executed(), pytest.raises(InputError, match=fact):
        call()


def odd_graphs():
    """Bags whose graphs are not connected, or only by edges of weight 0 or nearly 0."""
    half = chain_bag(8, torch.tensor([1.0, 2.0, 0.5, 0.0, 1.0, 0.3, 0.7], dtype=F64), name="0 tie")
    weak = chain_bag(8, torch.tensor([1, 2, 0.5, 1e-6, 1, 0.3, 0.7], dtype=F64), name="weak tie")
    weaker = chain_bag(8, torch.tensor([1, 2, 1, 1e-17, 1, 1, 1], dtype=F64), name="no tie")
    zeros = chain_bag(5, torch.zeros(4, dtype=F64), name="zeros")
    end = chain_bag(4, torch.tensor([1.0, 2.0, 0.0], dtype=F64), name="0 at the end")
    ring = replace(
        chain_bag(4, torch.tensor([1.0, 2.0, 3.0, 0.0], dtype=F64)[:3]), name="0 in a ring"
    )
    edges = torch.cat([ring.edges, torch.tensor([[0], [3]])], 1)
    weights = torch.cat([ring.weights, torch.zeros(1, dtype=F64)])
    ring = replace(ring, edges=edges, weights=weights)
    return [*graphs_of_all_kinds(), half, weak, weaker, zeros, end, ring]


ON_CONTRASTS = ("complete", "random", "single", "chain", "weak tie", "0 in a ring")
"""Those which one component of edges that count joins."""


def dense_kl(mean, covariance, precision, *, ridge):
    """Return KL(N(mean, covariance) ‖ N(0, precision⁻¹)), without a ridge that of the contrasts."""
    n = len(mean)
    if not ridge:
        centre = torch.eye(n, dtype=F64) - 1 / n
        basis = torch.linalg.eigh(centre)[1][:, 1:]
        mean = basis.T @ mean
        covariance = basis.T @ covariance @ basis
        precision = basis.T @ precision @ basis
    trace = (precision @ covariance).trace()
    log_dets = torch.linalg.slogdet(precision)[1] + torch.linalg.slogdet(covariance)[1]
    return (mean @ precision @ mean + trace - len(mean) - log_dets) / 2


@pytest.mark.parametrize("laplacian", LAPLACIANS)
@pytest.mark.parametrize("ridge", [0.0, 1e-300, 1e-6, 0.05])
@pytest.mark.parametrize("bag", odd_graphs(), ids=lambda bag: bag.name)
def test_every_exact_kl_is_the_dense_one_or_refused(bag, ridge, laplacian):
    bags = packed([bag])
    n = len(bag.x)
    prior = Dirichlet(kappa=1.3, ridge=ridge, laplacian=laplacian)
    dense = 2.6 * (dense_laplacian(bag, laplacian) + ridge * torch.eye(n, dtype=F64))
    mean, variance = noise(n), noise(n, 1).exp()
    q = Diagonal(mean, variance)
    defined = laplacian == "combinatorial" and bag.name in ON_CONTRASTS
    if defined if ridge == 0 else ridge > 1e-100:
        actual = q.kl(prior, bags, exact=True)
        close(actual[0], dense_kl(mean, variance.diag(), dense, ridge=ridge), tol=1e-8)
    else:
        try:
            actual = q.kl(prior, bags, exact=True)
        except InputError as e:
            assert bag.name in str(e) or "combinatorial" in str(e)
        else:
            want = dense_kl(mean, variance.diag(), dense, ridge=ridge)
            close(actual[0], want, tol=1e-8)
    # what training uses
    leaf = mean.clone().requires_grad_()
    loss = Diagonal(leaf, variance).kl(prior, bags) + Dirac(leaf).kl(prior, bags)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    assert loss.isfinite().all()
    close(gradient, 2 * dense @ mean)
    if ridge < 1e-100:
        return
    field = Field(mean, variance, prior=prior, bags=bags)
    precision = dense + variance.diag()
    covariance = torch.linalg.inv(precision)
    want = dense_kl(covariance @ (variance * mean), covariance, dense, ridge=ridge)
    close(field.kl(prior, bags, exact=True)[0], want, tol=1e-8)
