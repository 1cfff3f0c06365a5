"""Stage 1: read slides in vendor formats with OpenSlide."""

import shutil
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import SlideError
from ._base import Slide, on_white, reading
from .dicom_slides import plane_problem
from .levels import StoredLevel, settle_levels
from .resolution import from_openslide, settle

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

        self.path, self.name = path, name
        self._links: Path | None = None
        if skipped:
            self._links = _regular_files(path)
            # also without `close`, and if opening fails
            weakref.finalize(self, shutil.rmtree, self._links, ignore_errors=True)
        self._handle: openslide.OpenSlide | None = None
        with reading(path):
            handle = self._open()
            properties = dict(handle.properties)
            stored = zip(handle.level_dimensions, handle.level_downsamples, strict=True)
            pyramid = settle_levels(
                [
                    StoredLevel(
                        width=w, height=h, tile=_tile_size(properties, level=k), downsample=d
                    )
                    for k, ((w, h), d) in enumerate(stored)
                ]
            )
            self.levels, self.notes = pyramid.levels, pyramid.notes
            if skipped:
                names = ", ".join(file.name for file in skipped)
                note = f"Beside it, these are no regular files and were not opened: {names}."
                self.notes = (*self.notes, note)
            self._places = pyramid.places
            self._downsamples = [handle.level_downsamples[k] for k in pyramid.places]
            problem = plane_problem(properties)
        if problem:
            self.close()
            raise SlideError(f"{path} {problem}")
        self.format = properties.get(openslide.PROPERTY_NAME_VENDOR, "unknown")
        resolution = settle(from_openslide(properties), mpp)
        self.mpp, self.mpp_source = resolution.mpp, resolution.source
        self.mpp_rejected = resolution.rejected
        sides = [properties.get(f"openslide.level[0].tile-{side}") for side in _SIDES]
        common = {
            "reader": f"OpenSlide {openslide.__library_version__}",
            "associated images": ", ".join(sorted(handle.associated_images)),
            "tile size": " x ".join(side for side in sides if side),
            "objective power": properties.get("openslide.objective-power"),
        }
        self.properties = properties | {k: v for k, v in common.items() if v}

    def _read(
        self, corner: tuple[int, int], level: int, *, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        if self.levels[level].downsample != self._downsamples[level]:
            return super()._read(corner, level, width=width, height=height)
        out = np.empty((height, width, 3), np.uint8)
        place = self._places[level]
        for top in range(0, height, _ROWS):
            at = (corner[0], int(corner[1] + top * self.levels[level].downsample))
            size = (width, min(_ROWS, height - top))
            try:
                out[top : top + _ROWS] = on_white(self._open().read_region(at, place, size))
            except Exception:
                self._release()
                raise
        return out

    def _pixels(
        self, level: int, rows: slice, columns: slice
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a part of a padded level, whose factor OpenSlide does not know.

        OpenSlide finds the level's pixel by its own factor and interpolates between pixels. The
        corner is therefore moved by up to `_SHIFTS` pixels to where it is nearly a whole pixel.
        """
        own = self._downsamples[level]
        left, top = (_whole_corner(part.start, own) for part in (columns, rows))
        size = (columns.stop - left, rows.stop - top)
        at = (round(left * own), round(top * own))
        try:
            region = on_white(self._open().read_region(at, self._places[level], size))
        except Exception:
            self._release()
            raise
        return region[rows.start - top :, columns.start - left :]

    def close(self) -> None:
        """Release the handle and its cache; may be called more than once."""
        self.closed = True
        self._release()
        if self._links is not None:
            shutil.rmtree(self._links, ignore_errors=True)

    def _release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _open(self) -> "openslide.OpenSlide":
        import openslide

        if self._handle is None:
            opened = self.path
            if self._links is not None:
                opened = self._links / self.path.name
            self._handle = openslide.OpenSlide(opened)
        return self._handle


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
    sides = [properties.get(f"openslide.level[{level}].tile-{side}") for side in _SIDES]
    width, height = (int(side) if side and side.isdigit() else 0 for side in sides)
    return (width, height) if width and height else None
