"""The optimal scores equal the sums over all sequences of labels, and nothing beats them."""

import itertools
import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probsa.core import TextTable
from probsa.datasets import (
    correlated_cohort,
    open_bags,
    optimal_scores,
    read_table,
    write_correlated,
)
from probsa.datasets.correlated import instance_rate
from probsa.errors import InputError


def by_enumeration(log_ratio, *, rate, correlation):
    """Sum over all 2^N sequences: (P(Y = 1 | X), P(y_n = 1 | X), P(y_n = 1 | X, Y = 1))."""
    n = len(log_ratio)
    weights, labels = [], []
    for y in itertools.product((0, 1), repeat=n):
        w = rate if y[0] else 1 - rate
        for before, after in itertools.pairwise(y):
            up = correlation * before + (1 - correlation) * rate
            w *= up if after else 1 - up
        weights.append(w * np.exp(np.dot(y, log_ratio)))
        labels.append(y)
    w, y = np.array(weights), np.array(labels)
    some = y.any(1)
    total = w.sum()
    return w[some].sum() / total, (w @ y) / total, (w[some] @ y[some]) / w[some].sum()


@pytest.mark.parametrize("n", [1, 2, 5, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.95])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_scores_are_sums_over_all_sequences(n, correlation, rate):
    rng = np.random.default_rng((n, int(100 * correlation)))
    log_ratio = 2 * rng.normal(size=n)
    got = optimal_scores(log_ratio, rate=rate, correlation=correlation)
    p, inside, given = by_enumeration(log_ratio, rate=rate, correlation=correlation)
    assert got.probability == pytest.approx(p, abs=1e-12, rel=1e-10)
    assert got.log_odds == pytest.approx(np.log(p / (1 - p)), abs=1e-10)
    np.testing.assert_allclose(got.instances, inside, rtol=1e-10)
    np.testing.assert_allclose(got.instances_if_positive, given, rtol=1e-10)


def test_small_and_large_probabilities_keep_their_digits():
    low = optimal_scores(np.full(50, -60.0), rate=0.01, correlation=0.0)
    # single positive instances dominate: their odds add up
    assert low.log_odds == pytest.approx(np.log(50 * 0.01 / 0.99) - 60, abs=1e-9)
    assert low.probability == pytest.approx(50 * 0.01 / 0.99 * np.exp(-60), rel=1e-9)
    high = optimal_scores(np.full(50, 60.0), rate=0.01, correlation=0.5)
    assert high.probability == pytest.approx(1.0, abs=1e-12) and high.log_odds > 2000
    assert np.isfinite(high.instances).all() and (high.instances > 1 - 1e-12).all()


def test_independent_instances_have_their_own_posteriors():
    log_ratio = np.array([0.3, -1.0, 2.0])
    got = optimal_scores(log_ratio, rate=0.2, correlation=0.0)
    alone = 0.2 * np.exp(log_ratio) / (0.2 * np.exp(log_ratio) + 0.8)
    np.testing.assert_allclose(got.instances, alone, rtol=1e-12)
    assert got.probability == pytest.approx(1 - np.prod(1 - alone), rel=1e-12)


@pytest.mark.parametrize("correlation", [0.0, 0.8, 0.95])
def test_a_cohort_has_the_stated_rates_and_correlation(correlation):
    cohort = correlated_cohort(bags=3000, correlation=correlation, seed=1, instances=30, features=2)
    assert np.mean([b.label for b in cohort]) == pytest.approx(0.5, abs=0.03)
    y = np.stack([b.instance_labels for b in cohort])
    rate = instance_rate(30, correlation=correlation, positive=0.5)
    error = np.sqrt(rate / y.size * (1 + correlation) / (1 - correlation))
    assert abs(y.mean() - rate) < 4 * error
    assert abs(y[:, 0].mean() - y[:, -1].mean()) < 0.03  # stationary
    assert np.corrcoef(y[:, :-1].ravel(), y[:, 1:].ravel())[0, 1] == pytest.approx(
        correlation, abs=0.03
    )
    # optimal probabilities are calibrated, as whole and in their upper half
    p = np.array([b.optimal.probability for b in cohort])
    label = np.array([b.label for b in cohort])
    for part in (p > 0, p > np.median(p)):
        assert label[part].mean() == pytest.approx(p[part].mean(), abs=0.04)
    inside = np.concatenate([b.optimal.instances for b in cohort])
    top = inside > 0.5
    assert y.ravel()[top].mean() == pytest.approx(inside[top].mean(), abs=0.06)


