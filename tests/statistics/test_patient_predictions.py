"""Slides of a patient are combined by the three rules."""

import numpy as np
import pytest
from support.target_metrics import refused

from probsa.statistics import combine_slides


@pytest.mark.parametrize(("rule", "expected"), [("mean", 0.5), ("max", 0.9), ("noisy-or", 0.952)])
def test_the_values_of_the_worked_example(rule, expected):
    p = np.array([0.9, 0.3, 0.2, 0.4])
    names, combined = combine_slides(p, ["b", "a", "b", "b"], rule=rule)
    assert names == ["b", "a"]
    np.testing.assert_allclose(combined, [expected, 0.3], atol=1e-15)


def test_columns_are_combined_each_alone():
    p = np.array([[0.5, 0.2, 0.3], [0.1, 0.1, 0.8], [0.3, 0.6, 0.1]])
    names, mean = combine_slides(p, [7, 7, 3])
    assert names == [7, 3]
    np.testing.assert_allclose(mean, [[0.3, 0.15, 0.55], [0.3, 0.6, 0.1]])
    _, either = combine_slides(p, [7, 7, 3], rule="noisy-or")
    np.testing.assert_allclose(either[0], 1 - np.prod(1 - p[:2], axis=0))


def test_what_does_not_fit_is_refused():
    with refused("2 patients for 3 slides"):
        combine_slides(np.full(3, 0.5), ["a", "b"])
    with refused("nan"):
        combine_slides(np.array([0.5, np.nan]), ["a", "b"])
    with refused("'median'"):
        combine_slides(np.array([0.5]), ["a"], rule="median")  # pyright: ignore
