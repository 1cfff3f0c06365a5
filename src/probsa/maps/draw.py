"""Stage 10: the map of a bag: its score, its variance and, if known, its labels, side by side.

Every panel has a colour bar that names its quantity and its scale. Over a slide, the tissue comes
first, and all panels show the same part of the slide.
"""

import math
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
from .quantities import Scale, columns_of, quantities
from .scale import ColourLimits, bag_limits


def heading(p: Prediction, *, label: int | str | None = None, said: Verdict | None = None) -> str:
    """Return `bag 049 · p = 0.87 ± 0.05 · label 1`, for the likeliest of several classes.

    Other tasks have their own words, as `bag 049 · grade 2, p = 0.61 ± 0.08 · label 2`.

    Args:
        p: The prediction.
        label: What the bag is labelled with.
        said: What is predicted; None to take it from the prediction alone.
    """
    known = "" if label is None else f" · label {label}"
    return f"{p.name} · {(said or p.of_task.verdict(p)).text}{known}"


def draw_map(
    p: Prediction,
    *,
    over: tuple[Region, Layout] | None = None,
    alpha: float = ALPHA,
    scale: Scale = "per-bag",
    title: str | None = None,
    label: int | None = None,
    limits: ColourLimits | None = None,
) -> Figure:
    """Return the map of one bag as a figure, for `save_figure`.

    The axes are labelled `mean` (or `contribution`, `evidence`, `probability`, if `showing` put
    that score in its place), `variance` and `labels` (`mean 1`, … if there is one attention per
    class), their colour bars `mean bar` and so on, and the tissue `tissue`.

    Args:
        p: The bag's prediction.
        over: The part of the slide to draw over, and the positions of the bag's patches; None: a
            plain background.
        alpha: Opacity of the colours over the tissue.
        scale: `per-bag` spans this bag's smallest to largest value, as the paper's maps do; `fixed`
            uses `limits`, so that colours mean the same in all bags.
        title: Text above the map; None: the bag's name, its probability ± std and its label. What
            follows the first line is a caption below the map.
        label: The bag's true label, for the title.
        limits: Limits of a fixed scale, from `map_limits`, or of several slides of a patient; None:
            those of this bag.

    Raises:
        BagError: The bag has no instances, no finite attention or unusable coordinates.
    """
    canvas = plain_canvas(place(p)) if over is None else slide_canvas(*over, alpha=alpha)
    found = list(quantities(p, limits or bag_limits(p), scale=scale))
    classes = columns_of(p)
    per_class = len(found) // classes
    panels: list[Panel] = []
    for k, q in enumerate(found):
        # the tissue is shown in the first row only
        if over is not None and k % per_class == 0 and (k == 0 or not canvas.stacked):
            draw = partial(_draw_tissue, picture=over[0], canvas=canvas)
            panels.append(("tissue", None if k else draw))
        panels.append((q.key + (f" {k // per_class}" if classes > 1 else ""), q))
    columns = 1 if canvas.stacked else len(panels) // classes
    first_line, _, caption = (heading(p, label=label) if title is None else title).partition("\n")
    return draw_page(canvas, panels, columns=columns, title=first_line, caption=caption)


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
    inch = (right - left) / canvas.size[0]  # level-0 pixels per inch on paper
    bar = long / per_pixel
    box = max(bar, 0.55 * inch) + 0.16 * inch
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
