"""Maps show the right colour at the right pixels, read back from the PNG."""

import csv
import gzip
from dataclasses import replace

import h5py
import numpy as np
import pytest
from support.made_maps import (
    CELLS,
    STRIDE,
    axes,
    panel_pixels,
    pixel_width,
    prediction,
    rgb,
    scan,
    slide,
    square_of,
    written,
)

from probsa.maps import ColourLimits, draw_map
from probsa.maps.layout import place
from probsa.maps.panels import BACKGROUND, heading
from probsa.maps.scale import common_limits


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("offset", [(0, 0), (10_000, 73_001)])
def test_brightest_patch_is_at_its_coordinates(tmp_path, at, offset):
    p = slide(at=at, offset=offset)
    picture, figure = written(p, tmp_path)
    for quantity, row in (("mean", at), ("variance", (at + 1) % len(CELLS))):
        ax = axes(figure, quantity)
        x, y = p.coords[row]
        square = square_of(picture, ax, rgb(quantity, 1.0))
        tolerance = 1.5 * pixel_width(ax)
        np.testing.assert_allclose(square, [x, y, x + STRIDE, y + STRIDE], rtol=0, atol=tolerance)


def test_brightest_patch_off_the_lattice(tmp_path):
    p = slide(at=5)
    moved = p.coords + np.array([0, 77]) * (CELLS[:, :1] > 1)
    p = replace(p, coords=moved)
    assert place(p).cells is None
    picture, figure = written(p, tmp_path)
    for quantity, row in (("mean", 5), ("variance", 6)):
        ax = axes(figure, quantity)
        x, y = moved[row]
        square = square_of(picture, ax, rgb(quantity, 1.0))
        np.testing.assert_allclose(
            square, [x, y, x + STRIDE, y + STRIDE], rtol=0, atol=1.5 * pixel_width(ax)
        )


def test_x_goes_right_and_y_goes_down(tmp_path):
    p = slide(at=0)  # the topmost patch, in the last column
    picture, figure = written(p, tmp_path)
    inside, _ = panel_pixels(picture, axes(figure, "mean"))
    rows, columns = np.nonzero((np.abs(inside.astype(int) - rgb("mean", 1.0)) <= 1).all(-1))
    assert rows.max() < len(inside) / 4
    assert columns.min() > inside.shape[1] / 2


def test_every_patch_has_its_own_colour_and_glass_has_none(tmp_path):
    p = slide()
    picture, figure = written(p, tmp_path)
    for quantity in ("mean", "variance"):
        ax = axes(figure, quantity)
        values = getattr(p, f"attention_{quantity}").astype(float)
        share = (values - values.min()) / np.ptp(values)
        for cell in np.ndindex(4, 5):
            centre = (np.array(cell) + 0.5) * STRIDE
            x, y = ax.transData.transform(centre)
            colour = picture[int(len(picture) - y), int(x)].astype(int)
            row = np.flatnonzero((cell == CELLS).all(1))
            expected = rgb(quantity, share[row[0]]) if len(row) else hex_rgb(BACKGROUND)
            assert np.abs(colour - expected).max() <= 2, (quantity, cell)


def hex_rgb(text: str) -> np.ndarray:
    return np.array([int(text[k : k + 2], 16) for k in (1, 3, 5)])


@pytest.mark.parametrize("quantity", ["mean", "variance", "labels"])
def test_background_is_far_from_every_colour(quantity):
    colours = np.array([rgb(quantity, s) for s in np.linspace(0, 1, 64)])
    distance = np.linalg.norm(colours - hex_rgb(BACKGROUND), axis=1)
    assert distance.min() > 40
    assert distance[0] > 120


def test_labels_have_two_colours(tmp_path):
    labels = np.array([1, 0, 0, 1, 0, 0, 0, -1])
    picture, figure = written(slide(instance_labels=labels), tmp_path)
    ax = axes(figure, "labels")
    for k, label in enumerate(labels):
        x, y = ax.transData.transform((CELLS[k] + 0.5) * STRIDE)
        colour = picture[int(len(picture) - y), int(x)].astype(int)
        expected = hex_rgb(BACKGROUND) if label < 0 else rgb("labels", label)
        assert np.abs(colour - expected).max() <= 1
    assert "2 of 8 positive" in ax.get_title(loc="left")
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
    p = scan(numbers)
    picture, figure = written(p, tmp_path)
    ax = axes(figure, "mean")
    for position in range(11):
        x, y = ax.transData.transform((position + 0.5, 0.5))
        colour = picture[int(len(picture) - y), int(x)].astype(int)
        gap = position + 4 not in numbers
        assert (np.abs(colour - hex_rgb(BACKGROUND)).max() <= 1) == gap
    assert "3 missing" in axes(figure, "variance").get_xlabel()


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
    if n == 7:  # the height of a strip has no unit
        expected[1], expected[3], square[1], square[3] = (
            0,
            1,
            np.rint(square[1]),
            np.rint(square[3]),
        )
    np.testing.assert_allclose(square, expected, atol=1.5 * pixel_width(ax))


@pytest.mark.parametrize("coords", [np.array([[512, 1024]]), np.array([[17]]), None])
def test_one_instance(tmp_path, coords):
    p = prediction(coords, [0.7], [0.2])
    picture, figure = written(p, tmp_path)
    ax = axes(figure, "mean")
    left, top, right, bottom = (float(v) for v in square_of(picture, ax, rgb("mean", 0.5)))
    assert right > left
    assert bottom > top
    bar = axes(figure, "mean bar")
    assert bar.get_ylim()[0] < 0.7 < bar.get_ylim()[1]
    assert [t.get_text() for t in bar.get_yticklabels()] == ["0.7"]


