"""Maps: the text on the sheet, layouts, scales and whole folders."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.made_maps import (
    CELLS,
    STRIDE,
    axes,
    pixel_width,
    prediction,
    rgb,
    scan,
    slide,
    square_of,
    written,
)

from probsa.errors import BagError, InputError, UnknownName
from probsa.evaluation.storage import write_predictions
from probsa.maps import draw_map, map_limits, render_folder, render_map, to_raster
from probsa.maps.layout import place
from probsa.maps.scale import common_limits


def test_slices_stay_in_row_order_and_a_wide_gap_is_cut():
    back = place(scan([30, 25, 20, 10]))
    assert back.cells is not None
    assert back.cells[:, 1].tolist() == [0, 1, 2, 4]
    assert back.numbers == ("30", "25", "20", "10")
    assert place(scan([1, 2, 3, 4000])).shape == (1, 14)
    assert place(scan([1, 1, 2])).shape == (1, 3)


@pytest.mark.parametrize("n", [20, 60])
def test_slice_numbers_do_not_touch(n):
    figure = draw_map(scan(range(100, 100 + n)))
    figure.canvas.draw()
    ax = axes(figure, "variance")
    boxes = [t.get_window_extent() for t in ax.get_xticklabels()]
    assert len(boxes) >= n // 5
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_dirac_says_that_there_is_no_variance():
    figure = draw_map(slide(at=1))
    assert not axes(figure, "variance").texts
    p = replace(slide(), attention_variance=np.zeros(len(CELLS), np.float32))
    figure = draw_map(p)
    ax = axes(figure, "variance")
    assert "no variance" in ax.texts[0].get_text()
    assert "Dirac" in ax.texts[0].get_text()
    assert not ax.images
    assert "variance bar" not in [a.get_label() for a in figure.axes]


def test_bars_say_what_the_number_is():
    figure = draw_map(slide(score_kind="probability", instance_labels=np.zeros(8, np.int64)))
    labels = {a.get_label(): a.get_ylabel().replace("\n", " ") for a in figure.axes}
    assert labels["mean bar"] == "instance score mean μ (probability), per-bag scale (−0.714 to 3)"
    variance = "instance score variance σ² (probability²), per-bag scale (0.1 to 2)"
    assert labels["variance bar"] == variance
    assert "label" in labels["labels bar"]
    logit = {a.get_label(): a.get_ylabel().replace("\n", " ") for a in draw_map(slide()).axes}
    assert logit["mean bar"] == "attention mean μ (logit), per-bag scale (−0.714 to 3)"


def test_title_names_bag_probability_and_label():
    figure = draw_map(slide(), label=1)
    assert figure.texts[0].get_text() == "bag · p = 0.87 ± 0.05 · label 1"
    sure = replace(slide(), std=np.zeros(1, np.float32))
    assert draw_map(sure).texts[0].get_text() == "bag · p = 0.87"
    assert draw_map(slide(), title="mine").texts[0].get_text() == "mine"


@pytest.mark.parametrize("name", ["a$b$", "x_" * 200 + "end", "スライド", "$\\frac{"])
def test_any_name_can_be_drawn(tmp_path, name):
    p = replace(slide(), name=name)
    render_map(p, tmp_path / "map.png")
    figure = draw_map(p)
    if name.isascii():
        figure.canvas.draw()
        assert figure.texts[0].get_window_extent().x1 <= figure.bbox.x1
    assert [f.name for f in tmp_path.iterdir()] == ["map.png"]


def test_raster_is_the_lattice_with_nan_where_no_patch_is():
    p = slide(offset=(1000, 2000))
    r = to_raster(p, np.arange(8.0))
    expected = np.full((5, 4), np.nan)
    expected[CELLS[:, 1], CELLS[:, 0]] = np.arange(8)
    np.testing.assert_array_equal(r.image, expected)
    assert r.extent == (1000, 1000 + 4 * STRIDE, 2000 + 5 * STRIDE, 2000)


def test_raster_refuses_what_is_no_lattice():
    p = slide()
    p.coords[2] += 100
    with pytest.raises(InputError, match=r"'bag'.*do not lie on a single lattice"):
        to_raster(p, np.arange(8.0))
    twice = slide()
    twice.coords[2] = twice.coords[1]
    assert place(twice).cells is None


@pytest.mark.parametrize("stated", [None, STRIDE, STRIDE / 2])
def test_the_coordinates_lattice_wins_over_a_wrong_stride(stated):
    coords = np.argwhere(np.ones((5, 4)))[:, ::-1] * int(STRIDE)
    layout = place(prediction(coords, np.arange(20.0), stride=stated))
    assert layout.size == STRIDE
    assert layout.shape == (5, 4)


def test_unusable_predictions_name_the_bag(tmp_path):
    with pytest.raises(BagError, match=r"'bag'.*shape \(7, 2\)"):
        render_map(replace(slide(), coords=slide().coords[:7]), tmp_path / "a.png")
    nan = replace(slide(), attention_mean=np.full(8, np.nan, np.float32))
    with pytest.raises(BagError, match=r"'bag'.*mean.*finite"):
        render_map(nan, tmp_path / "a.png")
    empty = prediction(np.zeros((0, 2)), np.zeros(0))
    with pytest.raises(BagError, match=r"'bag' has no instances"):
        render_map(empty, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_common_limits_are_quantiles_over_all_instances():
    rng = np.random.default_rng(0)
    bags = [prediction(None, rng.normal(size=n), rng.random(n)) for n in (500, 30, 1)]
    silent = replace(bags[0], attention_variance=np.zeros(500, np.float32))
    limits = common_limits([*bags, silent])
    mean = np.concatenate([b.attention_mean for b in (*bags, silent)]).astype(float)
    variance = np.concatenate([b.attention_variance for b in bags]).astype(float)
    np.testing.assert_allclose(limits.mean, np.quantile(mean, [0.01, 0.99]))
    np.testing.assert_allclose(limits.variance, np.quantile(variance, [0.01, 0.99]))
    with pytest.raises(BagError, match="got none"):
        common_limits([])


def folder(tmp_path: Path) -> Path:
    bags = [replace(slide(at=k), name=f"s{k}") for k in range(3)]
    write_predictions(
        tmp_path / "preds",
        bags,
        labels={"s0": 1, "s1": 0},
        parts={},
        classes=["0", "1"],
        threshold=0.5,
        metadata={},
    )
    return tmp_path / "preds"


def test_a_folder_is_drawn_and_what_fails_is_named(tmp_path):
    preds, out = folder(tmp_path), tmp_path / "maps"
    (preds / "instances" / "s1.h5").write_bytes(b"damaged")
    progress = []
    failed = render_folder(preds, out, progress=lambda *a: progress.append(a))
    assert [bag for bag, _ in failed] == ["s1"]
    assert "s1.h5" in failed[0][1]
    assert sorted(f.name for f in out.iterdir()) == ["s0.png", "s2.png"]
    assert progress == [(1, 3), (2, 3), (3, 3)]
    with Image.open(out / "s2.png") as picture:
        assert picture.format == "PNG"


def test_only_the_bags_asked_for(tmp_path):
    preds, out = folder(tmp_path), tmp_path / "maps"
    assert render_folder(preds, out, bags=["s2"]) == []
    assert [f.name for f in out.iterdir()] == ["s2.png"]
    with pytest.raises(UnknownName, match=r"s22.*Did you mean 's2'"):
        render_folder(preds, out, bags=["s0", "s22"])
    assert [f.name for f in out.iterdir()] == ["s2.png"]


def test_a_folders_fixed_scale_is_that_of_all_its_bags(tmp_path):
    preds = folder(tmp_path)
    limits = map_limits(preds)
    everything = common_limits([slide(at=k) for k in range(3)])
    np.testing.assert_allclose(limits.mean, everything.mean, rtol=1e-6)
    render_folder(preds, tmp_path / "a", bags=["s1"], scale="fixed")
    p = replace(slide(at=1), name="s1")
    render_map(p, tmp_path / "b" / "s1.png", scale="fixed", limits=limits, label=0)
    one, two = (np.asarray(Image.open(tmp_path / d / "s1.png")) for d in "ab")
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("shape", [(1, 60), (60, 1), (3, 40), (40, 12)])
def test_extreme_slides_are_readable(tmp_path, shape):
    """Nothing is cut off, panels do not overlap, cells are square and large enough to see."""
    coords = np.argwhere(np.ones(shape))[:, ::-1] * 256
    mean = np.zeros(len(coords))
    mean[-1] = 1
    picture, figure = written(
        prediction(coords, mean, instance_labels=np.zeros(len(coords), np.int64)), tmp_path
    )
    figure.canvas.draw()
    boxes = [a.get_tightbbox() for a in figure.axes]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    frames = [a.get_tightbbox() for a in figure.axes if "bar" not in str(a.get_label())]
    for k, one in enumerate(frames):
        assert not any(one.overlaps(two) for two in frames[k + 1 :])
    ax = axes(figure, "mean")
    left, top, right, bottom = square_of(picture, ax, rgb("mean", 1.0))
    assert right - left == pytest.approx(bottom - top, abs=2.1 * pixel_width(ax))
    assert (right - left) / pixel_width(ax) >= 3
