"""Stage 1: micrometres per pixel, from the file or from the user.

A stated resolution is ignored if it lies outside 0.05 to 100 µm, or if it is a default of printers
and screens (72, 96, 300 … dots per inch), because it then does not describe the slide. It is
refused if the axes differ by more than 10 %. `Resolution.rejected` names what was ignored.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..core import TextTable, finite_number, read_number
from ..errors import InputError, SlideError, TableError
from ._base import Slide

SMALLEST = 0.05
LARGEST = 100.0
"""Plausible micrometres per pixel."""
_AGREE = 0.02
"""Values with a smaller relative difference count as equal."""
_SQUARE = 0.01
"""A larger relative difference between the axes is mentioned in `Resolution.source`."""
LARGEST_DIFFERENCE = 0.1
"""A larger relative difference between the axes is refused."""
_INCH = 25_400.0
MICROMETRES = {
    **dict.fromkeys(("inch", "inches", "in"), _INCH),
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), 1e6),
    "dm": 1e5,
    **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetre", "centimetres"), 1e4),
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres"), 1e3),
    **dict.fromkeys(("µm", "μm", "um", "micron", "microns"), 1.0),
    **dict.fromkeys(("micrometer", "micrometers", "micrometre", "micrometres"), 1.0),
    **dict.fromkeys(("nm", "nanometer", "nanometers", "nanometre", "nanometres"), 1e-3),
    **dict.fromkeys(("å", "Å", "angstrom"), 1e-4),
    "pm": 1e-6,
}
"""Units of length in micrometres; `pixel` and `reference frame` are none."""
_PRINT = (72, 75, 90, 96, 100, 120, 144, 150, 180, 200, 220, 240, 250, 300, 350, 360, 400, 600)
_PRINT_DENSITIES = (*_PRINT, 720, 1200)


class Resolution(NamedTuple):
    """Micrometres per level-0 pixel and their source; both None if unknown."""

    mpp: float | None = None
    source: str | None = None
    is_given: bool = False
    """Whether it is what the user stated, not what the file states."""
    rejected: tuple[str, ...] = ()
    """What the file states and why that is not used, as the ends of sentences."""
    refused: bool = False
    """Whether the axes contradict each other, so that no other source may fill the gap."""

    def or_else(self, other: "Resolution") -> "Resolution":
        """Return this resolution, or another one if this one is unknown."""
        if self.mpp is not None or self.refused:
            return self
        return other._replace(rejected=(*self.rejected, *other.rejected))


def check_mpp(mpp: float | None, where: str = "the resolution") -> None:
    """Refuse a resolution that is no number of micrometres per pixel."""
    if mpp is not None and not 0 < mpp < 1000:
        raise SlideError(f"{where}: µm per pixel is {mpp:g}: expected a number between 0 and 1000")


def from_axes(x: float | None, y: float | None, *, source: str) -> Resolution:
    """Return the mean of the axes that are stated, in µm; `source` mentions a small difference.

    Axes that differ by more than 10 % are refused, whichever of them is plausible.
    """
    sides = [side for side in (x, y) if side is not None]
    if not sides:
        return Resolution()
    mean = sum(sides) / len(sides)
    difference = max(sides) / min(sides) - 1
    if difference > LARGEST_DIFFERENCE:
        reason = (
            f"{source}: x {sides[0]:.4g} and y {sides[1]:.4g} µm per pixel, but pixels must be "
            f"square within {100 * LARGEST_DIFFERENCE:g} %"
        )
        return Resolution(rejected=(reason,), refused=True)
    if not SMALLEST <= mean <= LARGEST:
        values = " and ".join(f"{side:.4g}" for side in dict.fromkeys(sides))
        reason = (
            f"{source}: {values} µm per pixel, outside the plausible range of {SMALLEST:g} to "
            f"{LARGEST:g}"
        )
        return Resolution(rejected=(reason,))
    if len(sides) == 2 and difference > _SQUARE:
        source = f"{source}, mean of x {sides[0]:.4g} and y {sides[1]:.4g}"
    return Resolution(mpp=mean, source=source)


def from_openslide(properties: Mapping[str, str]) -> Resolution:
    """Read the resolution from OpenSlide's properties, or else from the TIFF tags among them."""
    tags = from_density(
        positive(properties.get("tiff.XResolution")),
        positive(properties.get("tiff.YResolution")),
        unit=properties.get("tiff.ResolutionUnit", ""),
    )
    axes = from_axes(
        positive(properties.get("openslide.mpp-x")),
        positive(properties.get("openslide.mpp-y")),
        source="openslide.mpp-x",
    )
    return axes.or_else(tags)


def from_density(
    x: float | None,
    y: float | None,
    *,
    unit: str,
    unit_y: str | None = None,
    source: str = "TIFF resolution tags",
) -> Resolution:
    """Convert pixels per `unit`, a length such as `inch` or `um`.

    Args:
        x: pixels per unit on the horizontal axis.
        y: pixels per unit on the vertical axis.
        unit: the unit of both axes; without a length, there is no resolution.
        unit_y: the unit of the vertical axis, if it differs.
        source: what states them.
    """
    sides: list[float | None] = []
    for density, name in ((x, unit), (y, unit if unit_y is None else unit_y)):
        micrometres = MICROMETRES.get(name.strip().lower())
        if density is None or not density or micrometres is None:
            sides.append(None)
            continue
        per_inch = density * _INCH / micrometres
        # PNG rounds to whole pixels per metre, JFIF to whole pixels per centimetre
        if any(abs(per_inch - d) < max(0.5 / 100 * d, 0.5) for d in _PRINT_DENSITIES):
            reason = f"{source}: {per_inch:.4g} pixels per inch, a default of printers"
            return Resolution(rejected=(reason,))
        sides.append(micrometres / density)
    return from_axes(*sides, source=source)


def choose_resolution(file: Resolution, user: float | None) -> Resolution:
    """Return the resolution that applies: the user's if there is one, otherwise that of the file.

    If the two differ by at most 2 %, the more exact value of the file applies.
    """
    if user is None:
        return file
    if file.mpp is None:
        return Resolution(mpp=user, source="given", is_given=True, rejected=file.rejected)
    if abs(user - file.mpp) <= _AGREE * file.mpp:
        return file
    return Resolution(mpp=user, source=f"given, file says {file.mpp:.4g}", is_given=True)


def set_resolution(slide: Slide, file: Resolution, user: float | None) -> None:
    """Set the resolution of a slide that is being opened; see `choose_resolution`."""
    resolution = choose_resolution(file, user)
    slide.mpp = resolution.mpp
    slide.mpp_source = resolution.source
    slide.mpp_is_given = resolution.is_given
    slide.mpp_rejected = resolution.rejected


def resolution_advice(slide: Slide) -> str | None:
    """Return advice for a slide of unknown resolution; None if the resolution is known."""
    if slide.mpp is not None:
        return None
    power = positive(slide.properties.get("objective power"))
    rejected = "".join(f"{reason}; " for reason in slide.mpp_rejected)
    if power:
        guess = f"{10 / power:.4g}"
        return f"{rejected}objective power {power:g}: probably {guess}; give --slide-mpp {guess}"
    if rejected:
        return f"{rejected}give --slide-mpp"
    return "the file states no resolution and no objective power; give --slide-mpp"


def positive(text: str | None) -> float | None:
    """Return a positive finite number; None if the text is missing or is none."""
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
        slide = row["slide"]
        where = f"{path}, line {line}"
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
    if not isinstance(resolutions, Mapping):
        return resolutions
    for name in names:
        if name in resolutions:
            return resolutions[name]
    return None