def test_one_row_of_panels_a_class(tmp_path):
    base = slide()
    mean = np.stack([base.attention_mean, base.attention_mean[::-1]], axis=1)
    p = replace(
        base,
        attention_mean=mean,
        attention_variance=mean**2,
        probability=np.array([0.2, 0.8], np.float32),
        std=np.array([0.1, 0.1], np.float32),
    )
    picture, figure = written(p, tmp_path)
    for c, row in ((0, 0), (1, len(CELLS) - 1)):
        ax = axes(figure, f"mean {c}")
        assert f"class {c}" in ax.get_title(loc="left")
        assert f"class {c}" in axes(figure, f"variance {c} bar").get_ylabel()
        x, y = p.coords[row]
        np.testing.assert_allclose(
            square_of(picture, ax, rgb("mean", 1.0)),
            [x, y, x + STRIDE, y + STRIDE],
            atol=1.5 * pixel_width(ax),
        )
    upper, lower = (axes(figure, f"mean {c}").get_position() for c in (0, 1))
    assert upper.y0 > lower.y1
    assert upper.x0 == lower.x0
    assert "p(class 1) = 0.80 ± 0.10" in figure.texts[0].get_text()


@pytest.mark.parametrize("likeliest", [0, 1, 2])
def test_the_heading_and_each_panel_are_those_of_their_class(tmp_path, likeliest):
    base = slide()
    probability = np.roll(np.array([0.6, 0.3, 0.1], np.float32), likeliest)
    std = np.roll(np.array([0.11, 0.22, 0.33], np.float32), likeliest)
    mean = np.stack([np.roll(base.attention_mean, c) for c in range(3)], axis=1)
    p = replace(base, attention_mean=mean, attention_variance=mean**2, probability=probability,
                std=std)  # fmt: skip
    picture, figure = written(p, tmp_path)
    assert heading(p, label=2) == f"bag · p(class {likeliest}) = 0.60 ± 0.11 · label 2"
    assert heading(p) in figure.texts[0].get_text()
    for c in range(3):
        ax = axes(figure, f"mean {c}")
        assert ax.get_title(loc="left") == f"attention mean μ, class {c}"
        x, y = p.coords[c]  # the largest mean of class c is in row c
        np.testing.assert_allclose(
            square_of(picture, ax, rgb("mean", 1.0)),
            [x, y, x + STRIDE, y + STRIDE],
            atol=1.5 * pixel_width(ax),
        )


def test_fixed_scale_means_the_same_colour_in_all_bags(tmp_path):
    a = slide(at=0)
    b = replace(slide(at=0), name="other", attention_mean=a.attention_mean * 4)
    shared = 6  # this patch has the same mean in both
    b.attention_mean[shared] = a.attention_mean[shared]
    limits = common_limits([a, b])
    colour = {}
    for scale in ("fixed", "per-bag"):
        for p in (a, b):
            picture, figure = written(p, tmp_path, scale=scale, limits=limits)
            ax = axes(figure, "mean")
            x, y = ax.transData.transform((CELLS[shared] + 0.5) * STRIDE)
            colour[scale, p.name] = picture[int(len(picture) - y), int(x)].astype(int)
            assert f"{scale} scale" in axes(figure, "mean bar").get_ylabel()
    assert (colour["fixed", "bag"] == colour["fixed", "other"]).all()
    assert np.abs(colour["per-bag", "bag"] - colour["per-bag", "other"]).max() > 10


@pytest.mark.parametrize(
    ("limits", "arrows"),
    [((-1.0, 3.0), "neither"), ((0.0, 3.0), "min"), ((-1.0, 2.0), "max"), ((0.0, 2.0), "both")],
)
def test_values_beyond_a_fixed_scale_are_clipped_and_said(tmp_path, limits, arrows):
    p = slide(at=0)
    fixed = ColourLimits(mean=limits, variance=(0.0, 1.0))
    picture, figure = written(p, tmp_path, scale="fixed", limits=fixed)
    (bar,) = [a for a in figure.axes if a.get_label() == "mean bar"]
    assert bar._colorbar.extend == arrows  # pyright: ignore
    ax = axes(figure, "mean")
    x, y = ax.transData.transform((CELLS[0] + 0.5) * STRIDE)
    colour = picture[int(len(picture) - y), int(x)].astype(int)
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
        ax = axes(figure, "variance")
        x, y = coords[row]
        np.testing.assert_allclose(
            square_of(picture, ax, rgb("variance", 1.0)),
            [x, y, x + 256, y + 256],
            atol=1.5 * pixel_width(ax),
        )


def test_real_scans_and_tiles(tmp_path, shared_data):
    for folder_name, kind in (("ct_ich", "ct"), ("colon_tiles", "slide")):
        for path in sorted((shared_data / "bags" / folder_name / "features").iterdir())[:3]:
            with h5py.File(path) as f:
                coords, labels = f["coords"][:], f["instance_labels"][:]
            mean = np.arange(len(coords)) * 1.0
            p = prediction(
                coords, mean, instance_labels=labels.astype(np.int64), kind=kind, stride=None
            )
            picture, figure = written(p, tmp_path)
            ax = axes(figure, "mean")
            left, *_ = square_of(picture, ax, rgb("mean", 1.0))
            expected = coords[-1, 0] if kind == "slide" else coords[-1, 0] - coords[0, 0]
            assert left == pytest.approx(expected, abs=1.5 * pixel_width(ax))
