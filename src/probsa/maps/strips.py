"""Stage 10: the map of a scan: its slices with their values, and all values along the scan.

Slices are matched by their position in millimetres, never by their number. Long scans show the
slices with the highest mean; the plot below covers all slices.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ..core import counted
from ..errors import InputError
from ..evaluation import Prediction
from ..slides import Scan, displayed_slice
from .draw import heading
from .picture import BAR, NORMAL, SMALL, Title, draw_bar, finish, new_figure
from .quantities import (
    DOUBTS,
    KINDS,
    SHOWN_KINDS,
    Quantity,
    column_of,
    column_titles,
    columns_of,
    key_of,
    quantities,
    score_word,
    unit_of,
)
from .scale import ColourLimits

SAME_PLACE = 0.05
"""Largest distance in millimetres between an instance and its slice of the scan."""
MOST = 60
"""Largest number of slices that are all shown."""
SELECTED = 24
"""Number of slices shown of a longer scan."""
DPI = 150
TILE = 180
"""Width of a slice in pixels."""
SWATCH = 14
"""Height in pixels of a coloured value below a slice."""
GAP = 12
FRAME = 5
PLOT_HEIGHT = 2.0
"""Height of the plot in inches."""
NARROWEST = 900
"""Width of the narrowest picture of slices in pixels, which is white at the right."""
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
"""The colours of Okabe and Ito, which colour-blind readers can tell apart."""


class Tiles(NamedTuple):
    """The slices as one picture, and their positions in it."""

    image: UInt8[np.ndarray, "height width 3"]
    corners: Int[np.ndarray, "shown 2"]
    """(x, y) of each slice's top-left pixel."""
    size: tuple[int, int]
    """(width, height) of a slice in pixels."""


def match_slices(
    p: Prediction, positions: Float[np.ndarray, " slices"], *, path: Path
) -> Int[np.ndarray, " n"]:
    """Return the index of the slice at the position of each instance of the bag.

    Args:
        p: The bag's prediction.
        positions: Positions of the slices of the scan in millimetres.
        path: The scan, for messages.

    Raises:
        InputError: The bag is not a scan, or the scan has no slice at one of its positions.
    """
    if p.coords is None or p.coords.shape[-1] != 1:
        raise InputError(f"bag {p.name!r} has no positions of slices: {path} cannot be shown")
    instances = np.asarray(p.coords, np.float64)[:, 0]
    positions = np.asarray(positions, np.float64)
    order = np.argsort(positions, kind="stable")
    # the slice nearest to an instance is the one whose neighbourhood, which ends halfway to the
    # next slice, holds it
    boundaries = (positions[order][1:] + positions[order][:-1]) / 2
    nearest = order[np.searchsorted(boundaries, instances)]
    distance = np.abs(positions[nearest] - instances)
    if distance.max() > SAME_PLACE:
        k = int(distance.argmax())
        raise InputError(
            f"bag {p.name!r} has a slice at {instances[k]:g} mm, but {path} has none there (the "
            f"nearest of its {len(positions)} lies at {positions[nearest[k]]:g} mm): it is another "
            "series, or the bag's coordinates are numbers of slices and not positions"
        )
    return nearest


def select_rows(mean: np.ndarray, position: np.ndarray) -> Int[np.ndarray, " shown"]:
    """Return the rows to show, by position: all, or those with the highest mean."""
    rows = np.arange(len(mean))
    if len(mean) > MOST:
        rows = np.argsort(-np.nan_to_num(mean, nan=-np.inf), kind="stable")[:SELECTED]
    return rows[np.argsort(position[rows], kind="stable")]


def grey_slice(scan: Scan, index: int, size: tuple[int, int]) -> UInt8[np.ndarray, "height width"]:
    """Return a slice in grey, with this (width, height) in pixels."""
    pixels = Image.fromarray(displayed_slice(scan, index)[..., 0])
    finer = size[0] >= scan.volume.shape[2]
    method = Image.Resampling.NEAREST if finer else Image.Resampling.BOX
    return np.asarray(pixels.resize(size, method))


