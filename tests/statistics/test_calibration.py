"""Bins, calibration errors, consistency bands and retention curves against loops over the items."""

import numpy as np
import pytest
from scipy.stats import binom
from support.repeated_draws import repeated_draws

from probsa.statistics import (
    MEAN_SHARE,
    SHARE,
    SHARES,
    Support,
    calibration_error,
    equal_mass_bins,
    reliability,
    retention_curve,
    sampled_reliability,
)
from probsa.statistics.intervals import interval


def _draws(items, *, resamples=0, groups=None):
    groups = range(items) if groups is None else groups
    return repeated_draws(groups, resamples=resamples, seed=0)


def _items(n, *, seed=0, digits=2):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(n), digits)
    return p, rng.random(n) < p**2


def _error(p, y, bins):
    """Expected calibration error, by its definition: weighted gaps between two means."""
    total = 0.0
    for b in set(bins.tolist()):
        inside = [i for i in range(len(p)) if bins[i] == b]
        gap = np.mean([p[i] for i in inside]) - np.mean([float(y[i]) for i in inside])
        total += len(inside) / len(p) * abs(gap)
    return total


def test_bins_of_equal_mass_without_ties():
    p = np.random.default_rng(0).permutation(np.linspace(0, 1, 400))
    bins = equal_mass_bins(p)
    assert len(set(bins)) == 15 and set(np.bincount(bins)) == {26, 27}
    assert (np.diff(bins[np.argsort(p)]) >= 0).all()


def test_equal_probabilities_share_a_bin_whatever_their_order():
    p = np.array([0.2, 0.2, 0.2, 0.2, 0.5, 0.9])
    bins = equal_mass_bins(p)
    assert bins.tolist() == [0, 0, 0, 0, 1, 1]  # middles 1.5, 4 and 5 of six, two parts of three
    order = np.random.default_rng(1).permutation(6)
    np.testing.assert_array_equal(equal_mass_bins(p[order]), bins[order])
    assert equal_mass_bins(np.full(5, 0.3)).tolist() == [0] * 5


@pytest.mark.parametrize(("items", "expected"), [(0, 0), (16, 2), (20, 2), (59, 5), (4000, 15)])
def test_the_number_of_bins_follows_the_items(items, expected):
    assert len(set(equal_mass_bins(np.linspace(0, 1, items)))) == expected


@pytest.mark.parametrize("digits", [1, 8])
def test_the_error_is_that_of_its_definition(digits):
    p, y = _items(83, digits=digits)
    bins = equal_mass_bins(p)
    got = calibration_error(p, y, bins=bins, draws=_draws(83))
    assert got.value == pytest.approx(_error(p, y, bins), abs=1e-14)


