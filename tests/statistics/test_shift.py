"""The alarm for shift: its distance, its false-alarm rate with groups, and its power."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

from probsa.statistics import shift_test


def test_the_distance_is_that_of_kolmogorov_and_smirnov():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 20, size=(70, 2)).astype(float)  # with ties
    new = np.arange(70) >= 40
    result = shift_test(values, new=new, groups=range(70), permutations=19)
    for column, distance in zip(values.T, result.distances, strict=True):
        assert distance == pytest.approx(ks_2samp(column[new], column[~new]).statistic)


def test_each_group_counts_once():
    """A group of two bags moves the distribution as two bags of half the weight."""
    values = np.array([[0.0], [1.0], [1.0], [2.0], [0.0]])
    new = np.array([False, False, False, True, True])
    result = shift_test(values, new=new, groups=["a", "a", "b", "c", "d"], permutations=19)
    assert result.distances == (0.5,)  # old at 0: 1/4, at 1: 3/4; new at 0: 1/2, at 2: 1/2


def alarms(rng, trials, *, shift=0.0):
    """The share of trials with an alarm by groups, and by bags, at the level 0.05."""
    groups = np.repeat(np.arange(30), 6)
    by_group, by_bag = [], []
    for _ in range(trials):
        level = rng.normal(size=30) + shift * (np.arange(30) >= 20)
        values = (level[groups] + 0.3 * rng.normal(size=180))[:, None]
        new = groups >= 20
        result = shift_test(values, new=new, groups=groups.tolist(), permutations=99)
        by_group.append(result.p_value <= 0.05)
        by_bag.append(ks_2samp(values[new, 0], values[~new, 0]).pvalue <= 0.05)
    return np.mean(by_group), np.mean(by_bag)


def test_the_rate_of_false_alarms_is_the_level():
    by_group, by_bag = alarms(np.random.default_rng(4), 1000)
    assert by_group == pytest.approx(0.05, abs=0.0207)  # three standard errors
    assert by_bag > 0.3  # bags of one patient are not independent


def test_a_shift_is_found():
    by_group, _ = alarms(np.random.default_rng(5), 200, shift=2.0)
    assert by_group > 0.9


def test_one_shifted_column_among_several_is_found():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(80, 3))
    new = np.arange(80) >= 40
    values[new, 1] += 1.5
    result = shift_test(values, new=new, groups=range(80), seed=1)
    assert result.p_value <= 0.01 and np.argmax(result.distances) == 1
    assert result == shift_test(values, new=new, groups=range(80), seed=1)


def test_permutations_as_far_as_the_data_count_against_an_alarm():
    """Equal outputs, and outputs with two values, have many permutations at the same distance."""
    new = np.arange(20) >= 10
    equal = shift_test(np.zeros((20, 1)), new=new, groups=range(20), permutations=99)
    assert equal.distances == pytest.approx((0.0,), abs=1e-12) and equal.p_value == 1.0
    one_apart = shift_test(np.eye(20)[:, 19:], new=new, groups=range(20), permutations=99)
    assert one_apart.distances == pytest.approx((0.1,)) and one_apart.p_value == 1.0
