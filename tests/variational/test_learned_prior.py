"""The estimate of κ is the stationary point of the KL term that training adds to the loss."""

import pytest
import torch
from support.random_bags import F64, dense_laplacian, packed, random_bag, split
from torch.distributions import MultivariateNormal, kl_divergence

from probsa.models import Output, build
from probsa.variational import Dirichlet, Field

RIDGE = 0.05


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_derivative_of_the_kl_of_a_batch_vanishes_at_the_estimate(reduction):
    given = [random_bag(n, seed=n, density=0.5) for n in (3, 8, 21)]
    bags = packed(given)
    g = torch.Generator().manual_seed(0)
    nu, log_tau = torch.randn(2, len(bags.x), generator=g, dtype=F64)
    q = Field(nu, log_tau.exp(), prior=Dirichlet(kappa=0.7, ridge=RIDGE), bags=bags)
    model = build(
        "abmil-probsa-field", in_dim=4, ridge=RIDGE, kl_reduction=reduction, kappa_rate=1.0
    )
    total = model.batch_statistics(Output(logits=torch.zeros(3, 1, 1), attention=q), bags)
    model.update_statistics(total)
    kappa = (total[0] / (2 * total[1])).requires_grad_()
    terms = []
    for bag, mean, tau in zip(given, split(q.mean, bags), split(log_tau.exp(), bags), strict=True):
        half = dense_laplacian(bag, "combinatorial") + RIDGE * torch.eye(len(tau), dtype=F64)
        own = MultivariateNormal(mean, precision_matrix=2 * 0.7 * half + tau.diag())
        zero = torch.zeros(len(tau), dtype=F64)
        prior = MultivariateNormal(zero, precision_matrix=2 * kappa * half)
        terms.append(kl_divergence(own, prior) / (len(tau) if reduction == "mean" else 1))
    torch.stack(terms).mean().backward()
    assert abs(float(kappa.grad)) < 1e-10
    assert float(model.attention.prior.kappa) == pytest.approx(kappa.item(), rel=1e-6)
