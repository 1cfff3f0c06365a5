"""Stage 10: the map of a bag: its score, the doubt about it and, if known, its labels.

Every panel has a colour bar that names its quantity and its scale. Over a slide, the tissue comes
first, and all panels show the same part of the slide.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby

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
    Title,
    draw_page,
    plain_canvas,
    set_title,
    slide_canvas,
)
from .quantities import DOUBTS, columns_of, quantities
from .scale import ColourLimits

WIDE = 1.8
"""Ratio of width to height that the page of one class comes near to."""


def heading(p: Prediction, *, label: str = "", verdict: Verdict | None = None) -> Title:
    """Return `049 · tumour: p 0.87 ± 0.05, threshold 0.21 · label 1`, with the task's words.

    Args:
        p: The prediction.
        label: What the bag is labelled with.
        verdict: What is predicted; None to take it from the prediction alone.
    """
    verdict = verdict or p.of_task.verdict(p, p.stated)
    facts = [verdict.text]
    if verdict.unsure:
        facts.append("unsure")
    if label:
        facts.append(f"label {label}")
    return Title(p.name, tuple(facts))


def draw_map(
    p: Prediction,
    *,
    over: tuple[Region, Layout] | None = None,
    alpha: float = ALPHA,
    title: Title | str | None = None,
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
        title: Text above the map; None: the bag's name and what is predicted. Further lines may
            say what holds for all maps.
        caption: Text below the map.
        limits: Limits of a fixed scale, from `map_limits`, so that colours mean the same in all
            bags; None: this bag's smallest to largest value, as in the paper's maps.
        also: The rows of `KINDS` that are shown beside the score.

    Raises:
        BagError: The bag has no instances, no finite attention or unusable coordinates.
    """
    canvas = plain_canvas(place(p)) if over is None else slide_canvas(*over, alpha=alpha)
    classes = columns_of(p)
    panels: list[Panel] = []
    for column, class_quantities in groupby(
        quantities(p, limits, also=also), key=lambda q: q.column
    ):
        is_first = column == 0
        is_last = column == classes - 1
        if over is not None and is_first:
            draw_tissue = partial(_draw_tissue, picture=over[0], canvas=canvas)
            panels.append(Panel("tissue", draw_tissue))
        elif over is not None and not canvas.stacked:
            panels.append(Panel("tissue", None))  # the rows of further classes leave its place
        for q in class_quantities:
            # the labels are those of all classes: in one column, they are shown once
            if q.key == "labels" and canvas.stacked and not is_last:
                continue
            panels.append(Panel(f"{q.key} {column}" if classes > 1 else q.key, q))
    columns = _columns(canvas, panels, classes=classes)
    return draw_page(
        canvas,
        panels,
        columns=columns,
        title=heading(p) if title is None else title,
        caption=caption,
    )


def _columns(canvas: Canvas, panels: Sequence[Panel], *, classes: int) -> int:
    """Return how many panels stand side by side: of several classes, those of each one."""
    if canvas.stacked:
        return 1
    if classes > 1:
        return len(panels) // classes
    width = canvas.size[0] + 1.3
    height = canvas.size[1] + 0.8

    def cost(columns: int) -> float:
        rows = math.ceil(len(panels) / columns)
        ratio = columns * width / (rows * height)
        empty = rows * columns - len(panels)
        return abs(math.log(ratio / WIDE)) + empty / len(panels)

    return min(range(1, len(panels) + 1), key=cost)


def _draw_tissue(ax: Axes, *, picture: Region, canvas: Canvas) -> None:
    """Draw the slide in the first panel, with a scale bar if its resolution is known."""
    part = "tissue, whole slide" if picture.whole else "tissue around the patches"
    if picture.undecoded:
        part += f"; grey: {picture.undecoded} of {picture.blocks} parts unreadable"
    set_title(ax, part, canvas)
    ax.imshow(picture.image, extent=picture.extent, interpolation="none", aspect="auto")
    if picture.mpp is not None:
        _draw_scale_bar(ax, picture, mpp=picture.mpp, width=canvas.size[0])


def _draw_scale_bar(ax: Axes, picture: Region, *, mpp: float, width: float) -> None:
    """Draw a bar of a round length on white, about a fifth of the panel of this width in inches."""
    left, right, bottom, _ = picture.extent
    per_pixel = mpp / picture.scale
    length = round_length(0.22 * (right - left) * per_pixel)
    text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
    narrowest = 0.55
    if picture.mpp_is_given:
        text += " (as given)"
        narrowest = 1.1
    inch = (right - left) / width  # level-0 pixels per inch on paper
    bar_width = length / per_pixel
    # the text may be wider than the bar
    box_width = max(bar_width, narrowest * inch) + 0.16 * inch
    x = right - box_width - 0.08 * inch
    y = bottom - 0.4 * inch
    middle = x + box_width / 2
    box = Rectangle((x, y), box_width, 0.32 * inch, color="white", alpha=0.85, linewidth=0)
    ax.add_patch(box)
    bar_corner = (middle - bar_width / 2, y + 0.23 * inch)
    bar = Rectangle(bar_corner, bar_width, 0.05 * inch, color="black", alpha=1.0, linewidth=0)
    ax.add_patch(bar)
    ax.text(middle, y + 0.2 * inch, text, fontsize=SMALL, ha="center", va="bottom")


def round_length(micrometres: float) -> float:
    """Return the largest of 1, 2, 5 · 10ᵏ that is not longer than the given length."""
    power = 10.0 ** math.floor(math.log10(micrometres))
    return max(m * power for m in (1, 2, 5) if m * power <= micrometres * (1 + 1e-9))
