"""Stage 1: micrometres per pixel, from the file or from the user.

A stated resolution is ignored if it lies outside 0.05 to 100 µm, or if it is a default of printers
and screens (72, 96, 300 … dots per inch), because it then does not describe the slide.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import SlideError
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """Micrometres per level-0 pixel and their source; both None if unknown."""

    mpp: float | None = None
    source: str | None = None


def check_mpp(mpp: float | None) -> None:
    """Refuse a resolution that is not a positive number."""
    if mpp is not None and not (math.isfinite(mpp) and mpp > 0):
        raise SlideError(
            f"the resolution is {mpp} micrometres per pixel: expected a number above 0"
        )


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
    x, y = (_number(properties.get(f"openslide.mpp-{axis}")) for axis in "xy")
    from_properties = from_axes(x, y, source="openslide.mpp-x")
    if from_properties.mpp is not None:
        return from_properties
    per_x, per_y = (_number(properties.get(f"tiff.{axis}Resolution")) for axis in "XY")
    return from_density(per_x, per_y, unit=properties.get("tiff.ResolutionUnit", ""))


def from_density(
    x: float | None, y: float | None, *, unit: str, source: str = "TIFF resolution tags"
) -> Resolution:
    """Convert pixels per `unit` (`inch` or `centimeter`; other units give no resolution)."""
    micrometres = _MICROMETRES.get(unit.lower())
    if (
        micrometres is None
        or _is_print_density(x, micrometres)
        or _is_print_density(y, micrometres)
    ):
        return Resolution()
    return from_axes(*(micrometres / v if v else None for v in (x, y)), source=source)


def _is_print_density(value: float | None, micrometres: float) -> bool:
    if not value:
        return False
    per_inch = value * _INCH / micrometres
    # PNG rounds to whole pixels per metre, JFIF to whole pixels per centimetre
    return any(abs(per_inch - d) < max(0.5 / 100 * d, 0.5) for d in _PRINT_DENSITIES)


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
    power = _number(slide.properties.get("objective power"))
    if power:
        guess = f"{10 / power:.4g}"
        return f"objective power {power:g}: probably {guess}; give --slide-mpp {guess}"
    return "the file states no resolution and no objective power; give --slide-mpp"


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) and value > 0 else None
