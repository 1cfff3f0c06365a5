"""Stage 10: the page of any picture: panels of one size, their axes and colour bars, and words.

matplotlib's constrained layout finds the room for the words, and `finish` makes the page as large
as it must be for the panels to have the size asked for, on whole pixels. There is no global state,
so that maps can be drawn from several threads or processes.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine, PlaceHolderLayoutEngine
from matplotlib.ticker import MaxNLocator

from ..core import replacing
from ..slides import Region
from .layout import Layout, owners
from .quantities import Quantity
from .scale import numbers

ALPHA = 0.6
"""Opacity of the colours over the tissue."""
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue (ITU-R BT.601)."""
ROWS = 1024
"""Rows of pixels blended at a time, to bound memory."""
BACKGROUND = (170, 170, 170)
"""Colour where there is no tissue: darker than low values and 0, greyer than high values."""
TINY = 7
SMALL = 8
NORMAL = 9.5
LARGE = 11
"""Font sizes in points."""
NOTE = "0.3"
"""Colour of the notes below titles."""
TITLE_PAD = 4
"""Points between a panel and the words above it."""
BAR = 0.14
"""Width in inches of a colour bar."""
BAR_GAP = 0.15
"""Inches between a panel and its colour bar."""
CHARACTER = 0.065
"""Width in inches of a character of the size `SMALL`, on average."""
TITLE_CHARACTER = 0.098
"""Width in inches of a bold character of the size `LARGE`, on average."""
LINE = 0.22
"""Height in inches of a line of the size `LARGE`, rounded up."""
NARROWEST = 6.4
"""Width in inches of the narrowest page, which may have a single panel."""
MOST_OFF = 2
"""Pixels by which the layout may miss the size of a panel."""
ROUND = {"integer": True, "steps": [1, 2, 5, 10]}
STACK_FROM = 2.5
"""Ratio of width to height from which panels are stacked one below the other."""


class Panel(NamedTuple):
    """One panel of a page."""

    name: str
    """The label of its axes."""
    content: Quantity | Callable[[Axes], None] | None
    """What it shows, or what draws it; None is an empty place."""
    has_own_axes: bool = False
    """Whether what draws it sets the limits and ticks of its axes, too."""


