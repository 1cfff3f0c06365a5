"""Stage 10: the map of a scan: its slices with their values, and all values along the scan.

Slices are found by their position in millimetres, never by their number. Of a long scan those with
the highest mean are shown; the line below has them all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image

from ..errors import InputError
from ..evaluation import Prediction
from ..slides import WINDOWS, Scan, Windows, slice_image
from .geometry import BAR, HEADING, TITLE, Sheet
from .overlay import colours
from .panels import (
    NORMAL,
    PALETTE,
    SMALL,
    Panel,
    Scale,
    draw_bar,
    draw_title,
    heading,
    norm_of,
    number,
    panels_of,
    save,
    share,
)
from .scale import Limits, bag_limits

SAME_PLACE = 0.05
"""Millimetres between a position of the bag and the slice of the scan that it is."""
MOST = 60
"""Slices that are all shown."""
SELECTED = 24
"""Of a longer scan."""
BRAIN = Windows((WINDOWS["brain"], WINDOWS["brain"], WINDOWS["brain"]))
DPI = 150
TILE = 180
"""Pixels of a slice's width."""
SWATCH = 27
"""Pixels of a value's height, below its slice."""
GAP = 12
FRAME = 5
LINE = 2.0
"""Inches of the height of the line."""
NARROWEST = 7.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """The slices as one picture, and where each is in it."""

    image: UInt8[np.ndarray, "height width 3"]
    corners: Int[np.ndarray, "shown 2"]
    """(x, y) of each slice's top-left pixel."""
    size: tuple[int, int]
    """(width, height) of a slice."""
    columns: int


def match_slices(p: Prediction, scan: Scan) -> Int[np.ndarray, " n"]:
    """The slice of the scan that each instance of the bag is.

    Raises:
        InputError: a bag that is no scan, or a position where the scan has no slice.
    """
    if p.coords is None or p.coords.shape[-1] != 1:
        raise InputError(f"bag {p.name!r} has no positions of slices: {scan.path} cannot be shown")
    at = np.asarray(p.coords, np.float64)[:, 0]
    held = np.asarray(scan.positions, np.float64)
    order = np.argsort(held, kind="stable")
    upper = np.searchsorted(held[order], at).clip(1, max(len(held) - 1, 1))
    lower = upper - 1
    upper = upper.clip(max=len(held) - 1)
    near = np.where(at - held[order[lower]] <= held[order[upper]] - at, lower, upper)
    found = order[near]
    off = np.abs(held[found] - at)
    if off.max() > SAME_PLACE:
        k = int(off.argmax())
        raise InputError(
            f"bag {p.name!r} has a slice at {at[k]:g} mm, but {scan.path} has none there (the "
            f"nearest of its {len(held)} lies at {held[found[k]]:g} mm): it is another series, or "
            "the bag's coordinates are numbers of slices and not positions"
        )
    return found


def selected(mean: np.ndarray, position: np.ndarray) -> Int[np.ndarray, " shown"]:
    """The rows that are shown, by position: all, or those with the highest mean."""
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
    """Slices in the brain window, each with its colours below and, where given, framed."""
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
        kind = Image.Resampling.NEAREST if fine else Image.Resampling.BOX
        image[y : y + h, x : x + w] = np.asarray(pixels.resize((w, h), kind))[..., None]
        if frames is not None:
            inner = image[y + FRAME : y + h - FRAME, x + FRAME : x + w - FRAME].copy()
            image[y : y + h, x : x + w] = frames[k]
            image[y + FRAME : y + h - FRAME, x + FRAME : x + w - FRAME] = inner
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
    limits: Limits | None = None,
) -> Figure:
    """The map of a scan; the arguments are those of `render_strip`.

    Its axes are labelled `slices` and `values`, the colour bars `mean bar` and `variance bar`.
    """
    found = match_slices(p, scan)
    position = np.asarray(scan.positions, np.float64)[found]
    classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
    shown_class = int(np.argmax(p.probability)) if classes == len(p.probability) > 1 else 0
    panels = list(panels_of(p, limits or bag_limits(p), scale=scale))
    each = len(panels) // classes
    own = panels[shown_class * each : (shown_class + 1) * each]
    coloured = [v for v in own if v.quantity != "labels" and not v.empty]
    rows = selected(coloured[0].values, position)
    tiles = slice_tiles(
        scan, found[rows].tolist(), swatches=[colours(v)[rows] for v in coloured],
        frames=_frames(p, rows),
    )  # fmt: skip
    sheet = _sheet(tiles, bars=len(coloured))
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=DPI)
    FigureCanvasAgg(figure)
    draw_title(figure, title if title is not None else heading(p), sheet=sheet)
    _draw_tiles(
        figure, tiles, rows=rows, position=position, panels=coloured,
        of_class=f", class {shown_class}" if classes > 1 else "", sheet=sheet,
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
    limits: Limits | None = None,
) -> None:
    """Writes the map of a bag with the slices of its scan as a PNG, atomically.

    Args:
        p: the bag's prediction; its coordinates are positions in millimetres.
        path: of the PNG.
        scan: the series.
        scale: which scale `limits` are: for the words at the colour bars.
        title: above the map; None: the bag's name and its probability.
        limits: of the colours; None: this bag's own.

    Raises:
        InputError: a position where the scan has no slice.
        BagError: no finite attention.
    """
    save(draw_strip(p, scan, scale=scale, title=title, limits=limits), path)


