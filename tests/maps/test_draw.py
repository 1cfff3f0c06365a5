"""Maps show the right colour at the right pixels, read back from the PNG, and fit their page."""

import csv
import gzip
import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from support.array_slide import ArraySlide
from support.made_maps import (
    CELLS,
    STRIDE,
    assert_fits,
    axes,
    bag,
    lattice,
    of_classes,
    panel_pixels,
    pink,
    pixel_width,
    prediction,
    rgb,
    scan,
    slide,
    square_of,
    written,
)
from support.refusals import refused

from probsa.errors import BagError
from probsa.maps import (
    DOUBTS,
    NO_VARIANCE,
    VARIANCES,
    ColourLimits,
    draw_map,
    place,
    save_figure,
    squares,
)
from probsa.maps.draw import heading, round_length
from probsa.maps.picture import BACKGROUND, LUMINANCE, blend, slide_canvas
from probsa.maps.quantities import quantities
from probsa.maps.scale import common_limits
from probsa.maps.sources import chosen_scale
from probsa.tasks import Stated


def at_centre(picture, ax, where):
    """The colour of a pixel of the picture at a place in a panel."""
    x, y = ax.transData.transform(where)
    return picture[int(len(picture) - y), int(x)].astype(int)


def assert_square(picture, ax, key, corner, side=STRIDE):
    square = square_of(picture, ax, rgb(key, 1.0))
    x, y = corner
    tolerance = 1.5 * pixel_width(ax)
    np.testing.assert_allclose(square, [x, y, x + side, y + side], rtol=0, atol=tolerance)


def whole(source, *, scale):
    return source.region((0.0, 0.0, *map(float, source.size)), scale=scale)


def mean_of(p):
    return next(quantities(p, also=VARIANCES))


@pytest.mark.parametrize(("at", "offset"), [(0, (0, 0)), (3, (10_000, 73_001)), (5, None)])
def test_brightest_patch_is_at_its_coordinates(tmp_path, at, offset):
    p = slide(at=at, offset=offset or (0, 0))
    if offset is None:
        p = replace(p, coords=p.coords + np.array([0, 77]) * (CELLS[:, :1] > 1))
        assert place(p).lattice is None
    picture, figure = written(p, tmp_path)
    for key, row in (("mean", at), ("variance", (at + 1) % len(CELLS))):
        assert_square(picture, axes(figure, key), key, p.coords[row])


def test_x_goes_right_and_y_goes_down(tmp_path):
    p = slide(at=0)  # the topmost patch, in the last column
    picture, figure = written(p, tmp_path)
    inside, _ = panel_pixels(picture, axes(figure, "mean"))
    rows, columns = np.nonzero((np.abs(inside.astype(int) - rgb("mean", 1.0)) <= 1).all(-1))
    assert rows.max() < len(inside) / 4
    assert columns.min() > inside.shape[1] / 2


def test_every_patch_has_its_own_colour_and_glass_has_none(tmp_path):
    labels = np.array([1, 0, 0, 1, 0, 0, 0, -1])
    p = slide(instance_labels=labels)
    picture, figure = written(p, tmp_path)
    known = np.where(labels < 0, np.nan, labels)
    for key, values in (
        ("mean", p.attention_mean),
        ("variance", p.attention_variance),
        ("labels", known),
    ):
        share = (values - np.nanmin(values)) / np.ptp(values[np.isfinite(values)])
        for cell in np.ndindex(4, 5):
            colour = at_centre(picture, axes(figure, key), (np.array(cell) + 0.5) * STRIDE)
            row = np.flatnonzero((cell == CELLS).all(1))
            missing = len(row) == 0 or np.isnan(share[row[0]])
            expected = BACKGROUND if missing else rgb(key, share[row[0]])
            assert np.abs(colour - expected).max() <= 2, (key, cell)
    assert "2 of 8 positive" in axes(figure, "labels").get_title(loc="left")
    assert len(draw_map(slide()).axes) == 4  # no panel without labels


