"""Conformal intervals of numbers: their rank, and their coverage."""

import numpy as np
import pytest

from probsa.errors import InputError
from probsa.statistics import ConformalIntervals


def test_the_half_width_is_the_finite_sample_quantile():
    y, predicted = np.arange(1.0, 20), np.zeros(19)
    for alpha, rank in ((0.1, 18), (0.2, 16), (0.05, 19)):
        got = ConformalIntervals.calibrated(y, predicted, groups=range(19), alpha=alpha)
        assert got.half_width == rank  # ⌈20 (1 - α)⌉
    with pytest.raises(InputError, match="at least 99 groups"):
        ConformalIntervals.calibrated(y, predicted, groups=range(19), alpha=0.01)


def test_a_group_counts_once_however_many_items_it_has():
    y = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9.0])
    alone = ConformalIntervals.calibrated(y, np.zeros(9), groups=range(9), alpha=0.2)
    groups = np.repeat(np.arange(9), [1, 1, 1, 1, 1, 1, 1, 50, 1])
    copies = ConformalIntervals.calibrated(
        np.repeat(y, np.bincount(groups)), np.zeros(58), groups=groups.tolist(), alpha=0.2
    )
    assert alone.half_width == copies.half_width == 8
    assert copies.groups == 9


def test_intervals_follow_the_spread():
    y, predicted = np.arange(1.0, 20), np.zeros(19)
    spread = np.full(19, 2.0)
    got = ConformalIntervals.calibrated(y, predicted, groups=range(19), alpha=0.1, spread=spread)
    limits = got.intervals(np.array([1.0, 5.0]), spread=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(limits, [[-8, 10], [-13, 23]])
    with pytest.raises(InputError, match="need a predicted spread"):
        got.intervals(np.array([1.0]))
    with pytest.raises(InputError, match="above 0"):
        got.intervals(np.array([1.0]), spread=np.array([0.0]))


def _covered(rng, *, normalised):
    """The mean coverage of a slide of a new patient, with 1 to 4 slides that share an error."""
    shares = []
    for _ in range(250):
        slides = rng.integers(1, 5, 40)
        patient = np.repeat(np.arange(40), slides)
        spread = np.exp(rng.normal(size=40))[patient]
        y = spread * (rng.normal(size=40)[patient] + 0.3 * rng.normal(size=len(patient)))
        s = spread if normalised else None
        cal, new = patient < 39, patient == 39
        got = ConformalIntervals.calibrated(
            y[cal],
            np.zeros(cal.sum()),
            groups=patient[cal].tolist(),
            alpha=0.2,
            spread=None if s is None else s[cal],
        )
        low, high = got.intervals(np.zeros(new.sum()), spread=None if s is None else s[new]).T
        shares.append(np.mean((low <= y[new]) & (y[new] <= high)))
    return np.mean(shares)


@pytest.mark.parametrize("normalised", [False, True])
def test_new_patients_are_covered(normalised):
    covered = _covered(np.random.default_rng(7), normalised=normalised)
    assert 0.8 - 0.075 < covered < 0.8 + 0.1  # three standard errors, and 1 / 40 of slack
