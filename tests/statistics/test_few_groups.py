"""The interval of Student's t over resampled groups."""

import numpy as np
import pytest
from probsa.statistics.bootstrap import Draws
from probsa.statistics.few_groups import student_interval
from probsa.statistics.sampled import Metric, ratio_of_sums
from scipy import stats


def test_of_a_mean_over_groups_it_is_the_interval_of_the_t_test():
    values = np.random.default_rng(0).normal(size=7)
    draws = Draws.stratified(np.ones(7), groups=None, resamples=200_000, seed=1)
    sample = ratio_of_sums(values, np.ones(7), draws=draws)
    got = sample.student(groups=7)
    want = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert got.value == pytest.approx(values.mean(), abs=1e-12)
    # the standard deviation of 200,000 resamples is known to 0.2 %
    half = (want.high - want.low) / 2
    assert (got.low, got.high) == pytest.approx(want, abs=0.01 * half)


def test_without_two_groups_or_resamples_there_is_no_interval():
    sample = Metric.of(np.array([0.5, 0.4, 0.6, 0.5]))
    assert sample.student(groups=2).low is not None
    assert sample.student(groups=1).low is None
    assert student_interval(Metric.of(np.array([0.5])), groups=9).low is None
    mostly_undefined = Metric.of(np.array([0.5, 0.4, *[np.nan] * 5, 0.3]))
    assert mostly_undefined.student(groups=9).low is None
    assert Metric.undefined("why").student(groups=9).reason == "why"
