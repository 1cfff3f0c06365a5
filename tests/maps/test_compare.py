"""Small maps of several methods, or of evidence and doubt: right colours at the right places."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image
from support.array_slide import ArraySlide
from support.made_maps import (
    CELLS,
    STRIDE,
    OneSource,
    assert_fits,
    axes,
    prediction,
    rgb,
    scan,
    slide,
)

from probsa.errors import BagError, InputError
from probsa.evaluation import Prediction, doubt
from probsa.evaluation.scores import flip
from probsa.maps import draw_doubt, place, side_by_side
from probsa.maps.compare import RAYS, doubt_of
from probsa.slides import Scan

LABELS = np.array([0, 1, 1, 0, 0, 0, 1, -1], np.int8)
MEAN = np.array([-2.0, 3.0, -0.5, 0.25, -1.0, -4.0, 1.0, 2.0], np.float32)
VARIANCE = np.array([1.0, 4.0, 0.25, 1.0, 9.0, 2.0, 0.01, 1.0], np.float32)


def dirac(p: Prediction) -> Prediction:
    return replace(p, attention_variance=np.zeros_like(p.attention_variance))


def three() -> dict[str, Prediction]:
    """Return a plain method, a probabilistic one, and one with another kind of score, of one
    slide."""
    a = slide(at=0, instance_labels=LABELS)
    b = slide(at=3)
    c = slide(at=5)
    return {
        "plain": dirac(a),
        "diag": replace(b, attention_mean=4 * b.attention_mean),
        "instance": dirac(replace(c, score_kind="probability", probability=np.array([0.25]))),
    }


def names_of(figure: Figure) -> list[str]:
    return [str(a.get_label()) for a in figure.axes]


def pixels(path: Path, figure: Figure, name: str, p: Prediction) -> np.ndarray:
    """Return the colour in the middle of each instance's square in one panel."""
    image = np.asarray(Image.open(path).convert("RGB"))
    ax = axes(figure, name)
    layout = place(p)
    centres = ax.transData.transform(layout.corners + layout.side / 2)
    return image[image.shape[0] - 1 - centres[:, 1].astype(int), centres[:, 0].astype(int)]


def expected(values: np.ndarray, limits: tuple[float, float], quantity: str) -> np.ndarray:
    share = (values.astype(np.float64) - limits[0]) / (limits[1] - limits[0])
    return np.array([rgb(quantity, v) for v in share])


def test_each_panel_has_its_own_scale_and_labels_their_colours(tmp_path):
    path = tmp_path / "a.png"
    predictions = three()
    figure = side_by_side(predictions, bag="b", out=path)
    panels = [name for name in names_of(figure) if not name.endswith(" bar")]
    assert panels == ["labels", "plain mean", "diag mean", "diag variance", "instance mean"]
    for name, p in predictions.items():
        for key, values in (("mean", p.attention_mean), ("variance", p.attention_variance)):
            if values.any():
                colours = pixels(path, figure, f"{name} {key}", p).astype(int)
                limits = (values.min(), values.max())
                assert np.abs(colours - expected(values, limits, key)).max() <= 2, name
    label_colours = [tuple(rgb("labels", k)) for k in (0, 1)]
    colours = pixels(path, figure, "labels", predictions["plain"])
    for colour, label in zip(colours, LABELS, strict=True):
        if label >= 0:
            assert tuple(colour) == label_colours[label]
        else:
            assert tuple(colour) not in label_colours


@pytest.mark.parametrize(
    ("high", "said"),
    [
        (0.55, "varies by 10 %"),
        (0.502, "varies by 0.4 %"),
        (2.0, "varies 4-fold"),
        (51.0, "varies >100-fold"),
    ],
)
def test_a_variance_panel_says_how_much_there_is_to_see(tmp_path, high, said):
    p = slide(at=0)
    v = np.linspace(0.5, high, len(p.attention_variance), dtype=np.float32)
    figure = side_by_side(
        {"diag": replace(p, attention_variance=v)}, out=tmp_path / "a.png", bag="b"
    )
    assert axes(figure, "diag variance").get_title(loc="left").splitlines()[-1].endswith(said)


def test_names_and_captions_are_on_the_page(tmp_path):
    figure = side_by_side(
        three(), out=tmp_path / "a.png", bag="study · slide", label=1, caption="Chosen by lot."
    )
    words = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    assert "study · slide · label 1" in words
    assert "Chosen by lot." in words
    title = axes(figure, "instance mean").get_title(loc="left")
    assert title == "instance\nmean μ (probability) · p = 0.25"
    assert axes(figure, "labels").get_title(loc="left") == "instance labels\n3 of 8 positive"


