"""Stage 10: the map of a scan: its slices with their values, and all values along the scan.

Slices are matched by their position in millimetres, never by their number. Long scans show the
slices with the highest mean; the plot below covers all slices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ..errors import InputError
from ..evaluation import Prediction
from ..slides import WINDOWS, Scan, Windows, slice_image
from .blending import colours
from .captions import captioned
from .geometry import BAR, HEADING, TITLE, Sheet
from .panels import (
    NORMAL,
    PALETTE,
    SMALL,
    Panel,
    Scale,
    draw_bar,
    draw_title,
    heading,
    is_signed,
    norm_of,
    panels_of,
    quantity_of,
    save_figure,
    score_name,
    share,
)
from .scale import ColourLimits, bag_limits, number
from .shown import SHOWN_KINDS

SAME_PLACE = 0.05
"""Largest distance in millimetres between an instance and its slice of the scan."""
MOST = 60
"""Largest number of slices that are all shown."""
SELECTED = 24
"""Number of slices shown of a longer scan."""
BRAIN = Windows((WINDOWS["brain"], WINDOWS["brain"], WINDOWS["brain"]))
DPI = 150
TILE = 180
"""Width of a slice in pixels."""
SWATCH = 27
"""Height in pixels of a coloured value below a slice."""
GAP = 12
FRAME = 5
PLOT_HEIGHT = 2.0
"""Height of the plot in inches."""
NARROWEST = 7.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """The slices as one picture, and their positions in it."""

    image: UInt8[np.ndarray, "height width 3"]
    corners: Int[np.ndarray, "shown 2"]
    """(x, y) of each slice's top-left pixel."""
    size: tuple[int, int]
    """(width, height) of a slice in pixels."""
    columns: int


def match_slices(p: Prediction, scan: Scan) -> Int[np.ndarray, " n"]:
    """Return the index of the scan's slice for each instance of the bag; see `match_positions`."""
    return match_positions(p, scan.positions, path=scan.path)


def match_positions(
    p: Prediction, positions: Float[np.ndarray, " slices"], *, path: Path
) -> Int[np.ndarray, " n"]:
    """Return the index of the slice at the position of each instance of the bag.

    Args:
        p: The bag's prediction.
        positions: Positions of the slices in millimetres.
        path: The scan, for messages.

    Raises:
        InputError: The bag is not a scan, or the scan has no slice at one of its positions.
    """
    if p.coords is None or p.coords.shape[-1] != 1:
        raise InputError(f"bag {p.name!r} has no positions of slices: {path} cannot be shown")
    wanted = np.asarray(p.coords, np.float64)[:, 0]
    positions = np.asarray(positions, np.float64)
    order = np.argsort(positions, kind="stable")
    upper = np.searchsorted(positions[order], wanted).clip(1, max(len(positions) - 1, 1))
    lower = upper - 1
    upper = upper.clip(max=len(positions) - 1)
    near = np.where(
        wanted - positions[order[lower]] <= positions[order[upper]] - wanted, lower, upper
    )
    matched = order[near]
    distance = np.abs(positions[matched] - wanted)
    if distance.max() > SAME_PLACE:
        k = int(distance.argmax())
        raise InputError(
            f"bag {p.name!r} has a slice at {wanted[k]:g} mm, but {path} has none there (the "
            f"nearest of its {len(positions)} lies at {positions[matched[k]]:g} mm): it is another "
            "series, or the bag's coordinates are numbers of slices and not positions"
        )
    return matched


def selected(mean: np.ndarray, position: np.ndarray) -> Int[np.ndarray, " shown"]:
    """Return the rows to show, by position: all, or those with the highest mean."""
    rows = np.arange(len(mean))
    if len(mean) > MOST:
        rows = np.argsort(-np.nan_to_num(mean, nan=-np.inf), kind="stable")[:SELECTED]
    return rows[np.argsort(position[rows], kind="stable")]


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
    w, h = TILE, round(TILE * min(max(aspect, 0.5), 2.0))
    across = min(len(slices), max(4, min(10, math.ceil(math.sqrt(1.6 * len(slices))))))
    stride_x, stride_y = w + GAP, h + SWATCH * len(swatches) + GAP
    down = math.ceil(len(slices) / across)
    image = np.full((down * stride_y, across * stride_x, 3), 255, np.uint8)
    corners = np.zeros((len(slices), 2), np.int64)
    for k, i in enumerate(slices):
        y, x = np.array(divmod(k, across)) * (stride_y, stride_x)
        corners[k] = x, y
        pixels = Image.fromarray(slice_image(scan, i, BRAIN)[..., 0])
        fine = w >= columns
        method = Image.Resampling.NEAREST if fine else Image.Resampling.BOX
        image[y : y + h, x : x + w] = np.asarray(pixels.resize((w, h), method))[..., None]
        if frames is not None:
            inside = image[y + FRAME : y + h - FRAME, x + FRAME : x + w - FRAME].copy()
            image[y : y + h, x : x + w] = frames[k]
            image[y + FRAME : y + h - FRAME, x + FRAME : x + w - FRAME] = inside
        for j, colour in enumerate(swatches):
            top = y + h + j * SWATCH
            image[top : top + SWATCH, x : x + w] = colour[k]
    return Tiles(image=image, corners=corners, size=(w, h), columns=across)


