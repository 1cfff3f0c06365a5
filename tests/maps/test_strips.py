"""Maps of scans: slices matched by position, their pixels, colours and labels, and the plot."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.made_maps import assert_fits, axes, of_classes, prediction, rgb, scan_bag
from support.refusals import refused

from probsa.errors import InputError
from probsa.maps import VARIANCES, match_slices, save_figure, showing
from probsa.maps.strips import (
    DPI,
    FRAME,
    MOST,
    SELECTED,
    SWATCH,
    TILE,
    draw_strip,
    select_rows,
    slice_tiles,
)
from probsa.slides import Scan

POSITIVE = (213, 94, 0)
NEGATIVE = (86, 180, 233)
UNKNOWN = (128, 128, 128)
UNEVEN = np.array([-30.0, -25.8, -24.6, -17.2, -12.0, -5.5, 0.0, 4.0, 8.0, 12.5, 20.0, 31.0])


def volume(n=12, rows=TILE, columns=TILE) -> np.ndarray:
    """Return slices of 2·i HU (mid-grey at 40) with a brighter top-left quarter."""
    v = np.zeros((n, rows, columns), np.float32) + 2.0 * np.arange(n)[:, None, None]
    v[:, : rows // 2, : columns // 2] += 30
    return v


def scan(positions, *, spacing=(0.5, 0.5), **shape) -> Scan:
    array = np.asarray(positions, np.float64)
    return Scan(
        name="series",
        path=Path("series"),
        format="dicom",
        volume=volume(len(array), **shape),
        positions=array,
        spacing=spacing,
        thickness=5.0,
    )


def matched(p, positions):
    return match_slices(p, positions, path=Path("series"))


def called_second(p, *means):
    """Return a prediction of several classes, of which the second is called."""
    return of_classes(p, *means, probability=[0.1, 0.6, *[0.1] * (len(means) - 2)])


def test_slices_are_found_by_position_in_whatever_order():
    rng = np.random.default_rng(0)
    order = rng.permutation(12)[:9]  # a bag may also omit slices
    found = matched(scan_bag(UNEVEN[order] + rng.uniform(-0.04, 0.04, 9)), UNEVEN)
    np.testing.assert_array_equal(found, order)
    shuffled = UNEVEN[rng.permutation(12)]
    np.testing.assert_array_equal(shuffled[matched(scan_bag(UNEVEN), shuffled)], UNEVEN)
    np.testing.assert_array_equal(matched(scan_bag([7.0]), [7.0]), [0])


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        (np.where(UNEVEN == 12.5, 12.7, UNEVEN), r"slice at 12\.7 mm.*nearest .* at 12\.5"),
        (np.arange(12), "numbers of slices"),
        ([-35.0], "slice at -35 mm"),
        ([40.0], "slice at 40 mm"),
        (UNEVEN + 1.0, "another series"),
    ],
)
def test_positions_of_another_series_are_refused(positions, said):
    refused(InputError, said, matched, scan_bag(positions), UNEVEN)


def test_a_slide_has_no_slices():
    with pytest.raises(InputError, match="'bag'"):
        matched(prediction(np.array([[0, 0], [256, 0]]), [1.0, 2.0]), UNEVEN)


def test_all_slices_are_shown_up_to_sixty_and_those_that_lead_beyond():
    rng = np.random.default_rng(1)
    for n in (1, 28, MOST, MOST + 1, 300):
        mean = rng.normal(size=n)
        position = rng.permutation(n) * 2.5
        rows = select_rows(mean, position)
        assert (np.diff(position[rows]) > 0).all()
        want = np.arange(n) if n <= MOST else np.argsort(mean)[-SELECTED:]
        assert set(rows) == set(want)
    mean[5] = np.nan
    assert 5 not in select_rows(mean, position)


def test_a_slice_is_windowed_and_its_colours_are_below_it():
    s = scan(UNEVEN)
    colours = [np.arange(36, dtype=np.uint8).reshape(12, 3) + k for k in (0, 100)]
    tiles = slice_tiles(s, [3, 0, 11], swatches=colours)
    w, h = tiles.size
    assert (w, h) == (TILE, TILE)
    for k, i in enumerate([3, 0, 11]):
        x, y = tiles.corners[k]
        image = tiles.image[y : y + h, x : x + w]
        # the brain window: 0 HU is black, 80 HU is white
        assert (image[h // 2 :, w // 2 :] == round(2 * i / 80 * 255)).all()
        assert (image[: h // 2, : w // 2] == round((2 * i + 30) / 80 * 255)).all()
        for j in (0, 1):
            top = y + h + j * SWATCH
            assert (tiles.image[top : top + SWATCH, x : x + w] == colours[j][k]).all()
    assert len({tuple(c) for c in tiles.corners.tolist()}) == 3


def test_frames_say_the_label_and_the_slice_keeps_its_shape():
    s = scan(UNEVEN, rows=60, columns=90, spacing=(2.0, 1.0))  # 120 mm high, 90 mm wide
    frames = np.array([POSITIVE, NEGATIVE], np.uint8)
    tiles = slice_tiles(s, [0, 1], swatches=[], frames=frames)
    assert tiles.size == (TILE, 240)
    for k in (0, 1):
        x, y = tiles.corners[k]
        tile = tiles.image[y : y + 240, x : x + TILE]
        edge = np.ones(tile.shape[:2], bool)
        edge[FRAME:-FRAME, FRAME:-FRAME] = False
        assert (tile[edge] == frames[k]).all()
        assert (tile[~edge][:, 0] == tile[~edge][:, 2]).all()  # grey


@pytest.mark.parametrize("n", [1, 2, 28, 60])
def test_slices_do_not_touch_and_fill_few_columns(n):
    tiles = slice_tiles(scan(np.arange(n) * 1.0), list(range(n)), swatches=[])
    w, h = tiles.size
    height, width = tiles.image.shape[:2]
    boxes = [(x, y, x + w, y + h) for x, y in tiles.corners.tolist()]
    assert all(b[2] <= width and b[3] <= height for b in boxes)
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]
    columns = len(set(tiles.corners[:, 0].tolist()))
    assert columns == min(n, max(4, {28: 7, 60: 10}.get(n, 0)))


def test_the_pages_swatches_have_the_colours_of_the_values(tmp_path):
    s = scan(UNEVEN)
    labels = np.array([0, 1, -1] * 4)
    p = scan_bag(UNEVEN[::-1], instance_labels=labels)  # from the top of the head downwards
    path = tmp_path / "map.png"
    figure = draw_strip(p, s, also=VARIANCES)
    save_figure(figure, path)
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    ax = axes(figure, "slices")
    box = ax.get_window_extent()
    left = round(box.x0)
    top = round(len(picture) - box.y1)
    tiles = slice_tiles(s, list(range(12)), swatches=[np.zeros((12, 3), np.uint8)] * 2)
    w, h = tiles.size
    assert box.width == pytest.approx(tiles.image.shape[1])
    for k in range(12):  # slices are ordered by position, so the bag's last row comes first
        row = 11 - k
        x, y = tiles.corners[k] + (left, top)
        frame = {0: NEGATIVE, 1: POSITIVE, -1: UNKNOWN}[int(labels[row])]
        assert (picture[y + h // 2, x + 2] == frame).all()
        assert (picture[y + h - 20, x + w - 20] == round(2 * k / 80 * 255)).all()
        for j, quantity in enumerate(("mean", "variance")):
            values = getattr(p, f"attention_{quantity}").astype(float)
            share = (values[row] - values.min()) / np.ptp(values)
            colour = picture[y + h + j * SWATCH + 3, x + 3]
            assert np.abs(colour - rgb(quantity, share)).max() <= 1


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def test_the_texts_and_panels_of_a_strip():
    p = scan_bag(UNEVEN)
    labels = texts(axes(draw_strip(p, scan(UNEVEN)), "slices"))
    assert (labels[0], labels[4], len(labels)) == ("−30.0", "−12.0", 12)
    zero = np.zeros(12, np.float32)
    p = replace(scan_bag(UNEVEN), attention_variance=zero, weight_above_uniform=None)
    figure = draw_strip(p, scan(UNEVEN))
    assert len(texts(axes(figure, "slices"))) == 12
    assert "doubt bar" not in [a.get_label() for a in figure.axes]
    assert not axes(figure, "values").collections
    p = replace(p, contribution=p.attention_mean, class_score=p.attention_mean)
    figure = draw_strip(showing(p, "contribution"), scan(UNEVEN))
    assert {"slices", "contribution bar", "values"} == {a.get_label() for a in figure.axes}
    assert axes(figure, "values").get_ylabel() == "contribution (logit)"
    assert "from the top: contribution" in axes(figure, "slices").get_title(loc="left")
    figure = draw_strip(replace(p, score_kind="evidence"), scan(UNEVEN))
    assert axes(figure, "values").get_ylabel() == "evidence (logit), ± σ"
    parts = [np.linspace(a, b, 12).astype(np.float32) for a, b in ((1, 2), (0.1, 0.5))]
    both = replace(p, variance_within=parts[0], variance_between=parts[1])
    alone, together = (draw_strip(v, scan(UNEVEN), also=VARIANCES) for v in (p, both))
    assert together.get_figheight() > alone.get_figheight()
    names = {ax.get_label() for ax in together.axes} - {ax.get_label() for ax in alone.axes}
    assert names == {"within bar", "between bar"}


def line(figure, label):
    (match,) = [v for v in axes(figure, "values").lines if v.get_label() == label]
    return match.get_xdata(), match.get_ydata()


def test_the_line_has_all_slices_by_position_with_their_labels():
    n = 300
    position = np.random.default_rng(2).permutation(n) * 0.6
    p = scan_bag(position, instance_labels=(position > 150).astype(np.int64))
    figure = draw_strip(p, scan(np.sort(position), rows=8, columns=8))
    x, y = line(figure, "mean μ")
    order = np.argsort(position)
    np.testing.assert_allclose(x, position[order])
    np.testing.assert_allclose(y, p.attention_mean[order], rtol=1e-6)
    (band,) = axes(figure, "values").collections
    corners = band.get_paths()[0].vertices
    sd = np.sqrt(p.attention_variance.astype(float))
    np.testing.assert_allclose(corners[:, 1].max(), (p.attention_mean + sd).max(), rtol=1e-6)
    np.testing.assert_allclose(corners[:, 1].min(), (p.attention_mean - sd).min(), rtol=1e-6)
    positive, _ = line(figure, "positive (49 of 300), orange frame")
    np.testing.assert_allclose(positive, np.sort(position[position > 150]))
    shown, _ = line(figure, "shown above")
    np.testing.assert_allclose(shown, np.sort(position[np.argsort(p.attention_mean)[-SELECTED:]]))
    title = axes(figure, "slices").get_title(loc="left")
    assert "24 of 300" in title and "highest mean" in title


def test_the_likeliest_class_is_shown_and_all_are_drawn():
    p = scan_bag(UNEVEN)
    means = [p.attention_mean, -p.attention_mean, 2 * p.attention_mean]
    figure = draw_strip(called_second(p, *means), scan(UNEVEN))
    assert "class 1" in axes(figure, "slices").get_title(loc="left")
    for c, mean in enumerate(means):
        np.testing.assert_allclose(line(figure, f"class {c}")[1], mean)


@pytest.mark.parametrize(("n", "classes"), [(1, 1), (3, 5), (300, 2)])
def test_everything_on_the_page_has_its_place(n, classes):
    position = np.arange(n) * 1.25 - 500
    p = scan_bag(position, instance_labels=np.arange(n) % 2, name="a-long-name-" * 9)
    if classes > 1:
        p = called_second(p, *(p.attention_mean * k for k in range(1, classes + 1)))
    figure = draw_strip(p, scan(position, rows=16, columns=16))
    boxes = assert_fits(figure)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes.values(), 2))
    legend = axes(figure, "values").get_legend().get_window_extent()
    assert legend.x0 >= 0
    assert not any(legend.overlaps(box) for name, box in boxes.items() if name != "values")
    inside = [t.get_window_extent() for t in axes(figure, "slices").texts]
    assert max(b.width for b in inside) < TILE
    assert figure.dpi == DPI
