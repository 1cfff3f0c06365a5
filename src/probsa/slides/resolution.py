"""Stage 1: micrometres per pixel, from the file or from the user.

A stated resolution is ignored if it lies outside 0.05 to 100 µm, or if it is a default of printers
and screens (72, 96, 300 … dots per inch), because it then does not describe the slide.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..core import TextTable, finite_number, read_number
from ..errors import InputError, SlideError, TableError
from ._base import Slide

SMALLEST, LARGEST = 0.05, 100.0
_AGREE = 0.02
"""Values with a smaller relative difference count as equal."""
_SQUARE = 0.01
"""A larger relative difference between the axes is mentioned in `Resolution.source`."""
_INCH = 25_400.0
_MICROMETRES = {"inch": _INCH, "centimeter": 10_000.0}
_PRINT = (72, 75, 90, 96, 100, 120, 144, 150, 180, 200, 220, 240, 250, 300, 350, 360, 400, 600)
_PRINT_DENSITIES = (*_PRINT, 720, 1200)


class Resolution(NamedTuple):
    """Micrometres per level-0 pixel and their source; both None if unknown."""

    mpp: float | None = None
    source: str | None = None


def check_mpp(mpp: float | None, where: str = "the resolution") -> None:
    """Refuse a resolution that is no number of micrometres per pixel."""
    if mpp is not None and not 0 < mpp < 1000:
        raise SlideError(f"{where}: µm per pixel is {mpp:g}: expected a number between 0 and 1000")


def from_axes(x: float | None, y: float | None, *, source: str) -> Resolution:
    """Return the mean of the plausible axes; `source` mentions a difference between them."""
    known = [v for v in (x, y) if v is not None and SMALLEST <= v <= LARGEST]
    if not known:
        return Resolution()
    mean = sum(known) / len(known)
    if len(known) == 2 and abs(known[0] - known[1]) > _SQUARE * mean:
        source = f"{source}, mean of x {known[0]:.4g} and y {known[1]:.4g}"
    return Resolution(mpp=mean, source=source)


def from_openslide(properties: Mapping[str, str]) -> Resolution:
    """Read the resolution from OpenSlide's properties, or else from the TIFF tags among them."""
    x, y = (_positive(properties.get(f"openslide.mpp-{axis}")) for axis in "xy")
    stated = from_axes(x, y, source="openslide.mpp-x")
    if stated.mpp is not None:
        return stated
    per_x, per_y = (_positive(properties.get(f"tiff.{axis}Resolution")) for axis in "XY")
    return from_density(per_x, per_y, unit=properties.get("tiff.ResolutionUnit", ""))


def from_density(
    x: float | None, y: float | None, *, unit: str, source: str = "TIFF resolution tags"
) -> Resolution:
    """Convert pixels per `unit` (`inch` or `centimeter`; other units give no resolution)."""
    micrometres = _MICROMETRES.get(unit.lower())
    if micrometres is None:
        return Resolution()
    for per_inch in (v * _INCH / micrometres for v in (x, y) if v):
        # PNG rounds to whole pixels per metre, JFIF to whole pixels per centimetre
        if any(abs(per_inch - d) < max(0.5 / 100 * d, 0.5) for d in _PRINT_DENSITIES):
            return Resolution()
    return from_axes(*(micrometres / v if v else None for v in (x, y)), source=source)


def settle(stated: Resolution, given: float | None) -> Resolution:
    """Return the resolution that applies: the given one if any, otherwise that of the file.

    If the two differ by at most 2 %, the more exact value of the file applies.
    """
    if given is None:
        return stated
    if stated.mpp is None:
        return Resolution(mpp=given, source="given")
    if abs(given - stated.mpp) <= _AGREE * stated.mpp:
        return stated
    return Resolution(mpp=given, source=f"given, file says {stated.mpp:.4g}")


def resolution_advice(slide: Slide) -> str | None:
    """Return advice for a slide of unknown resolution; None if the resolution is known."""
    if slide.mpp is not None:
        return None
    power = _positive(slide.properties.get("objective power"))
    if power:
        guess = f"{10 / power:.4g}"
        return f"objective power {power:g}: probably {guess}; give --slide-mpp {guess}"
    return "the file states no resolution and no objective power; give --slide-mpp"


def _positive(text: str | None) -> float | None:
    value = finite_number(text or "")
    return value if value is not None and value > 0 else None


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
        check_mpp(common, "--slide-mpp")
        return common
    path = Path(str(value))
    if not path.is_file():
        raise InputError(
            f"--slide-mpp is {str(value)!r}: expected µm per pixel (0.25), or a table `slide,mpp`"
        )
    by_slide: dict[str, float] = {}
    for line, row in TextTable.read(path, expected="slide,mpp").select("slide", "mpp").numbered:
        slide, where = row["slide"], f"{path}, line {line}"
        mpp = read_number(row["mpp"], f"mpp of {slide!r}", where=where)
        check_mpp(mpp, where)
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
