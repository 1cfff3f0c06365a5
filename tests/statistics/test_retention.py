"""Retention curves against loops over the order of the items, and their area against AUGRC."""

import numpy as np
import pytest
from probsa.statistics.bootstrap import Draws
from probsa.statistics.retention import SHARES, retained_error_rates, retention_curve
from probsa.statistics.risk import augrc
from sklearn.metrics import roc_auc_score


def _draws(items, *, resamples=0, groups=None):
    strata = np.zeros(items, dtype=np.int64)
    return Draws.stratified(strata, groups=groups, resamples=resamples, seed=0)


def _by_hand(wrong, doubt, share):
    """Error rate of the kept items; the last one is kept in part."""
    order = np.argsort(doubt, kind="stable")
    left, errors = share * len(wrong), 0.0
    for i in order:
        part = min(1.0, max(left, 0.0))
        errors += part * wrong[i]
        left -= 1.0
    return errors / (share * len(wrong))


def test_the_least_doubtful_items_are_kept():
    rng = np.random.default_rng(0)
    wrong, doubt = rng.random(33) < 0.4, rng.random(33)
    got = retention_curve(wrong, doubt, draws=_draws(33))
    expected = [_by_hand(wrong, doubt, share) for share in SHARES]
    np.testing.assert_allclose(got.error_rate, expected, atol=1e-13)
    assert got.error_rate[-1] == pytest.approx(wrong.mean())
    assert set(got.low + got.high) == {None}


def test_ties_are_the_mean_over_their_orders():
    rng = np.random.default_rng(1)
    wrong, doubt = rng.random(40) < 0.3, np.round(rng.random(40), 1)
    orders = []
    for _ in range(300):
        shuffled = rng.permutation(40)
        orders.append([_by_hand(wrong[shuffled], doubt[shuffled], s) for s in SHARES])
    mean, error = np.mean(orders, axis=0), np.std(orders, axis=0) / np.sqrt(300)
    got = retention_curve(wrong, doubt, draws=_draws(40)).error_rate
    assert (np.abs(got - mean) <= 4.5 * error + 1e-12).all()
    constant = retention_curve(wrong, np.zeros(40), draws=_draws(40)).error_rate
    np.testing.assert_allclose(constant, wrong.mean())


def test_intervals_are_those_of_resampled_groups():
    rng = np.random.default_rng(2)
    wrong, doubt = rng.random(24) < 0.4, rng.random(24)
    groups = [i // 3 for i in range(24)]
    draws = _draws(24, resamples=30, groups=groups)
    rows = retained_error_rates(wrong, doubt, draws=draws)
    for row, counts in zip(rows, draws.counts, strict=True):
        items = np.array([i for i in range(24) for _ in range(counts[groups[i]])])
        expected = [_by_hand(wrong[items], doubt[items], s) for s in SHARES]
        np.testing.assert_allclose(row, expected, atol=1e-13)
    got = retention_curve(wrong, doubt, draws=draws)
    np.testing.assert_allclose(got.low, np.quantile(rows[1:], 0.025, axis=0))
    np.testing.assert_allclose(got.high, np.quantile(rows[1:], 0.975, axis=0))


def test_the_area_under_the_kept_errors_is_augrc():
    rng = np.random.default_rng(3)
    wrong, doubt = rng.random(20) < 0.3, rng.permutation(20).astype(np.float64)
    # With 20 items, each share of the grid keeps a whole number of items.
    rates = np.array(retention_curve(wrong, doubt, draws=_draws(20)).error_rate)
    kept = np.append(0, rates * SHARES)
    area = np.trapezoid(kept, dx=1 / 20)
    assert area == pytest.approx(augrc(wrong.mean(), roc_auc_score(wrong, doubt)))
