"""The score that a map shows: its colours, its caption, and predictions that do not have it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.array_slide import ArraySlide
from support.made_maps import (
    axes,
    bag,
    lattice,
    panel_pixels,
    pink,
    prediction,
    rgb,
    scan,
    scan_bag,
    slide,
    square_of,
    written,
)  # fmt: skip

from probsa.errors import InputError
from probsa.evaluation.storage import read_predictions, write_predictions
from probsa.maps import draw_map, map_limits, render_folder
from probsa.maps.blending import owners, squares
from probsa.maps.captions import caption_lines
from probsa.maps.page import draw_page
from probsa.maps.panels import panels_of
from probsa.maps.qupath import measurements
from probsa.maps.scale import bag_limits
from probsa.maps.shown import resolve, showing
from probsa.maps.strips import draw_strip
from probsa.maps.tissue import view
from probsa.slides._base import Scan

CHOICE = {
    "chosen": "contribution",
    "drops": {"attention": 0.12, "contribution": 0.21},
    "bags": 9,
    "reason": "contribution: removing its top instances lowers the probability most",
    "rule": "deletion",
}


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


def folder(path, *bags, **metadata):
    write_predictions(
        path, bags, labels={}, parts={}, classes=["0", "1"], threshold=None, metadata=metadata
    )
    return path


def panels(p):
    return list(panels_of(p, bag_limits(p), scale="per-bag"))


def test_a_signed_score_has_colours_centred_at_0(tmp_path):
    p = showing(explained(slide()), "contribution")
    (panel,) = panels(p)
    assert panel.quantity == "contribution"
    assert panel.limits == (-2.0, 2.0)
    picture, figure = written(p, tmp_path)
    ax = axes(figure, "contribution")
    for row, share in ((0, 0.0), (1, 0.75)):
        left, top, *_ = square_of(picture, ax, rgb("contribution", share))
        assert (left, top) == pytest.approx(tuple(p.coords[row]), abs=12)
    bar = axes(figure, "contribution bar")
    assert bar.get_ylim() == (-2.0, 2.0)
    assert "share of the logit" in bar.get_ylabel()


def test_the_extremes_differ_for_every_colour_vision():
    """Luminance tells the sign's strength, and red from blue remains in the blue-yellow axis."""
    low, middle, high = (rgb("contribution", v) for v in (0.1, 0.5, 0.9))
    assert middle.sum() > low.sum() + 150 and middle.sum() > high.sum() + 150
    assert low[2] - low[0] > 80 and high[0] - high[2] > 80


def test_a_probability_goes_from_0_to_1():
    p = explained(slide())
    p = replace(p, probability_positive=np.linspace(0.4, 0.6, len(p.contribution)))
    (panel,) = panels(showing(p, "probability"))
    assert panel.limits == (0.0, 1.0)
    assert panel.bar == "probability (f > 0), 0 to 1 (0.4 to 0.6)"


def test_only_the_models_own_score_has_a_variance_panel():
    p = explained(slide())
    assert [v.quantity for v in panels(showing(p, "attention"))] == ["mean", "variance"]
    assert [v.quantity for v in panels(showing(p, "evidence"))] == ["evidence"]
    field = replace(p, score_kind="evidence")
    shown = panels(showing(field, "evidence"))
    assert [v.quantity for v in shown] == ["evidence", "variance"]
    assert shown[0].limits == (-3.0, 3.0)
    np.testing.assert_array_equal(shown[0].values, np.float64(field.attention_mean))


def test_each_class_has_its_panel():
    three = np.array([0.2, 0.3, 0.5], np.float32)
    p = replace(slide(), probability=three, std=three / 9)
    figure = draw_map(showing(explained(p, classes=3), "contribution"))
    labels = {a.get_label() for a in figure.axes}
    assert {"contribution 0", "contribution 1", "contribution 2"} <= labels
    assert "variance 0" not in labels