def test_no_other_score_ranks_bags_better():
    cohort = correlated_cohort(bags=1500, correlation=0.9, seed=2, features=4)
    label = [b.label for b in cohort]
    independent = instance_rate(40, correlation=0.0, positive=0.5)
    rng = np.random.default_rng(0)
    best = roc_auc_score(label, [b.optimal.log_odds for b in cohort])
    direction = np.mean([b.features[b.instance_labels == 1].sum(0) for b in cohort if b.label], 0)
    direction *= 1.5 / np.linalg.norm(direction)
    ratios = [b.features @ direction - 1.5**2 / 2 for b in cohort]
    others = {
        "max": [r.max() for r in ratios],
        "mean": [r.mean() for r in ratios],
        "wrong model": [
            optimal_scores(r.astype(np.float64), rate=independent, correlation=0.0).log_odds
            for r in ratios
        ],
        "chance": rng.random(len(cohort)),
    }
    assert all(best > roc_auc_score(label, s) + 0.01 for s in others.values())


def test_a_longer_correlation_is_easier_to_find():
    """Neighbours confirm one another, so the best AUROC grows with the correlation."""
    aurocs = [
        roc_auc_score([b.label for b in c], [b.optimal.log_odds for b in c])
        for c in (correlated_cohort(bags=1500, correlation=r, seed=3) for r in (0.0, 0.7, 0.95))
    ]
    assert aurocs == sorted(aurocs) and aurocs[2] > aurocs[0] + 0.05


def test_equal_arguments_give_equal_bags_and_seeds_others():
    a, b, c = (correlated_cohort(bags=10, correlation=0.5, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a[3].features, b[3].features)
    assert not np.array_equal(a[3].features, c[3].features)


def test_the_optimum_is_stored_apart_from_what_training_reads(tmp_path):
    cohort = write_correlated(tmp_path, bags=12, correlation=0.8, seed=0, instances=7, features=3)
    table, bags = read_table(tmp_path / "labels.csv"), open_bags(tmp_path / "features")
    assert table.bags == bags.names == tuple(b.name for b in cohort)
    read = bags.bag(cohort[0].name)
    assert read.edges.shape[1] == 6  # a chain
    np.testing.assert_array_equal(read.instance_labels.numpy(), cohort[0].instance_labels)
    rows = {r["bag"]: r for r in TextTable.read(tmp_path / "optimal" / "bags.csv").rows}
    for b in cohort:
        assert float(rows[b.name]["probability"]) == pytest.approx(b.optimal.probability)
        np.testing.assert_array_equal(
            np.load(tmp_path / "optimal" / f"{b.name}.npy"), b.optimal.instances
        )
    assert "optimal" not in json.dumps([str(p) for p in (tmp_path / "features").rglob("*")])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"correlation": 1.0}, "correlation is 1: expected 0 or more, and less than 1"),
        ({"correlation": -0.1}, "correlation is -0.1"),
        ({"bags": 9}, "9 bags of 40 instances"),
        ({"instances": 0}, "0 instances"),
        ({"features": 0}, "with 0 features"),
        ({"signal": -1.0}, "signal is -1"),
        ({"positive": 0.0}, "positive 0"),
        ({"positive": 1.0}, "positive 1"),
    ],
)
def test_impossible_cohorts_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        correlated_cohort(**{"bags": 10, "correlation": 0.5, "seed": 0, **given})


@pytest.mark.parametrize(
    "given", [{"rate": 0.0}, {"rate": 1.0}, {"correlation": 1.0}, {"log_ratio": np.zeros(0)}]
)
def test_impossible_chains_are_refused(given):
    with pytest.raises(InputError, match="expected an instance or more, a rate between 0 and 1"):
        optimal_scores(**{"log_ratio": np.zeros(3), "rate": 0.1, "correlation": 0.5, **given})
