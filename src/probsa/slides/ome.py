"""Stage 1: read the OME-XML of an OME-TIFF: its largest image, levels, resolution, objective."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ..errors import SlideError
from .resolution import Resolution, from_axes

if TYPE_CHECKING:
    import tifffile

_MICROMETRES = {
    "m": 1e6, "dm": 1e5, "cm": 1e4, "mm": 1e3, "µm": 1.0, "μm": 1.0, "um": 1.0, "nm": 1e-3,
    "pm": 1e-6, "Å": 1e-4, "in": 25_400.0, "inch": 25_400.0,
}  # fmt: skip
"""OME's units of length in micrometres; `pixel` and `reference frame` are not lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OmeImage:
    """The largest image of an OME-TIFF."""

    pages: "list[tifffile.TiffPage]"
    """One page per level, largest first."""
    resolution: Resolution
    power: str | None
    """Nominal magnification of the objective."""
    others: list[str]
    """Names of the other images, such as labels and overviews."""


def find(file: "tifffile.TiffFile") -> OmeImage:
    """Return the largest image and its properties.

    Raises:
        SlideError: the image is a stack, or its colours are separate channels.
    """
    series = file.series
    areas = [s.keyframe.imagewidth * s.keyframe.imagelength for s in series]
    largest = areas.index(max(areas))
    pages = []
    for level in series[largest].levels:
        page = level.pages[0]
        if len(level.pages) != 1 or page is None:
            raise SlideError(
                f"{file.filename} holds {len(level.pages)} planes of axes {level.axes} "
                "(channels, depths or times), but a bright-field slide is one RGB plane: "
                "convert it (for example with raw2ometiff --rgb)"
            )
        pages.append(page.aspage())
    images = _images(file.ome_metadata)
    image = images[largest] if len(images) == len(series) else None
    names = [s.name or f"image {i}" for i, s in enumerate(series) if i != largest]
    return OmeImage(
        pages=sorted(pages, key=lambda page: -page.imagewidth),
        resolution=_resolution(image),
        power=_power(file.ome_metadata, image),
        others=names,
    )


def _images(text: str | None) -> list[ElementTree.Element]:
    try:
        root = ElementTree.fromstring(text or "")
    except ElementTree.ParseError:
        return []
    return root.findall("{*}Image")


def _resolution(image: ElementTree.Element | None) -> Resolution:
    pixels = image.find("{*}Pixels") if image is not None else None
    if pixels is None:
        return Resolution()
    return from_axes(*(_length(pixels, axis) for axis in "XY"), source="OME PhysicalSizeX")


def _length(pixels: ElementTree.Element, axis: str) -> float | None:
    unit = _MICROMETRES.get(pixels.get(f"PhysicalSize{axis}Unit", "µm"))
    try:
        return float(pixels.get(f"PhysicalSize{axis}", "")) * unit if unit else None
    except ValueError:
        return None


def _power(text: str | None, image: ElementTree.Element | None) -> str | None:
    settings = image.find("{*}ObjectiveSettings") if image is not None else None
    if settings is None or text is None:
        return None
    for objective in ElementTree.fromstring(text).iterfind("{*}Instrument/{*}Objective"):
        if objective.get("ID") == settings.get("ID"):
            return objective.get("NominalMagnification")
    return None
