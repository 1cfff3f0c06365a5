"""Resolutions that the user states with `--slide-mpp`: one for all slides, or a table."""

from collections.abc import Mapping
from pathlib import Path

from ..core import TextTable, finite_number, read_number
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
    common = finite_number(str(value))
    if common is not None:
        return _checked(common, "--slide-mpp")
    path = Path(str(value))
    if not path.is_file():
        raise InputError(
            f"--slide-mpp is {str(value)!r}: expected µm per pixel (0.25), or a table `slide,mpp`"
        )
    by_slide: dict[str, float] = {}
    for line, row in TextTable.read(path, expected="slide,mpp").select("slide", "mpp").numbered:
        slide, where = row["slide"], f"{path}, line {line}"
        mpp = _checked(read_number(row["mpp"], f"mpp of {slide!r}", where=where), where)
        if by_slide.setdefault(slide, mpp) != mpp:
            raise TableError(
                f"{where}: slide {slide!r} has two resolutions, {by_slide[slide]:g} and {mpp:g}"
            )
    if not by_slide:
        raise TableError(f"{path} lists no slide: expected a line `slide,mpp` for each")
    return by_slide


def resolution_of(resolutions: float | Mapping[str, float] | None, *names: str) -> float | None:
    """Return the resolution of a slide known by these names; None if none is given for it."""
    if isinstance(resolutions, Mapping):
        return next((resolutions[name] for name in names if name in resolutions), None)
    return resolutions


def _checked(mpp: float, where: str) -> float:
    if not 0 < mpp < 1000:
        raise InputError(f"{where}: µm per pixel is {mpp:g}: expected a number between 0 and 1000")
    return mpp
