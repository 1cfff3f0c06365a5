"""Stage 10: the page of a slide's map: tissue, mean, variance and labels side by side.

All panels show the same part of the slide, with one pixel of the picture per pixel of the page.
"""

import math
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..evaluation import Prediction
from .blending import ALPHA, Squares, blend, owners
from .captions import captioned
from .geometry import BAR, HEADING, STACK_FROM, TITLE, WIDE, Sheet
from .layout import Layout, place
from .panels import (
    NORMAL,
    SMALL,
    Scale,
    draw_bar,
    draw_title,
    dress_axes,
    heading,
    norm_of,
    panels_of,
    save_figure,
    share,
)
from .scale import ColourLimits, bag_limits
from .tissue import View

SIDE = 6.0
"""Longer side of a panel, in inches."""
NARROWEST = 2.7
"""Smallest width of a panel in inches, which leaves room for its title."""
LEAST_DPI = 100


def draw_page(
    p: Prediction,
    picture: View,
    patches: Squares,
    *,
    alpha: float = ALPHA,
    scale: Scale = "per-bag",
    title: str | None = None,
    limits: ColourLimits | None = None,
) -> Figure:
    """Return the map of a bag over its slide; the arguments are those of `render_page`.

    The axes are labelled `tissue`, `mean`, `variance` and `labels` (`mean 1`, … if there is one
    attention per class), their colour bars `mean bar` and so on.
    """
    panels = list(panels_of(p, limits or bag_limits(p), scale=scale))
    classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
    columns = 1 + len(panels) // classes
    title = title if title is not None else heading(p)
    sheet = captioned(page_sheet(picture, rows=classes, columns=columns), title)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=sheet.dpi)
    FigureCanvasAgg(figure)
    draw_title(figure, title, sheet=sheet)
    layout, patch_rows = place(p), owners(patches, picture)
    tissue = _image(figure, picture.image, picture, layout=layout, sheet=sheet, k=0, name="tissue")
    tissue.set_title(_tissue_title(picture), fontsize=NORMAL, loc="left", pad=4)
    if picture.mpp is not None:
        _scale_bar(tissue, picture, sheet=sheet)
    for j, panel in enumerate(panels):
        row, column = divmod(j, columns - 1)
        k = row * columns + column + 1
        name = panel.quantity + (f" {row}" if classes > 1 else "")
        if panel.empty:
            ax = figure.add_axes(share(sheet.panels[k], sheet), label=name, xticks=[], yticks=[])
            ax.text(
                0.5, 0.5, panel.empty, transform=ax.transAxes,
                ha="center", va="center", fontsize=NORMAL,
            )  # fmt: skip
        else:
            mixed = blend(picture, patch_rows, panel, alpha=alpha)
            ax = _image(figure, mixed, picture, layout=layout, sheet=sheet, k=k, name=name)
            draw_bar(figure, panel, norm=norm_of(panel), sheet=sheet, k=k, name=f"{name} bar")
        ax.set_title(panel.title, fontsize=NORMAL, loc="left", pad=4)
    return figure


def render_page(
    p: Prediction,
    path: Path,
    picture: View,
    patches: Squares,
    *,
    alpha: float = ALPHA,
    scale: Scale = "per-bag",
    title: str | None = None,
    limits: ColourLimits | None = None,
) -> None:
    """Write the map of a bag over its slide as a PNG, atomically.

    Args:
        p: The bag's prediction.
        path: Path of the PNG.
        picture: The part of the slide that is shown.
        patches: Positions of the bag's patches.
        alpha: Opacity of the colours over the tissue.
        scale: Which scale `limits` belong to; the colour bars name it.
        title: Text above the map; None: the bag's name and its probability.
        limits: Colour limits; None: those of this bag.
    """
    save_figure(
        draw_page(p, picture, patches, alpha=alpha, scale=scale, title=title, limits=limits), path
    )


