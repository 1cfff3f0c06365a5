"""Survival curves, follow-up, the log-rank test and calibration against lifelines."""

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from lifelines.statistics import logrank_test
from scipy.special import expit

from probsa.errors import InputError
from probsa.statistics import (
    CensoringCurve,
    KaplanMeier,
    d_calibration,
    log_rank,
    median_follow_up,
    survival_calibration,
)
from probsa.statistics.kaplan_meier import resampled_survival


def _cohort(n, *, seed, ties=True):
    rng = np.random.default_rng(seed)
    time = rng.exponential(8, n) + 0.1
    return (np.ceil(time) if ties else time), rng.random(n) < 0.6


@pytest.mark.parametrize("seed", range(2))
def test_the_curve_and_its_interval_are_those_of_lifelines(seed):
    time, event = _cohort(40, seed=seed)
    weights = np.random.default_rng(seed).integers(0, 3, 40).astype(float)
    drawn = weights > 0
    for curve, reference in (
        (KaplanMeier.fit(time, event), KaplanMeierFitter().fit(time, event)),
        (
            KaplanMeier.fit(time, event, weights=weights),
            KaplanMeierFitter().fit(
                np.repeat(time, weights.astype(int)), np.repeat(event, weights.astype(int))
            ),
        ),
    ):
        at = np.unique(time[drawn])
        survival, low, high = curve.at(at)
        np.testing.assert_allclose(survival, reference.predict(at), atol=1e-12)
        limits = reference.confidence_interval_.loc[at].to_numpy().T
        above = survival > 0
        np.testing.assert_allclose(np.stack([low, high])[:, above], limits[:, above], atol=1e-10)
    median = KaplanMeierFitter().fit(time, event).median_survival_time_
    assert KaplanMeier.fit(time, event).median == pytest.approx(median)


def test_greenwoods_interval_is_the_estimate_with_its_standard_error():
    time, event = np.array([1, 2, 2, 3, 4, 5.0]), np.array([1, 1, 0, 1, 0, 0], dtype=bool)
    curve = KaplanMeier.fit(time, event, interval="greenwood")
    survival = 5 / 6 * 4 / 5 * 2 / 3
    error = survival * np.sqrt(1 / (6 * 5) + 1 / (5 * 4) + 1 / (3 * 2))
    half = 1.959963984540054 * error
    got = curve.at(np.array([3.5]))[:, 0]
    np.testing.assert_allclose(got, [survival, max(survival - half, 0), min(survival + half, 1)])
    np.testing.assert_array_equal(curve.at(np.array([0.5]))[:, 0], [1, 1, 1])
    assert np.isnan(curve.at(np.array([5.5]))).all()
    assert curve.median == 3


def test_a_curve_that_reaches_zero_stays_there():
    curve = KaplanMeier.fit(np.array([1, 2.0]), np.array([True, True]))
    got = curve.at(np.array([1, 2, 9.0]))
    np.testing.assert_array_equal(got[0], [0.5, 0, 0])
    assert np.isnan(got[1:, 1:]).all()
    assert KaplanMeier.fit(np.array([1, 2.0]), np.array([False, False])).median is None
    with pytest.raises(InputError, match="a time is 0"):
        KaplanMeier.fit(np.array([0, 2.0]), np.array([True, True]))


def test_many_curves_at_once_are_single_curves():
    time, event = _cohort(25, seed=9)
    weights = np.random.default_rng(0).multinomial(25, np.full(25, 1 / 25), size=6).astype(float)
    times = np.array([0.5, 2, 5, 7.5])
    got = resampled_survival(time, event, times, weights=weights)
    for row, weight in zip(got, weights, strict=True):
        single = KaplanMeier.fit(time, event, weights=weight).at(times)[0]
        known = ~np.isnan(single)
        np.testing.assert_allclose(row[known], single[known], atol=1e-14)
        assert known.sum() >= 3


