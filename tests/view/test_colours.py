"""Colours that readers with any colour vision can order and tell apart."""

import numpy as np
import pytest

from probsa.maps import KINDS
from probsa.maps.picture import BACKGROUND
from probsa.view.quantities import look_up_table

SCORES = ["mean", "probability", "weight"]
DOUBTS = ["variance", "within", "between", "deviation", "doubt"]

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
    return lab_of(look_up_table(name) / 255.0, vision)


def lab_of(rgb: np.ndarray, vision: str) -> np.ndarray:
    """Return CIELAB of colours, (n, 3) from 0 to 1, as somebody with this vision sees them."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(SIMULATED[vision]).T, 0, 1)
    t = seen @ TO_XYZ.T / WHITE
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


@pytest.mark.parametrize("vision", SIMULATED)
@pytest.mark.parametrize("name", [*SCORES, *DOUBTS])
def test_high_values_are_darker_also_in_grey_print(name, vision):
    lightness = lab(name, vision)[:, 0]
    steps = lightness[:-8:8] - lightness[8::8]
    assert steps.min() > 0
    assert np.ptp(lightness) > (60 if name in SCORES else 35)


@pytest.mark.parametrize("vision", ["normal", "protanopia", "deuteranopia"])
@pytest.mark.parametrize("name", SCORES)
def test_no_value_of_a_score_is_grey(name, vision):
    """The tissue below a map is grey, and so is the background of a map without its slide."""
    colours = lab(name, vision)
    as_light_as_tissue = colours[:, 0] > 35
    assert np.hypot(colours[:, 1], colours[:, 2])[as_light_as_tissue].min() > 20


@pytest.mark.parametrize("vision", SIMULATED)
@pytest.mark.parametrize("name", DOUBTS)
@pytest.mark.parametrize("score", [*SCORES, "evidence", "contribution"])
def test_evidence_draws_the_eye_and_doubt_does_not(score, name, vision):
    """The strongest colour is nearer to white, and less saturated, for doubt than for scores."""

    def strongest(colours: np.ndarray) -> tuple[float, float]:
        contrast = np.linalg.norm(colours - [100.0, 0.0, 0.0], axis=1)
        return contrast.max(), np.hypot(colours[:, 1], colours[:, 2]).max()

    of_doubt = strongest(lab(name, vision))
    of_score = strongest(lab(score, vision))
    assert of_doubt[0] < 0.8 * of_score[0]
    assert of_doubt[1] < of_score[1]


@pytest.mark.parametrize("vision", SIMULATED)
@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"difference"}))  # which pictures lack
def test_the_background_is_no_value(name, vision):
    """Most values are low or near 0, which are lighter: they show the shape of the tissue."""
    colours = lab(name, vision)
    background = lab_of(np.array([BACKGROUND]) / 255.0, vision)[0]
    assert np.linalg.norm(colours - background, axis=1).min() > 5
    if name in (*SCORES, *DOUBTS):
        assert colours[0, 0] - background[0] > 20
    if KINDS[name].signed:
        assert colours[128, 0] - background[0] > 20


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