def test_brightest_slice_of_a_scan(tmp_path):
    p = scan(range(5, 35))
    picture, figure = written(p, tmp_path)
    for quantity, row in (("mean", 10), ("variance", 15)):
        ax = axes(figure, quantity)
        left, _, right, _ = square_of(picture, ax, rgb(quantity, 1.0))
        np.testing.assert_allclose([left, right], [row, row + 1], atol=1.5 * pixel_width(ax))
    bottom = axes(figure, "variance")
    numbers = [t.get_text() for t in bottom.get_xticklabels()]
    assert numbers == [str(k) for k in range(5, 35)]
    np.testing.assert_allclose(bottom.get_xticks(), np.arange(30) + 0.5)


def test_missing_slices_are_gaps(tmp_path):
    numbers = [4, 5, 6, 9, 10, 11, 12, 14]
    picture, figure = written(scan(numbers), tmp_path)
    for position in range(11):
        colour = at_centre(picture, axes(figure, "mean"), (position + 0.5, 0.5))
        gap = position + 4 not in numbers
        assert (np.abs(colour - BACKGROUND).max() <= 1) == gap
    assert "3 missing" in axes(figure, "variance").get_xlabel()


def test_slices_are_drawn_by_position_whatever_the_order_of_their_rows(tmp_path):
    numbers = [1, 10, 11, 12, 2, 3, 4, 6]
    picture, figure = written(scan(numbers), tmp_path)
    first, last = min(numbers), max(numbers)
    for position in range(first, last + 1):
        colour = at_centre(picture, axes(figure, "mean"), (position - first + 0.5, 0.5))
        gap = position not in numbers
        assert (np.abs(colour - BACKGROUND).max() <= 1) == gap
    assert "4 missing" in axes(figure, "variance").get_xlabel()


