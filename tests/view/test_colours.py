"""Colours that readers with any colour vision can order and tell apart."""

import numpy as np
import pytest

from probsa.view.quantities import look_up_table

# Machado, Oliveira and Fernandes (2009), severity 1, for linear red, green and blue
SIMULATED = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
WHITE = np.array([0.95047, 1.0, 1.08883])
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(name: str, vision: str) -> np.ndarray:
    """Return CIELAB of a table as somebody with this colour vision sees it."""
    rgb = look_up_table(name) / 255.0
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(SIMULATED[vision]).T, 0, 1)
    t = seen @ TO_XYZ.T / WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


@pytest.mark.parametrize("vision", SIMULATED)
@pytest.mark.parametrize("name", ["mean", "deviation", "probability"])
def test_lightness_rises_with_the_value(name, vision):
    lightness = lab(name, vision)[:, 0]
    steps = lightness[8::8] - lightness[:-8:8]
    assert steps.min() > 0
    assert np.ptp(lightness) > 60


@pytest.mark.parametrize("vision", SIMULATED)
@pytest.mark.parametrize("name", ["evidence", "difference"])
def test_the_sides_of_a_diverging_map_are_equally_dark_and_differ(name, vision):
    colours = lab(name, vision)
    lightness = colours[:, 0]
    assert abs(lightness[16] - lightness[-17]) < 14
    assert np.diff(lightness[:120:8]).min() > 0 > np.diff(lightness[136::8]).max()
    for k in (16, 48, 80):  # strong, middle and weak values of either sign
        assert np.linalg.norm(colours[k] - colours[-1 - k]) > 15


@pytest.mark.parametrize("vision", SIMULATED)
def test_the_two_labels_differ(vision):
    colours = lab("labels", vision)
    assert np.linalg.norm(colours[0] - colours[-1]) > 30
