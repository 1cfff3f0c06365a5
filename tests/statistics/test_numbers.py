"""Metrics of a number per bag against scikit-learn, SciPy and scoringrules."""

import numpy as np
import pytest
import scoringrules
from scipy.stats import norm, spearmanr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from support.repeated_draws import repeated_draws
from support.target_metrics import assert_resamples_are_repeated_rows, values

from probsa.statistics import Draws, regression_metrics

Y = np.array([1.2, -0.4, 0.3, 2.1])
SD = np.array([0.5, 0.4, 0.3, 0.8])


def regression(y, predicted, *, draws=None, scores=None, quantiles=None):
    draws = draws or Draws.of_data(len(y))
    options = {"scores": scores or {}, "quantiles": quantiles or {}}
    return regression_metrics(y, predicted, draws=draws, **options)


SAMPLES = np.array([[0.8, 1, 1.4], [-0.2, 0.1, 0], [0.4, 0.5, 0.7], [1.2, 1.5, 2]])


def test_the_values_of_the_worked_example():
    # The likelihood gives the scores of each bag; here they come from SciPy and scoringrules.
    density = norm.pdf(Y[:, None], SAMPLES, SD[:, None]).mean(1)
    crps = scoringrules.crps_mixnorm(Y, SAMPLES, np.repeat(SD[:, None], 3, axis=1))
    scores = {"nll": -np.log(density), "crps": crps}
    got = values(regression(Y, SAMPLES.mean(1), scores=scores))
    assert got["mae"] == pytest.approx(0.3166667, abs=6e-8)
    assert got["r_squared"] == pytest.approx(0.8612680, abs=6e-8)
    assert got["nll"] == pytest.approx(0.4575350, abs=6e-8)
    mean_crps = np.mean([0.1446999, 0.2186686, 0.1394531, 0.3306329])
    assert got["crps"] == pytest.approx(mean_crps, abs=6e-8)


@pytest.mark.parametrize("seed", range(8))
def test_metrics_are_those_of_scikit_learn_and_scipy(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 9, 25) * 100.0 + 1e4  # ties, and a mean far from 0
    predicted = np.round(y + rng.normal(0, 200, 25), -2)
    got = values(regression(y, predicted))
    assert got["mae"] == pytest.approx(mean_absolute_error(y, predicted), abs=1e-9)
    assert got["rmse"] == pytest.approx(root_mean_squared_error(y, predicted), abs=1e-9)
    assert got["r_squared"] == pytest.approx(r2_score(y, predicted), abs=1e-12)
    assert got["spearman"] == pytest.approx(spearmanr(y, predicted).statistic, abs=1e-12)
    moved = values(regression(3 - 2 * y, 3 - 2 * predicted))
    assert moved["r_squared"] == pytest.approx(got["r_squared"], abs=1e-12)
    assert moved["mae"] == pytest.approx(2 * got["mae"], abs=1e-9)


def test_intervals_are_named_after_their_coverage():
    quantiles = {q: norm.ppf(q, SAMPLES[:, 0], SD) for q in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)}
    metrics = regression(Y, SAMPLES.mean(1), quantiles=quantiles)
    assert list(metrics.by_part) == ["90 %", "50 %"]
    wide = values(metrics)
    assert wide["90 %: width"] == pytest.approx(2 * norm.ppf(0.95) * SD.mean())
    assert wide["90 %: coverage"] == np.mean(np.abs(Y - SAMPLES[:, 0]) <= norm.ppf(0.95) * SD)
    assert wide["50 %: coverage"] == np.mean(np.abs(Y - SAMPLES[:, 0]) <= norm.ppf(0.75) * SD)
    assert 0 < wide["50 %: coverage"] < wide["90 %: coverage"]


def test_undefined_metrics_have_reasons():
    metrics = regression(np.full(3, 0.1), np.array([0.0, 0.1, 0.2]))
    assert metrics.overall["r_squared"].reason == "all 3 values are 0.1: R² is undefined"
    assert "correlation is undefined" in (metrics.overall["spearman"].reason or "")
    constant = regression(Y, np.full(4, 0.7))
    assert constant.overall["spearman"].value is None
    assert constant.overall["r_squared"].value == pytest.approx(r2_score(Y, np.full(4, 0.7)))
    assert all(v is None for v in values(regression(Y[:0], Y[:0])).values())


def test_resamples_are_those_of_repeated_rows():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 8) / 10
    predicted = np.round(y + rng.normal(0, 0.1, 8), 1)
    quantiles = {0.05: predicted - 0.1, 0.95: predicted + 0.1}
    draws = repeated_draws([0, 0, 1, 1, 2, 2, 3, 3], resamples=40, seed=0)

    def metrics(rows, d):
        of_rows = {level: column[rows] for level, column in quantiles.items()}
        return regression(y[rows], predicted[rows], quantiles=of_rows, draws=d)

    assert_resamples_are_repeated_rows(metrics, draws)
