"""Resolutions that the user states with `--slide-mpp`: one for all slides, or a table."""

import csv
from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError, TableError


def read_resolutions(value: str | float | Path) -> float | dict[str, float]:
    """Return micrometres per level-0 pixel, of all slides or by the name of the slide.

    Args:
        value: a number, or the path of a CSV or TSV table with the columns `slide` and `mpp`.

    Raises:
        InputError: the value is neither a resolution nor a table.
        TableError: the table has other columns, a line without a resolution, or two different
            resolutions of one slide.
    """
    try:
        return _positive(float(str(value)), "--slide-mpp")
    except ValueError as e:
        if isinstance(e, InputError):
            raise
    path = Path(str(value))
    if not path.is_file():
        raise InputError(
            f"--slide-mpp is {str(value)!r}: expected µm per pixel (0.25), or a table `slide,mpp`"
        )
    by_slide: dict[str, float] = {}
    for line, slide, text in _rows(path):
        where = f"{path}, line {line}"
        try:
            mpp = _positive(float(text), where)
        except ValueError as e:
            if isinstance(e, InputError):
                raise
            raise TableError(f"{where}: mpp of {slide!r} is {text!r}; expected a number") from e
        if by_slide.setdefault(slide, mpp) != mpp:
            raise TableError(
                f"{where}: slide {slide!r} has two resolutions, {by_slide[slide]:g} and {mpp:g}"
            )
    return by_slide


def resolution_of(resolutions: float | Mapping[str, float] | None, *names: str) -> float | None:
    """Return the resolution of a slide known by these names; None if none is given for it."""
    if isinstance(resolutions, Mapping):
        return next((resolutions[name] for name in names if name in resolutions), None)
    return resolutions


def _rows(path: Path) -> list[tuple[int, str, str]]:
    """Return (line number, slide, mpp) of every row that is not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as f:
            delimiter = max(",;\t", key=f.readline().count)
            f.seek(0)
            reader = csv.reader(f, delimiter=delimiter)
            rows = [(reader.line_num, [c.strip() for c in row]) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as e:
        raise TableError(f"{path} is not a CSV table in UTF-8: {e}") from e
    header = rows[0][1] if rows else []
    if not {"slide", "mpp"} <= set(header):
        raise TableError(
            f"{path} needs the columns slide and mpp; it has {', '.join(header) or 'none'}"
        )
    if len(rows) == 1:
        raise TableError(f"{path} lists no slide: expected a line `slide,mpp` for each")
    lines = [(number, dict(zip(header, row, strict=False))) for number, row in rows[1:]]
    return [(number, cells.get("slide", ""), cells.get("mpp", "")) for number, cells in lines]


def _positive(mpp: float, where: str) -> float:
    if not 0 < mpp < 1000:
        raise InputError(f"{where}: µm per pixel is {mpp:g}: expected a number between 0 and 1000")
    return mpp
