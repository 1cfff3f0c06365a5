"""Stage 10: the page of a map in inches: positions of panels and colour bars, and resolution.

Positions are computed here rather than by a layout engine: a map of a slide 50 times as wide as
tall must stay readable, and tests must know which pixel shows which patch.
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from .layout import Layout

Box = tuple[float, float, float, float]
"""(left, bottom, width, height) in inches from the lower left corner of the page."""

SLICES = 0.8
"""Height in inches of a row of slices."""
PANEL = 4.4
"""Longer side of a panel beside others, in inches; wide panels get up to a fifth more."""
WIDE = 8.0
"""Width in inches of panels stacked one below the other."""
STACK_FROM = 2.5
"""Ratio of width to height from which panels are stacked."""
NARROWEST = 1.5
FLATTEST = 0.9
SLICE = 0.36
"""Width in inches of a slice, if there is room for it."""
STRIP = 10.0
STRIP_HEIGHT = 0.5
HEADLINE = 4.6
"""Width in inches of the text above a strip."""
BAR = 0.14
TITLE = 0.28
HEADING = 0.42
SMALL_PAGE = 7.6
"""Width in inches of a page of small panels, about two columns of a journal."""
SMALL_PANEL = 1.4
SMALL_TITLE = 0.46
SMALL_STRIP = 5.6
SMALL_STRIP_HEIGHT = 0.26


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A page of rows × columns panels, in reading order."""

    width: float
    height: float
    dpi: int
    panels: tuple[Box, ...]
    bars: tuple[Box, ...]
    horizontal: bool
    """Whether the colour bars lie below their panels."""
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    """(bottom, top); y increases downwards."""
    first: tuple[bool, ...]
    """Whether each panel shows the labels of the y axis."""
    last: tuple[bool, ...]
    """Whether each panel shows the labels of the x axis."""
    small: bool = False
    """Whether the page has many small panels: titles are small, and colour bars are labelled at
    their ends only."""


def arrange(layout: Layout, *, rows: int, columns: int) -> Sheet:
    """Return the page for `rows` classes with `columns` quantities each."""
    if layout.strip:
        return _strips(layout, count=rows * columns)
    aspect = _aspect(layout)
    stacked = aspect > STACK_FROM
    if stacked:
        w, h = WIDE, max(WIDE / aspect, FLATTEST)
    else:
        w = PANEL * min(aspect, 1.2)
        w, h = max(w, NARROWEST), w / aspect
    place = _stack(w, h, count=rows * columns) if stacked else _grid(w, h, rows=rows, cols=columns)
    n = rows * columns
    return Sheet(
        width=place[0],
        height=place[1],
        panels=tuple(place[2]),
        bars=tuple(place[3]),
        horizontal=stacked,
        first=tuple(stacked or k % columns == 0 for k in range(n)),
        last=(True,) * n,
        **_window(layout, w, h),
    )


def tiles(layout: Layout, *, count: int, under: float, picture: bool = False) -> Sheet:
    """Return a page of `count` small panels, filling each row, above `under` inches of text.

    Args:
        layout: The positions of the instances.
        count: Number of panels.
        under: Height of the text below the panels in inches.
        picture: Whether the first panel shows the slices themselves, and is taller for that.
    """
    if layout.strip:
        return _strips(layout, count=count, under=under, small=True, picture=picture)
    left, beside, below = 0.8, 0.82, 0.3
    aspect = _aspect(layout)
    columns_that_fit = max(1, round((SMALL_PAGE - left) / (SMALL_PANEL * aspect**0.5 + beside)))
    columns = min(count, columns_that_fit, 3)
    w = (SMALL_PAGE - left) / min(columns_that_fit, 3) - beside
    h = float(np.clip(w / aspect, 0.35, 3.2))
    rows = -(-count // columns)
    slot = SMALL_TITLE + h + below
    height = HEADING + rows * slot + under + 0.12  # room for the labels of the lowest axes
    cells = [divmod(k, columns) for k in range(count)]
    boxes = [(left + c * (w + beside), height - HEADING - (r + 1) * slot + below) for r, c in cells]
    return Sheet(
        width=SMALL_PAGE,
        height=height,
        panels=tuple((x, y, w, h) for x, y in boxes),
        bars=tuple((x + w + 0.06, y, 0.1, h) for x, y in boxes),
        horizontal=False,
        first=tuple(c == 0 for _, c in cells),
        last=tuple(k + columns >= count for k in range(count)),
        small=True,
        **_window(layout, w, h),
    )


class _Window(TypedDict):
    dpi: int
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]


