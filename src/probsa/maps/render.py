"""Stage 10: draw maps as PNG: attention mean, attention variance and, if known, instance labels.

Every panel has a colour bar that names its quantity and its scale. Values are neither smoothed nor
interpolated: a square of one colour is one patch. There is no global state, so maps can be drawn
from several threads or processes.
"""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

from ..evaluation import Prediction
from .captions import captioned
from .geometry import Sheet, arrange
from .layout import Layout, fill, place
from .panels import (
    NORMAL,
    PALETTE,
    SMALL,
    Panel,
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


def render_map(
    p: Prediction,
    path: Path,
    *,
    scale: Scale = "per-bag",
    title: str | None = None,
    label: int | None = None,
    limits: ColourLimits | None = None,
) -> None:
    """Write the map of one bag as a PNG, atomically.

    Args:
        p: The bag's prediction.
        path: Path of the PNG.
        scale: `per-bag` spans this bag's smallest to largest value, as the paper's maps do; `fixed`
            uses `limits`, so that colours mean the same in all bags.
        title: Text above the map; None: the bag's name, its probability ± std and its label. What
            follows the first line is a caption below the map.
        label: The bag's true label, for the title.
        limits: Limits of a fixed scale, from `map_limits`; None: those of this bag.

    Raises:
        BagError: The bag has no instances, no finite attention or unusable coordinates.
    """
    figure = draw_map(p, scale=scale, title=title, label=label, limits=limits)
    save_figure(figure, path)


def draw_map(
    p: Prediction,
    *,
    scale: Scale = "per-bag",
    title: str | None = None,
    label: int | None = None,
    limits: ColourLimits | None = None,
) -> Figure:
    """Return the map of one bag as a figure; the arguments are those of `render_map`.

    The axes are labelled `mean` (or `contribution`, `evidence`, `probability`, if `showing` put
    that score in its place), `variance` and `labels` (`mean 1`, … if there is one attention per
    class), their colour bars `mean bar` and so on.
    """
    layout = place(p)
    bag_range = bag_limits(p)
    used = limits if scale == "fixed" and limits is not None else bag_range
    panels = list(panels_of(p, used, scale=scale))
    classes = p.attention_mean.shape[1] if p.attention_mean.ndim == 2 else 1
    title = title if title is not None else heading(p, label=label)
    sheet = captioned(arrange(layout, rows=classes, columns=len(panels) // classes), title)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=sheet.dpi)
    FigureCanvasAgg(figure)
    draw_title(figure, title, sheet=sheet)
    for k, panel in enumerate(panels):
        suffix = f" {k // (len(panels) // classes)}" if classes > 1 else ""
        draw_panel(figure, panel, layout=layout, sheet=sheet, k=k, name=panel.quantity + suffix)
    return figure


def draw_panel(
    figure: Figure, panel: Panel, *, layout: Layout, sheet: Sheet, k: int, name: str
) -> None:
    """Draw panel `k` of a sheet with its colour bar; the axes are labelled `name` and `name
    bar`."""
    ax = figure.add_axes(share(sheet.panels[k], sheet), label=name)
    title = panel.title if not layout.strip or panel.empty else _one_line(panel)
    ax.set_title(title, fontsize=SMALL if sheet.small else NORMAL, loc="left", pad=4)
    dress_axes(ax, layout=layout, sheet=sheet, k=k)
    if panel.empty:
        ax.set_facecolor("white")
        text = panel.empty.replace("\n", " ") if layout.strip else panel.empty
        if not layout.strip:
            ax.set(xticks=[], yticks=[], xlabel="")
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=NORMAL)
        return
    palette = PALETTE[panel.quantity]
    norm = norm_of(panel)
    if layout.cells is not None:
        r = fill(layout, panel.values)
        masked = np.ma.masked_invalid(r.image)
        ax.imshow(
            masked, extent=r.extent, cmap=palette, norm=norm, interpolation="none", aspect="auto"
        )
        ax.set_xlim(*sheet.x_limits)
        ax.set_ylim(*sheet.y_limits)
    else:
        ax.add_collection(_squares(layout, panel, palette=palette, norm=norm), autolim=False)
    draw_bar(figure, panel, norm=norm, sheet=sheet, k=k, name=f"{name} bar")


def _one_line(panel: Panel) -> str:
    """Return the title of a panel in a strip, where the colour bar has no room for a label."""
    return panel.title if panel.quantity == "labels" else panel.bar


def _squares(layout: Layout, panel: Panel, *, palette: Colormap, norm: Normalize) -> PolyCollection:
    side = layout.size * np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    shown = np.isfinite(panel.values)
    squares = PolyCollection(
        list(layout.corners[shown, None, :] + side),
        cmap=palette,
        norm=norm,
        linewidths=0,
        antialiased=False,  # blended edges would have colours that no patch has
    )
    squares.set_array(panel.values[shown])
    return squares
