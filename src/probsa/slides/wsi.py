"""Stage 1: read slides in vendor formats with OpenSlide."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import RegionError, SlideError
from ._base import Level, Slide
from .regions import blocks, check, on_white
from .resolution import from_openslide, settle

if TYPE_CHECKING:
    import openslide
    from PIL.Image import Image

# size of the tile cache of one slide: OpenSlide's own default
_CACHE_BYTES = 32 << 20


class WsiSlide(Slide):
    """A slide that OpenSlide reads.

    After a damaged tile, an OpenSlide handle refuses all further regions. The handle is therefore
    reopened after an error, so that undamaged regions remain readable.
    """

    def __init__(self, path: Path, *, name: str, mpp: float | None = None) -> None:
        import openslide

        self.path, self.name = path, name
        self._library = openslide
        self._closed = False
        self._handle: openslide.OpenSlide | None = None
        try:
            handle = self._open()
            properties = dict(handle.properties)
            sizes = handle.level_dimensions
            downsamples = handle.level_downsamples
            images = ", ".join(sorted(handle.associated_images))
        except openslide.OpenSlideError as e:
            self.close()
            raise SlideError(
                f"{path} cannot be opened by OpenSlide: {e}; the file is damaged, incomplete, or "
                "of a variant that OpenSlide does not know"
            ) from e
        self.format = properties.get(openslide.PROPERTY_NAME_VENDOR, "unknown")
        self.levels = tuple(
            Level(width=w, height=h, downsample=d)
            for (w, h), d in zip(sizes, downsamples, strict=True)
        )
        resolution = settle(from_openslide(properties), mpp)
        self.mpp, self.mpp_source = resolution.mpp, resolution.source
        self.properties = properties | _common_properties(
            properties, images, openslide.__library_version__
        )

    def read(
        self, *, x: int, y: int, level: int, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region as RGB, decoded in blocks of 4096 x 4096 pixels; see `Slide.read`."""
        check(self, level, width, height)
        out = np.empty((height, width, 3), np.uint8)
        for b in blocks(x, y, width, height, downsample=self.levels[level].downsample):
            try:
                image = self._open().read_region((b.x, b.y), level, (b.width, b.height))
            except self._library.OpenSlideError as e:
                self._release()
                raise RegionError(
                    f"{self.path.name}: level {level} cannot be decoded in the {b.width} x "
                    f"{b.height} pixels from level-0 corner ({b.x}, {b.y}): {e}"
                ) from e
            out[b.top : b.top + b.height, b.left : b.left + b.width] = _rgb(image)
        return out

    def close(self) -> None:
        """Release the handle and its cache; may be called more than once."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _open(self) -> "openslide.OpenSlide":
        if self._closed:
            raise SlideError(f"{self.path.name} is closed")
        if self._handle is None:
            self._handle = self._library.OpenSlide(self.path)
            self._handle.set_cache(self._library.OpenSlideCache(_CACHE_BYTES))
        return self._handle


def _rgb(image: "Image") -> UInt8[np.ndarray, "height width 3"]:
    pixels = np.asarray(image)
    return on_white(pixels[..., :3], pixels[..., 3])


def _common_properties(properties: dict[str, str], images: str, version: str) -> dict[str, str]:
    """Return the properties that all readers state under the same names."""
    common = {"reader": f"OpenSlide {version}", "associated images": images}
    width, height = (
        properties.get(f"openslide.level[0].tile-{side}") for side in ("width", "height")
    )
    if width and height:
        common["tile size"] = f"{width} x {height}"
    power = properties.get("openslide.objective-power")
    if power:
        common["objective power"] = power
    return {k: v for k, v in common.items() if v}