@pytest.mark.parametrize("n", [7, 500])
def test_bags_without_coordinates_are_drawn_in_row_order(tmp_path, n):
    mean = np.zeros(n)
    mean[n // 2] = 1
    p = prediction(None, mean, mean + 1, stride=None)
    picture, figure = written(p, tmp_path)
    ax = axes(figure, "mean")
    columns = 7 if n == 7 else 32
    row, column = divmod(n // 2, columns)
    square = square_of(picture, ax, rgb("mean", 1.0))
    expected = [column, row, column + 1, row + 1]
    where = slice(None, None, 1 + (n == 7))  # the height of a strip has no unit
    np.testing.assert_allclose(square[where], expected[where], atol=1.5 * pixel_width(ax))


@pytest.mark.parametrize("coords", [np.array([[512, 1024]]), np.array([[17]]), None])
def test_one_instance(tmp_path, coords):
    picture, figure = written(prediction(coords, [0.7], [0.2]), tmp_path)
    left, top, right, bottom = square_of(picture, axes(figure, "mean"), rgb("mean", 0.5))
    assert right > left and bottom > top
    bar = axes(figure, "mean bar")
    assert bar.get_ylim()[0] < 0.7 < bar.get_ylim()[1]
    assert [t.get_text() for t in bar.get_yticklabels()] == ["0.7 logit"]


@pytest.mark.parametrize("likeliest", [0, 1, 2])
def test_the_heading_and_each_panel_are_those_of_their_class(tmp_path, likeliest):
    base = slide()
    means = [np.roll(base.attention_mean, c) for c in range(3)]
    p = of_classes(base, *means, probability=np.roll([0.6, 0.3, 0.1], likeliest))
    named = replace(p, stated=Stated(classes=("none", "low", "7")))
    means_of = [q.title.rpartition(", ")[2] for q in quantities(named) if q.key == "mean"]
    assert means_of == ["none", "low", "class 7"]
    picture, figure = written(p, tmp_path)
    assert (
        heading(p, label="2").line
        == f"bag · class {likeliest}: p 0.60 ± 0.067 (one model) · label 2"
    )
    assert heading(p).line in figure.texts[0].get_text()
    for c in range(3):
        ax = axes(figure, f"mean {c}")
        assert ax.get_title(loc="left") == f"attention mean μ, class {c}"
        assert f"class {c}" in axes(figure, f"variance {c}").get_title(loc="left")
        assert_square(picture, ax, "mean", p.coords[c])  # the largest of class c is in row c
    boxes = [axes(figure, f"mean {c}").get_position() for c in range(3)]
    assert all(a.y0 > b.y1 and a.x0 == b.x0 for a, b in itertools.pairwise(boxes))


def test_fixed_scale_means_the_same_colour_in_all_bags(tmp_path):
    a = slide(at=0)
    b = replace(slide(at=0), name="other", attention_mean=a.attention_mean * 4)
    shared = 6  # this patch has the same mean in both
    b.attention_mean[shared] = a.attention_mean[shared]
    colour = {}
    for scale, limits in (("fixed", common_limits([a, b])), ("per-bag", None)):
        for p in (a, b):
            picture, figure = written(p, tmp_path, limits=limits)
            where = (CELLS[shared] + 0.5) * STRIDE
            colour[scale, p.name] = at_centre(picture, axes(figure, "mean"), where)
            said = "scale of all bags" if limits else "scale of this bag"
            assert said in axes(figure, "mean").texts[0].get_text()
    assert (colour["fixed", "bag"] == colour["fixed", "other"]).all()
    assert np.abs(colour["per-bag", "bag"] - colour["per-bag", "other"]).max() > 10


@pytest.mark.parametrize(
    ("limits", "arrows"),
    [((-1.0, 3.0), "neither"), ((0.0, 3.0), "min"), ((-1.0, 2.0), "max"), ((0.0, 2.0), "both")],
)
def test_values_beyond_a_fixed_scale_are_clipped_and_said(tmp_path, limits, arrows):
    fixed = ColourLimits(mean=limits, variance=(0.0, 1.0))
    picture, figure = written(slide(at=0), tmp_path, limits=fixed)
    assert axes(figure, "mean bar")._colorbar.extend == arrows  # pyright: ignore
    colour = at_centre(picture, axes(figure, "mean"), (CELLS[0] + 0.5) * STRIDE)
    assert np.abs(colour - rgb("mean", 1.0)).max() <= 1


def test_real_slide_geometry(tmp_path, shared_data):
    """One bright patch is found among thousands, on a lattice and off it."""
    table = shared_data / "labels_splits" / "camelyon16_ncrf_valid_patch_coords.csv.gz"
    with gzip.open(table, "rt") as f:
        rows = [r for r in csv.DictReader(f) if r["slide"] == "Tumor_104"]
    free = np.array([[int(r["x_center"]), int(r["y_center"])] for r in rows])
    snapped = np.unique(free // 256 * 256, axis=0)
    for coords in (free, snapped):
        mean = np.zeros(len(coords))
        # choose a patch that no other covers, so that all of it is visible
        apart = np.abs(coords[:, None] - coords[None]).max(-1) + np.eye(len(coords)) * 10**6
        row = int(apart.min(1).argmax())
        mean[row] = 1
        p = prediction(coords, mean, mean + 1)
        picture, figure = written(p, tmp_path)
        assert_square(picture, axes(figure, "variance"), "variance", coords[row])


@pytest.mark.parametrize("n", [20, 60])
def test_slice_numbers_do_not_touch(n):
    figure = draw_map(scan(range(100, 100 + n)), also=VARIANCES)
    figure.canvas.draw()
    ax = axes(figure, "variance")
    boxes = [t.get_window_extent() for t in ax.get_xticklabels()]
    assert len(boxes) >= n // 5
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_dirac_says_that_there_is_no_variance():
    p = replace(slide(), attention_variance=np.zeros(len(CELLS), np.float32))
    ax = axes(draw_map(p, also=VARIANCES), "variance")
    said = ax.texts[0].get_text().replace("\n", " ")
    assert said == NO_VARIANCE
    assert not ax.images
    assert "variance bar" not in [a.get_label() for a in draw_map(p, also=VARIANCES).axes]
    nan = replace(slide(), attention_mean=np.full(8, np.nan, np.float32))
    refused(BagError, r"'bag'.*mean.*finite", draw_map, nan)


def words_of(figure, name):
    """Return the title of a panel and the note below it."""
    ax = axes(figure, name)
    return ax.get_title(loc="left"), " ".join(t.get_text() for t in ax.texts).replace("\n", " ")


def bar_texts(figure, name):
    bar = axes(figure, f"{name} bar")
    ticks = (*bar.get_xticklabels(), *bar.get_yticklabels())
    return [t.get_text() for t in ticks if t.get_text()]


def pages():
    """Yield pages of every sort: of slides with and without tissue, of strips, of classes."""
    labelled = {"instance_labels": np.arange(30) % 2}
    p = bag(lattice(), **labelled)
    chance = np.linspace(0, 1, 30, dtype=np.float32)
    own = replace(p, score_kind="evidence", instance_probability=chance)
    yield "plain", own, {}
    yield "members", replace(own, variance_within=chance, variance_between=chance[::-1]), {}
    yield "flat", bag(lattice(), mean=np.full(30, 0.7)), {}
    yield "all bags", own, {"limits": ColourLimits(mean=(-1e-7, 12345.678), variance=(0.0, 1.0))}
    yield "classes", of_classes(p, p.attention_mean, p.attention_mean, probability=[0.2, 0.8]), {}
    for size in ((640, 512), (1600, 250)):
        source = whole(ArraySlide(pink(*size)), scale=2.0)
        corners = lattice(2, 2, at=(0, 0))
        small = bag(corners, instance_labels=np.array([0, 1, 1, 0]), score_kind="evidence")
        yield f"{size[0]} wide", small, {"over": (source, squares(small))}
    yield "strip", scan(range(28), instance_labels=np.arange(28) % 2, score_kind="evidence"), {}
    wide = np.argwhere(np.ones((1, 60)))[:, ::-1] * 256
    yield "wide", prediction(wide, np.linspace(-1, 1, 60)), {}


@pytest.mark.parametrize(("p", "how"), [pytest.param(p, how, id=k) for k, p, how in pages()])
def test_texts_at_colour_bars_are_horizontal_and_short(p, how):
    """A number at each end with its unit, and words in the panels' titles."""
    figure = draw_map(p, **{"also": (*DOUBTS, *VARIANCES)} | how)
    assert_fits(figure)
    bars = [ax for ax in figure.axes if str(ax.get_label()).endswith(" bar")]
    assert bars
    for ax in bars:
        assert ax.get_xlabel() == ax.get_ylabel() == ""
        texts = [t for t in (*ax.get_xticklabels(), *ax.get_yticklabels()) if t.get_text()]
        assert 1 <= len(texts) <= 3
        for text in texts:
            assert text.get_rotation() == 0
            assert "\n" not in text.get_text() and len(text.get_text()) <= 16
        title = axes(figure, str(ax.get_label()).removesuffix(" bar")).get_title(loc="left")
        assert title


def test_titles_and_bars_say_what_is_shown():
    labelled = slide(score_kind="probability", instance_labels=np.zeros(8, np.int64))
    figure = draw_map(labelled, also=VARIANCES)
    (true_labels,) = [q for q in quantities(labelled) if q.key == "labels"]
    assert {name: words_of(figure, name) for name in ("mean", "variance", "labels")} == {
        "mean": ("instance score mean μ", "scale of this bag: −0.714 to 3"),
        "variance": ("instance score variance σ²", "scale of this bag: 0.1 to 2"),
        "labels": ("instance labels: 0 of 8 positive", true_labels.note),
    }
    assert "never used" in true_labels.note
    assert [bar_texts(figure, name) for name in ("mean", "variance", "labels")] == [
        ["−0.714", "3 probability"],
        ["0.1", "2 probability²"],
        ["negative", "positive"],
    ]
    logit = draw_map(slide())
    assert words_of(logit, "mean") == ("attention mean μ", "scale of this bag: −0.714 to 3")
    assert bar_texts(logit, "mean") == ["−0.714", "3 logit"]
    figure = draw_map(slide(), title=heading(slide(), label="1"))
    assert (
        figure.texts[0].get_text()
        == "bag · class 1: p 0.87 ± 0.05 (one model), threshold 0.50 · label 1"
    )
    sure = replace(slide(), std=np.zeros(1, np.float32))
    assert draw_map(sure).texts[0].get_text() == "bag · class 1: p 0.87, threshold 0.50"
    assert draw_map(slide(), title="mine").texts[0].get_text() == "mine"
    given = {1.0: 1, 1.9: 1, 2.0: 2, 4.99: 2, 5.0: 5, 999.0: 500, 1000.0: 1000, 0.3: 0.2}
    assert {v: round_length(v) for v in given} == given


@pytest.mark.parametrize("name", ["a$b$", "x_" * 200 + "end", "スライド", "$\\frac{"])
def test_any_name_can_be_drawn(tmp_path, name):
    p = replace(slide(), name=name)
    figure = draw_map(p)
    save_figure(figure, tmp_path / "map.png")
    if name.isascii():
        assert_fits(figure)
    assert [f.name for f in tmp_path.iterdir()] == ["map.png"]


@pytest.mark.parametrize("shape", [(1, 60), (40, 12)])
def test_extreme_slides_are_readable(tmp_path, shape):
    """Nothing is cut off, panels do not overlap, cells are square and large enough to see."""
    coords = np.argwhere(np.ones(shape))[:, ::-1] * 256
    mean = np.zeros(len(coords))
    mean[-1] = 1
    p = prediction(coords, mean, instance_labels=np.zeros(len(coords), np.int64))
    picture, figure = written(p, tmp_path)
    assert_fits(figure)
    ax = axes(figure, "mean")
    left, top, right, bottom = square_of(picture, ax, rgb("mean", 1.0))
    assert right - left == pytest.approx(bottom - top, abs=2.1 * pixel_width(ax))
    assert (right - left) / pixel_width(ax) >= 3


@pytest.mark.parametrize("caption", ["", "word " * 90], ids=["bare", "captioned"])
@pytest.mark.parametrize("shape", [(5, 6), (2, 9)])
def test_a_caption_covers_nothing(caption, shape):
    figure = draw_map(bag(lattice(*shape)), title="a", caption=caption)
    boxes = assert_fits(figure)
    assert len(figure.texts) == 1 + bool(caption)
    lowest = min(box.y0 for box in boxes.values())
    assert all(t.get_window_extent().y1 < lowest for t in figure.texts[1:])


# --- over slides ------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.25, 0.6, 1.0])
def test_a_square_is_its_colour_over_grey_tissue_and_the_rest_is_tissue(alpha):
    p = bag(lattice(), mean=np.r_[np.linspace(-1, 1, 29), np.nan])
    picture = whole(ArraySlide(pink()), scale=2.0)
    blended = blend(slide_canvas(picture, squares(p), alpha=alpha), mean_of(p))
    covered = np.zeros(picture.image.shape[:2], bool)
    for k, (x, y) in enumerate(p.coords[:-1]):
        part = np.s_[y // 2 : y // 2 + 32, x // 2 : x // 2 + 32]
        covered[part] = True
        grey = picture.image[part] @ LUMINANCE
        expected = alpha * rgb("mean", k / 28) + (1 - alpha) * grey[..., None]
        assert np.abs(blended[part] - expected).max() <= 1
    # the last patch has no value, so it shows tissue, as does everything outside patches
    assert (~covered).sum() > 1000
    np.testing.assert_array_equal(blended[~covered], picture.image[~covered])


@pytest.mark.parametrize("size", [(640, 512), (300, 900)])
def test_the_page_shows_the_pixels_of_picture_and_blend(tmp_path, size):
    p = bag(lattice(3, 4), instance_labels=np.array([0, 1, -1] * 4))
    over = whole(ArraySlide(pink(*size)), scale=1.0), squares(p)
    drawn, figure = written(p, tmp_path, over=over, alpha=0.5)
    canvas = slide_canvas(*over, alpha=0.5)
    found = {q.key: blend(canvas, q) for q in quantities(p, also=VARIANCES)}
    inner = np.s_[3:-3, 3:-3]

    def shown(name):
        box = axes(figure, name).get_window_extent()
        x, y = round(box.x0), round(len(drawn) - box.y1)
        return drawn[y : y + round(box.height), x : x + round(box.width)]

    for name in ("mean", "variance", "labels"):
        assert shown(name).shape == found[name].shape
        np.testing.assert_array_equal(shown(name)[inner], found[name][inner])
    changed = (shown("tissue")[inner] != over[0].image[inner]).any(-1)  # the scale bar
    rows, columns = np.nonzero(changed)
    assert rows.min() > changed.shape[0] - 80
    assert columns.min() > changed.shape[1] / 3 or size[0] < 400


@pytest.mark.parametrize(
    ("size", "classes"), [((640, 512), 2), ((250, 1600), 1), ((1600, 250), 2), ((64, 64), 1)]
)
def test_nothing_on_the_page_is_cut_off_or_overlaps(size, classes):
    corners = lattice(2, 2, at=(0, 0)) if min(size) > 64 else np.array([[0, 0]])
    p = bag(corners, instance_labels=np.arange(len(corners)) % 2, name="a-long-name-" * 9)
    if classes > 1:
        p = of_classes(p, p.attention_mean, p.attention_mean, probability=[0.2, 0.8])
    source = ArraySlide(pink(*size), mpp=0.25)
    scale = chosen_scale((0.0, 0.0, *map(float, size)), longest=600)
    boxes = assert_fits(draw_map(p, over=(whole(source, scale=scale), squares(p))))
    assert len([name for name in boxes if "bar" not in name]) == 1 + 2 * classes + (
        1 if size[0] > 2.5 * size[1] else classes  # panels below each other share the labels
    )


@pytest.mark.parametrize(
    ("mpp", "is_given", "text"),
    [
        (0.5, False, "50 µm"),
        (8.0, False, "1 mm"),
        (None, False, ""),
        (0.5, True, "50 µm (as given)"),
        (8.0, True, "1 mm (as given)"),
    ],
)
def test_the_scale_bar_is_as_long_as_it_says(mpp, is_given, text):
    picture = whole(ArraySlide(pink(), mpp=mpp, mpp_is_given=is_given), scale=2.0)
    ax = axes(draw_map(bag(lattice()), over=(picture, squares(bag(lattice())))), "tissue")
    assert [t.get_text() for t in ax.texts] == ([text] if text else [])
    bars = [v for v in ax.patches if to_rgb(v.get_facecolor()) == (0, 0, 0)]
    assert len(bars) == (mpp is not None)
    if mpp is not None:
        number = float(text.split()[0]) * (1000 if "mm" in text else 1)
        assert bars[0].get_width() * mpp == pytest.approx(number)
        assert bars[0].get_x() >= 0 and bars[0].get_x() + bars[0].get_width() <= 640


def test_the_page_says_what_is_shown():
    p = bag(lattice())
    picture = whole(ArraySlide(pink()), scale=2.0)
    part = replace(picture, whole=False, undecoded=2, blocks=9)
    titles = []
    for shown in (picture, part):
        figure = draw_map(p, over=(shown, squares(p)))
        titles.append(axes(figure, "tissue").get_title(loc="left").replace("\n", " "))
    assert titles[0] == "tissue, whole slide"
    assert "whole slide" not in titles[1] and "2 of 9 parts unreadable" in titles[1]


def test_a_strip_of_one_panel_has_room_for_many_warnings():
    warned = "This model is not shown better than chance; the map is no better than the centre. "
    caption = "What the numbers of this picture say. " * 9
    title = "\n".join(["a · class 0", *[warned * 2] * 4])
    assert_fits(draw_map(scan(range(28)), title=title, caption=caption, also=()))