def slice_tiles(
    scan: Scan,
    slices: Sequence[int],
    *,
    swatches: Sequence[UInt8[np.ndarray, "shown 3"]],
    frames: UInt8[np.ndarray, "shown 3"] | None = None,
) -> Tiles:
    """Return slices in the brain window, each above its colours and optionally framed."""
    rows, columns = scan.volume.shape[1:]
    aspect = rows * scan.spacing[0] / (columns * scan.spacing[1])
    width = TILE
    height = round(TILE * min(max(aspect, 0.5), 2.0))
    # a picture somewhat wider than high, with four to ten slices side by side
    across = min(len(slices), max(4, min(10, math.ceil(math.sqrt(1.6 * len(slices))))))
    down = math.ceil(len(slices) / across)
    stride = np.array([width + GAP, height + SWATCH * len(swatches) + GAP])
    shape = (down * stride[1], max(across * stride[0], NARROWEST), 3)
    image = np.full(shape, 255, np.uint8)
    row, column = np.divmod(np.arange(len(slices)), across)
    corners = np.stack([column, row], axis=1) * stride
    for k, i in enumerate(slices):
        x, y = corners[k].tolist()
        tile = image[y : y + height, x : x + width]
        pixels = grey_slice(scan, i, (width, height))[..., None]
        if frames is None:
            tile[:] = pixels
        else:
            tile[:] = frames[k]
            inside = np.s_[FRAME : height - FRAME, FRAME : width - FRAME]
            tile[inside] = pixels[inside]
        for j, colours in enumerate(swatches):
            top = y + height + j * SWATCH
            image[top : top + SWATCH, x : x + width] = colours[k]
    return Tiles(image, corners, (width, height))


def draw_strip(
    p: Prediction,
    scan: Scan,
    *,
    title: Title | str | None = None,
    caption: str = "",
    limits: ColourLimits | None = None,
    also: Sequence[str] = DOUBTS,
) -> Figure:
    """Return the map of a bag with the slices of its scan as a figure, for `save_figure`.

    The arguments are those of `draw_map`. Its axes are labelled `slices` and `values`, the colour
    bars `mean bar`, `doubt bar` and so on.
    """
    slices = match_slices(p, scan.positions, path=scan.path)
    position = np.asarray(scan.positions, np.float64)[slices]
    column = p.of_task.column(p, columns_of(p), called=True)
    by_key = {q.key: q for q in quantities(p, limits, also=also, column=column)}
    labels = by_key.pop("labels", None)
    drawn = [q for q in by_key.values() if not q.absent]
    rows = select_rows(drawn[0].values, position)
    frames = None
    if labels is not None:  # frames of this colour; grey: unknown
        is_known = np.isfinite(labels.values[rows])[:, None]
        frames = np.where(is_known, labels.colours[rows], 128).astype(np.uint8)
    tiles = slice_tiles(
        scan, slices[rows].tolist(), swatches=[q.colours[rows] for q in drawn], frames=frames
    )
    height, width = np.array(tiles.image.shape[:2]) / DPI
    figure = new_figure(width, height + BAR + PLOT_HEIGHT, dpi=DPI, rows=3, columns=len(drawn))
    grid = figure.add_gridspec(3, len(drawn), height_ratios=(height, BAR, PLOT_HEIGHT))
    top = figure.add_subplot(grid[0, :], label="slices")
    _draw_tiles(top, tiles, rows=rows, position=position, drawn=drawn)
    for k, q in enumerate(drawn):
        cax = figure.add_subplot(grid[1, k])
        draw_bar(top, q, below=True, length=width / len(drawn) - 0.4, across=1.0, cax=cax)
        unit = f" ({q.unit})" if q.unit else ""
        cax.set_title(f"{q.name}{unit}", fontsize=SMALL, loc="left", pad=3)
    plot = figure.add_subplot(grid[2, :], label="values")
    _draw_values(plot, p, position, rows=rows)
    return finish(
        figure,
        top,
        (width, height),
        title=heading(p) if title is None else title,
        caption=caption,
        share=(1.0, height / (height + BAR + PLOT_HEIGHT)),
    )


