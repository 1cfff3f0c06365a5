"""Stage 1: read slides in vendor formats with OpenSlide."""

import shutil
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ._base import PYTHON_ERRORS, Slide, decoding, on_white
from .dicom_slides import SeveralPlanes, plane_problem
from .levels import StoredLevel, decide_levels
from .resolution import from_openslide, set_resolution

if TYPE_CHECKING:
    import openslide

_SIDES = ("width", "height")
_SHIFTS = 64
"""Largest number of pixels by which the corner of a region of a padded level is moved."""
_ROWS = 4096
"""Rows that are read in one call, as by OpenSlide itself, to bound the memory of RGBA pixels."""


class WsiSlide(Slide):
    """A slide that OpenSlide reads.

    After a damaged tile, an OpenSlide handle refuses all further regions. The handle is therefore
    reopened after an error, so that undamaged regions remain readable.
    """

    def __init__(
        self, path: Path, *, name: str, mpp: float | None = None, skipped: Sequence[Path] = ()
    ) -> None:
        """Open a slide.

        Args:
            path: the slide file.
            name: the name of the slide.
            mpp: micrometres per level-0 pixel, if the user states them.
            skipped: files beside a DICOM slide that must not be opened.

        Raises:
            SlideError: the slide is damaged, or has several planes.
        """
        import openslide

        self.path = path
        self.name = name
        self._links: Path | None = None
        if skipped:
            self._links = _regular_files(path)
            # also without `close`, and if opening fails
            weakref.finalize(self, shutil.rmtree, self._links, ignore_errors=True)
        self._handle: openslide.OpenSlide | None = None
        with decoding(path):
            handle = self._open()
            properties = dict(handle.properties)
            pyramid = decide_levels(_stored_levels(handle, properties))
            self.levels = pyramid.levels
            self.notes = pyramid.notes
            if skipped:
                names = ", ".join(file.name for file in skipped)
                note = f"Beside it, these are no regular files and were not opened: {names}."
                self.notes = (*self.notes, note)
            self._places = pyramid.places
            self._downsamples = [handle.level_downsamples[k] for k in pyramid.places]
            problem = plane_problem(properties)
        if problem:
            self.close()
            raise SeveralPlanes(f"{path} {problem}")
        self.format = properties.get(openslide.PROPERTY_NAME_VENDOR, "unknown")
        set_resolution(self, from_openslide(properties), mpp)
        sides = [properties.get(f"openslide.level[0].tile-{side}") for side in _SIDES]
        self.associated_images = tuple(sorted(handle.associated_images))
        common = {
            "reader": f"OpenSlide {openslide.__library_version__}",
            "associated images": ", ".join(self.associated_images),
            "tile size": " x ".join(side for side in sides if side),
            "objective power": properties.get("openslide.objective-power"),
        }
        self.properties = properties | {key: text for key, text in common.items() if text}

    def _read(
        self, corner: tuple[int, int], level: int, *, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        if self.levels[level].downsample != self._downsamples[level]:
            return super()._read(corner, level, width=width, height=height)
        image = np.empty((height, width, 3), np.uint8)
        for top in range(0, height, _ROWS):
            rows_corner = (corner[0], int(corner[1] + top * self.levels[level].downsample))
            size = (width, min(_ROWS, height - top))
            image[top : top + _ROWS] = self._read_region(rows_corner, level, size)
        return image

    def _read_region(
        self, corner: tuple[int, int], level: int, size: tuple[int, int]
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region from OpenSlide; after an error, the handle cannot be used any more."""
        import openslide

        try:
            return on_white(self._open().read_region(corner, self._places[level], size))
        except (openslide.OpenSlideError, *PYTHON_ERRORS):
            self._release()
            raise

    def _pixels(
        self, level: int, rows: slice, columns: slice
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a part of a padded level, whose factor OpenSlide does not know.

        OpenSlide finds the level's pixel by its own factor and interpolates between pixels. The
        corner is therefore moved by up to `_SHIFTS` pixels to where it is nearly a whole pixel.
        """
        downsample = self._downsamples[level]
        left = _whole_corner(columns.start, downsample)
        top = _whole_corner(rows.start, downsample)
        size = (columns.stop - left, rows.stop - top)
        corner = (round(left * downsample), round(top * downsample))
        region = self._read_region(corner, level, size)
        return region[rows.start - top :, columns.start - left :]

    def close(self) -> None:
        """Release the handle and its cache; may be called more than once."""
        self.closed = True
        self._release()
        if self._links is not None:
            shutil.rmtree(self._links, ignore_errors=True)

    def _release(self) -> None:
        """Close the handle; the next region opens another one."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _open(self) -> "openslide.OpenSlide":
        """Return the handle; it is opened at the first access."""
        import openslide

        if self._handle is None:
            path = self.path if self._links is None else self._links / self.path.name
            self._handle = openslide.OpenSlide(path)
        return self._handle


def _stored_levels(
    handle: "openslide.OpenSlide", properties: Mapping[str, str]
) -> list[StoredLevel]:
    """Return the levels as OpenSlide states them."""
    levels = []
    for k, (width, height) in enumerate(handle.level_dimensions):
        levels.append(
            StoredLevel(
                width=width,
                height=height,
                tile=_tile_size(properties, level=k),
                downsample=handle.level_downsamples[k],
            )
        )
    return levels


def _regular_files(path: Path) -> Path:
    """Return a new temporary folder of links to the regular files beside a slide."""
    folder = Path(mkdtemp(prefix="probsa-"))
    for file in path.absolute().parent.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    return folder


def _whole_corner(start: int, downsample: float) -> int:
    """Return the pixel at or shortly before `start` that lies closest to a level-0 pixel."""
    candidates = range(max(0, start - _SHIFTS), start + 1)
    return min(candidates, key=lambda k: (abs(k * downsample - round(k * downsample)), -k))


def _tile_size(properties: Mapping[str, str], *, level: int) -> tuple[int, int] | None:
    """Return the size of the tiles of a level as OpenSlide states it."""
    sides = []
    for side in _SIDES:
        text = properties.get(f"openslide.level[{level}].tile-{side}")
        sides.append(int(text) if text and text.isdigit() else 0)
    width, height = sides
    return (width, height) if width and height else None
