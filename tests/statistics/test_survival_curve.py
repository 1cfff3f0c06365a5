"""Survival between the predicted times."""

import numpy as np
import pytest

from probsa.errors import InputError
from probsa.statistics import survival_between

TIMES = np.array([2.0, 6.0])
CURVES = np.array([[0.9, 0.4], [0.5, 0.0]])


def test_hazards_are_constant_between_times():
    wanted = np.array([0.0, 1.0, 2.0, 4.0, 6.0])
    found = survival_between(CURVES, times=TIMES, wanted=wanted)
    np.testing.assert_allclose(found[0], [1, 0.9**0.5, 0.9, (0.9 * 0.4) ** 0.5, 0.4])
    assert found[1, -1] < 1e-9 and (np.diff(found) <= 0).all()


def test_steps_keep_the_last_value():
    wanted = np.array([0.0, 1.9, 2.0, 5.9, 6.0])
    found = survival_between(CURVES, times=TIMES, wanted=wanted, steps=True)
    assert found[0].tolist() == [1, 1, 0.9, 0.9, 0.4]


def test_nothing_is_claimed_beyond_the_last_time():
    with pytest.raises(InputError, match="known from 0 to 6"):
        survival_between(CURVES, times=TIMES, wanted=np.array([6.5]))
