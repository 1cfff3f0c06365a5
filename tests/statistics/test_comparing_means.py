"""Comparing methods by the mean of a value of each item."""

import numpy as np
import pytest
from probsa.statistics.paired_difference import StandardError

from probsa.errors import InputError
from probsa.statistics import compare_means, mean_interval


def _values(rng, *, replicates=3, items=60, shift=0.0):
    """Values of two methods with a common effect of each item and each replicate."""
    item = rng.normal(size=items)
    return {
        "a": item + rng.normal(size=(replicates, items)) + rng.normal(0, 0.05, (replicates, 1)),
        "b": shift + item + rng.normal(size=(replicates, items)),
    }


def test_values_and_differences_are_means():
    values = _values(np.random.default_rng(0))
    found = compare_means(values, groups=list(range(60)), baseline="a", resamples=200)
    assert found.values["a"] == pytest.approx(values["a"].mean(), abs=1e-12)
    difference = values["b"].mean() - values["a"].mean()
    assert found.differences["b"].difference == pytest.approx(difference, abs=1e-12)


def test_interval_of_one_replicate_is_that_of_students_t_up_to_resampling():
    x = np.random.default_rng(1).normal(2.0, 1.0, size=(1, 400))
    found = mean_interval(x, groups=list(range(400)), resamples=4000)
    half = 1.966 * x.std(ddof=1) / 20
    assert found.low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(x.mean() + half, abs=0.1 * half)
    assert found.high > 1  # not cut off as a metric in [0, 1] would be


def test_groups_widen_the_interval():
    rng = np.random.default_rng(2)
    x = np.repeat(rng.normal(size=(1, 20)), 10, axis=1)
    alone = mean_interval(x, groups=list(range(200)), resamples=500)
    grouped = mean_interval(x, groups=list(np.repeat(np.arange(20), 10)), resamples=500)
    assert grouped.se > 2 * alone.se


def test_equal_methods_differ_in_about_one_of_twenty_tables(monkeypatch):
    # limits, which nothing here looks at, take most of the time of a comparison
    monkeypatch.setattr(StandardError, "half_width", lambda self: 0.0)
    rng = np.random.default_rng(3)
    tables, significant = 1000, 0
    for _ in range(tables):
        found = compare_means(
            _values(rng), groups=[k // 2 for k in range(60)], baseline="a", resamples=200
        )
        p = found.differences["b"].p
        significant += p is not None and p <= 0.05
    # the 0.1 % and 99.9 % points of the binomial distribution with p = 0.05 are 30 and 72
    assert significant <= 72


def test_a_clear_difference_has_a_winner():
    values = _values(np.random.default_rng(4), shift=1.0)
    assert compare_means(values, groups=list(range(60)), resamples=200).winner == "b"


def test_bad_values_are_refused():
    values = _values(np.random.default_rng(5))
    values["a"][0, 3] = np.nan
    with pytest.raises(InputError, match="a has a value that is nan"):
        compare_means(values, groups=list(range(60)))
    with pytest.raises(InputError, match=r"shape \(3, 60\): expected"):
        compare_means(_values(np.random.default_rng(5)), groups=list(range(59)))
    with pytest.raises(InputError, match="no baseline 'c'"):
        compare_means(_values(np.random.default_rng(5)), groups=list(range(60)), baseline="c")
