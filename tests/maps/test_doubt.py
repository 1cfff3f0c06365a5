"""Evidence and doubt of a bag beside other models: which panels there are, and what they show."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from support.made_maps import axes, slide

from probsa.errors import InputError
from probsa.evaluation import doubt
from probsa.maps.doubt import RAYS, draw_doubt, render_doubt
from probsa.maps.layout import place

LABELS = np.array([0, 1, 1, 0, 0, 0, 1, -1], np.int8)
MEAN = np.array([-2.0, 3.0, -0.5, 0.25, -1.0, -4.0, 1.0, 2.0], np.float32)
VARIANCE = np.array([1.0, 4.0, 0.25, 1.0, 9.0, 2.0, 0.01, 1.0], np.float32)


def evidence(**more):
    return replace(
        slide(instance_labels=LABELS), attention_mean=MEAN, attention_variance=VARIANCE,
        score_kind="evidence", probability_positive=np.linspace(0, 1, 8, dtype=np.float32), **more,
    )  # fmt: skip


def drawn(p, others=None):
    others = {"ABMIL": slide(at=1), "ProbSA": slide(at=2)} if others is None else others
    return draw_doubt(p, name="own", others=others, title="a slide", caption="What it is.")


def values(figure, name, p):
    """The values of one panel, by instance."""
    (image,) = axes(figure, name).images
    cells = place(p).cells
    return np.asarray(image.get_array().filled(np.nan))[cells[:, 0], cells[:, 1]]


def test_the_panels_and_their_values():
    p = evidence()
    figure = drawn(p)
    names = [str(a.get_label()) for a in figure.axes if not str(a.get_label()).endswith(" bar")]
    assert names == [
        "labels", "ABMIL mean", "ProbSA mean",
        "evidence", "probability", "calls",
        "deviation", "doubt", "plot",
    ]  # fmt: skip
    np.testing.assert_allclose(values(figure, "evidence", p), MEAN)
    np.testing.assert_allclose(values(figure, "probability", p), p.probability_positive)
    np.testing.assert_allclose(values(figure, "deviation", p), np.sqrt(VARIANCE))
    np.testing.assert_allclose(values(figure, "doubt", p), doubt(p))
    # called positive: 1, 3, 6 and 7; the label of 7 is unknown
    wrong = [0, 0, 1, 1, 0, 0, 0, np.nan]
    np.testing.assert_array_equal(values(figure, "calls", p), wrong)
    assert axes(figure, "calls").get_title(loc="left").endswith("2 of 7")


def test_colours_of_the_evidence_are_centred_and_those_of_probabilities_fixed():
    figure = drawn(evidence())
    limits = {n: axes(figure, n).images[0].get_clim() for n in ("evidence", "probability", "doubt")}
    assert limits == {"evidence": (-4, 4), "probability": (0, 1), "doubt": (0, 0.5)}
    bar = axes(figure, "calls bar")
    assert [t.get_text() for t in bar.get_yticklabels()] == ["right", "wrong"]


def test_the_plot_has_a_dot_per_patch_and_lines_of_equal_doubt():
    p = evidence()
    ax = axes(drawn(p), "plot")
    dots = [c for c in ax.collections if isinstance(c, PathCollection)]
    shown = np.concatenate([np.asarray(c.get_offsets()) for c in dots])
    expected = np.stack([MEAN, np.sqrt(VARIANCE)], 1)
    np.testing.assert_allclose(shown[np.lexsort(shown.T)], expected[np.lexsort(expected.T)])
    lines = [line for line in ax.lines if len(line.get_xdata()) == 3]
    for line, probability in zip(lines, RAYS, strict=True):
        m, s = line.get_xdata()[0], line.get_ydata()[0]
        on_line = replace(p, attention_mean=np.float32([m]), attention_variance=np.float32([s**2]))
        assert doubt(on_line)[0] == pytest.approx(probability, abs=1e-6)


def test_an_ensemble_says_that_the_deviation_is_of_all_members():
    title = axes(drawn(evidence()), "deviation").get_title(loc="left")
    assert "all members" not in title
    p = evidence(variance_within=VARIANCE / 2, variance_between=VARIANCE / 2)
    assert "all members" in axes(drawn(p), "deviation").get_title(loc="left")


def test_a_bag_without_any_doubt_can_be_drawn(tmp_path):
    certain = replace(evidence(), attention_variance=np.zeros(8, np.float32))
    flat = replace(evidence(), attention_mean=np.zeros(8, np.float32))
    for k, p in enumerate((certain, flat)):
        render_doubt(p, tmp_path / f"{k}.png", name="own", others={}, title="a slide")
        assert (tmp_path / f"{k}.png").stat().st_size > 1000


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match=r"whose score is evidence \(this one is logit\)"):
        drawn(slide(instance_labels=LABELS))
    with pytest.raises(InputError, match="bags with instance labels"):
        drawn(replace(evidence(), instance_labels=None))
    with pytest.raises(InputError, match="the same instances"):
        drawn(evidence(), {"ABMIL": slide(at=1, offset=(64, 0))})