def test_a_score_that_a_prediction_lacks_names_those_it_has(tmp_path):
    preds = folder(tmp_path / "p", explained(slide()), slide(name="b"))
    with pytest.raises(InputError, match="'probability': they have attention, contribution, evid"):
        render_folder(preds, tmp_path / "maps", score="probability")
    assert not (tmp_path / "maps").exists()
    (failed,) = render_folder(preds, tmp_path / "maps", score="evidence")
    assert failed == ("b", "the prediction of bag 'b' has no score 'evidence': it has attention")


def test_auto_shows_what_the_run_chose_and_says_why(tmp_path):
    preds = folder(tmp_path / "p", explained(slide()), map_score=CHOICE)
    table = read_predictions(preds)
    shown = resolve(table, "auto")
    assert shown.score == "contribution"
    assert shown.caption.startswith("Contribution: removing its top instances lowers")
    assert "red raises the logit" in shown.caption
    asked = resolve(table, "evidence")
    assert asked.caption.startswith("Evidence: as asked for (the validation bags chose contrib")
    for score in ("auto", "contribution", "attention"):
        assert render_folder(preds, tmp_path / score, score=score) == []
    auto, same, other = (
        np.asarray(Image.open(tmp_path / s / "bag.png"))
        for s in ("auto", "contribution", "attention")
    )
    width = min(auto.shape[1], same.shape[1])
    assert auto.shape[1] == same.shape[1] < other.shape[1]  # no variance
    # the panels are equal; the captions differ
    np.testing.assert_array_equal(auto[:400, :width], same[:400, :width])


@pytest.mark.parametrize("record", [{"chosen": "contribution"}, "contribution"])
def test_a_damaged_record_of_the_choice_is_refused(tmp_path, record):
    preds = folder(tmp_path / "p", explained(slide()), map_score=record)
    with pytest.raises(InputError, match=r"predictions\.json: map_score"):
        render_folder(preds, tmp_path / "new")


def test_predictions_without_a_record_of_the_choice_are_drawn_as_before(tmp_path):
    preds = folder(tmp_path / "p", explained(slide()))
    render_folder(preds, tmp_path / "new")
    bare = folder(tmp_path / "q", slide())
    render_folder(bare, tmp_path / "old")
    new, old = (np.asarray(Image.open(tmp_path / d / "bag.png")) for d in ("new", "old"))
    np.testing.assert_array_equal(new, old)


def test_a_fixed_scale_is_that_of_the_score(tmp_path):
    preds = folder(tmp_path / "p", explained(slide()), explained(slide(name="b"), seed=1))
    means = map_limits(preds).mean
    contributions = map_limits(preds, score="contribution").mean
    assert means != contributions
    assert -2.0 <= contributions[0] < -1.5


@pytest.mark.parametrize("title", ["a", "a\n" + "word " * 90], ids=["bare", "captioned"])
def test_a_caption_covers_nothing_and_moves_no_pixel(tmp_path, title):
    p = showing(explained(slide()), "contribution")
    picture, figure = written(p, tmp_path, title=title)
    lines = caption_lines(title, width=figure.get_figwidth())
    assert (len(lines) > 1) == ("word" in title)
    lowest = min(a.get_tightbbox().y0 for a in figure.axes)
    if lines:
        (text,) = [t for t in figure.texts if "word" in t.get_text()]
        box = text.get_window_extent()
        assert box.y1 < lowest and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    plain, _ = written(p, tmp_path, title="a")
    extra = len(picture) - len(plain)
    assert (extra > 0) == bool(lines)
    ax = axes(figure, "contribution")
    inside, (row, column) = panel_pixels(picture, ax)
    h, w = inside.shape[:2]
    np.testing.assert_array_equal(inside, plain[row : row + h, column : column + w])


def test_a_narrow_page_has_room_for_its_title():
    p = showing(explained(bag(lattice(2, 9))), "contribution")
    figure = draw_map(p, title="slide_17 · p = 0.91 ± 0.03 · label 1\nContribution: because.")
    assert all(t.get_window_extent().x1 < figure.bbox.x1 for t in figure.texts)
    assert "label 1" in figure.texts[1].get_text()