def test_resampled_errors_are_those_of_resampled_items():
    p, y = _items(40)
    groups = [i // 4 for i in range(40)]
    draws = _draws(40, resamples=8, groups=groups)
    bins = equal_mass_bins(p)
    got = calibration_error(p, y, bins=bins, draws=draws)
    frequency = sampled_reliability(p, y, bins=bins, draws=draws)
    shares = []
    for row, counts in zip(got.rows, draws.counts, strict=True):
        items = [i for i in range(40) for _ in range(int(counts[groups[i]]))]
        assert row == pytest.approx(_error(p[items], y[items], bins[items]), abs=1e-14)
        inside = [i for i in items if bins[i] == 1]
        shares.append(np.mean(y[inside]))
    assert frequency.frequency[1] == pytest.approx(shares[0])
    patients = len({groups[i] for i in range(40) if bins[i] == 1})
    support = Support(patients=patients, part=None, trials=float(patients - 1))
    expected = interval(np.array(shares), support=support, scale=MEAN_SHARE)
    assert (frequency.low[1], frequency.high[1]) == pytest.approx((expected.low, expected.high))


def test_without_resamples_a_frequency_has_no_interval():
    p, y = _items(40)
    got = sampled_reliability(p, y, bins=equal_mass_bins(p), draws=_draws(40))
    assert set(got.low + got.high) == {None} and len(got.low) == 4


def test_the_consistency_band_is_binomial_for_equal_probabilities():
    p = np.repeat([0.2, 0.7], [50, 200])
    y = np.zeros(250, dtype=bool)
    diagram, _ = reliability(p, y, bins=equal_mass_bins(p), patient=np.arange(250), seed=3)
    for b, (chance, n) in enumerate([(0.2, 50), (0.7, 200)]):
        # The limits of 1,000 simulations are quantiles of the binomial, up to a standard error.
        for limit, level in ((diagram.low[b], 0.025), (diagram.high[b], 0.975)):
            exact = binom.ppf([level - 0.015, level + 0.015], n, chance) / n
            assert exact[0] <= limit <= exact[1]
    np.testing.assert_array_equal(diagram.count, [50, 200])
    np.testing.assert_array_equal(diagram.frequency, [0, 0])


def test_calibrated_labels_exceed_the_chance_error_in_one_of_fifty_sets():
    rng = np.random.default_rng(5)
    p = rng.random(120)
    bins = equal_mass_bins(p)
    patient = np.arange(120)
    _, by_chance = reliability(p, rng.random(120) < p, bins=bins, patient=patient, seed=0)
    labels = rng.random((1000, 120)) < p
    given = {"bins": bins, "draws": _draws(120)}
    errors = np.array([calibration_error(p, y, **given).value for y in labels])
    above = int((errors > by_chance.upper).sum())
    # 95 % of binomial counts; the limit itself has an error of its own, hence the doubled spread.
    assert abs(above - 20) < 2 * 2 * np.sqrt(1000 * 0.02 * 0.98)
    assert by_chance.mean == pytest.approx(errors.mean(), abs=4 * errors.std() / np.sqrt(500))
    p_wrong = p**3
    _, by_chance = reliability(p_wrong, rng.random(120) < p, bins=bins, patient=patient, seed=0)
    wrong = calibration_error(p_wrong, rng.random(120) < p, bins=bins, draws=_draws(120)).value
    assert wrong > by_chance.upper


def _by_hand(wrong, doubt, share):
    """Error rate of the kept items; the last one is kept in part."""
    order = np.argsort(doubt, kind="stable")
    left = share * len(wrong)
    errors = 0.0
    for i in order:
        part = min(1.0, max(left, 0.0))
        errors += part * wrong[i]
        left -= 1.0
    return errors / (share * len(wrong))


def test_the_least_doubtful_items_are_kept():
    rng = np.random.default_rng(0)
    wrong = rng.random(33) < 0.4
    doubt = rng.random(33)
    got = retention_curve(wrong, doubt, draws=_draws(33))
    expected = [_by_hand(wrong, doubt, share) for share in SHARES]
    np.testing.assert_allclose(got.error_rate, expected, atol=1e-13)
    assert got.error_rate[-1] == pytest.approx(wrong.mean())
    assert set(got.low + got.high) == {None}


def test_ties_are_the_mean_over_their_orders():
    rng = np.random.default_rng(1)
    wrong = rng.random(40) < 0.3
    doubt = np.round(rng.random(40), 1)
    orders = []
    for _ in range(300):
        shuffled = rng.permutation(40)
        orders.append([_by_hand(wrong[shuffled], doubt[shuffled], s) for s in SHARES])
    mean = np.mean(orders, axis=0)
    error = np.std(orders, axis=0) / np.sqrt(300)
    got = retention_curve(wrong, doubt, draws=_draws(40)).error_rate
    assert (np.abs(got - mean) <= 4.5 * error + 1e-12).all()
    constant = retention_curve(wrong, np.zeros(40), draws=_draws(40)).error_rate
    np.testing.assert_allclose(constant, wrong.mean())


def test_retained_error_rates_are_those_of_resampled_groups():
    rng = np.random.default_rng(2)
    wrong = rng.random(24) < 0.4
    doubt = rng.random(24)
    groups = [i // 3 for i in range(24)]
    draws = _draws(24, resamples=30, groups=groups)
    rows = []
    for counts in draws.counts:
        items = np.array([i for i in range(24) for _ in range(int(counts[groups[i]]))])
        rows.append([_by_hand(wrong[items], doubt[items], s) for s in SHARES])
    got = retention_curve(wrong, doubt, draws=draws)
    np.testing.assert_allclose(got.error_rate, rows[0], atol=1e-13)
    order = np.argsort(doubt)
    for share, column, low, high in zip(SHARES, np.array(rows).T, got.low, got.high, strict=True):
        kept = order[: int(np.ceil(round(24 * share, 9)))]
        patients = len({groups[i] for i in kept})
        support = Support(patients=patients, part=None, trials=max(patients - 1.0, 0.5))
        expected = interval(column, support=support, scale=SHARE)
        assert (low is None) == (patients < 3)
        if low is not None:
            assert (low, high) == pytest.approx((expected.low, expected.high))