def _margin(layout: Layout) -> float:
    left, right, bottom, top = layout.extent
    return max(0.25 * layout.size, 0.02 * max(right - left, bottom - top))


def _aspect(layout: Layout) -> float:
    """Return the width of the tissue with its margin, divided by the height."""
    left, right, bottom, top = layout.extent
    margin = _margin(layout)
    return (right - left + 2 * margin) / (bottom - top + 2 * margin)


def _window(layout: Layout, w: float, h: float) -> _Window:
    """Return the part of the plane that a panel of w × h inches shows.

    The panel may be wider or taller than the tissue; both axes keep the same unit.
    """
    left, right, bottom, top = layout.extent
    margin = _margin(layout)
    unit = max((right - left + 2 * margin) / w, (bottom - top + 2 * margin) / h)
    x, y = (left + right) / 2, (top + bottom) / 2
    return {
        "dpi": _dpi(layout.size / unit),
        "x_limits": (x - unit * w / 2, x + unit * w / 2),
        "y_limits": (y + unit * h / 2, y - unit * h / 2),
    }


def _dpi(cell: float) -> int:
    """Return a resolution at which a patch, `cell` inches wide, covers at least 3 pixels (up to 600
    dpi)."""
    return int(np.clip(np.ceil(3 / cell), 150, 600))


def _grid(w: float, h: float, *, rows: int, cols: int) -> tuple[float, float, list[Box], list[Box]]:
    """Place panels in rows and columns, with a vertical colour bar to the right of each."""
    left, beside, below = 0.85, 1.2, 0.55
    width = left + cols * (w + beside)
    height = HEADING + rows * (TITLE + h + below)
    panels, bars = [], []
    for r in range(rows):
        bottom = height - HEADING - (r + 1) * (TITLE + h + below) + below
        for c in range(cols):
            x = left + c * (w + beside)
            panels.append((x, bottom, w, h))
            bars.append((x + w + 0.08, bottom, BAR, h))
    return width, height, panels, bars


def _stack(w: float, h: float, *, count: int) -> tuple[float, float, list[Box], list[Box]]:
    """Place panels one below the other, with a horizontal colour bar below each."""
    left, right, axis, below = 0.9, 0.35, 0.5, 0.55
    slot = TITLE + h + axis + BAR + below
    height = HEADING + count * slot
    bottoms = [height - HEADING - k * slot - TITLE - h for k in range(count)]
    panels = [(left, b, w, h) for b in bottoms]
    bars = [(left, b - axis - BAR, w, BAR) for b in bottoms]
    return left + w + right, height, panels, bars


def _strips(
    layout: Layout,
    *,
    count: int,
    under: float = 0.0,
    small: bool = False,
    picture: bool = False,
) -> Sheet:
    left, beside, below = 0.35, 1.0, 0.55 + under
    columns = layout.shape[1]
    longest, tall = (SMALL_STRIP, SMALL_STRIP_HEIGHT) if small else (STRIP, STRIP_HEIGHT)
    w = columns * min(SLICE, longest / columns)
    slot = TITLE + tall + 0.1
    headline = SMALL_STRIP if small else HEADLINE
    bar_left = left + max(w, headline) + 0.1  # the bar clears the title of a short strip
    more = SLICES - tall if picture else 0.0
    height = HEADING + count * slot + more + below
    bottoms = [height - HEADING - (k + 1) * slot - more + 0.1 for k in range(count)]
    heights = [tall + more * (k == 0) for k in range(count)]
    x_left, x_right, y_bottom, y_top = layout.extent
    return Sheet(
        width=bar_left + beside,
        height=height,
        dpi=_dpi(w / columns),
        panels=tuple((left, b, w, h) for b, h in zip(bottoms, heights, strict=True)),
        bars=tuple((bar_left, b, BAR, tall) for b in bottoms),
        horizontal=False,
        x_limits=(x_left, x_right),
        y_limits=(y_bottom, y_top),
        first=(False,) * count,
        last=tuple(k == count - 1 for k in range(count)),
        small=small,
    )
