"""Stage 10: a caption below a map, for which the page becomes taller."""

import math
from dataclasses import replace
from textwrap import wrap

from .geometry import Box, Sheet

LINE = 0.15
"""Height in inches of a line."""
CHARACTER = 0.062
"""Width in inches of a character of the caption's size, on average."""
NARROWEST = 6.4
"""Width in inches of the narrowest page with a caption, which may have a single panel."""


def split_title(title: str) -> tuple[str, str]:
    """Return the first line of a title, which is drawn above the map, and the caption below."""
    first, _, caption = title.partition("\n")
    return first, caption


def caption_lines(title: str, *, width: float) -> list[str]:
    """Return the lines of the caption on a page of this width in inches."""
    _, caption = split_title(title)
    return wrap(caption, int((max(width, NARROWEST) - 0.3) / CHARACTER))


def captioned(sheet: Sheet, title: str) -> Sheet:
    """Return the sheet with room for the title's caption at the bottom; whole pixels stay whole.

    The room that a narrow page needs is added at the right.
    """
    lines = caption_lines(title, width=sheet.width)
    if not lines:
        return sheet
    room = math.ceil((LINE * len(lines) + 0.12) * sheet.dpi) / sheet.dpi

    def raised(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
        return tuple((x, y + room, w, h) for x, y, w, h in boxes)

    return replace(
        sheet,
        width=max(sheet.width, NARROWEST),
        height=sheet.height + room,
        panels=raised(sheet.panels),
        bars=raised(sheet.bars),
    )
