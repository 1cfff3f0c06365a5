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
from matplotlib.text import Text
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
TITLE_MARGIN = 0.3
"""Inches at the sides of a page that its title and its caption leave blank, rounded up."""
WORDS_LEFT = 0.1
"""Inches between the left edge of a page and its title and caption."""
PANEL_TITLE_CHARACTER = 0.078
"""Width in inches of a character of the size `NORMAL` in the title of a panel, on average."""
MESSAGE_CHARACTER = 0.085
"""The same of a text in the middle of a panel, with some room at its sides."""
NUMBER_CHARACTER = 0.075
"""Width in inches of a digit of the size `SMALL`, rounded up."""
NUMBER_GAP = 0.08
"""Least inches between two numbers at an axis."""
TEXT_WIDTH = 6.8
"""Inches of a column of text, which small panels fill side by side."""
SMALL_BAR = 0.82
"""Inches beside a small panel for its colour bar, the numbers of that, and the gap to the next."""
PANEL_HEIGHT = 4.4
"""Height in inches of a panel, unless the tissue is wide."""
PANEL_ASPECT = 1.2
"""Ratio of width to height from which a panel gets lower instead of wider."""
STACKED_WIDTH = 8.0
"""Width in inches of panels that are stacked."""
NARROWEST = 6.4
"""Width in inches of the narrowest page, which may have a single panel."""
MOST_STEPS = 3
"""Most times that a page is laid out with its words."""
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
        # with twice the margin of `wrapped`, which does not break this line then
        room = int((width - 2 * TITLE_MARGIN) / TITLE_CHARACTER)
        if len(self.line) <= room:
            return self.line
        facts = " · ".join(self.facts)
        # half of what the facts, the separators and the ellipsis leave, for each end of the name
        kept = max(8, (room - len(facts) - 6) // 2)
        name = self.name
        if len(name) > 2 * kept:
            name = f"{name[:kept]}…{name[-kept:]}"
        return f"{name} · {facts}" if facts else name

    def wrapped(self, width: float) -> str:
        """Return all lines for a page of this width in inches, broken where they are too long."""
        characters = int((width - TITLE_MARGIN) / TITLE_CHARACTER)
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
        # panels of about 1.4² square inches, one to three of them side by side
        wanted_width = 1.4 * aspect**0.5 + SMALL_BAR
        side_by_side = min(max(1, round(TEXT_WIDTH / wanted_width)), 3)
        width = TEXT_WIDTH / side_by_side - SMALL_BAR
        return width, min(max(width / aspect, 0.35), 3.2)
    if aspect > STACK_FROM:
        return STACKED_WIDTH, max(STACKED_WIDTH / aspect, 0.9)
    width = max(PANEL_HEIGHT * min(aspect, PANEL_ASPECT), 1.5)
    height = min(PANEL_HEIGHT, PANEL_HEIGHT * PANEL_ASPECT / aspect)
    return width, height


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
            # the first panel of a row has the labels of the y-axis; a large panel has those of the
            # x-axis, and of small ones and strips, the last panel of a column
            begins_row = k % columns == 0 or panels[k - 1].content is None
            ends_column = k + columns >= len(panels)
            shares_x_axis = canvas.small or canvas.layout.strip
            dress_axes(ax, canvas, label_y=begins_row, label_x=ends_column or not shares_x_axis)
        if isinstance(panel.content, Quantity):
            draw_panel(ax, panel.content, canvas)
        else:
            panel.content(ax)
    share = (1 / columns, 1 / sum(heights))
    return finish(figure, axes[-1], canvas.size, title=title, caption=caption, share=share)


def new_figure(width: float, height: float, *, dpi: int, rows: int, columns: int) -> Figure:
    """Return a figure with room for panels of this size in all and their words, for `finish`."""
    # words beside panels take about this width, and words above and below at most this height
    size = (width + 1.2 * columns, height + 1.5 * rows + 1)
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

    Args:
        figure: A figure that `new_figure` made, with all its panels.
        ax: One of the panels.
        size: (width, height) in inches that this panel must have.
        title: The title; its lines are broken where they are too long.
        caption: The caption, which is broken in the same way; empty for none.
        share: The part of this panel in the width and the height of all panels.
    """
    if isinstance(title, str):
        name, *more = title.split("\n")
        title = Title(name, more=tuple(more))
    above = figure.suptitle(" ", x=0.0, ha="left", fontsize=LARGE, fontweight="bold")
    above.set_parse_math(False)  # a name may contain a dollar sign
    below = None
    if caption:
        below = figure.supxlabel(" ", x=0.0, ha="left", fontsize=SMALL, linespacing=1.2)
        below.set_parse_math(False)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(h_pad=0.08, w_pad=0.08, hspace=0.0, wspace=0.0)
    width, height = figure.get_size_inches()
    page = _Page(
        figure=figure,
        engine=engine,
        ax=ax,
        panel_size=size,
        share=share,
        width=width,
        height=height,
        title=title,
        caption=caption,
        above=above,
        below=below,
    )
    with missing_letters():
        page.measure()
        height_of_blanks = page.height_of_words
        page.write_words()
        page.height += page.height_of_words - height_of_blanks
        # the words change the size of the page, which changes a little how they are broken, and
        # colour bars are as much too wide as panels are: each step measures the panel anew
        for _ in range(MOST_STEPS):
            page.resize()
            page.measure()
            if page.fits:
                break
            page.write_words()
    figure.set_layout_engine("none")
    _round_to_pixels(figure, size)
    return figure


@dataclass(kw_only=True, slots=True)
class _Page:
    """The size of a page, which is made such that its panels have theirs.

    What is added to `height` before `resize` is room for words, without which the panels would
    collapse.
    """

    figure: Figure
    engine: ConstrainedLayoutEngine
    ax: Axes
    panel_size: tuple[float, float]
    """(width, height) in inches that the panel `ax` must have."""
    share: tuple[float, float]
    """The part of this panel in the width and the height of all panels."""
    width: float
    """Inches that the panels and their words take."""
    height: float
    title: Title
    caption: str
    above: Text
    """The title on the page."""
    below: Text | None
    """The caption on the page."""
    fits: bool = False
    """Whether the panel had nearly its size when the page was last measured."""

    @property
    def room(self) -> float:
        """Width of the page in inches."""
        return max(self.width, NARROWEST)

    @property
    def height_of_words(self) -> float:
        """Height in inches of the title and the caption as they are on the page."""
        texts = [self.above] if self.below is None else [self.above, self.below]
        return sum(text.get_window_extent().height for text in texts) / self.figure.dpi

    def measure(self) -> None:
        """Lay the page out, and change its size by what all panels are too small or too large."""
        self.engine.execute(self.figure)
        box = self.ax.get_position()
        page_width, page_height = self.figure.get_size_inches()
        missing_width = self.panel_size[0] - box.width * page_width
        missing_height = self.panel_size[1] - box.height * page_height
        self.width += missing_width / self.share[0]
        self.height += missing_height / self.share[1]
        # rounding its corners may move each edge of the panel by half a pixel
        most = (MOST_OFF - 0.5) / self.figure.dpi
        self.fits = max(abs(missing_width), abs(missing_height)) <= most

    def write_words(self) -> None:
        """Break the title and the caption into lines as wide as the page."""
        place = WORDS_LEFT / self.room
        self.above.set(text=self.title.wrapped(self.room), x=place)
        if self.below is not None:
            characters = int((self.room - TITLE_MARGIN) / CHARACTER)
            self.below.set(text=fill(self.caption, characters), x=place)

    def resize(self) -> None:
        """Give the page this size, in whole pixels; a narrow page is blank at its right."""
        self.engine.set(rect=(0.0, 0.0, self.width / self.room, 1.0))
        dpi = self.figure.dpi
        self.figure.set_size_inches(
            math.ceil(self.room * dpi) / dpi, math.ceil(self.height * dpi) / dpi
        )


def _round_to_pixels(figure: Figure, size: tuple[float, float]) -> None:
    """Place all axes on whole pixels, and give panels exactly the pixels of their pictures.

    The layout is right to about a pixel: what is nearly as wide or high as a panel is one.
    """
    page_size = figure.get_size_inches() * figure.dpi
    panel_size = np.rint(np.array(size) * figure.dpi)
    for ax in figure.axes:
        box = ax.get_position()
        corner = np.rint(box.min * page_size)
        box_size = np.rint(box.size * page_size)
        is_panel = np.abs(box_size - panel_size) <= MOST_OFF  # in width, in height
        box_size = np.where(is_panel, panel_size, box_size)
        left, bottom = corner / page_size
        width, height = box_size / page_size
        ax.set_position((left, bottom, width, height))


def dress_axes(ax: Axes, canvas: Canvas, *, label_y: bool, label_x: bool) -> None:
    """Set limits, ticks and labels of a panel.

    Args:
        ax: The panel.
        canvas: What the panel is drawn on.
        label_y: Whether the y-axis has numbers and a label.
        label_x: Whether the x-axis has them.
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
        numbers_of_slices = layout.numbers[::step]
        ax.set_xticks(middle, numbers_of_slices if label_x else [""] * len(middle))
    else:
        _set_ticks(ax.xaxis, bins=max(1, int(width / 0.9)), unit=canvas.mpp or 1.0)
        _set_ticks(ax.yaxis, bins=max(2, int(height / 0.6)), unit=canvas.mpp or 1.0)
        ax.tick_params(labelleft=label_y, labelbottom=label_x)
        if label_y and (height > 1.2 or not canvas.small):
            ax.set_ylabel("y (µm)" if canvas.mpp else layout.y_label, fontsize=SMALL)
    if label_x:
        ax.set_xlabel("x (µm)" if canvas.mpp else layout.x_label, fontsize=SMALL)


def _tick_step(canvas: Canvas) -> int:
    """Return 1 to label every slice of a strip, or 2, 5, … so that the numbers do not overlap."""
    layout = canvas.layout
    longest = max(len(number) for number in layout.numbers)
    label_width = longest * NUMBER_CHARACTER + NUMBER_GAP
    slice_width = canvas.size[0] / (canvas.extent[1] - canvas.extent[0])
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if step * slice_width >= label_width:
            return step
    return len(layout.corners)


def _set_ticks(axis: Axis, *, bins: int, unit: float) -> None:
    """Set up to about `bins` ticks at round numbers, in the unit of the axis' label.

    `unit` is the size of the unit of the axis in that of the label.
    """
    low, high = sorted(v * unit for v in axis.get_view_interval())
    round_numbers = MaxNLocator(bins, **ROUND).tick_values(low, high)
    ticks = [float(v) for v in round_numbers if low <= v <= high]
    axis.set_ticks([v / unit for v in ticks], labels=[f"{v:,.0f}" for v in ticks])


def set_title(ax: Axes, text: str, canvas: Canvas, *, note: str = "", beside: float = 0.0) -> None:
    """Write the title of a panel and a note below it, in lines that fit the panel.

    A strip is wide and low: there the note follows the title in the same line. Small panels have no
    note: they would all repeat it, and a note elsewhere states it once.

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
        text = fill(text, int(width / PANEL_TITLE_CHARACTER))
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
        text = q.absent if canvas.layout.strip else fill(q.absent, int(width / MESSAGE_CHARACTER))
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
    bar_of = ax.get_label() if cax is None else q.key  # axes for the bar may stand below any panel
    bar.ax.set_label(f"{bar_of} bar")
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
    # `flat` is stated of kinds that span a bag; the limits of others with a single value lie around
    # it, and are no values of the bag
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
        if isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
            # `finish` has laid this page out; unlike `savefig`, this draws it once
            FigureCanvasAgg(figure).print_png(temporary)
        else:
            figure.savefig(temporary, format="png")
