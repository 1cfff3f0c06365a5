"""Survival curves and the censoring curve against lifelines."""

import numpy as np
import pytest
from lifelines import KaplanMeierFitter
from probsa.statistics.kaplan_meier import resampled_survival

from probsa.errors import InputError
from probsa.statistics import CensoringCurve, KaplanMeier


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


def test_the_censoring_curve_is_the_reverse_curve():
    time, event = _cohort(60, seed=3, ties=False)
    reference = KaplanMeierFitter().fit(time, ~event)
    curve = CensoringCurve.fit(time, event)
    np.testing.assert_allclose(curve.value, reference.predict(curve.time), atol=1e-12)
    # With ties, an event at a time comes before the censoring: .875, not .8888889.
    tied = CensoringCurve.fit(
        np.array([2, 4, 4, 6, 7, 9, 9, 11, 13, 15.0]),
        np.array([1, 1, 0, 1, 0, 1, 1, 0, 1, 0], dtype=bool),
    )
    assert tied.at(np.array([4.0]))[0] == 0.875
