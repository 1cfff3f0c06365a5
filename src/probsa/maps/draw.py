"""Stage 10: the map of a bag: its score, the doubt about it and, if known, its labels.

Every panel has a colour bar that names its quantity and its scale. Over a slide, the tissue comes
first, and all panels show the same part of the slide.
"""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..evaluation import Prediction
from ..slides import Region
from ..tasks import Verdict
from .layout import Layout, place
from .picture import (
    ALPHA,
    SMALL,
    Canvas,
    Panel,
    draw_page,
    plain_canvas,
    set_title,
    slide_canvas,
)
from .quantities import DOUBTS, columns_of, quantities
from .scale import ColourLimits

WIDE = 1.8
"""Ratio of width to height that the page of one class comes near to."""


def heading(p: Prediction, *, label: str = "", said: Verdict | None = None) -> str:
    """Return `049 · tumour: p 0.87 ± 0.05, threshold 0.21 · label 1`, with the task's words.

    Args:
        p: The prediction.
        label: What the bag is labelled with.
        said: What is predicted; None to take it from the prediction alone.
    """
    said = said or p.of_task.verdict(p, p.stated)
    unsure = " · unsure" if said.unsure else ""
    return f"{p.name} · {said.text}{unsure}{f' · label {label}' if label else ''}"


def draw_map(
    p: Prediction,
    *,
    over: tuple[Region, Layout] | None = None,
    alpha: float = ALPHA,
    title: str | None = None,
    caption: str = "",
    limits: ColourLimits | None = None,
    also: Sequence[str] = DOUBTS,
) -> Figure:
    """Return the map of one bag as a figure, for `save_figure`.

    The axes are labelled `mean` (or `contribution`, `evidence`, `probability`, if `showing` put
    that score in its place), as the rows of `also`, and `labels` (`mean 1`, … if there is one
    attention per class), their colour bars `mean bar` and so on, and the tissue `tissue`.

    Args:
        p: The bag's prediction.
        over: The part of the slide to draw over, and the positions of the bag's patches; None: a
            plain background.
        alpha: Opacity of the colours over the tissue.
        title: Text above the map; None: the bag's name and what is predicted. A second line may
            say what holds for all maps.
        caption: Text below the map.
        limits: Limits of a fixed scale, from `map_limits`, so that colours mean the same in all
            bags; None: this bag's smallest to largest value, as in the paper's maps.
        also: The rows of `KINDS` that are shown beside the score.

    Raises:
        BagError: The bag has no instances, no finite attention or unusable coordinates.
    """
    canvas = plain_canvas(place(p)) if over is None else slide_canvas(*over, alpha=alpha)
    found = list(quantities(p, limits, also=also))
    classes = columns_of(p)
    per_class = len(found) // classes
    panels: list[Panel] = []
    for k, q in enumerate(found):
        # the tissue is shown in the first row only
        if over is not None and k % per_class == 0 and (k == 0 or not canvas.stacked):
            draw = partial(_draw_tissue, picture=over[0], canvas=canvas)
            panels.append(("tissue", None if k else draw))
        # the labels are those of all classes
        if q.key != "labels" or not canvas.stacked or k == len(found) - 1:
            panels.append((q.key + (f" {k // per_class}" if classes > 1 else ""), q))
    title = heading(p) if title is None else title
    columns = _columns(canvas, panels, classes=classes)
    return draw_page(canvas, panels, columns=columns, title=title, caption=caption)


def _columns(canvas: Canvas, panels: Sequence[Panel], *, classes: int) -> int:
    """Return how many panels stand side by side: of several classes, those of each one."""
    if canvas.stacked or classes > 1:
        return 1 if canvas.stacked else len(panels) // classes
    width, height = canvas.size[0] + 1.3, canvas.size[1] + 0.8

    def ratio(columns: int) -> float:
        return columns * width / (-(-len(panels) // columns) * height)

    def cost(columns: int) -> float:
        empty = -len(panels) % columns
        return abs(math.log(ratio(columns) / WIDE)) + empty / len(panels)

    return min(range(1, len(panels) + 1), key=cost)


def _draw_tissue(ax: Axes, *, picture: Region, canvas: Canvas) -> None:
    part = "tissue, whole slide" if picture.whole else "tissue around the patches"
    if picture.undecoded:
        part += f"; grey: {picture.undecoded} of {picture.blocks} parts unreadable"
    set_title(ax, part, canvas)
    ax.imshow(picture.image, extent=picture.extent, interpolation="none", aspect="auto")
    if picture.mpp is None:
        return
    # a bar of a round length, about a fifth of the panel, on white to stay legible
    left, right, bottom, _ = picture.extent
    per_pixel = picture.mpp / picture.scale
    long = round_length(0.22 * (right - left) * per_pixel)
    text = f"{long / 1000:g} mm" if long >= 1000 else f"{long:g} µm"
    if picture.mpp_is_given:
        text += " (as given)"
    inch = (right - left) / canvas.size[0]  # level-0 pixels per inch on paper
    bar = long / per_pixel
    box = max(bar, (1.1 if picture.mpp_is_given else 0.55) * inch) + 0.16 * inch
    x, y = right - box - 0.08 * inch, bottom - 0.4 * inch
    middle = x + box / 2
    for corner, w, h, colour, alpha in (
        ((x, y), box, 0.32 * inch, "white", 0.85),
        ((middle - bar / 2, y + 0.23 * inch), bar, 0.05 * inch, "black", 1.0),
    ):
        ax.add_patch(Rectangle(corner, w, h, color=colour, alpha=alpha, linewidth=0))
    ax.text(middle, y + 0.2 * inch, text, fontsize=SMALL, ha="center", va="bottom")


def round_length(micrometres: float) -> float:
    """Return the largest of 1, 2, 5 · 10ᵏ that is not longer than the given length."""
    power = 10.0 ** math.floor(math.log10(micrometres))
    return max(m * power for m in (1, 2, 5) if m * power <= micrometres * (1 + 1e-9))
