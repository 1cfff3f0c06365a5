"""Panels say how much there is to see, and show no structure where there is hardly any."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.made_maps import axes, panel_pixels, prediction, scan, written

from probsa.maps import ColourLimits, draw_map
from probsa.maps.scale import FLAT, flatness, numbers, seen

ROWS = np.arange(60)
COORDS = (np.stack([ROWS % 10, ROWS // 10], 1) * 256).astype(np.int64)
STEPS = np.linspace(0, 1, 60)


def made(mean=STEPS, variance=STEPS, **more):
    return prediction(COORDS, mean, variance, **more)


def colours_in(picture, ax):
    inside, _ = panel_pixels(picture, ax)
    used = np.unique(inside.reshape(-1, 3), axis=0)
    return [c for c in used.tolist() if c != [220, 220, 220]]  # without the background


def label(figure, name):
    return axes(figure, f"{name} bar").get_ylabel().replace("\n", " ")


def ticks(figure, name):
    return [t.get_text() for t in axes(figure, f"{name} bar").get_yticklabels()]


def test_a_variance_that_hardly_varies_is_one_colour_with_the_reason(tmp_path):
    picture, figure = written(made(variance=0.138 + 0.003 * STEPS), tmp_path)
    assert len(colours_in(picture, axes(figure, "variance"))) == 1
    text = "attention variance σ² (logit²), flat: values differ by 2.1 % (0.138 to 0.141)"
    assert label(figure, "variance") == text
    (tick,) = ticks(figure, "variance")
    assert float(tick) == pytest.approx(0.1395, abs=6e-4)
    assert len(colours_in(picture, axes(figure, "mean"))) == 60
    assert label(figure, "mean") == "attention mean μ (logit), per-bag scale (0 to 1)"


def test_a_variance_that_varies_more_has_the_whole_palette(tmp_path):
    picture, figure = written(made(variance=0.138 + 0.01 * STEPS), tmp_path)
    assert len(colours_in(picture, axes(figure, "variance"))) == 60
    assert label(figure, "variance").endswith("per-bag scale (0.138 to 0.148)")


@pytest.mark.parametrize(("level", "flat"), [(0.04, True), (0.06, False)])
def test_logits_are_compared_by_their_weights_however_high_they_are(tmp_path, level, flat):
    # beside 1000, both ranges would be small
    _, figure = written(made(mean=1000 + level * STEPS), tmp_path)
    assert ("flat: weights differ by 3.9 %" in label(figure, "mean")) == flat
    _, figure = written(made(mean=1000 + level * STEPS, score_kind="weight"), tmp_path)
    assert "flat: values differ by" in label(figure, "mean")


@pytest.mark.parametrize("quantity", ["mean", "variance"])
def test_no_colour_bar_has_an_offset(quantity):
    values = 0.1353 + 1e-5 * STEPS
    limits = ColourLimits(mean=(0.1353, 0.13531), variance=(0.1353, 0.13531))
    figure = draw_map(made(mean=values, variance=values), scale="fixed", limits=limits)
    figure.canvas.draw()
    bar = axes(figure, f"{quantity} bar")
    assert bar.yaxis.get_offset_text().get_text() == ""
    texts = ticks(figure, quantity)
    assert len(set(texts)) == len(texts) >= 2
    assert all(re.fullmatch(r"0\.1353\d*", text) for text in texts)
    # on a scale that was asked for, nothing is flattened
    assert label(figure, quantity).endswith("fixed scale (this bag: 0.1353 to 0.13531)")


def test_ticks_stand_at_the_values_that_they_say():
    figure = draw_map(made(mean=-0.37 + 0.13 * STEPS))
    bar = axes(figure, "mean bar")
    for position, text in zip(bar.get_yticks(), ticks(figure, "mean"), strict=True):
        assert float(text.replace("−", "-")) == pytest.approx(position, abs=1e-9)


def test_a_strip_says_its_range_in_its_title():
    p = scan(np.arange(30))
    p = replace(p, attention_variance=np.asarray(0.138 + 0.003 * np.linspace(0, 1, 30), np.float32))
    figure = draw_map(p)
    assert axes(figure, "mean").get_title(loc="left").endswith("per-bag scale (−1 to 2)")
    assert "flat: values differ by 2.1 %" in axes(figure, "variance").get_title(loc="left")


def test_parts_of_the_variance_are_flat_on_any_scale():
    near = np.asarray(0.5 + 0.001 * STEPS, np.float32)
    p = made(variance_within=near, variance_between=np.asarray(STEPS, np.float32))
    figure = draw_map(p, scale="fixed", limits=ColourLimits(mean=(0.0, 1.0), variance=(0.0, 1.0)))
    assert "flat: values differ by 0.2 %" in label(figure, "within")
    assert "flat" not in label(figure, "between")


@pytest.mark.parametrize(
    ("values", "logits", "says"),
    [
        ([1.0], False, ""),
        ([np.nan, 1.0], False, ""),
        ([0.0, 0.0], False, "flat: all values are equal"),
        ([2.0, 2.0, np.nan], True, "flat: all values are equal"),
        ([1.0, 1 - FLAT / 2], False, "flat: values differ by 2.5 %"),
        ([-1.0, -1 + FLAT / 2], False, "flat: values differ by 2.5 %"),
        ([1.0, 1 - 1.01 * FLAT], False, ""),
        ([-1e-9, 1e-9], False, ""),
        ([5.0, 5 - np.log1p(-0.02)], True, "flat: weights differ by 2 %"),
        ([5.0, 5.1], True, ""),
    ],
)
def test_what_is_flat(values, logits, says):
    assert flatness(np.array(values), logits=logits) == says


def test_ranges_have_the_digits_that_tell_their_ends_apart():
    assert seen(np.array([0.13530, 0.13531, np.nan])) == "0.1353 to 0.13531"
    assert seen(np.array([-1.0, 2.5])) == "−1 to 2.5"
    assert seen(np.array([7.0, 7.0])) == "7"
    assert seen(np.array([np.nan])) == "no finite value"
    assert numbers(1234567.0, 1234568.0) == ["1234567", "1234568"]
