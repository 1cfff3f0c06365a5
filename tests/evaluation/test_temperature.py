"""Temperatures against a fine grid and another method; what scaling does to a prediction."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit, softmax
from sklearn.metrics import log_loss, roc_auc_score
from support.made_predictions import made

from probsa.evaluation.temperature import fit_temperature, scale_prediction, scale_probabilities


def _bags(n=400, *, temperature=2.0, seed=0):
    """Labels of calibrated probabilities, and probabilities that a temperature would calibrate."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=n) * 1.5
    y = (rng.random(n) < expit(logits)).astype(np.int64)
    return y, expit(temperature * logits)[:, None]


def test_the_temperature_has_the_lowest_likelihood_on_a_fine_grid():
    y, p = _bags()
    grid = np.exp(np.linspace(np.log(0.1), np.log(10), 4001))
    odds = (1 - 2 * y) * logit(p[:, 0])  # of the wrong class
    losses = [np.logaddexp(0, odds / t).mean() for t in grid]
    assert losses[2000] == pytest.approx(log_loss(y, p[:, 0]))  # where it is 1
    fitted = fit_temperature(y, p)
    assert fitted.temperature == pytest.approx(grid[np.argmin(losses)], rel=2e-3)
    assert fitted.nll_after == pytest.approx(min(losses), abs=1e-7)
    assert fitted.nll_before == pytest.approx(log_loss(y, p[:, 0]))
    one = fit_temperature(np.ones(5, dtype=np.int64), np.full((5, 1), 0.7))
    assert (one.temperature, one.nll_before) == (1.0, None)
    assert "5 validation bags" in one.reason and "single class" in one.reason
    apart = fit_temperature(np.array([0, 0, 1, 1]), np.array([[0.1], [0.2], [0.8], [0.9]]))
    assert apart.temperature == 1.0
    assert "4 validation bags" in apart.reason and "no minimum" in apart.reason
    assert apart.nll_before is not None and apart.nll_before == apart.nll_after
    wrong = fit_temperature(np.array([1, 1, 0, 0]), np.array([[0.1], [0.2], [0.8], [0.9]]))
    assert wrong.temperature == 1.0 and wrong.reason


def test_the_temperature_of_several_classes_agrees_with_another_method():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(300, 4))
    y = np.array([rng.choice(4, p=row) for row in softmax(logits, axis=1)], dtype=np.int64)
    p = softmax(3 * logits, axis=1)

    def loss(parameter):
        return log_loss(y, softmax(np.log(p) / np.exp(parameter[0]), axis=1))

    other = np.exp(minimize(loss, [0.0], method="Nelder-Mead", options={"xatol": 1e-8}).x[0])
    assert fit_temperature(y, p).temperature == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_scaling_keeps_the_order_of_bags(temperature):
    y, p = _bags(200)
    scaled = scale_probabilities(p, temperature=temperature)
    assert roc_auc_score(y, scaled[:, 0]) == roc_auc_score(y, p[:, 0])
    np.testing.assert_allclose(scaled, expit(logit(p) / temperature), rtol=1e-12)
    both = scale_probabilities(np.hstack([1 - p, p]), temperature=temperature)
    np.testing.assert_allclose(both[:, 1:], scaled, rtol=1e-12)
    ends = scale_probabilities(np.array([[0.0], [1.0]]), temperature=temperature)
    assert np.isfinite(ends).all() and ends[0, 0] < 0.1 and ends[1, 0] > 0.9


def test_a_scaled_prediction_is_consistent():
    parts = {"std": [0.02], "std_within": [0.012], "std_between": [0.016]}
    values = parts | {"leave_one_out": [0.1, -0.1, 0.0]}
    p = made("a", np.zeros(3), probability=(0.8,))
    p = replace(p, **{name: np.float32(value) for name, value in values.items()})
    got = scale_prediction(p, temperature=2.0)

    def scale(value):
        return expit(logit(value) / 2)

    np.testing.assert_allclose(got.probability, [scale(0.8)], rtol=1e-6)
    slope = (scale(0.8 + 1e-6) - scale(0.8 - 1e-6)) / 2e-6
    np.testing.assert_allclose(got.std, [0.02 * slope], rtol=1e-4)
    np.testing.assert_allclose(got.std_within**2 + got.std_between**2, got.std**2, rtol=1e-5)
    expected = [scale(0.8) - scale(0.7), scale(0.8) - scale(0.9), 0]
    np.testing.assert_allclose(got.leave_one_out, expected, atol=1e-6)
    assert scale_prediction(p, temperature=1.0) is p
    wide = replace(p, std=np.float32([0.4]))
    sharp = scale_prediction(wide, temperature=0.05)
    assert 0 < sharp.std[0] <= np.sqrt(sharp.probability[0] * (1 - sharp.probability[0])) + 1e-7
