"""Maps: the right colour at the right pixels, read back from the PNG."""

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from probsa.evaluation.prediction import Prediction
from probsa.maps import Limits, draw_map, render_map
from probsa.maps.layout import place
from probsa.maps.panels import BACKGROUND, PALETTE
from probsa.maps.scale import common_limits

STRIDE = 256.0
CELLS = np.array([[3, 0], [0, 1], [1, 1], [3, 1], [0, 2], [1, 2], [2, 2], [1, 4]])  # (column, row)


def prediction(coords, mean, variance=None, **more) -> Prediction:
    n = len(mean)
    given = {
        "name": "bag",
        "probability": np.array([0.87], np.float32),
        "std": np.array([0.05], np.float32),
        "coords": coords,
        "attention_mean": np.asarray(mean, np.float32),
        "attention_variance": np.asarray(mean if variance is None else variance, np.float32),
        "weight_mean": np.full(n, 0.1, np.float32),
        "weight_variance": np.zeros(n, np.float32),
        "degree": np.ones(n, np.float32),
        "stride": STRIDE,
    }
    return Prediction(**(given | more))


def slide(*, at: int = 0, offset=(0, 0), **more) -> Prediction:
    """A small slide whose patch `at` has the largest mean and the next one the largest variance."""
    n = len(CELLS)
    mean, variance = np.linspace(-1, 1, n), np.linspace(0.1, 0.5, n)
    mean[at], variance[(at + 1) % n] = 3.0, 2.0
    coords = (CELLS * STRIDE + np.array(offset)).astype(np.int64)
    return prediction(coords, mean, variance, **more)


