"""Stage 1: read tiled TIFFs, OME-TIFFs with their pyramids, and striped TIFFs with tifffile.

OpenSlide sees only one level of a pyramid whose levels are SubIFDs of the first page, as in
OME-TIFFs. Slides that OpenSlide does read have the same levels and pixels here.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import SlideError
from . import ome
from ._base import Level, Slide
from .regions import block_pixels, blocks, check
from .resolution import Resolution, from_density, settle
from .tiff_colours import word
from .tiff_levels import Cache, TiffLevel

if TYPE_CHECKING:
    import tifffile

_REDUCED = 1
_UNITS = {2: "inch", 3: "centimeter"}
_ASPECT = 0.05
"""A striped page is a level if its aspect ratio differs by less than this."""


class TiffSlide(Slide):
    """A TIFF of which only the required tiles or strips are decoded."""

    def __init__(
        self, path: Path, *, name: str, mpp: float | None = None, vendor: str | None = None
    ) -> None:
        import tifffile

        self.path, self.name = path, name
        with _quiet():
            try:
                self._file = tifffile.TiffFile(path)
            except (tifffile.TiffFileError, ValueError, OSError) as e:
                raise SlideError(f"{path} is a damaged TIFF: {e}") from e
            try:
                self._read_structure(vendor, mpp)
            except SlideError:
                self.close()
                raise
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as e:
                self.close()
                raise SlideError(f"{path} is a TIFF with an unsupported structure: {e}") from e

    def _read_structure(self, vendor: str | None, mpp: float | None) -> None:
        if self._file.is_ome and (reason := _not_colours(self._file)):
            raise SlideError(f"{self.path} {reason}")
        image = ome.find(self._file) if self._file.is_ome else None
        pages = image.pages if image is not None else _pages(self._file)
        if not pages:
            raise SlideError(f"{self.path} is a TIFF without an image")
        first = pages[0]
        self.format = "ome-tiff" if image is not None else vendor or "tiff"
        self._cache = Cache()
        self._levels = [
            TiffLevel(page, number=i, cache=self._cache) for i, page in enumerate(pages)
        ]
        self.levels = tuple(_level(page, first) for page in pages)
        stated = image.resolution if image is not None else Resolution()
        resolution = settle(stated if stated.mpp is not None else _from_tags(first), mpp)
        self.mpp, self.mpp_source = resolution.mpp, resolution.source
        properties = {
            "reader": f"tifffile {version('tifffile')}",
            "tile size": f"{first.tilewidth} x {first.tilelength}" if first.is_tiled else "",
            "strips": "" if first.is_tiled else f"{len(first.dataoffsets)}",
            "compression": word(first.compression),
            "objective power": image.power or "" if image is not None else "",
            "associated images": ", ".join(image.others) if image is not None else "",
            "tiff.ImageDescription": first.description,
            "tiff.Software": first.software,
        }  # fmt: skip
        self.properties = {k: v for k, v in properties.items() if v}

    def read(
        self, *, x: int, y: int, level: int, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region as RGB, decoding only the tiles that it touches; see `Slide.read`."""
        check(self, level, width, height)
        if self._file.filehandle.closed:
            raise SlideError(f"{self.path.name} is closed")
        downsample = self.levels[level].downsample
        out = np.empty((height, width, 3), np.uint8)
        for b in blocks(x, y, width, height, downsample=downsample):
            out[b.top : b.top + b.height, b.left : b.left + b.width] = block_pixels(
                b, self._levels[level].pixels, downsample=downsample
            )
        return out

    def close(self) -> None:
        """Close the file and clear the cache; may be called more than once."""
        if hasattr(self, "_cache"):
            self._cache.clear()
        self._file.close()


def map_reason(path: Path) -> str:
    """Return why an OME-TIFF is a map and not a slide; empty if it may be a slide.

    A map that `probsa map` wrote has the name of its slide, and would be taken for that slide.
    """
    if not (path.name.lower().endswith((".ome.tif", ".ome.tiff")) and path.is_file()):
        return ""
    try:
        import tifffile
    except ImportError:
        return ""
    with _quiet():
        try:
            with tifffile.TiffFile(path) as file:
                reason = _not_colours(file)
        except (tifffile.TiffFileError, ValueError, OSError, IndexError):
            return ""  # opening it as a slide explains what is wrong
    return f"{path} {reason}" if reason else ""


def _not_colours(file: "tifffile.TiffFile") -> str:
    kind = file.pages[0].aspage().dtype if len(file.pages) else None
    if kind is None or kind.kind != "f":
        return ""
    return (
        f"holds {kind.name} values, not colours: it is a map, such as `probsa map` writes, and not "
        "a slide. Keep maps outside the folder of slides"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress tifffile's log messages; relevant problems are checked here and raised."""
    logger = logging.getLogger("tifffile")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _pages(file: "tifffile.TiffFile") -> "list[tifffile.TiffPage]":
    """Return the pages of the levels, largest first.

    In a tiled file, these are the first page, the tiled pages marked as reduced (as in OpenSlide),
    and the SubIFDs of the first page. In a striped file, they are reduced pages of the same shape.
    """
    pages = [page.aspage() for page in file.pages]
    if not pages:
        return []
    if any(page.imagewidth < 1 or page.imagelength < 1 for page in pages):
        raise SlideError(
            f"{file.filename} states a picture without pixels: the file is damaged, copy it again"
        )
    first, rest = pages[0], pages[1:]
    below = [page.aspage() for page in first.pages] if first.pages else []
    levels = [first]
    for page in [*rest, *below]:
        reduced = int(page.subfiletype) & _REDUCED or page in below
        same_kind = page.is_tiled if first.is_tiled else _same_shape(page, first)
        if reduced and same_kind:
            levels.append(page)
    return sorted(levels, key=lambda page: -page.imagewidth)


def _same_shape(page: "tifffile.TiffPage", first: "tifffile.TiffPage") -> bool:
    aspect = page.imagewidth * first.imagelength / (page.imagelength * first.imagewidth)
    return abs(aspect - 1) < _ASPECT and page.samplesperpixel == first.samplesperpixel


def _level(page: "tifffile.TiffPage", first: "tifffile.TiffPage") -> Level:
    across, down = first.imagewidth / page.imagewidth, first.imagelength / page.imagelength
    return Level(width=page.imagewidth, height=page.imagelength, downsample=(across + down) / 2)


def _from_tags(page: "tifffile.TiffPage") -> Resolution:
    tags = page.tags
    unit = _UNITS.get(int(tags.valueof("ResolutionUnit", 2)), "")
    across, down = (_ratio(tags.valueof(f"{axis}Resolution")) for axis in "XY")
    return from_density(across, down, unit=unit)


def _ratio(value: tuple[int, int] | None) -> float | None:
    return value[0] / value[1] if value and value[0] > 0 and value[1] > 0 else None