class Title(NamedTuple):
    """The text above a page."""

    name: str
    """What is shown; in a line that is too long it loses its middle, since its ends identify it."""
    facts: tuple[str, ...] = ()
    """What is said of it, in the same line."""
    more: tuple[str, ...] = ()
    """Further lines, of what holds for all pages."""

    @property
    def line(self) -> str:
        """The whole first line."""
        return " · ".join((self.name, *self.facts))

    def fitted(self, width: float) -> str:
        """Return the first line for a page of this width in inches."""
        room = int((width - 0.6) / TITLE_CHARACTER)
        if len(self.line) <= room:
            return self.line
        facts = " · ".join(self.facts)
        keep = max(8, (room - len(facts) - 6) // 2)
        name = self.name
        if len(name) > 2 * keep:
            name = f"{name[:keep]}…{name[-keep:]}"
        return f"{name} · {facts}" if facts else name

    def wrapped(self, width: float) -> str:
        """Return all lines for a page of this width in inches, broken where they are too long."""
        characters = int((width - 0.3) / TITLE_CHARACTER)
        return "\n".join(fill(line, characters) for line in (self.fitted(width), *self.more))


@dataclass(frozen=True, kw_only=True, slots=True)
class Canvas:
    """What the panels of a page are drawn on: one picture, and who owns its pixels."""

    image: UInt8[np.ndarray, "height width 3"]
    owners: Int[np.ndarray, "height width"]
    """Row of the instance that each pixel shows; −1 for none."""
    extent: tuple[float, float, float, float]
    """Bounds (left, right, bottom, top) in the unit of the axes; top < bottom."""
    size: tuple[float, float]
    """(width, height) of a panel in inches."""
    dpi: int
    layout: Layout
    alpha: float = 1.0
    """Opacity of the colours."""
    mpp: float | None = None
    """Micrometres per unit of the axes; None: the axes are in pixels."""
    small: bool = False
    """Whether the page has many small panels, whose titles state what a note states elsewhere."""

    @property
    def stacked(self) -> bool:
        """Whether the panels stand one below the other."""
        return self.layout.strip or self.size[0] > STACK_FROM * self.size[1]


def plain_canvas(layout: Layout, *, small: bool = False) -> Canvas:
    """Return the canvas of a map without its slide: panels with the shape of the tissue.

    They may be wider or taller than the tissue; both axes keep the same unit. Slices of a strip
    fill its width. The resolution is such that a patch covers at least 3 pixels, up to 600 dpi.
    """
    left, right, bottom, top = layout.extent
    if layout.strip:
        width, height = (5.6, 0.26) if small else (10.0, 0.5)
        unit = (right - left) / width  # unit of the axes per inch
    else:
        margin = max(0.25 * layout.side, 0.02 * max(right - left, bottom - top))
        across = right - left + 2 * margin
        down = bottom - top + 2 * margin
        width, height = _panel_size(across / down, small=small)
        # the coarser of both axes, so that the tissue fits and keeps its shape
        unit = max(across / width, down / height)
    dpi = int(np.clip(np.ceil(3 * unit / layout.stride), 150, 600))
    cell = unit / dpi
    columns = round(width * dpi)
    rows = round(height * dpi)
    if layout.strip:
        # one row of pixels, which matplotlib stretches to the height of the strip
        shape = (1, columns)
        x = (left + right) / 2 - columns / 2 * cell
        y = top
        extent = (left, right, bottom, top)
    else:
        shape = (rows, columns)
        x = (left + right) / 2 - columns / 2 * cell
        y = (top + bottom) / 2 - rows / 2 * cell
        extent = (x, x + columns * cell, y + rows * cell, y)
    return Canvas(
        image=np.full((*shape, 3), BACKGROUND, np.uint8),
        owners=owners(layout, corner=(x, y), cell=cell, shape=shape),
        extent=extent,
        size=(columns / dpi, rows / dpi),
        dpi=dpi,
        layout=layout,
        small=small,
    )


def _panel_size(aspect: float, *, small: bool) -> tuple[float, float]:
    """Return (width, height) in inches of a panel for tissue of this ratio of width to height."""
    if small:
        # one to three panels, each with its colour bar, across the 6.8 inches of a text
        side_by_side = min(max(1, round(6.8 / (1.4 * aspect**0.5 + 0.82))), 3)
        width = 6.8 / side_by_side - 0.82
        return width, min(max(width / aspect, 0.35), 3.2)
    if aspect > STACK_FROM:
        return 8.0, max(8.0 / aspect, 0.9)
    return max(4.4 * min(aspect, 1.2), 1.5), min(4.4, 4.4 * 1.2 / aspect)


def slide_canvas(picture: Region, layout: Layout, *, alpha: float = ALPHA) -> Canvas:
    """Return the canvas of a map over a slide: a pixel of the page for each of the picture."""
    height, width = picture.image.shape[:2]
    longest = 8.0 if width > STACK_FROM * height else 6.0
    dpi = max(100, math.ceil(max(width, height) / longest))
    corner = picture.left, picture.top
    return Canvas(
        image=picture.image,
        owners=owners(layout, corner=corner, cell=picture.scale, shape=(height, width)),
        extent=picture.extent,
        size=(width / dpi, height / dpi),
        dpi=dpi,
        layout=layout,
        alpha=alpha,
        mpp=None if picture.mpp is None else picture.mpp / picture.scale,
    )


def blend(canvas: Canvas, q: Quantity) -> UInt8[np.ndarray, "height width 3"]:
    """Return alpha · colour + (1 − alpha) · grey where an instance has a value, else the picture.

    The tissue below a colour is reduced to its luminance: a stain would change the hue, which
    encodes the value.
    """
    has_value = np.append(np.isfinite(q.values), False)  # the last entry stands for row −1
    colour = np.append(q.colours, np.zeros((1, 3), np.uint8), axis=0).astype(np.float32)
    blended = canvas.image.copy()
    for start in range(0, len(blended), ROWS):
        rows = slice(start, start + ROWS)
        inside = has_value[canvas.owners[rows]]
        grey = blended[rows][inside] @ LUMINANCE
        mixed = canvas.alpha * colour[canvas.owners[rows][inside]]
        blended[rows][inside] = np.rint(mixed + (1 - canvas.alpha) * grey[:, None]).astype(np.uint8)
    return blended


def draw_page(
    canvas: Canvas,
    panels: Sequence[Panel],
    *,
    columns: int,
    title: Title | str,
    caption: str = "",
    first: float = 1.0,
) -> Figure:
    """Return a page of panels in rows; the first row is `first` times as high as the others.

    The labels of the axes are the names of the panels; a colour bar is called `<name> bar`.
    """
    width, height = canvas.size
    rows = math.ceil(len(panels) / columns)
    heights = [first] + [1.0] * (rows - 1)
    total = sum(heights) * height
    figure = new_figure(columns * width, total, dpi=canvas.dpi, rows=rows, columns=columns)
    grid = figure.add_gridspec(rows, columns, height_ratios=heights)
    axes = []
    for k, panel in enumerate(panels):
        if panel.content is None:
            continue
        ax = figure.add_subplot(grid[divmod(k, columns)], label=panel.name)
        axes.append(ax)
        if not panel.has_own_axes:
            # the labels of the y-axis stand at the first panel of a row, those of the x-axis at
            # the last of a column; large panels all have theirs
            begins_row = k % columns == 0 or panels[k - 1].content is None
            has_panel_below = k + columns < len(panels)
            shares_x = has_panel_below and (canvas.small or canvas.layout.strip)
            dress_axes(ax, canvas, first=begins_row, last=not shares_x)
        if isinstance(panel.content, Quantity):
            draw_panel(ax, panel.content, canvas)
        else:
            panel.content(ax)
    share = (1 / columns, 1 / sum(heights))
    return finish(figure, axes[-1], canvas.size, title=title, caption=caption, share=share)


def new_figure(width: float, height: float, *, dpi: int, rows: int, columns: int) -> Figure:
    """Return a figure with room for panels of this size in all and their words, for `finish`."""
    size = (width + 2 * columns + 1, height + 1.5 * rows + 1)
    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(
    figure: Figure,
    ax: Axes,
    size: tuple[float, float],
    *,
    title: Title | str,
    caption: str,
    share: tuple[float, float],
) -> Figure:
    """Add the title above the panels and the caption below, and give the panels their size.

    Lines of the title are broken where they are too long.

    `size` is that of `ax` in inches, and `share` its part of the width and the height of all
    panels.
    """
    if isinstance(title, str):
        name, *more = title.split("\n")
        title = Title(name, more=tuple(more))
    across, down = share
    above = figure.suptitle(" ", x=0.0, ha="left", fontsize=LARGE, fontweight="bold")
    above.set_parse_math(False)  # a name may contain a dollar sign
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(h_pad=0.08, w_pad=0.08, hspace=0.0, wspace=0.0)
    width, height = figure.get_size_inches()
    with missing_letters():
        # the room for the words depends a little on the size of the page, which depends on them:
        # three passes settle both
        for k in range(3):
            engine.execute(figure)
            box = ax.get_position()
            page = figure.get_size_inches()
            width += (size[0] - box.width * page[0]) / across
            height += (size[1] - box.height * page[1]) / down
            room = max(width, NARROWEST)
            words = title.wrapped(room)
            below = fill(caption, int((room - 0.3) / CHARACTER))
            # without room for the words, the panels would collapse; one line has room already
            if k == 0:
                height += LINE * (len(words.splitlines()) - 1)
            elif k == 1:
                height += LINE * len(below.splitlines())
            above.set(text=words, x=0.1 / room)
            if caption and k == 1:
                text = figure.supxlabel(
                    below, x=0.1 / room, ha="left", fontsize=SMALL, linespacing=1.2
                )
                text.set_parse_math(False)
            engine.set(rect=(0.0, 0.0, width / room, 1.0))  # a narrow page is blank at the right
            # a page has whole pixels
            figure.set_size_inches(
                math.ceil(room * figure.dpi) / figure.dpi,
                math.ceil(height * figure.dpi) / figure.dpi,
            )
        engine.execute(figure)
    figure.set_layout_engine("none")
    _round_to_pixels(figure, size)
    return figure


def _round_to_pixels(figure: Figure, size: tuple[float, float]) -> None:
    """Place all axes on whole pixels, and give panels exactly the pixels of their pictures.

    The layout is right to about a pixel: what is nearly as wide or high as a panel is one.
    """
    page = figure.get_size_inches() * figure.dpi
    panel_size = np.rint(np.array(size) * figure.dpi)
    for ax in figure.axes:
        box = ax.get_position()
        corner = np.rint(box.min * page)
        extent = np.rint(box.size * page)
        extent = np.where(np.abs(extent - panel_size) <= MOST_OFF, panel_size, extent)
        ax.set_position((*corner / page, *extent / page))


def dress_axes(ax: Axes, canvas: Canvas, *, first: bool, last: bool) -> None:
    """Set limits, ticks and labels of a panel.

    Args:
        ax: The panel.
        canvas: What the panel is drawn on.
        first: Whether it is the first panel of its row, which labels the y-axis.
        last: Whether it is the last panel of its column, which labels the x-axis.
    """
    layout = canvas.layout
    width, height = canvas.size
    ax.set(xlim=canvas.extent[:2], ylim=canvas.extent[2:], facecolor=np.array(BACKGROUND) / 255)
    ax.tick_params(labelsize=SMALL, length=3)
    for spine in ax.spines.values():
        spine.set_linewidth(0.6)
    if layout.strip:
        step = _tick_step(canvas)
        middle = (layout.corners[:, 0] + layout.side / 2)[::step]
        ax.set_yticks([])
        ax.set_xticks(middle, layout.numbers[::step] if last else [""] * len(middle))
    else:
        _set_ticks(ax.xaxis, bins=max(1, int(width / 0.9)), unit=canvas.mpp or 1.0)
        _set_ticks(ax.yaxis, bins=max(2, int(height / 0.6)), unit=canvas.mpp or 1.0)
        ax.tick_params(labelleft=first, labelbottom=last)
        if first and (height > 1.2 or not canvas.small):
            ax.set_ylabel("y (µm)" if canvas.mpp else layout.y_label, fontsize=SMALL)
    if last:
        ax.set_xlabel("x (µm)" if canvas.mpp else layout.x_label, fontsize=SMALL)


def _tick_step(canvas: Canvas) -> int:
    """Return 1 to label every slice of a strip, or 2, 5, … so that the numbers do not overlap."""
    layout = canvas.layout
    longest = max(len(number) for number in layout.numbers)
    label_width = longest * 0.075 + 0.08
    slice_width = canvas.size[0] / (canvas.extent[1] - canvas.extent[0])
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if step * slice_width >= label_width:
            return step
    return len(layout.corners)


def _set_ticks(axis: Axis, *, bins: int, unit: float) -> None:
    """Set ticks at round numbers, in the unit that the axis is labelled with."""
    low, high = sorted(v * unit for v in axis.get_view_interval())
    round_numbers = MaxNLocator(bins, **ROUND).tick_values(low, high)
    ticks = [float(v) for v in round_numbers if low <= v <= high]
    axis.set_ticks([v / unit for v in ticks], labels=[f"{v:,.0f}" for v in ticks])


def set_title(ax: Axes, text: str, canvas: Canvas, *, note: str = "", beside: float = 0.0) -> None:
    """Write the title of a panel and a note below it, in lines that fit the panel.

    A strip is wide and low: there the note follows the title in the same line.

    Args:
        ax: The panel.
        text: The title.
        canvas: What the panel is drawn on.
        note: What the colours of the panel span.
        beside: Inches at the right of the panel that the words may use, too.
    """
    pad = TITLE_PAD
    if canvas.layout.strip:
        text = f"{text} · {note}" if note else text
    elif not canvas.small:
        width = canvas.size[0] + beside + 0.1
        text = fill(text, int(width / 0.078))
        note = fill(note, int(width / CHARACTER))
        if note:
            ax.annotate(
                note,
                (0, 1),
                xycoords="axes fraction",
                xytext=(0, TITLE_PAD),
                textcoords="offset points",
                va="bottom",
                fontsize=SMALL,
                color=NOTE,
            )
            pad += 1.3 * SMALL * len(note.splitlines())
    ax.set_title(text, fontsize=SMALL if canvas.small else NORMAL, loc="left", pad=pad)


def draw_panel(ax: Axes, q: Quantity, canvas: Canvas) -> None:
    """Draw a quantity in a panel that `dress_axes` prepared, with its colour bar."""
    width, height = canvas.size
    if q.absent:
        set_title(ax, q.title, canvas)
        ax.set(facecolor="white", xticks=[], yticks=[], xlabel="")
        text = q.absent if canvas.layout.strip else fill(q.absent, int(width / 0.085))
        ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=NORMAL)
        return
    set_title(ax, q.title, canvas, note=q.note, beside=0.7)
    ax.imshow(blend(canvas, q), extent=canvas.extent, interpolation="none", aspect="auto")
    unit = "" if canvas.small else q.unit
    if canvas.stacked and not canvas.layout.strip:
        draw_bar(ax, q, below=True, length=width, across=height, unit=unit)
    else:
        draw_bar(ax, q, below=False, length=height, across=width, unit=unit)


