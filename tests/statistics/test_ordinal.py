"""Metrics of ordered grades against scikit-learn, scoringrules and the worked example."""

import numpy as np
import pytest
import scoringrules
from probsa.statistics.ordinal import ranked_probability_scores
from scipy.special import expit
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, roc_auc_score
from support.target_metrics import assert_resamples_are_repeated_rows, values

from probsa.statistics import Draws, median_call, ordinal_metrics

THETA = np.array([-1.5, -0.5, 0.5, 1, 2])
ETA = np.array([-2, -0.5, 0.8, 2.5, 0.1])
Y = np.array([0, 1, 3, 5, 2])


def _cumulative(eta):
    """The grades' probabilities with P(Y ≥ k) = σ(η - θ_k)."""
    at_least = np.pad(expit(eta[:, None] - THETA), ((0, 0), (1, 1)))
    at_least[:, 0] = 1
    return -np.diff(at_least, axis=1)


def _random(n, *, seed, grades=6):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, grades, n)
    p = rng.multinomial(4, np.full(grades, 1 / grades), size=n) + np.eye(grades)[y] + 0.1
    return y, p / p.sum(1, keepdims=True)


def test_the_values_of_the_worked_example():
    p = _cumulative(ETA)
    assert median_call(p).tolist() == [0, 1, 3, 5, 2]
    assert p.argmax(1).tolist() == [0, 0, 5, 5, 2]
    rps = [0.184143, 0.433693, 0.491499, 0.192598, 0.415307]
    np.testing.assert_allclose(ranked_probability_scores(Y, p), rps, atol=6e-7)
    got = values(ordinal_metrics(Y, p))
    assert got["nll"] == pytest.approx(1.1815325, abs=6e-8)
    assert got["rps"] == pytest.approx(np.mean(rps), abs=6e-7)


def test_kappa_and_error_of_given_calls():
    truth, call = np.array([0, 1, 2, 3, 4, 5, 5, 3, 1, 0]), np.array([0, 1, 3, 3, 5, 4, 5, 2, 0, 0])
    got = values(ordinal_metrics(truth, np.eye(6)[call]))
    assert got["quadratic_kappa"] == pytest.approx(0.9271137, abs=6e-8)
    assert got["linear_kappa"] == pytest.approx(0.7619048, abs=6e-8)
    assert got["mae"] == pytest.approx(0.5)
    assert got["within_one"] == 1
    assert got["accuracy"] == pytest.approx(0.5)


@pytest.mark.parametrize("seed", range(8))
def test_metrics_are_those_of_scikit_learn_and_scoringrules(seed):
    y, p = _random(20, seed=seed)
    y = np.where(y == seed % 6, (seed + 1) % 6, y)  # one grade is absent from the truth
    got, call = values(ordinal_metrics(y, p)), median_call(p)
    assert call.tolist() == [int((np.cumsum(row) < 0.5 - 1e-9).sum()) for row in p]
    for weights in ("linear", "quadratic"):
        expected = cohen_kappa_score(y, call, weights=weights, labels=range(6))
        assert got[f"{weights}_kappa"] == pytest.approx(expected, abs=1e-12)
    assert got["mae"] == pytest.approx(mean_absolute_error(y, call), abs=1e-12)
    assert got["within_one"] == pytest.approx(np.mean(np.abs(y - call) <= 1), abs=1e-12)
    expected = scoringrules.rps_score(y + 1, p)
    np.testing.assert_allclose(ranked_probability_scores(y, p), expected, atol=1e-12)
    for k in range(1, 6):
        if 0 < (y >= k).sum() < len(y):
            score = p[:, k:].sum(1).round(12)
            expected = roc_auc_score(y >= k, score)
            assert got[f"≥{k}: auroc"] == pytest.approx(expected, abs=1e-12)


def test_the_median_at_exactly_one_half_is_the_lower_grade():
    p = np.array([[0.1, 0.4, 0.5], [0.5, 0.25, 0.25], [0.3, 0.1, 0.6], [0.15, 0.35, 0.5]])
    assert median_call(p).tolist() == [1, 0, 2, 1]
    # In float32, .15 + .35 is a little below ½ or not; the call must not depend on it.
    assert median_call(p.astype(np.float32).astype(np.float64)).tolist()[:3] == [1, 0, 2]


def test_undefined_metrics_have_reasons():
    y, p = np.full(4, 3), np.tile(np.eye(6)[3], (4, 1))
    metrics = ordinal_metrics(y, p)
    assert "kappa is 0/0" in (metrics.overall["quadratic_kappa"].reason or "")
    assert metrics.by_part["≥3"]["auroc"].reason == (
        "all 4 bags are at least grade 3: AUROC is undefined"
    )
    assert "below grade 4" in (metrics.by_part["≥4"]["auroc"].reason or "")
    constant = ordinal_metrics(np.array([0, 1, 4]), np.tile(np.eye(6)[0], (3, 1)))
    assert constant.overall["quadratic_kappa"].value == 0


def test_resamples_are_those_of_repeated_rows():
    y, p = _random(18, seed=4, grades=4)
    draws = Draws.stratified(np.zeros(18), groups=[i // 2 for i in range(18)], resamples=10, seed=1)
    assert_resamples_are_repeated_rows(
        lambda rows, d: ordinal_metrics(y[rows], p[rows], draws=d), draws
    )