def test_a_slides_page_and_a_scans_strip_show_it():
    caption = "bag\nContribution: because."
    p = showing(explained(bag(lattice())), "contribution")
    source = ArraySlide(pink())
    whole = (0.0, 0.0, *map(float, source.size))
    picture = view(source, whole, scale=2.0, mpp=0.5, whole=True)
    figure = draw_page(p, picture, squares(p), title=caption)
    assert {"tissue", "contribution", "contribution bar"} == {a.get_label() for a in figure.axes}
    assert any("because" in t.get_text() for t in figure.texts)
    box = axes(figure, "contribution").get_window_extent()
    assert (owners(squares(p), picture) >= 0).any()
    assert box.y0 == pytest.approx(round(box.y0), abs=1e-6)  # still on whole pixels
    positions = np.arange(12) * 5.0
    volume = np.zeros((12, 64, 64), np.float32)
    series = Scan(
        name="series", path=Path("series"), format="dicom", volume=volume, positions=positions,
        spacing=(0.5, 0.5), thickness=5.0,
    )  # fmt: skip
    figure = draw_strip(showing(explained(scan_bag(positions)), "contribution"), series)
    assert {"slices", "contribution bar", "values"} == {a.get_label() for a in figure.axes}
    values = axes(figure, "values")
    assert values.get_ylabel() == "contribution (share of the logit)"
    assert "below: contribution" in axes(figure, "slices").get_title(loc="left")


def test_strips_of_a_lattice_of_slices_are_titled(tmp_path):
    picture, figure = written(showing(explained(scan([1, 2, 3])), "evidence"), tmp_path)
    assert picture.size
    title = axes(figure, "evidence").get_title(loc="left")
    assert title == "evidence (class score, in logits), per-bag scale (−6 to 3)"


def test_qupath_gets_the_scores_that_there_are():
    p = explained(prediction(np.array([[0, 0], [256, 0]]), [0.1, 0.2]))
    values = measurements(p)
    assert set(values) == {
        "mean", "variance", "probability", "weight", "contribution", "evidence", "leave one out",
    }  # fmt: skip
    np.testing.assert_array_equal(values["contribution"], p.contribution)
    assert "positive probability" in measurements(
        replace(p, probability_positive=np.array([0.1, 0.9]))
    )


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
    findings = replace(p, task="multilabel", outputs=("a", "b", "c"))
    np.testing.assert_array_equal(showing(findings, "contribution").attention_mean, p.contribution)


def test_each_threshold_of_grades_has_a_map(tmp_path):
    four = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    p = replace(
        slide(),
        probability=four,
        std=four / 9,
        task="ordinal",
        outputs=("none", "low", "mid", "high"),
    )
    n = len(p.attention_mean)
    p = replace(p, at_least=np.linspace([0.9, 0.5, 0.1], [0.3, 0.2, 0.0], n, dtype=np.float32))
    shown = panels(showing(p, "grade"))
    assert [v.title for v in shown] == [f"grade, at least {g}" for g in ("low", "mid", "high")]
    assert all(v.limits == (0.0, 1.0) and v.quantity == "probability" for v in shown)
    np.testing.assert_array_equal(shown[1].values, np.float64(p.at_least[:, 1]))


def test_maps_of_stored_predictions_name_the_grades(tmp_path):
    four = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    p = replace(slide(), probability=four, std=four / 9, task="ordinal")
    p = replace(p, at_least=np.full((len(p.attention_mean), 3), 0.5, np.float32))
    grades = ["none", "low", "mid", "high"]
    p = replace(p, outputs=tuple(grades))
    write_predictions(
        tmp_path / "p", [p], labels={}, parts={}, classes=grades, threshold=None, metadata={}
    )
    stored = read_predictions(tmp_path / "p").instances(p.name)
    titles = [v.title for v in panels(showing(stored, "grade"))]
    assert titles == ["grade, at least low", "grade, at least mid", "grade, at least high"]