def test_median_follow_up_is_the_reverse_curve():
    time, event = _cohort(60, seed=3, ties=False)
    reference = KaplanMeierFitter().fit(time, ~event)
    assert median_follow_up(time, event) == pytest.approx(reference.median_survival_time_)
    curve = CensoringCurve.fit(time, event)
    np.testing.assert_allclose(curve.value, reference.predict(curve.time), atol=1e-12)
    assert median_follow_up(np.array([1, 2.0]), np.array([True, True])) is None
    # With ties, an event at a time comes before the censoring: .875, not .8888889.
    tied = CensoringCurve.fit(
        np.array([2, 4, 4, 6, 7, 9, 9, 11, 13, 15.0]),
        np.array([1, 1, 0, 1, 0, 1, 1, 0, 1, 0], dtype=bool),
    )
    assert tied.at(np.array([4.0]))[0] == 0.875


@pytest.mark.parametrize("seed", range(2))
def test_the_log_rank_test_is_that_of_lifelines(seed):
    time, event = _cohort(30, seed=seed)
    group = np.random.default_rng(seed).random(30) < 0.4
    got = log_rank(time, event, group=group)
    expected = logrank_test(time[group], time[~group], event[group], event[~group])
    assert got.statistic == pytest.approx(expected.test_statistic, rel=1e-10)
    assert got.p == pytest.approx(expected.p_value, rel=1e-10)
    other = log_rank(time, event, group=~group)
    assert other.statistic == pytest.approx(got.statistic)
    assert got.expected + other.expected == pytest.approx(event.sum())


def test_a_log_rank_test_of_one_group_is_undefined():
    time, event = _cohort(10, seed=0)
    got = log_rank(time, event, group=np.zeros(10, dtype=bool))
    assert got.p is None and "undefined" in (got.reason or "")


def test_calibration_at_a_time_compares_groups_with_their_curves():
    time, event = _cohort(53, seed=6)
    survival = np.random.default_rng(1).random(53)
    got = survival_calibration(time, event, survival=survival, at=5.0)
    assert sum(got.count) == 53 and len(got.count) == 5
    order = np.argsort(1 - survival)
    starts = np.cumsum([0, *got.count])
    for k in range(5):
        rows = order[starts[k] : starts[k + 1]]
        reference = KaplanMeierFitter().fit(time[rows], event[rows])
        assert got.predicted[k] == pytest.approx(np.mean(1 - survival[rows]))
        assert got.observed[k] == pytest.approx(1 - reference.predict(5.0))
        low, high = 1 - reference.confidence_interval_.loc[:5.0].to_numpy()[-1][::-1]
        assert (got.low[k], got.high[k]) == (pytest.approx(low), pytest.approx(high))
    assert list(got.predicted) == sorted(got.predicted)
    nothing = survival_calibration(np.ones(4), np.zeros(4, dtype=bool), survival=np.ones(4), at=5.0)
    assert nothing.observed == (None,)


def test_d_calibration_spreads_censored_bags_below_their_survival():
    survival, event = np.array([0.95, 0.25, 0.5, 0.0]), np.array([True, False, False, False])
    got = d_calibration(survival, event, bins=4)
    # Event: bin 3. Censored at .25: bin 0. At .5: half in each of bins 0 and 1. At 0: bin 0.
    np.testing.assert_allclose(np.array(got.share) * 4, [2.5, 0.5, 0, 1])
    assert got.statistic == pytest.approx(1.5**2 + 0.5**2 + 1**2)


def test_d_calibration_finds_wrong_curves_and_leaves_right_ones():
    rng = np.random.default_rng(4)
    rate = expit(rng.normal(size=(200, 300)))
    time, limit = rng.exponential(1 / rate), rng.exponential(2, (200, 300))
    seen, event = np.minimum(time, limit), time <= limit
    right = [d_calibration(np.exp(-r * t), e).p for r, t, e in zip(rate, seen, event, strict=True)]
    # Spreading censored bags makes the test conservative.
    assert np.mean(np.array(right) < 0.05) < 0.08
    wrong = [
        d_calibration(np.exp(-2 * r * t), e).p for r, t, e in zip(rate, seen, event, strict=True)
    ]
    assert np.mean(np.array(wrong) < 0.05) > 0.9