def draw_bar(
    ax: Axes,
    q: Quantity,
    *,
    below: bool,
    length: float,
    across: float,
    unit: str = "",
    cax: Axes | None = None,
) -> None:
    """Draw the colour bar of a panel: a number at each end, the unit, and 0 between signs.

    All of its texts are horizontal. What the colours mean is said by the title of the panel.

    Args:
        ax: The panel.
        q: What it shows.
        below: Whether the bar lies below the panel, instead of at its right.
        length: Length of the bar in inches.
        across: The other side of the panel.
        unit: The unit to write after the highest number; empty for none.
        cax: Axes for the bar; None: it takes some room of the panel.
    """
    room: dict[str, Any]
    if cax is not None:
        room = {"orientation": "horizontal", "cax": cax}
    elif below:
        room = {"location": "bottom", "ax": ax}
    else:
        room = {"location": "right", "ax": ax, "pad": BAR_GAP / across}
    if cax is None:
        room |= {"fraction": BAR / across, "aspect": length / BAR}
    bar = ax.figure.colorbar(ScalarMappable(q.norm, q.kind.colours), extend=_extend(q), **room)
    bar.ax.set_label(f"{ax.get_label()} bar" if cax is None else f"{q.key} bar")
    bar.outline.set_linewidth(0.6)  # type: ignore[operator]
    bar.ax.tick_params(labelsize=SMALL, length=2)
    if q.kind.words:
        bar.set_ticks([0, 1], labels=list(q.kind.words))
        return
    ticks = _bar_ticks(q)
    labels = numbers(*ticks)
    if unit:
        labels[-1] = f"{labels[-1]} {unit}"
    bar.set_ticks(ticks, labels=labels)


