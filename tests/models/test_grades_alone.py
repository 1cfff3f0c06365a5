"""The map of each threshold: how likely an instance alone has a grade or a higher one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.test_contract import F64, make_bag
from models.test_targets import SPECS, bags_for, model_for
from scipy import integrate, stats

from probsa import pack
from probsa.models import Explanation


def alone(bag, row: int):
    edges = torch.zeros(2, 0, dtype=torch.long)
    coords = None if bag.coords is None else bag.coords[[row]]
    weights = torch.zeros(0, dtype=F64)
    return replace(bag, x=bag.x[[row]], edges=edges, weights=weights, coords=coords, y=None)


@torch.no_grad()
@pytest.mark.parametrize("name", ["abmil", "abmil-probsa-diag", "evidence-dirac"])
def test_it_is_the_prediction_of_a_bag_with_this_instance_alone(name):
    model = model_for(name, SPECS["cumulative"]).eval()
    bag = make_bag("bag", 6)
    explanation = model(pack([bag])).explanation
    assert isinstance(explanation, Explanation)
    for row in range(6):
        p = model(pack([alone(bag, row)])).probability[0]
        expected = p.flip(0).cumsum(0).flip(0)[1:]
        torch.testing.assert_close(explanation.at_least[row], expected, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("name", ["evidence-diag", "evidence-field"])
def test_under_a_posterior_it_is_the_mean_over_the_evidence_of_the_instance(name):
    """Against adaptive quadrature of scipy, with another formula of the same likelihood."""
    model = model_for(name, SPECS["cumulative"]).eval()
    model.pooling.log_alpha.fill_(0.7)
    model.pooling.bias.fill_(-0.3)
    out = model(pack([make_bag("bag", 5)]))
    alpha, theta = float(np.exp(0.7)), model.likelihood.thresholds.numpy()
    mean, std = out.attention.mean.numpy(), out.attention.variance.sqrt().numpy()
    for n in range(5):
        for k, cut in enumerate(theta):
            expected, _ = integrate.quad(
                lambda f, n=n, cut=cut: (
                    stats.norm.pdf(f, mean[n], std[n]) / (1 + np.exp(cut - alpha * f + 0.3))
                ),
                mean[n] - 12 * std[n],
                mean[n] + 12 * std[n],
            )
            assert abs(float(out.explanation.at_least[n, k]) - expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", ["abmil", "evidence-field"])
def test_it_falls_from_grade_to_grade_and_exists_for_grades_alone(name):
    model = model_for(name, SPECS["cumulative"]).eval()
    at_least = model(pack(bags_for(model, [None] * 3))).explanation.at_least
    assert at_least.shape == (9 + 4 + 17, 3)
    assert bool((at_least.diff(dim=1) < 0).all()) and bool((at_least > 0).all())
    for spec in (SPECS["number"], SPECS["hazards"], SPECS["findings"]):
        other = model_for(name, spec).eval()
        assert other(pack([make_bag("bag", 4)])).explanation.at_least is None
    model.add_covariates(1)
    with_age = replace(make_bag("bag", 4), covariates=torch.zeros(1, dtype=F64))
    assert model.double()(pack([with_age])).explanation.at_least is None