def test_the_values_are_written_beside_the_picture(tmp_path):
    predictions = three()
    for name in ("a", "b"):
        side_by_side(predictions, bag="b", out=tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.png", "b.csv", "b.png"]
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert list(rows[0]) == [
        "instance",
        "x",
        "y",
        "label",
        "plain mean",
        "diag mean",
        "diag variance",
        "instance mean",
    ]
    assert [int(r["label"]) for r in rows] == LABELS.tolist()
    for name, p in predictions.items():
        assert np.float32([r[f"{name} mean"] for r in rows]).tolist() == p.attention_mean.tolist()
    assert [int(r["x"]) for r in rows] == predictions["plain"].coords[:, 0].tolist()


def test_slices_are_strips_with_the_lesion_marked_on_each(tmp_path):
    labels = np.array([0, 0, 1, 1, 0, 0, 1, 0], np.int8)
    a = scan(range(1, 9), instance_labels=labels)
    predictions = {"plain": dirac(a), "diag": replace(a, attention_mean=-a.attention_mean)}
    figure = side_by_side(predictions, bag="b", out=tmp_path / "a.png")
    v = predictions["diag"].attention_mean
    drawn = pixels(tmp_path / "a.png", figure, "diag mean", a)
    assert np.abs(drawn.astype(int) - expected(v, (v.min(), v.max()), "mean")).max() <= 2
    for name in ("plain mean", "diag mean", "diag variance"):
        lines = {float(line.get_xdata()[0]) for line in axes(figure, name).lines}
        assert lines == {2.0, 4.0, 6.0, 7.0}
    assert not axes(figure, "labels").lines
    title = axes(figure, "plain mean").get_title(loc="left")
    assert title == "plain · mean μ (logit) · p = 0.87"


def test_methods_with_long_names_do_not_run_into_each_other(tmp_path):
    p = slide(at=1, instance_labels=LABELS)
    methods = [f"a method of a rather long name, wide {k}, learning rate 0.0{k}" for k in range(8)]
    bag = "a slide whose name goes on " * 5
    figure = side_by_side(dict.fromkeys(methods, p), out=tmp_path / "a.png", bag=bag, label=0)
    assert len([n for n in assert_fits(figure) if not n.endswith(" bar")]) == 17


@pytest.mark.parametrize("cells", [(200, 4), (3, 120), (1, 1)])
def test_slides_of_any_shape_fit_the_page(tmp_path, cells):
    grid = np.stack(np.meshgrid(*map(np.arange, cells)), axis=-1).reshape(-1, 2)
    p = prediction((grid * 256).astype(np.int64), np.linspace(0, 1, len(grid)))
    assert_fits(side_by_side({"a": p, "b": p}, out=tmp_path / "a.png", bag="b"))


def test_of_several_classes_the_likeliest_above_0_is_drawn(tmp_path):
    p = slide()
    by_class = np.stack([p.attention_mean * 0, p.attention_mean, -p.attention_mean], axis=1)
    p = replace(
        p,
        attention_mean=by_class,
        attention_variance=np.zeros_like(by_class),
        probability=np.array([0.5, 0.2, 0.3], np.float32),
    )
    side_by_side({"m": p}, bag="b", out=tmp_path / "a.png")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as f:
        drawn = np.float32([r["m mean"] for r in csv.DictReader(f)])
    assert drawn.tolist() == by_class[:, 2].tolist()


def test_bags_that_are_not_the_same_are_refused(tmp_path):
    a, b = slide(), slide(offset=(256, 0))
    with pytest.raises(InputError, match="'one' and 'two'"):
        side_by_side({"one": a, "two": b}, bag="b", out=tmp_path / "a.png")
    with pytest.raises(InputError, match="'b'"):
        side_by_side({}, bag="b", out=tmp_path / "a.png")
    broken = replace(a, attention_mean=np.full_like(a.attention_mean, np.nan))
    with pytest.raises(BagError, match="'bag'"):
        side_by_side({"one": broken}, bag="b", out=tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_the_slide_comes_first_and_its_pixels_are_at_their_coordinates(tmp_path):
    image = np.full((1536, 1280, 3), 255, np.uint8)
    column, row = CELLS[4] * int(STRIDE)
    image[row : row + int(STRIDE), column : column + int(STRIDE)] = (200, 30, 90)
    path = tmp_path / "a.png"
    figure = side_by_side(three(), out=path, bag="b", sources=OneSource(ArraySlide(image)))
    assert [n for n in names_of(figure) if not n.endswith(" bar")][:2] == ["source", "labels"]
    shown = pixels(path, figure, "source", slide(at=0))
    assert [k for k, c in enumerate(shown) if tuple(c) == (200, 30, 90)] == [4]


def test_slices_stand_where_their_values_are(tmp_path):
    positions = np.arange(24.0) * 5
    volume = np.full((24, 32, 32), -1000, np.float32)
    volume[12:] = 1000  # white in the brain window
    source = Scan(
        name="s",
        path=Path("s"),
        format="dicom",
        volume=volume,
        positions=positions,
        spacing=(1.0, 1.0),
        thickness=5.0,
    )
    p = dirac(scan(positions))
    path = tmp_path / "a.png"
    figure = side_by_side({"plain": p}, out=path, bag="b", sources=OneSource(source))
    shown = pixels(path, figure, "source", p)
    assert (shown[:11] < 30).all() and (shown[14:] > 220).all()
    assert axes(figure, "source").get_position().height > (
        1.5 * axes(figure, "plain mean").get_position().height
    )


def test_a_slide_that_does_not_hold_the_patches_is_refused(tmp_path):
    small = OneSource(ArraySlide(np.zeros((300, 300, 3), np.uint8)))
    with pytest.raises(InputError, match="array"):
        side_by_side(three(), out=tmp_path / "a.png", bag="b", sources=small)


# --- doubt ------------------------------------------------------------------------------------


def evidence(**more):
    return replace(
        slide(instance_labels=LABELS),
        attention_mean=MEAN,
        attention_variance=VARIANCE,
        score_kind="evidence",
        instance_probability=np.linspace(0, 1, 8, dtype=np.float32),
        **more,
    )


def drawn(p, others=None):
    others = {"ABMIL": slide(at=1), "ProbSA": slide(at=2)} if others is None else others
    return draw_doubt(p, name="own", others=others, title="a slide", caption="What it is.")


def test_the_panels_of_doubt_and_their_values():
    p = evidence()
    figure = drawn(p)
    names = [n for n in names_of(figure) if not n.endswith(" bar")]
    assert names == [
        "labels",
        "ABMIL mean",
        "ProbSA mean",
        "evidence",
        "probability",
        "calls",
        "deviation",
        "doubt",
        "plot",
    ]
    found = {q.key: q for q in doubt_of(p, name="own")}
    np.testing.assert_allclose(found["evidence"].values, MEAN)
    np.testing.assert_allclose(found["probability"].values, p.instance_probability)
    np.testing.assert_allclose(found["deviation"].values, np.sqrt(VARIANCE))
    np.testing.assert_allclose(found["doubt"].values, doubt(p))
    # called positive: 1, 3, 6 and 7; the label of 7 is unknown
    wrong = [0, 0, 1, 1, 0, 0, 0, np.nan]
    np.testing.assert_array_equal(found["calls"].values, wrong)
    assert axes(figure, "calls").get_title(loc="left").endswith("2 of 7")
    limits = {key: found[key].limits for key in ("evidence", "probability", "doubt")}
    assert limits == {"evidence": (-4, 4), "probability": (0, 1), "doubt": (0, 0.5)}
    bar = axes(figure, "calls bar")
    assert [t.get_text() for t in bar.get_yticklabels()] == ["right", "wrong"]


def test_the_plot_has_a_dot_per_patch_and_lines_on_which_calls_flip_alike():
    p = evidence()
    ax = axes(drawn(p), "plot")
    dots = [c for c in ax.collections if isinstance(c, PathCollection)]
    shown = np.concatenate([np.asarray(c.get_offsets()) for c in dots])
    expected = np.stack([MEAN, np.sqrt(VARIANCE)], 1)
    np.testing.assert_allclose(shown[np.lexsort(shown.T)], expected[np.lexsort(expected.T)])
    rays = [line for line in ax.lines if len(line.get_xdata()) == 3]
    for ray, probability in zip(rays, RAYS, strict=True):
        mean = ray.get_xdata()[0]
        std = ray.get_ydata()[0]
        instance = replace(
            p, attention_mean=np.float32([mean]), attention_variance=np.float32([std**2])
        )
        assert flip(instance)[0] == pytest.approx(probability, abs=1e-6)


def test_an_ensemble_says_that_the_deviation_is_of_all_members():
    parts = {"variance_within": VARIANCE / 2, "variance_between": VARIANCE / 2}
    titles = []
    for p in (evidence(), evidence(**parts)):
        panels = {q.key: q for q in doubt_of(p, name="")}
        titles.append(panels["deviation"].title)
    one_model, ensemble = titles
    assert "all members" not in one_model
    assert "all members" in ensemble


@pytest.mark.parametrize(
    ("zero", "probability", "expected"),
    [
        ("attention_variance", np.float32(MEAN > 0), 0.0),
        ("attention_mean", np.full(8, 0.5, np.float32), 0.5),
    ],
    ids=["no doubt", "nothing but doubt"],
)
def test_a_bag_with_the_same_doubt_everywhere_can_be_drawn(zero, probability, expected):
    p = replace(evidence(), **{zero: np.zeros(8, np.float32)}, instance_probability=probability)
    np.testing.assert_array_equal(doubt(p), np.full(8, expected))
    figure = drawn(p, {})
    figure.canvas.draw()
    assert len([n for n in names_of(figure) if not n.endswith(" bar")]) == 7


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="logit"):
        drawn(slide(instance_labels=LABELS))
    with pytest.raises(InputError, match="bags with instance labels"):
        drawn(replace(evidence(), instance_labels=None))
    with pytest.raises(InputError, match="'bag'"):
        drawn(evidence(), {"ABMIL": slide(at=1, offset=(64, 0))})