def _draw_tiles(
    ax: Axes, tiles: Tiles, *, rows: np.ndarray, position: np.ndarray, drawn: list[Quantity]
) -> None:
    """Draw the slices with their positions, below a title that says what is drawn of them."""
    height, width = tiles.image.shape[:2]
    ax.imshow(tiles.image, extent=(0, width, height, 0), interpolation="none", aspect="auto")
    ax.axis("off")
    n = len(position)
    score = drawn[0]
    subset = f"the {len(rows)} of {n} with the highest {score.key}"
    if len(rows) == n:
        subset = f"all {counted(n, 'slice')}"
    words = ", ".join(f"{q.name} ({q.note})" for q in drawn)
    of_class = f" of {score.class_name}" if score.class_name else ""
    text = f"{subset}, by position in mm; colours below each, from the top{of_class}: {words}"
    ax.set_title(fill(text, int(width / DPI / 0.078)), fontsize=NORMAL, loc="left")
    for (x, y), row in zip(tiles.corners, rows, strict=True):
        ax.text(
            x + FRAME + 4,
            y + FRAME + 3,
            f"{position[row]:.1f}".replace("-", "−"),
            color="white",
            fontsize=SMALL,
            va="top",
            path_effects=[withStroke(linewidth=2, foreground="black")],  # bone is white as well
        )


def _draw_values(ax: Axes, p: Prediction, position: np.ndarray, *, rows: np.ndarray) -> None:
    """Plot mean ± std along the scan, and mark the positive slices."""
    n = len(position)
    key = key_of(p)
    names: Sequence[str] = column_titles(p)
    is_single = columns_of(p) == 1
    if is_single:
        names = ["mean μ" if key == "mean" else key]
    order = np.argsort(position, kind="stable")
    x = position[order]
    if KINDS[key].signed:
        ax.axhline(0, color="0.6", lw=0.8, zorder=0)
    # of more classes than there are colours, the first ones are drawn
    for c, (name, colour) in enumerate(zip(names, CYCLE, strict=False)):
        mean = np.asarray(column_of(p.attention_mean, c), np.float64)[order]
        std = np.sqrt(np.asarray(column_of(p.attention_variance, c), np.float64)[order])
        ax.plot(x, mean, color=colour, lw=1.2, marker=".", ms=4, label=name)
        if std.any():
            band = "μ ± σ" if is_single else None
            ax.fill_between(x, mean - std, mean + std, label=band, color=colour, alpha=0.22, lw=0)
    if p.instance_labels is not None:
        positive = x[p.instance_labels[order] > 0]
        text = f"positive ({len(positive)} of {n}), orange frame"
        _mark(ax, positive, height=0.035, marker="s", color="#D55E00", label=text)
    if len(rows) < n:
        _mark(ax, position[rows], height=0.965, marker="v", color="0.35", label="shown above")
    ax.set_xlabel("position along the scan (mm)", fontsize=SMALL)
    deviation = "" if p.score_kind in SHOWN_KINDS else ", ± σ"
    unit = f" ({unit_of(p)})" if unit_of(p) else ""
    ax.set_ylabel(f"{score_word(p)}{unit}{deviation}", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL, length=3)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.margins(x=0.01, y=0.12)
    ax.legend(
        fontsize=SMALL,
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        ncols=7,
        frameon=False,
        borderaxespad=0.2,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _mark(ax: Axes, x: np.ndarray, *, height: float, **style: Any) -> None:
    """Draw marks at these positions, at one height as a fraction of the plot's."""
    heights = np.full(len(x), height)
    ax.plot(x, heights, transform=ax.get_xaxis_transform(), ls="", ms=4, **style)