def _frames(p: Prediction, rows: np.ndarray) -> np.ndarray | None:
    """The colour of each slice's true label; grey where it is not known."""
    if p.instance_labels is None:
        return None
    label = p.instance_labels[rows]
    colour = np.rint(np.asarray(PALETTE["labels"]((label > 0).astype(int)))[:, :3] * 255)
    return np.where(label[:, None] < 0, 128, colour).astype(np.uint8)


def _sheet(tiles: Tiles, *, bars: int) -> Sheet:
    """From the top: title, slices, colour bars side by side, the line."""
    height, width = np.array(tiles.image.shape[:2]) / DPI
    left, right, bottom = 0.75, 0.3, 0.55
    page = max(left + width + right, NARROWEST)
    inner = page - left - right
    total = math.ceil((HEADING + TITLE + height + 0.75 + TITLE + LINE + bottom) * DPI) / DPI
    below = round((total - HEADING - TITLE - height) * DPI) / DPI
    share_of = (inner - 0.4 * (bars - 1)) / bars
    at = [(left + k * (share_of + 0.4), below - 0.1 - BAR, share_of, BAR) for k in range(bars)]
    return Sheet(
        width=round(page * DPI) / DPI,
        height=total,
        dpi=DPI,
        panels=((round(left * DPI) / DPI, below, width, height), (left, bottom, inner, LINE)),
        bars=tuple(at),
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
    which = f"all {n} slices" if len(rows) == n else f"the {len(rows)} of {n} with the highest mean"
    below = "mean μ and variance σ²" if len(panels) > 1 else "mean μ; no variance (Dirac)"
    text = f"{which}, by position in mm; below: {below}{of_class}"
    ax.set_title(text, fontsize=NORMAL, loc="left")
    w, h = tiles.size
    for (x, y), row in zip(tiles.corners, rows, strict=True):
        ax.text(
            x + FRAME + 4, y + FRAME + 3, f"{position[row]:.1f}".replace("-", "−"),
            color="white", fontsize=SMALL, va="top",
            path_effects=[withStroke(linewidth=2, foreground="black")],  # bone is white too
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
    """Mean ± standard deviation along the scan, and which slices are positive."""
    n = len(position)
    order = np.argsort(position, kind="stable")
    x = position[order]
    mean = np.asarray(p.attention_mean, np.float64).reshape(n, -1)[order]
    deviation = np.sqrt(np.asarray(p.attention_variance, np.float64).reshape(n, -1)[order])
    for c, colour in zip(range(mean.shape[1]), _cycle(), strict=False):
        one = mean.shape[1] == 1
        line = "mean μ" if one else f"class {c}"
        ax.plot(x, mean[:, c], color=colour, lw=1.2, marker=".", ms=4, label=line)
        if deviation[:, c].any():
            low, high = mean[:, c] - deviation[:, c], mean[:, c] + deviation[:, c]
            band = "μ ± σ" if one else None
            ax.fill_between(x, low, high, color=colour, alpha=0.22, lw=0, label=band)
    across = ax.get_xaxis_transform()
    if p.instance_labels is not None:
        positive = x[p.instance_labels[order] > 0]
        ax.plot(
            positive, np.full(len(positive), 0.035), transform=across, ls="", marker="s",
            ms=4, color="#D55E00",
            label=f"positive ({len(positive)} of {n}), orange frame",
        )  # fmt: skip
    if len(rows) < n:
        shown = position[rows]
        ax.plot(
            shown, np.full(len(shown), 0.965), transform=across, ls="", marker="v", ms=4,
            color="0.35", label="shown above",
        )  # fmt: skip
    ax.set_xlabel("position along the scan (mm)", fontsize=SMALL)
    score = "attention" if p.score_kind in ("logit", "weight") else "instance score"
    ax.set_ylabel(f"{score} ({p.score_kind}), ± σ", fontsize=SMALL)
    ax.tick_params(labelsize=SMALL, length=3)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.margins(x=0.01, y=0.12)
    ax.legend(
        fontsize=SMALL, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=7, frameon=False,
        borderaxespad=0.2, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip


def _cycle() -> tuple[str, ...]:
    """Okabe and Ito's colours, told apart by colour-blind eyes too."""
    return ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