def _extend(q: Quantity) -> Literal["neither", "min", "max", "both"]:
    """Return at which ends of the colour bar an arrow stands for values beyond it."""
    if q.kind.words:
        return "neither"
    low, high = q.limits
    slack = 1e-6 * (high - low)  # float32 values are compared with float64 limits
    finite = q.values[np.isfinite(q.values)]
    is_below = bool((finite < low - slack).any())
    is_above = bool((finite > high + slack).any())
    if is_below and is_above:
        return "both"
    if is_below:
        return "min"
    return "max" if is_above else "neither"


def _bar_ticks(q: Quantity) -> list[float]:
    """Return the values that are written at the colour bar."""
    low, high = q.limits
    if q.flat:
        return [(low + high) / 2]
    finite = q.values[np.isfinite(q.values)]
    # a single value has limits around it, which are no values of the bag
    if q.kind.limits is None and len(finite) and np.ptp(finite) == 0:
        only = float(finite[0])
        if low <= only <= high:
            return [only]
    if q.kind.signed and low < 0 < high:
        return [low, 0.0, high]
    return [low, high]


@contextmanager
def missing_letters() -> Iterator[None]:
    """Say nothing of letters that the font lacks: they become boxes, which leaves the map right."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save_figure(figure: Figure, path: Path | str) -> None:
    """Write a figure as a PNG, atomically."""
    path = Path(path)
    with replacing(path) as temporary, missing_letters():
        if isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):  # see `finish`
            FigureCanvasAgg(figure).print_png(temporary)  # unlike savefig, it draws once
        else:
            figure.savefig(temporary, format="png")