def draw_strip(
    p: Prediction,
    scan: Scan,
    *,
    scale: Scale = "per-bag",
    title: str | None = None,
    limits: ColourLimits | None = None,
) -> Figure:
    """Return the map of a scan; the arguments are those of `render_strip`.

    Its axes are labelled `slices` and `values`, the colour bars `mean bar` and `variance bar`.
    """
    slices = match_slices(p, scan)
    position = np.asarray(scan.positions, np.float64)[slices]
    classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
    shown_class = p.of_task.column(p, classes, called=True)
    names = p.of_task.column_names(p, classes) or [f"class {c}" for c in range(classes)]
    panels = list(panels_of(p, limits or bag_limits(p), scale=scale))
    panels_per_class = len(panels) // classes
    class_panels = panels[shown_class * panels_per_class : (shown_class + 1) * panels_per_class]
    coloured = [v for v in class_panels if v.quantity != "labels" and not v.empty]
    rows = selected(coloured[0].values, position)
    tiles = slice_tiles(
        scan, slices[rows].tolist(), swatches=[colours(v)[rows] for v in coloured],
        frames=_frames(p, rows),
    )  # fmt: skip
    title = title if title is not None else heading(p)
    sheet = captioned(_sheet(tiles, bars=len(coloured)), title)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=DPI)
    FigureCanvasAgg(figure)
    draw_title(figure, title, sheet=sheet)
    _draw_tiles(
        figure, tiles, rows=rows, position=position, panels=coloured,
        of_class=f", {names[shown_class]}" if classes > 1 else "", sheet=sheet,
    )  # fmt: skip
    for k, panel in enumerate(coloured):
        name = f"{panel.quantity} bar"
        draw_bar(figure, panel, norm=norm_of(panel), sheet=sheet, k=k, name=name)
    ax = figure.add_axes(share(sheet.panels[1], sheet), label="values")
    _draw_values(ax, p, position, rows=rows)
    return figure


def render_strip(
    p: Prediction,
    path: Path,
    scan: Scan,
    *,
    scale: Scale = "per-bag",
    title: str | None = None,
    limits: ColourLimits | None = None,
) -> None:
    """Write the map of a bag with the slices of its scan as a PNG, atomically.

    Args:
        p: The bag's prediction; its coordinates are positions in millimetres.
        path: Path of the PNG.
        scan: The series.
        scale: Which scale `limits` belong to; the colour bars name it.
        title: Text above the map; None: the bag's name and its probability.
        limits: Colour limits; None: those of this bag.

    Raises:
        InputError: The scan has no slice at one of the positions.
        BagError: No attention is finite.
    """
    save_figure(draw_strip(p, scan, scale=scale, title=title, limits=limits), path)


def _frames(p: Prediction, rows: np.ndarray) -> np.ndarray | None:
    """Return the colour of each slice's true label; grey if it is unknown."""
    if p.instance_labels is None:
        return None
    label = p.instance_labels[rows]
    colour = np.rint(np.asarray(PALETTE["labels"]((label > 0).astype(int)))[:, :3] * 255)
    return np.where(label[:, None] < 0, 128, colour).astype(np.uint8)


def _sheet(tiles: Tiles, *, bars: int) -> Sheet:
    """Lay out, from top to bottom: title, slices, colour bars side by side, plot."""
    height, width = np.array(tiles.image.shape[:2]) / DPI
    left, right, bottom = 0.75, 0.3, 0.55
    page = max(left + width + right, NARROWEST)
    inner = page - left - right
    total = math.ceil((HEADING + TITLE + height + 0.75 + TITLE + PLOT_HEIGHT + bottom) * DPI) / DPI
    below = round((total - HEADING - TITLE - height) * DPI) / DPI
    bar_width = (inner - 0.4 * (bars - 1)) / bars
    bar_boxes = [
        (left + k * (bar_width + 0.4), below - 0.1 - BAR, bar_width, BAR) for k in range(bars)
    ]
    return Sheet(
        width=round(page * DPI) / DPI,
        height=total,
        dpi=DPI,
        panels=(
            (round(left * DPI) / DPI, below, width, height),
            (left, bottom, inner, PLOT_HEIGHT),
        ),
        bars=tuple(bar_boxes),
        horizontal=True,
        x_limits=(0.0, float(tiles.image.shape[1])),
        y_limits=(float(tiles.image.shape[0]), 0.0),
        first=(False, True),
        last=(False, True),
    )


