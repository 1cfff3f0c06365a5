"""The risk τ - ∫ S against quadrature, and how it orders what mean hazards do not."""

import numpy as np
import pytest
from scipy.integrate import quad

from probsa.errors import InputError
from probsa.statistics import restricted_risk

TIMES = np.array([2.0, 3, 7])


def _interpolated(t, survival):
    """S with log S linear between the times."""
    return np.exp(np.interp(t, np.append(0, TIMES), np.log(np.append(1, survival))))


def test_a_constant_hazard_between_times_is_integrated_exactly():
    survival = np.array([[0.9, 0.5, 0.1], [1.0, 1.0, 0.999999999], [0.3, 0.3, 0.2]])
    expected = [
        7 - quad(_interpolated, 0, 7, args=(row,), points=TIMES, epsabs=1e-13)[0]
        for row in survival
    ]
    got = restricted_risk(survival, TIMES, between="hazard")
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-15)
    assert got[1] == pytest.approx(4 * 1e-9 / 2, rel=1e-6)  # a small fall keeps its precision


def test_steps_are_sums_of_rectangles():
    survival = np.array([[0.9, 0.5, 0.1]])
    got = restricted_risk(survival, TIMES, between="step")
    np.testing.assert_allclose(got, 7 - (2 + 0.9 * 1 + 0.5 * 4))
    dead = np.array([0.0, 0, 0])
    assert restricted_risk(dead, TIMES, between="hazard") == 7
    assert restricted_risk(dead, TIMES, between="step") == 5


def test_mean_curves_order_what_mean_log_hazards_do_not():
    log_hazard = np.array([[0.0, 0], [-3, 1]])
    curves = np.exp(-0.3 * np.exp(log_hazard))[..., None]
    mean = curves.mean(1)[:, 0]
    np.testing.assert_allclose(mean, [0.7408, 0.7138], atol=6e-5)
    assert log_hazard.mean(1)[1] < log_hazard.mean(1)[0]
    grid = np.array([1.0])
    risk = restricted_risk(curves, grid, between="hazard").mean(1)
    assert risk[1] > risk[0]
    by_steps = restricted_risk(np.repeat(curves, 2, axis=-1), np.array([1.0, 2]), between="step")
    np.testing.assert_allclose(by_steps.mean(1), 1 - mean)


def test_what_is_no_survival_curve_is_refused():
    with pytest.raises(InputError, match="must rise"):
        restricted_risk(np.array([0.5, 0.4]), np.array([0.0, 1]), between="step")
    with pytest.raises(InputError, match="never rise"):
        restricted_risk(np.array([0.5, 0.6]), np.array([1.0, 2]), between="step")
