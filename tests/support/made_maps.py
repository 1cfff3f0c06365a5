"""Predictions for maps, and helpers that read the drawn pixels."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from probsa.evaluation import Prediction, write_predictions
from probsa.maps import KINDS, VARIANCES, CohortSources, draw_map, save_figure

STRIDE = 256.0
CELLS = np.array([[3, 0], [0, 1], [1, 1], [3, 1], [0, 2], [1, 2], [2, 2], [1, 4]])  # (column, row)
SIDE = 64


class OneSource(CohortSources):
    """One slide or scan in memory, whatever the bag."""

    def __init__(self, source, patches=None):
        self.source = source
        self.cut = patches

    def open(self, p):
        return self.source

    def patches(self, p):
        return self.cut


def prediction(coords, mean, variance=None, **overrides) -> Prediction:
    n = len(mean)
    above = np.linspace(0.1, 0.9, np.size(mean), dtype=np.float32).reshape(np.shape(mean))
    fields = {
        "name": "bag",
        "probability": np.array([0.87], np.float32),
        "std": np.array([0.05], np.float32),
        "coords": coords,
        "attention_mean": np.asarray(mean, np.float32),
        "attention_variance": np.asarray(mean if variance is None else variance, np.float32),
        "weight_mean": np.full(n, 0.1, np.float32),
        "weight_variance": np.zeros(n, np.float32),
        "weight_above_uniform": above,
        "degree": np.ones(n, np.float32),
        "stride": STRIDE,
    }
    return Prediction(**(fields | overrides))


def slide(*, at: int = 0, offset=(0, 0), **more) -> Prediction:
    """Return a small slide; patch `at` has the largest mean, the next the largest variance."""
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
    (match,) = [a for a in figure.axes if a.get_label() == label]
    return match


def written(p: Prediction, tmp_path: Path, **how) -> tuple[np.ndarray, Figure]:
    """Return the PNG's pixels (rows from the top) and the map as a figure, for its geometry."""
    path = tmp_path / f"{p.name}.png"
    figure = draw_map(p, **{"also": VARIANCES} | how)
    save_figure(figure, path)
    return np.asarray(Image.open(path).convert("RGB")), figure


def of_classes(p: Prediction, *means: np.ndarray, probability) -> Prediction:
    """Return the prediction with a score and a variance for each class."""
    mean = np.stack(means, axis=1)
    chance = np.asarray(probability, np.float32)
    task = "multiclass" if len(chance) > 2 else p.task
    variance = mean**2
    std = chance / 9
    return replace(
        p,
        attention_mean=mean,
        attention_variance=variance,
        weight_above_uniform=np.full_like(mean, 0.4),
        probability=chance,
        std=std,
        task=task,
    )


def write_folder(folder: Path, *bags: Prediction, classes=("0", "1"), labels=None, **metadata):
    """Write a predictions folder and return its path."""
    write_predictions(
        folder,
        bags,
        labels=labels or {},
        parts={},
        classes=list(classes),
        threshold=0.5,
        metadata=metadata,
    )
    return folder


def assert_fits(figure: Figure) -> dict[str, Bbox]:
    """Check that nothing is cut off and no panels or texts overlap; return the boxes of axes."""
    figure.canvas.draw()
    boxes = {str(a.get_label()): a.get_tightbbox() for a in figure.axes}
    texts = [t.get_window_extent() for t in figure.texts]
    for box in (*boxes.values(), *texts):
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    frames = [box for name, box in boxes.items() if not name.endswith(" bar")] + texts
    assert not any(a.overlaps(b) for a, b in itertools.combinations(frames, 2))
    return boxes


def panel_pixels(picture: np.ndarray, ax: Axes) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the pixels inside a panel's frame, and their first (row, column) in the picture."""
    box = ax.get_window_extent()
    top, bottom = len(picture) - box.y1, len(picture) - box.y0
    rows = slice(int(np.ceil(top)) + 2, int(bottom) - 2)
    columns = slice(int(np.ceil(box.x0)) + 2, int(box.x1) - 2)
    return picture[rows, columns], (rows.start, columns.start)


def square_of(picture: np.ndarray, ax: Axes, colour: np.ndarray) -> np.ndarray:
    """Return (left, top, right, bottom), in axes units, of the pixels of this colour in a panel."""
    inside, (row, column) = panel_pixels(picture, ax)
    matches = (np.abs(inside.astype(int) - colour) <= 1).all(-1)
    assert matches.any(), "no pixel has the colour"
    edges = []  # pixels at the edge may be blended, so half of a side suffices
    for count in (matches.sum(0), matches.sum(1)):
        filled = np.flatnonzero(count > count.max() / 2)
        edges.append((filled[0], filled[-1] + 1))
    (left, right), (top, bottom) = edges
    assert matches.sum() >= 0.98 * (right - left) * (bottom - top), (
        "the pixels do not form a rectangle"
    )
    assert matches.sum() == pytest.approx(matches[top:bottom, left:right].sum(), rel=0.02)
    corners = [(column + c, len(picture) - (row + r)) for c, r in ((left, top), (right, bottom))]
    return ax.transData.inverted().transform(corners).ravel()


def rgb(quantity: str, share: float) -> np.ndarray:
    return np.rint(np.array(KINDS[quantity].colours(share)[:3]) * 255).astype(int)


def pixel_width(ax: Axes) -> float:
    """Return the width of one pixel in axes units."""
    return (ax.get_xlim()[1] - ax.get_xlim()[0]) / ax.get_window_extent().width


def pink(width=640, height=512, *, seed=0) -> np.ndarray:
    """Return stained tissue: smooth over a few pixels, with fine noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(90, 230, (height // 32 + 1, width // 32 + 1, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = rng.integers(-8, 9, smooth.shape)
    return (smooth.astype(int) * (1.0, 0.7, 0.9) + noise).clip(0, 255).astype(np.uint8)


def bag(corners, mean=None, **more):
    corners = np.asarray(corners)
    mean = np.arange(len(corners), dtype=float) if mean is None else mean
    return prediction(corners, mean, np.asarray(mean, float)[::-1] + 1, stride=float(SIDE), **more)


def lattice(columns=6, rows=5, at=(64, 96)) -> np.ndarray:
    return np.argwhere(np.ones((rows, columns)))[:, ::-1] * SIDE + at


def scan_bag(positions, **more):
    positions_mm = np.asarray(positions, np.float64)
    n = len(positions_mm)
    mean = np.linspace(-1, 1, n)
    mean[n // 3] = 2.0
    return prediction(
        positions_mm[:, None], mean, np.linspace(0.1, 0.5, n), kind="ct", stride=None, **more
    )