def _draw_tiles(
    figure: Figure,
    tiles: Tiles,
    *,
    rows: np.ndarray,
    position: np.ndarray,
    panels: Sequence[Panel],
    of_class: str,
    sheet: Sheet,
) -> None:
    ax = figure.add_axes(share(sheet.panels[0], sheet), label="slices")
    extent = (*sheet.x_limits, *sheet.y_limits)
    ax.imshow(tiles.image, extent=extent, interpolation="none", aspect="auto")
    ax.axis("off")
    n = len(position)
    shown = panels[0].quantity
    subset = (
        f"all {n} slices" if len(rows) == n else f"the {len(rows)} of {n} with the highest {shown}"
    )
    quantities = {"mean": "mean μ", "evidence": "evidence"}.get(shown, shown)
    if len(panels) > 1:
        quantities += " and variance σ²"
    elif shown == "mean":
        quantities += "; no variance (Dirac)"
    text = f"{subset}, by position in mm; below: {quantities}{of_class}"
    ax.set_title(text, fontsize=NORMAL, loc="left")
    w, h = tiles.size
    for (x, y), row in zip(tiles.corners, rows, strict=True):
        ax.text(
            x + FRAME + 4, y + FRAME + 3, f"{position[row]:.1f}".replace("-", "−"),
            color="white", fontsize=SMALL, va="top",
            path_effects=[withStroke(linewidth=2, foreground="black")],  # bone is white as well
        )  # fmt: skip
        for j, panel in enumerate(panels):
            value = panel.values[row]
            r, g, b = colours(panel)[row] / 255.0
            dark = 0.299 * r + 0.587 * g + 0.114 * b < 0.5
            ax.text(
                x + w / 2, y + h + (j + 0.5) * SWATCH, number(float(value)),
                color="white" if dark else "black", fontsize=SMALL, ha="center", va="center",
            )  # fmt: skip


def _draw_values(ax: Axes, p: Prediction, position: np.ndarray, *, rows: np.ndarray) -> None:
    """Plot mean ± std along the scan, and mark the positive slices."""
    n = len(position)
    order = np.argsort(position, kind="stable")
    x = position[order]
    mean = np.asarray(p.attention_mean, np.float64).reshape(n, -1)[order]
    std = np.sqrt(np.asarray(p.attention_variance, np.float64).reshape(n, -1)[order])
    quantity = quantity_of(p)
    name = "mean μ" if quantity == "mean" else quantity
    if is_signed(quantity):
        ax.axhline(0, color="0.6", lw=0.8, zorder=0)
    for c, colour in zip(range(mean.shape[1]), _cycle(), strict=False):
        single = mean.shape[1] == 1
        label = name if single else f"class {c}"
        ax.plot(x, mean[:, c], color=colour, lw=1.2, marker=".", ms=4, label=label)
        if std[:, c].any():
            low, high = mean[:, c] - std[:, c], mean[:, c] + std[:, c]
            band = "μ ± σ" if single else None
            ax.fill_between(x, low, high, color=colour, alpha=0.22, lw=0, label=band)
    x_data_y_axes = ax.get_xaxis_transform()
    if p.instance_labels is not None:
        positive = x[p.instance_labels[order] > 0]
        ax.plot(
            positive, np.full(len(positive), 0.035), transform=x_data_y_axes, ls="", marker="s",
            ms=4, color="#D55E00",
            label=f"positive ({len(positive)} of {n}), orange frame",
        )  # fmt: skip
    if len(rows) < n:
        shown = position[rows]
        ax.plot(
            shown, np.full(len(shown), 0.965), transform=x_data_y_axes, ls="", marker="v", ms=4,
            color="0.35", label="shown above",
        )  # fmt: skip
    ax.set_xlabel("position along the scan (mm)", fontsize=SMALL)
    score = score_name(p).removesuffix(" mean μ")
    deviation = "" if p.score_kind in SHOWN_KINDS else ", ± σ"
    ax.set_ylabel(f"{score} ({p.score_kind}){deviation}", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL, length=3)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.margins(x=0.01, y=0.12)
    ax.legend(
        fontsize=SMALL, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=7, frameon=False,
        borderaxespad=0.2, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def _cycle() -> tuple[str, ...]:
    """Return the colours of Okabe and Ito, which colour-blind readers can tell apart."""
    return ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
