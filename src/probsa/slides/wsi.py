"""Stage 1: read slides in vendor formats with OpenSlide."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ._base import Level, Slide, on_white, reading
from .resolution import from_openslide, settle

if TYPE_CHECKING:
    import openslide

_ROWS = 4096
"""Rows that are read in one call, as by OpenSlide itself, to bound the memory of RGBA pixels."""


class WsiSlide(Slide):
    """A slide that OpenSlide reads.

    After a damaged tile, an OpenSlide handle refuses all further regions. The handle is therefore
    reopened after an error, so that undamaged regions remain readable.
    """

    def __init__(self, path: Path, *, name: str, mpp: float | None = None) -> None:
        import openslide

        self.path, self.name = path, name
        self._handle: openslide.OpenSlide | None = None
        with reading(path):
            handle = self._open()
            properties = dict(handle.properties)
            self.levels = tuple(
                Level(width=w, height=h, downsample=d)
                for (w, h), d in zip(handle.level_dimensions, handle.level_downsamples, strict=True)
            )
        self.format = properties.get(openslide.PROPERTY_NAME_VENDOR, "unknown")
        self.mpp, self.mpp_source = settle(from_openslide(properties), mpp)
        sides = [properties.get(f"openslide.level[0].tile-{side}") for side in ("width", "height")]
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
        out = np.empty((height, width, 3), np.uint8)
        for top in range(0, height, _ROWS):
            at = (corner[0], int(corner[1] + top * self.levels[level].downsample))
            size = (width, min(_ROWS, height - top))
            try:
                out[top : top + _ROWS] = on_white(self._open().read_region(at, level, size))
            except Exception:
                self._release()
                raise
        return out

    def close(self) -> None:
        """Release the handle and its cache; may be called more than once."""
        self.closed = True
        self._release()

    def _release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _open(self) -> "openslide.OpenSlide":
        import openslide

        if self._handle is None:
            self._handle = openslide.OpenSlide(self.path)
        return self._handle
