"""Stage 10: the sheet of a map in inches: where panels and colour bars go, how fine the pixels are.

Counted by hand rather than left to a layout engine: a map of a slide 50 times as wide as tall must
be readable too, and a test must know which pixel is which patch.
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from .layout import Layout

Box = tuple[float, float, float, float]
"""(left, bottom, width, height) in inches from the sheet's lower left corner."""

PANEL = 4.4
"""Long side of a panel beside others; up to a fifth more where it is wide."""
WIDE = 8.0
"""Width of panels stacked one below the other."""
STACK_FROM = 2.5
"""Width over height from which panels are stacked."""
NARROWEST = 1.5
FLATTEST = 0.9
SLICE = 0.36
"""Width of a slice, where there is room for it."""
STRIP = 10.0
STRIP_HEIGHT = 0.5
HEADLINE = 4.6
"""Room for the words above a strip."""
BAR = 0.14
TITLE = 0.28
HEADING = 0.42
SMALL_PAGE = 7.6
"""Width of a page of small panels: two columns of a journal, or nearly."""
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
    """(bottom, top): y grows downwards."""
    first: tuple[bool, ...]
    """Which panels carry the y axis."""
    last: tuple[bool, ...]
    """Which panels carry the x axis."""
    small: bool = False
    """Many small panels: small titles, and of a colour bar only its ends are numbered."""


def arrange(layout: Layout, *, rows: int, columns: int) -> Sheet:
    """A sheet for `rows` classes of `columns` quantities."""
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


def tiles(layout: Layout, *, count: int, under: float) -> Sheet:
    """A sheet of `count` small panels, as many in a line as fit, over `under` inches for words."""
    if layout.strip:
        return _strips(layout, count=count, under=under, small=True)
    left, beside, below = 0.8, 0.82, 0.3
    aspect = _aspect(layout)
    most = max(1, round((SMALL_PAGE - left) / (SMALL_PANEL * aspect**0.5 + beside)))
    columns = min(count, most, 3)
    w = (SMALL_PAGE - left) / min(most, 3) - beside
    h = float(np.clip(w / aspect, 0.35, 3.2))
    rows = -(-count // columns)
    slot = SMALL_TITLE + h + below
    height = HEADING + rows * slot + under + 0.12  # the names of the lowest axes
    at = [divmod(k, columns) for k in range(count)]
    boxes = [(left + c * (w + beside), height - HEADING - (r + 1) * slot + below) for r, c in at]
    return Sheet(
        width=SMALL_PAGE,
        height=height,
        panels=tuple((x, y, w, h) for x, y in boxes),
        bars=tuple((x + w + 0.06, y, 0.1, h) for x, y in boxes),
        horizontal=False,
        first=tuple(c == 0 for _, c in at),
        last=tuple(k + columns >= count for k in range(count)),
        small=True,
        **_window(layout, w, h),
    )


class _Window(TypedDict):
    dpi: int
    x_limits: tuple[float, float]
    y_limits: tuple[float, float]


def _edge(layout: Layout) -> float:
    left, right, bottom, top = layout.extent
    return max(0.25 * layout.size, 0.02 * max(right - left, bottom - top))


def _aspect(layout: Layout) -> float:
    """Width over height of the tissue with its edge."""
    left, right, bottom, top = layout.extent
    edge = _edge(layout)
    return (right - left + 2 * edge) / (bottom - top + 2 * edge)


def _window(layout: Layout, w: float, h: float) -> _Window:
    """What a panel of w × h inches shows.

    It may be wider or taller than the tissue: the same unit on both axes all the same.
    """
    left, right, bottom, top = layout.extent
    edge = _edge(layout)
    unit = max((right - left + 2 * edge) / w, (bottom - top + 2 * edge) / h)
    x, y = (left + right) / 2, (top + bottom) / 2
    return {
        "dpi": _dpi(layout.size / unit),
        "x_limits": (x - unit * w / 2, x + unit * w / 2),
        "y_limits": (y + unit * h / 2, y - unit * h / 2),
    }


def _dpi(cell: float) -> int:
    """Fine enough that a patch (`cell` inches wide) is at least 3 pixels, up to 600 an inch."""
    return int(np.clip(np.ceil(3 / cell), 150, 600))


def _grid(w: float, h: float, *, rows: int, cols: int) -> tuple[float, float, list[Box], list[Box]]:
    """Side by side, a vertical bar right of each."""
    left, beside, below = 0.85, 1.05, 0.55
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
    """One below the other, a horizontal bar below each."""
    left, right, axis, below = 0.9, 0.35, 0.5, 0.55
    slot = TITLE + h + axis + BAR + below
    height = HEADING + count * slot
    bottoms = [height - HEADING - k * slot - TITLE - h for k in range(count)]
    panels = [(left, b, w, h) for b in bottoms]
    bars = [(left, b - axis - BAR, w, BAR) for b in bottoms]
    return left + w + right, height, panels, bars


def _strips(layout: Layout, *, count: int, under: float = 0.0, small: bool = False) -> Sheet:
    left, beside, below = 0.35, 1.0, 0.55 + under
    columns = layout.shape[1]
    longest, tall = (SMALL_STRIP, SMALL_STRIP_HEIGHT) if small else (STRIP, STRIP_HEIGHT)
    w = columns * min(SLICE, longest / columns)
    slot = TITLE + tall + 0.1
    headline = SMALL_STRIP if small else HEADLINE
    beyond = left + max(w, headline) + 0.1  # of a short strip the bar stands clear of its title
    height = HEADING + count * slot + below
    bottoms = [height - HEADING - (k + 1) * slot + 0.1 for k in range(count)]
    x_left, x_right, y_bottom, y_top = layout.extent
    return Sheet(
        width=beyond + beside,
        height=height,
        dpi=_dpi(w / columns),
        panels=tuple((left, b, w, tall) for b in bottoms),
        bars=tuple((beyond, b, BAR, tall) for b in bottoms),
        horizontal=False,
        x_limits=(x_left, x_right),
        y_limits=(y_bottom, y_top),
        first=(False,) * count,
        last=tuple(k == count - 1 for k in range(count)),
        small=small,
    )
