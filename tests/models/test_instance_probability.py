"""The probability of an instance: against quadrature, single-instance bags and simulated truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.special import expit
from scipy.stats import norm
from support.random_bags import F64, random_bag

from probsa import Bag, pack
from probsa.evaluation import Predictor, doubt
from probsa.layers import sampled_weights
from probsa.models import build, names
from probsa.models._explanation import predicted_alone
from probsa.training import Standardizer
from probsa.variational import Bernoulli, Categorical, Diagonal

EVIDENCE = ("evidence-dirac", "evidence-diag", "evidence-field")


def evidence_model(name, *, classes=1, **arguments):
    torch.manual_seed(0)
    model = build(name, in_dim=6, n_classes=classes, embed=8, attention_dim=4, **arguments).double()
    with torch.no_grad():  # away from the start, where α = β = 1 and b = 0
        for p, value in zip(model.pooling.parameters(), (0.3, 0.5, -0.4), strict=True):
            p += value * torch.arange(1, classes + 1)
    return model.eval()


def without_edges(bag: Bag) -> Bag:
    return replace(bag, edges=bag.edges[:, :0], weights=bag.weights[:0])


def single(bag: Bag, row: int) -> Bag:
    """Return the bag of one instance."""
    alone = without_edges(bag)
    return Bag(x=bag.x[[row]], edges=alone.edges, weights=alone.weights, name=f"{bag.name}:{row}")


def integrand(z: float, mean: float, deviation: float) -> float:
    return norm.pdf(z) * expit(1.3 * (mean + deviation * z) - 0.4)


@pytest.mark.parametrize("deviation", [0.0, 0.3, 1.0, 3.0, 10.0])
def test_one_logit_is_the_integral_over_the_posterior(deviation):
    mean = torch.linspace(-6, 6, 7, dtype=F64)
    q = Diagonal(mean, torch.full_like(mean, deviation**2))
    alpha = torch.tensor([1.3], dtype=F64)
    bias = torch.tensor([-0.4], dtype=F64)
    probability, grades = predicted_alone(q, Bernoulli(), alpha=alpha, bias=bias)
    assert grades is None
    for m, actual in zip(mean.tolist(), probability[:, 0].tolist(), strict=True):
        want = expit(1.3 * m - 0.4)
        if deviation:
            step = (0.4 / 1.3 - m) / deviation  # where the sigmoid is ½
            want, _ = integrate.quad(
                integrand,
                -10,
                10,
                args=(m, deviation),
                points=[np.clip(step, -9.9, 9.9)],
                limit=200,
            )
        assert actual == pytest.approx(want, abs=2e-4)


def test_several_classes_are_a_softmax_over_independent_fields():
    g = torch.Generator().manual_seed(0)
    mean = 2 * torch.randn(6, 3, generator=g, dtype=F64)
    variance = 2 * torch.rand(6, 3, generator=g, dtype=F64)
    alpha = torch.tensor([0.8, 1.0, 1.4], dtype=F64)
    bias = torch.tensor([0.3, 0.0, -0.5], dtype=F64)
    q = Diagonal(mean, variance)
    p, _ = predicted_alone(q, Categorical(), alpha=alpha, bias=bias)
    z = torch.randn(100_000, 6, 3, generator=g, dtype=F64)
    want = (alpha * (mean + z * variance.sqrt()) + bias).softmax(-1).mean(0)
    torch.testing.assert_close(p.sum(1), torch.ones(6, dtype=F64))
    torch.testing.assert_close(p, want, rtol=0, atol=0.006)


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("name", EVIDENCE)
@torch.no_grad()
def test_it_is_the_prediction_for_a_bag_of_the_instance_alone(name, classes):
    arguments = {} if name == "evidence-dirac" else {"predict_samples": 20_000}
    level = 0.7 if classes == 1 else (0.7, -0.2, 0.1)
    model = evidence_model(name, classes=classes, level=level, **arguments)
    bag = without_edges(random_bag(5, seed=3, features=6))
    explained = model(pack([bag])).explanation.probability
    alone = model(pack([single(bag, row) for row in range(5)])).probability
    error = 1e-12 if name == "evidence-dirac" else 0.015
    torch.testing.assert_close(explained, alone, rtol=0, atol=error)
    assert float(explained.std()) > 0.02


@torch.no_grad()
def test_covariates_move_it_as_they_move_the_bag():
    model = evidence_model("evidence-dirac")
    model.add_covariates(2)
    model.double().eval()
    model.covariates.weight.copy_(torch.tensor([[0.5, -1.0]]))
    bag = replace(
        without_edges(random_bag(4, seed=1, features=6)),
        covariates=torch.tensor([2.0, 0.5], dtype=F64),
    )
    explained = model(pack([bag])).explanation.probability
    bags = [replace(single(bag, row), covariates=bag.covariates) for row in range(4)]
    torch.testing.assert_close(explained, model(pack(bags)).probability)


@torch.no_grad()
def test_it_does_not_depend_on_batch_mates():
    model = evidence_model("evidence-field")
    bags = [random_bag(n, seed=n, features=6) for n in (4, 9)]
    together = model(pack(bags)).explanation.probability
    alone = torch.cat([model(pack([bag])).explanation.probability for bag in bags])
    torch.testing.assert_close(together, alone)


def test_probabilities_come_true_where_the_model_is_right_and_positive_mass_does_not():
    """The world is the model: f ~ q, and the instance is positive with σ(αf + b)."""
    rng = np.random.default_rng(0)
    n = 40_000
    alpha = 1.2
    bias = -0.5
    mean = rng.normal(0.3, 2, n)
    deviation = rng.uniform(0.1, 1.5, n)
    f = mean + deviation * rng.normal(size=n)
    y = rng.random(n) < expit(alpha * f + bias)
    q = Diagonal(torch.from_numpy(mean), torch.from_numpy(deviation**2))
    scale = torch.tensor([alpha], dtype=F64)
    shift = torch.tensor([bias], dtype=F64)
    p = predicted_alone(q, Bernoulli(), alpha=scale, bias=shift)[0][:, 0].numpy()
    mass = norm.cdf(mean / deviation)
    errors = {}
    for name, values in (("probability", p), ("mass", mass)):
        order = np.array_split(np.argsort(values), 20)
        errors[name] = max(abs(float((values[k] - y[k]).mean())) for k in order)
    # 2,000 instances a bin: a deviation of .011 at most
    assert errors["probability"] < 4 * 0.011
    assert errors["mass"] > 0.15


# Attention: P(wrong) is the share of samples on the other side of the uniform weight


@pytest.mark.parametrize(("variance", "hidden"), [(0.135, 0.005), (1.0, 0.05), (4.0, 0.15)])
def test_doubt_of_attention_is_right_in_simulation(variance, hidden):
    """N = 35 instances; the truth is a draw of f, the call that of the posterior mean.

    hidden: the least share of wrong calls that a constant normaliser does not see.
    """
    n = 35
    samples = 4000
    worlds = 4000
    g = torch.Generator().manual_seed(0)
    mean = torch.randn(n, generator=g, dtype=F64)
    deviation = math.sqrt(variance)
    draws = mean + deviation * torch.randn(samples, n, generator=g, dtype=F64)
    stated = sampled_weights(draws.T, (n,)).above_uniform
    truth = mean + deviation * torch.randn(worlds, n, generator=g, dtype=F64)
    above = truth.softmax(1) > 1 / n
    called = mean.softmax(0) > 1 / n
    claimed = torch.where(called, 1 - stated, stated)
    wrong = (above != called).double().mean(0)
    # the standard error of one instance's shares is below .012
    torch.testing.assert_close(claimed, wrong, rtol=0, atol=0.05)
    gap = float((claimed - wrong)[called].mean())
    assert abs(gap) < 0.01
    # with the normaliser held constant, it would be too small
    e = mean - mean.logsumexp(0) + math.log(n)
    constant = torch.special.ndtr(-e.abs() / deviation)
    assert float((wrong - constant)[called].mean()) > hidden


@pytest.mark.parametrize("name", [n for n in names() if "probsa-d" in n or "probsa-f" in n])
def test_every_sampled_attention_states_it(name):
    torch.manual_seed(0)
    model = build(name, in_dim=6).eval()
    bag = random_bag(12, seed=0, features=6, dtype=torch.float32)
    coords = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    (p,) = Predictor(model, Standardizer()).predict([replace(bag, coords=coords)])
    if not p.attention_variance.any():
        assert p.weight_above_uniform is None and doubt(p) is None
        return
    share = p.weight_above_uniform
    assert share.shape == p.attention_mean.shape
    assert np.isfinite(share).all() and 0 < float(share.mean()) < 1
    wrong = doubt(p)
    assert wrong is not None and np.isfinite(wrong).all()