def scan(numbers, **more) -> Prediction:
    n = len(numbers)
    mean, variance = np.linspace(-1, 0, n), np.linspace(0.1, 0.2, n)
    mean[n // 3], variance[n // 2] = 2.0, 1.0
    coords = np.asarray(numbers)[:, None]
    return prediction(coords, mean, variance, kind="ct", stride=None, **more)


def axes(figure: Figure, label: str) -> Axes:
    (found,) = [a for a in figure.axes if a.get_label() == label]
    return found


def written(p: Prediction, tmp_path: Path, **how) -> tuple[np.ndarray, Figure]:
    """The PNG's pixels (rows from the top), and the same map as a figure, for its geometry."""
    path = tmp_path / f"{p.name}.png"
    render_map(p, path, **how)
    return np.asarray(Image.open(path).convert("RGB")), draw_map(p, **how)


def panel_pixels(picture: np.ndarray, ax: Axes) -> tuple[np.ndarray, tuple[int, int]]:
    """The pixels inside a panel's frame, and their first (row, column) in the picture."""
    box = ax.get_window_extent()
    top, bottom = len(picture) - box.y1, len(picture) - box.y0
    rows = slice(int(np.ceil(top)) + 2, int(bottom) - 2)
    columns = slice(int(np.ceil(box.x0)) + 2, int(box.x1) - 2)
    return picture[rows, columns], (rows.start, columns.start)


def square_of(picture: np.ndarray, ax: Axes, colour: np.ndarray) -> np.ndarray:
    """(left, top, right, bottom), in the axes' unit, of the pixels with this colour in a panel."""
    inside, (row, column) = panel_pixels(picture, ax)
    hit = (np.abs(inside.astype(int) - colour) <= 1).all(-1)
    assert hit.any(), "no pixel has the colour"
    edges = []  # a row of pixels on the very edge may be blended: half of a side must be there
    for count in (hit.sum(0), hit.sum(1)):
        found = np.flatnonzero(count > count.max() / 2)
        edges.append((found[0], found[-1] + 1))
    (left, right), (top, bottom) = edges
    assert hit.sum() >= 0.98 * (right - left) * (bottom - top), "the pixels are no rectangle"
    assert hit.sum() == pytest.approx(hit[top:bottom, left:right].sum(), rel=0.02)
    corners = [(column + c, len(picture) - (row + r)) for c, r in ((left, top), (right, bottom))]
    return ax.transData.inverted().transform(corners).ravel()


def rgb(quantity: str, share: float) -> np.ndarray:
    return np.rint(np.array(PALETTE[quantity](share)[:3]) * 255).astype(int)


def pixel_width(ax: Axes) -> float:
    """Of one pixel, in the axes' unit."""
    return (ax.get_xlim()[1] - ax.get_xlim()[0]) / ax.get_window_extent().width


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("offset", [(0, 0), (10_000, 73_001)])
def test_brightest_patch_is_at_its_coordinates(tmp_path, at, offset):
    p = slide(at=at, offset=offset)
    picture, figure = written(p, tmp_path)
    for quantity, row in (("mean", at), ("variance", (at + 1) % len(CELLS))):
        ax = axes(figure, quantity)
        x, y = p.coords[row]
        found = square_of(picture, ax, rgb(quantity, 1.0))
        tolerance = 1.5 * pixel_width(ax)
        np.testing.assert_allclose(found, [x, y, x + STRIDE, y + STRIDE], rtol=0, atol=tolerance)


def test_brightest_patch_off_the_lattice(tmp_path):
    p = slide(at=5)
    moved = p.coords + np.array([0, 77]) * (CELLS[:, :1] > 1)
    p = replace(p, coords=moved)
    assert place(p).cells is None
    picture, figure = written(p, tmp_path)
    for quantity, row in (("mean", 5), ("variance", 6)):
        ax = axes(figure, quantity)
        x, y = moved[row]
        found = square_of(picture, ax, rgb(quantity, 1.0))
        np.testing.assert_allclose(
            found, [x, y, x + STRIDE, y + STRIDE], rtol=0, atol=1.5 * pixel_width(ax)
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
            seen = picture[int(len(picture) - y), int(x)].astype(int)
            row = np.flatnonzero((cell == CELLS).all(1))
            want = rgb(quantity, share[row[0]]) if len(row) else hex_rgb(BACKGROUND)
            assert np.abs(seen - want).max() <= 2, (quantity, cell)


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
        seen = picture[int(len(picture) - y), int(x)].astype(int)
        want = hex_rgb(BACKGROUND) if label < 0 else rgb("labels", label)
        assert np.abs(seen - want).max() <= 1
    assert "2 of 8 positive" in ax.get_title(loc="left")
    assert len(draw_map(slide()).axes) == 4  # no panel where no labels are given


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
        seen = picture[int(len(picture) - y), int(x)].astype(int)
        gap = position + 4 not in numbers
        assert (np.abs(seen - hex_rgb(BACKGROUND)).max() <= 1) == gap
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
    found = square_of(picture, ax, rgb("mean", 1.0))
    want = [column, row, column + 1, row + 1]
    if n == 7:  # a strip has a scale of its own across
        want[1], want[3], found[1], found[3] = 0, 1, np.rint(found[1]), np.rint(found[3])
    np.testing.assert_allclose(found, want, atol=1.5 * pixel_width(ax))


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


def test_fixed_scale_means_the_same_colour_in_all_bags(tmp_path):
    a = slide(at=0)
    b = replace(slide(at=0), name="other", attention_mean=a.attention_mean * 4)
    shared = 6  # this patch has the same mean in both
    b.attention_mean[shared] = a.attention_mean[shared]
    limits = common_limits([a, b])
    seen = {}
    for scale in ("fixed", "per-bag"):
        for p in (a, b):
            picture, figure = written(p, tmp_path, scale=scale, limits=limits)
            ax = axes(figure, "mean")
            x, y = ax.transData.transform((CELLS[shared] + 0.5) * STRIDE)
            seen[scale, p.name] = picture[int(len(picture) - y), int(x)].astype(int)
            assert f"{scale} scale" in axes(figure, "mean bar").get_ylabel()
    assert (seen["fixed", "bag"] == seen["fixed", "other"]).all()
    assert np.abs(seen["per-bag", "bag"] - seen["per-bag", "other"]).max() > 10


@pytest.mark.parametrize(
    ("limits", "arrows"),
    [((-1.0, 3.0), "neither"), ((0.0, 3.0), "min"), ((-1.0, 2.0), "max"), ((0.0, 2.0), "both")],
)
def test_values_beyond_a_fixed_scale_are_clipped_and_said(tmp_path, limits, arrows):
    p = slide(at=0)
    given = Limits(mean=limits, variance=(0.0, 1.0))
    picture, figure = written(p, tmp_path, scale="fixed", limits=given)
    (bar,) = [a for a in figure.axes if a.get_label() == "mean bar"]
    assert bar._colorbar.extend == arrows  # pyright: ignore
    ax = axes(figure, "mean")
    x, y = ax.transData.transform((CELLS[0] + 0.5) * STRIDE)
    seen = picture[int(len(picture) - y), int(x)].astype(int)
    assert np.abs(seen - rgb("mean", 1.0)).max() <= 1


def test_real_slide_geometry(tmp_path, shared_data):
    """One bright patch among thousands that lie on no lattice, and on one."""
    table = shared_data / "labels_splits" / "camelyon16_ncrf_valid_patch_coords.csv.gz"
    with gzip.open(table, "rt") as f:
        rows = [r for r in csv.DictReader(f) if r["slide"] == "Tumor_104"]
    free = np.array([[int(r["x_center"]), int(r["y_center"])] for r in rows])
    snapped = np.unique(free // 256 * 256, axis=0)
    for coords in (free, snapped):
        mean = np.zeros(len(coords))
        # one that no other patch covers, so that it is seen whole
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
            want = coords[-1, 0] if kind == "slide" else coords[-1, 0] - coords[0, 0]
            assert left == pytest.approx(want, abs=1.5 * pixel_width(ax))
