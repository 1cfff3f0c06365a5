"""The quantities of a map: their colours, ranges and words, and the score that is shown."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.made_maps import (
    axes,
    panel_pixels,
    prediction,
    rgb,
    scan,
    slide,
    square_of,
    write_folder,
    written,
)
from support.refusals import refused

from probsa.core import Outputs
from probsa.errors import InputError
from probsa.evaluation import doubt, read_predictions
from probsa.maps import (
    VARIANCES,
    ColourLimits,
    draw_map,
    flatness,
    map_limits,
    render_folder,
    resolve,
    showing,
)
from probsa.maps.folder import meaning
from probsa.maps.quantities import quantities
from probsa.maps.scale import FLAT, numbers, range_text

ROWS = np.arange(60)
COORDS = (np.stack([ROWS % 10, ROWS // 10], 1) * 256).astype(np.int64)
STEPS = np.linspace(0, 1, 60)
CHOICE = {
    "chosen": "contribution",
    "drops": {"attention": 0.12, "contribution": 0.21},
    "bags": 9,
    "reason": "contribution: removing its top instances lowers the probability most",
    "rule": "deletion",
}


def made(mean=STEPS, variance=STEPS, **more):
    return prediction(COORDS, mean, variance, **more)


def label(figure, name):
    """Return the words above a panel: its title and its note."""
    ax = axes(figure, name)
    words = [ax.get_title(loc="left"), *(t.get_text() for t in ax.texts)]
    return " · ".join(words).replace("\n", " ")


def ticks(figure, name):
    """Return the numbers at a colour bar, without their unit."""
    return [t.get_text().split(" ")[0] for t in axes(figure, f"{name} bar").get_yticklabels()]


def explained(p, *, classes=None, seed=0):
    """Return the prediction with scores of maps; the first contribution is the largest, −2."""
    rng = np.random.default_rng(seed)
    n = len(p.attention_mean)
    shape = (n,) if classes is None else (n, classes)
    contribution = rng.uniform(-1, 1, shape).astype(np.float32)
    contribution[0], contribution[1] = -2.0, 1.0
    return replace(
        p, contribution=contribution, class_score=3 * contribution, leave_one_out=contribution / 9
    )


def panels(p):
    return list(quantities(p, also=VARIANCES))


def four_grades():
    four = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    p = replace(slide(), probability=four, std=four / 9, task="ordinal")
    n = len(p.attention_mean)
    p = replace(p, at_least=np.linspace([0.9, 0.5, 0.1], [0.3, 0.2, 0.0], n, dtype=np.float32))
    return replace(p, outputs=Outputs(("none", "low", "mid", "high")))


@pytest.mark.parametrize(("span", "colours"), [(0.003, 1), (0.01, 60)])
def test_a_variance_that_hardly_varies_is_one_colour_with_the_reason(tmp_path, span, colours):
    picture, figure = written(made(variance=0.138 + span * STEPS), tmp_path)
    inside, _ = panel_pixels(picture, axes(figure, "variance"))
    assert len(np.unique(inside.reshape(-1, 3), axis=0)) == colours + 1  # and the background
    said = "flat: values differ by 2.1 % (0.138 to 0.141)"
    said = said if colours == 1 else "scale of this bag: 0.138 to 0.148"
    assert label(figure, "variance") == f"attention variance σ² · {said}"
    if colours == 1:
        assert float(ticks(figure, "variance")[0]) == pytest.approx(0.1395, abs=6e-4)
    assert label(figure, "mean") == "attention mean μ · scale of this bag: 0 to 1"


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
    figure = draw_map(made(mean=values, variance=values), limits=limits, also=VARIANCES)
    figure.canvas.draw()
    bar = axes(figure, f"{quantity} bar")
    assert bar.yaxis.get_offset_text().get_text() == ""
    texts = ticks(figure, quantity)
    assert len(set(texts)) == len(texts) >= 2
    assert all(re.fullmatch(r"0\.1353\d*", text) for text in texts)
    # on a scale that was asked for, nothing is flattened
    assert label(figure, quantity).endswith("this bag: 0.1353 to 0.13531; scale of all bags")


def test_parts_of_the_variance_are_flat_on_any_scale():
    near = np.asarray(0.5 + 0.001 * STEPS, np.float32)
    limits = ColourLimits(mean=(0.0, 1.0), variance=(0.0, 1.0))
    p = made(variance_within=near, variance_between=np.asarray(STEPS, np.float32))
    figure = draw_map(p, limits=limits, also=VARIANCES)
    assert "flat: values differ by 0.2 %" in label(figure, "within")
    assert "flat" not in label(figure, "between")


@pytest.mark.parametrize(
    ("values", "logits", "facts"),
    [
        ([1.0], False, None),
        ([np.nan, 1.0], False, None),
        ([0.0, 0.0], False, ("flat", "values", "equal")),
        ([2.0, 2.0, np.nan], True, ("flat", "values", "equal")),
        ([1.0, 1 - FLAT / 2], False, ("flat", "values", " 2.5 %")),
        ([-1.0, -1 + FLAT / 2], False, ("flat", "values", " 2.5 %")),
        ([1.0, 1 - 1.01 * FLAT], False, None),
        ([-1e-9, 1e-9], False, None),
        ([5.0, 5 - np.log1p(-0.02)], True, ("flat", "weights", " 2 %")),
        ([5.0, 5.1], True, None),
    ],
)
def test_what_is_flat(values, logits, facts):
    text = flatness(np.array(values), logits=logits)
    if facts is None:
        assert text == ""
    else:
        assert all(fact in text for fact in facts)


def test_ranges_have_the_digits_that_tell_their_ends_apart():
    assert range_text(np.array([0.13530, 0.13531, np.nan])) == "0.1353 to 0.13531"
    assert range_text(np.array([-1.0, 2.5])) == "−1 to 2.5"
    assert range_text(np.array([7.0, 7.0])) == "7"
    assert range_text(np.array([np.nan])) == "no finite value"
    assert numbers(1234567.0, 1234568.0) == ["1234567", "1234568"]
    figure = draw_map(made(mean=-0.37 + 0.13 * STEPS))
    bar = axes(figure, "mean bar")
    for position, text in zip(bar.get_yticks(), ticks(figure, "mean"), strict=True):
        assert float(text.replace("−", "-")) == pytest.approx(position, abs=1e-6)


def test_a_strip_says_the_range_of_the_score_in_its_title():
    p = showing(explained(scan([1, 2, 3])), "evidence")
    title = axes(draw_map(p), "evidence").get_title(loc="left")
    assert title == "evidence · scale of this bag: −6 to 3"


def test_a_signed_score_has_colours_centred_at_0(tmp_path):
    p = showing(explained(slide()), "contribution")
    (panel,) = panels(p)
    assert panel.key == "contribution"
    assert panel.limits == (-2.0, 2.0)
    picture, figure = written(p, tmp_path)
    ax = axes(figure, "contribution")
    for row, share in ((0, 0.0), (1, 0.75)):
        left, top, *_ = square_of(picture, ax, rgb("contribution", share))
        assert (left, top) == pytest.approx(tuple(p.coords[row]), abs=12)
    bar = axes(figure, "contribution bar")
    assert bar.get_ylim() == (-2.0, 2.0)
    assert [t.get_text() for t in bar.get_yticklabels()] == ["−2", "0", "2 logit"]


def test_a_probability_goes_from_0_to_1():
    p = explained(slide())
    p = replace(p, instance_probability=np.linspace(0.4, 0.6, len(p.contribution)))
    (panel,) = panels(showing(p, "probability"))
    assert panel.limits == (0.0, 1.0)
    assert panel.note == "this bag: 0.40 to 0.60"
    sure = replace(p, instance_probability=np.full(len(p.contribution), 0.9954))
    figure = draw_map(showing(sure, "probability"))
    assert label(figure, "probability").endswith("this bag: 0.9954")
    assert {"0", "1"} <= {*ticks(figure, "probability")}  # not the only value in their place
    assert [v.key for v in panels(showing(p, "attention"))] == ["mean", "variance"]
    assert [v.key for v in panels(showing(p, "evidence"))] == ["evidence"]
    field = replace(p, score_kind="evidence")
    shown = panels(showing(field, "evidence"))
    assert [v.key for v in shown] == ["evidence", "variance"]
    assert shown[0].limits == (-3.0, 3.0)
    np.testing.assert_array_equal(shown[0].values, np.float64(field.attention_mean))


def test_a_score_that_a_prediction_lacks_names_those_it_has(tmp_path):
    preds = write_folder(tmp_path / "p", explained(slide()), slide(name="b"))
    with pytest.raises(InputError, match=r"'probability'.* attention, contribution, evid"):
        render_folder(preds, tmp_path / "maps", score="probability")
    assert not (tmp_path / "maps").exists()
    ((name, reason),) = render_folder(preds, tmp_path / "maps", score="evidence")
    assert name == "b"
    assert "'b' has no score 'evidence'" in reason and reason.endswith(" attention")


def test_auto_shows_what_the_run_chose_and_says_why(tmp_path):
    table = read_predictions(write_folder(tmp_path / "p", explained(slide()), map_score=CHOICE))
    shown = resolve(table, "auto")
    assert shown.score == "contribution"
    assert shown.caption == meaning("contribution", table.of_task)
    assert "red raises the logit" in shown.caption
    asked = resolve(table, "evidence")
    assert asked.caption.endswith(meaning("evidence", table.of_task))
    assert asked.caption.startswith("Evidence: ") and "chose contribution" in asked.caption
    bare = read_predictions(write_folder(tmp_path / "q", explained(slide())))
    assert (resolve(bare, "auto").score, resolve(bare, "auto").caption) == (None, "")


@pytest.mark.parametrize("record", [{"chosen": "contribution"}, "contribution"])
def test_a_damaged_record_of_the_choice_is_refused(tmp_path, record):
    preds = write_folder(tmp_path / "p", explained(slide()), map_score=record)
    refused(InputError, r"predictions\.json.*map_score", render_folder, preds, tmp_path / "new")


def test_a_fixed_scale_is_that_of_the_score(tmp_path):
    preds = write_folder(tmp_path / "p", explained(slide()), explained(slide(name="b"), seed=1))
    means = map_limits(preds).mean
    contributions = map_limits(preds, score="contribution").mean
    assert means != contributions
    assert -2.0 <= contributions[0] < -1.5


def test_scores_of_several_classes_are_relative_to_their_mean():
    """As a softmax ignores what is added to the logits of all classes."""
    three = np.array([0.2, 0.3, 0.5], np.float32)
    p = explained(replace(slide(), probability=three, std=three / 9, task="multiclass"), classes=3)
    shown = showing(p, "contribution").attention_mean
    np.testing.assert_allclose(shown.sum(1), 0, atol=1e-6)
    np.testing.assert_allclose(np.diff(shown, axis=1), np.diff(p.contribution, axis=1), atol=1e-6)
    moved = replace(p, contribution=p.contribution + 5)
    np.testing.assert_allclose(showing(moved, "contribution").attention_mean, shown, atol=1e-5)
    alike = replace(p, probability=three / 2)  # independent sigmoids do not sum to 1
    np.testing.assert_array_equal(showing(alike, "contribution").attention_mean, p.contribution)
    findings = replace(p, task="multilabel", outputs=Outputs(("a", "b", "c")))
    np.testing.assert_array_equal(showing(findings, "contribution").attention_mean, p.contribution)


def test_each_threshold_of_grades_has_a_map(tmp_path):
    p = four_grades()
    preds = write_folder(tmp_path / "p", p, classes=list(p.outputs.names))
    for each in (p, read_predictions(preds).instances(p.name)):
        shown = panels(showing(each, "grade"))
        assert [v.title for v in shown] == [
            f"P(grade), at least {g}" for g in ("low", "mid", "high")
        ]
        assert all(v.limits == (0.0, 1.0) and v.key == "probability" for v in shown)
        np.testing.assert_array_equal(shown[1].values, np.float64(p.at_least[:, 1]))


def test_values_that_hardly_reach_into_the_scale_of_all_bags_are_flat(tmp_path):
    limits = ColourLimits(mean=(-6.0, 5.0), variance=(0.0, 1.0))
    for reach, is_flat in ((0.5, True), (0.7, False)):
        p = made(mean=-reach * STEPS, score_kind="evidence")
        q = next(quantities(p, limits))
        assert len(np.unique(q.colours, axis=0)) == 1 if is_flat else not q.flat
        assert ("flat: " in q.note and " 8.3 %" in q.note) == is_flat


def test_doubt_is_that_of_each_class():
    plain = replace(slide(), score_kind="evidence")
    chance = np.linspace(0, 1, len(plain.attention_mean), dtype=np.float32)
    p = replace(plain, instance_probability=chance)
    both = replace(
        p,
        attention_mean=np.stack([p.attention_mean, -2 * p.attention_mean], 1),
        attention_variance=np.stack([p.attention_variance] * 2, 1),
        instance_probability=np.stack([chance, chance], 1),
    )
    shown = [q for q in quantities(both) if q.key == "doubt"]
    np.testing.assert_allclose(shown[0].values, doubt(p))
    np.testing.assert_allclose(
        shown[1].values, doubt(replace(p, attention_mean=-2 * p.attention_mean))
    )
    assert [q.key for q in quantities(p)] == ["evidence", "probability", "doubt"]
    assert [q.key for q in quantities(plain)] == ["evidence"]
    assert [q.key for q in quantities(p, also=VARIANCES)] == ["evidence", "variance"]
