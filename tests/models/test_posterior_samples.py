"""A posterior that the package does not know, correlated within each bag, in an attention model."""

from dataclasses import dataclass, replace

import pytest
import torch
from support.random_bags import F64, dense_laplacian, random_bag
from torch import Tensor, nn

from probsa import models, pack
from probsa.layers import pool
from probsa.variational import Diagonal, Posterior, Streams

SIZES = (1, 5, 8)


@dataclass(frozen=True)
class Correlated(Posterior):
    """f = μ + R⁻ᵀ ε within each bag, with R Rᵀ = Σ⁻¹: dense here, a sparse factor in earnest."""

    mean: Tensor
    roots: tuple[Tensor, ...]

    @property
    def variance(self):
        return torch.cat([torch.cholesky_inverse(root).diagonal() for root in self.roots])

    def sample(self, count, streams):
        assert not torch.is_autocast_enabled("cpu")
        noise = streams.normal(count, like=self.mean.detach()).split(list(streams.sizes), 1)
        parts = [
            torch.linalg.solve_triangular(root.T, own.T, upper=True).T
            for root, own in zip(self.roots, noise, strict=True)
        ]
        return self.mean + torch.cat(parts, 1)

    def kl(self, prior, bags, *, exact=False):
        return prior.energy(self.mean, bags)


class CorrelatedAttention(nn.Module):
    """q = N(wᵀh, (δI + γL)⁻¹): neighbours have correlated attention."""

    def __init__(self, dim, bags):
        super().__init__()
        self.prior = None
        self.mean = nn.Linear(dim, 1, bias=False)
        self.gamma = nn.Parameter(torch.tensor(2.0))
        self.delta = nn.Parameter(torch.tensor(0.4))
        self.laplacians = {b.name: dense_laplacian(b, "combinatorial") for b in bags}

    def forward(self, h, bags):
        def root(name):
            laplacian = self.laplacians[name].to(self.gamma.dtype)
            eye = torch.eye(len(laplacian), dtype=self.gamma.dtype)
            return torch.linalg.cholesky(self.delta * eye + self.gamma * laplacian)

        with torch.autocast("cpu", enabled=False):
            mean = self.mean(h.to(self.gamma.dtype))[:, 0]
            return Correlated(mean, tuple(root(name) for name in bags.names))


def given_bags():
    return [random_bag(n, seed=k, features=6, density=0.9, y=k % 2) for k, n in enumerate(SIZES)]


def make(bags, *, dtype=F64, **options):
    torch.manual_seed(0)
    model = models.build("abmil-probsa-diag", in_dim=6, embed=4, attention_dim=3, **options)
    model.attention = CorrelatedAttention(4, bags)
    return model.to(dtype)


def moments(logits):
    """Mean and standard deviation of each bag's logit, over its samples."""
    return logits[..., 0].mean(1), logits[..., 0].std(1)


def by_hand(model, bags, f):
    """ψ(Hᵀ softmax(f_s)), a bag and a sample at a time."""
    h = model.instances(bags)
    rows = []
    for f_b, h_b in zip(f.split(bags.sizes), h.split(bags.sizes), strict=True):
        rows.append(torch.stack([model.classifier(h_b.T @ s.softmax(0)) for s in f_b.T]))
    return torch.stack(rows)


@pytest.mark.parametrize(("hidden", "training"), [(None, True), (None, False), (5, True)])
def test_its_covariance_arrives_in_the_logits(monkeypatch, hidden, training):
    monkeypatch.setattr("probsa.variational.posteriors.BLOCK", 100)
    model = make(given_bags(), classifier_hidden=hidden, samples=2000, predict_samples=2000)
    bags = pack(given_bags())
    with torch.set_grad_enabled(training):
        out = model.train(training)(bags, generator=torch.Generator().manual_seed(3))
    generators = model.streams(bags, torch.Generator().manual_seed(3))
    noise = Streams(bags.sizes, generators).normal(2000, like=out.attention.mean).T
    with torch.no_grad():
        roots = torch.block_diag(*(root.inverse().T for root in out.attention.roots))
        want = by_hand(model, bags, out.attention.mean[:, None] + roots @ noise)
        independent = Diagonal(out.attention.mean, out.attention.variance).rsample(0, noise=noise)
        other = by_hand(model, bags, independent)
    torch.testing.assert_close(out.logits, want, rtol=1e-10, atol=1e-12)
    # Strong positive correlations, to which softmax is nearly blind: independent samples with the
    # same variances spread the logits far more, except in the bag of one instance.
    (_, got_std), (_, other_std) = moments(out.logits), moments(other)
    assert got_std[0] < 1e-12 and bool((other_std[1:] > 1.5 * got_std[1:]).all())
    if not training:
        f = out.attention.mean[:, None] + roots @ noise
        a = torch.cat([part.softmax(0) for part in f.split(bags.sizes)])
        torch.testing.assert_close(out.extras["weight_mean"], a.mean(1), rtol=1e-9, atol=1e-13)
        variance = a.var(1, correction=0)
        torch.testing.assert_close(out.extras["weight_variance"], variance, rtol=1e-8, atol=1e-15)


def test_gradients_reach_its_parameters_through_the_samples():
    model = make(given_bags())
    bags = pack(given_bags())
    noise = torch.randn(sum(SIZES), 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    module = model.attention

    def logits(gamma, delta, weight):
        # Square: the logits' spread over the samples has a gradient only through the samples.
        parameters = {"gamma": gamma, "delta": delta, "mean.weight": weight}
        h = model.instances(bags).detach()
        q = torch.func.functional_call(module, parameters, (h, bags))
        return pool(q.sample(4, Streams(bags.sizes, noise=noise)), h.T, bags.sizes).square()

    inputs = [p.detach().clone().requires_grad_() for p in (module.gamma, module.delta)]
    inputs.append(module.mean.weight.detach().clone().requires_grad_())
    assert torch.autograd.gradcheck(logits, inputs)
    terms = model.losses(model(bags, noise=noise), bags)
    terms["nll"].backward()
    for p in (module.gamma, module.delta, module.mean.weight):
        assert float(p.grad.abs().max()) > 1e-6


@pytest.mark.parametrize(("hidden", "training"), [(None, True), (None, False), (5, True)])
def test_autocast_does_not_reach_its_samples(hidden, training):
    single = [replace(b, x=b.x.float(), weights=b.weights.float()) for b in given_bags()]
    model = make(single, dtype=torch.float32, classifier_hidden=hidden).train(training)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(training):
        out = model(pack(single))
        if training:
            model.losses(out, pack(single))["nll"].backward()
    assert out.attention.roots[0].dtype == torch.float32