def page_sheet(picture: View, *, rows: int, columns: int) -> Sheet:
    """Return a page whose panels have the picture's size in pixels and start on whole pixels."""
    height, width = picture.image.shape[:2]
    stacked = width / height > STACK_FROM
    dpi = max(LEAST_DPI, math.ceil(max(width, height) / (WIDE if stacked else SIDE)))

    def on_pixels(inches: float) -> float:
        return round(inches * dpi) / dpi

    w, h = width / dpi, height / dpi
    left, below = on_pixels(0.9), on_pixels(0.55)
    beside, heading_room = on_pixels(1.2), on_pixels(HEADING)
    slot = max(w, on_pixels(NARROWEST)) + beside
    panels, bars = [], []
    if stacked:
        under = below + on_pixels(0.5) + BAR
        stride = on_pixels(TITLE + under) + h
        page = (
            left + max(w, on_pixels(5.0)) + on_pixels(0.35),
            heading_room + rows * columns * stride,
        )
        for k in range(rows * columns):
            bottom = on_pixels(page[1] - heading_room - k * stride - TITLE) - h
            panels.append((left, bottom, w, h))
            bars.append((left, bottom - 0.5 - BAR, w, BAR))
    else:
        stride = on_pixels(TITLE + 0.55) + h
        page = (left + columns * slot, heading_room + rows * stride + on_pixels(0.1))
        for row in range(rows):
            bottom = on_pixels(page[1] - heading_room - row * stride - TITLE) - h
            for column in range(columns):
                x = left + column * slot
                panels.append((x, bottom, w, h))
                bars.append((x + w + 0.08, bottom, BAR, h))
    n = rows * columns
    extent = picture.extent
    return Sheet(
        width=page[0],
        height=page[1],
        dpi=dpi,
        panels=tuple(panels),
        bars=tuple(bars),
        horizontal=stacked,
        x_limits=extent[:2],
        y_limits=extent[2:],
        # the tissue is shown in the first row only; in the others, the next panel shows the axis
        first=tuple(stacked or k == 0 or (k > columns and k % columns == 1) for k in range(n)),
        last=(True,) * n,
    )


def _image(
    figure: Figure,
    pixels: UInt8[np.ndarray, "height width 3"],
    picture: View,
    *,
    layout: Layout,
    sheet: Sheet,
    k: int,
    name: str,
) -> Axes:
    ax = figure.add_axes(share(sheet.panels[k], sheet), label=name)
    ax.imshow(pixels, extent=picture.extent, interpolation="none", aspect="auto")
    dress_axes(ax, layout=layout, sheet=sheet, k=k)
    return ax


def _tissue_title(picture: View) -> str:
    part = "tissue, whole slide" if picture.whole else "tissue around the patches"
    if picture.undecoded:
        part += f"; grey: {picture.undecoded} of {picture.blocks} parts unreadable"
    return part


def _scale_bar(ax: Axes, picture: View, *, sheet: Sheet) -> None:
    """Draw a bar of a round length, about a fifth of the panel, on white to stay legible."""
    assert picture.mpp is not None
    left, right, bottom, _ = picture.extent
    width = right - left
    per_pixel = picture.mpp / picture.scale
    long = round_length(0.22 * width * per_pixel)
    text = f"{long / 1000:g} mm" if long >= 1000 else f"{long:g} µm"
    inch = width / sheet.panels[0][2]  # level-0 pixels per inch on paper
    bar = long / per_pixel
    box = max(bar, 0.55 * inch) + 0.16 * inch
    x, y = right - box - 0.08 * inch, bottom - 0.4 * inch
    ax.add_patch(Rectangle((x, y), box, 0.32 * inch, color="white", alpha=0.85, linewidth=0))
    middle = x + box / 2
    ax.add_patch(
        Rectangle((middle - bar / 2, y + 0.23 * inch), bar, 0.05 * inch, color="black", linewidth=0)
    )
    ax.text(middle, y + 0.2 * inch, text, fontsize=SMALL, ha="center", va="bottom")


def round_length(micrometres: float) -> float:
    """Return the largest of 1, 2, 5 · 10ᵏ that is not longer than the given length."""
    power = 10.0 ** math.floor(math.log10(micrometres))
    return max(m * power for m in (1, 2, 5) if m * power <= micrometres * (1 + 1e-9))
