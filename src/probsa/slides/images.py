"""Stage 1: read plain images (PNG, JPEG, BMP, WebP, JPEG 2000) as one-level slides with Pillow.

They have no tiles, so the whole image is decoded when it is opened.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import SlideError
from ._base import Level, Slide, decoding, on_white
from .resolution import Resolution, from_density, set_resolution

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "JPEG2000")
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")


def looks_plain(head: bytes) -> bool:
    """Return True if these first bytes are those of an image in one of `FORMATS`."""
    return (
        head.startswith(_MAGIC)
        or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
        or (head[:2] == b"BM" and head[6:10] == bytes(4))
    )


class PlainSlide(Slide):
    """A slide that is a single image in memory."""

    def __init__(self, path: Path, *, name: str, mpp: float | None = None) -> None:
        from PIL import Image, __version__

        self.path = path
        self.name = name
        with decoding(path):
            try:  # Pillow warns above 89 million pixels and refuses twice as many; only refuse here
                with Image.open(path, formats=FORMATS) as image:
                    self._image = _rgb(image, path)
            except Image.DecompressionBombError as e:
                raise SlideError(
                    f"{path} is too large for a plain image ({e}); convert it to a tiled TIFF, of "
                    "which only the required parts are decoded "
                    "(vips tiffsave IN OUT.tiff --tile --pyramid --compression jpeg)"
                ) from e
        height, width = self._image.shape[:2]
        self.levels = (Level(width=width, height=height, downsample=1.0),)
        self.format = (image.format or "image").lower()
        self.properties = {"reader": f"Pillow {__version__}", "mode": image.mode}
        dpi = image.info.get("dpi")
        density = Resolution()
        if dpi and len(dpi) == 2:
            x, y = float(dpi[0]), float(dpi[1])
            density = from_density(x, y, unit="inch", source="dots per inch")
        set_resolution(self, density, mpp)

    def _pixels(
        self, level: int, rows: slice, columns: slice
    ) -> UInt8[np.ndarray, "height width 3"]:
        return self._image[rows, columns]

    def close(self) -> None:
        """Release the image; may be called more than once."""
        self.closed = True
        self._image = np.empty((0, 0, 3), np.uint8)


def _rgb(image: "Image", path: Path) -> UInt8[np.ndarray, "height width 3"]:
    """Return the colours of an image of 8 bits, with white behind what is transparent."""
    # Pillow silently truncates 16-bit PNG colours to 8 bits; the raw mode reveals them
    raw_modes = [str(tile[3]) for tile in getattr(image, "tile", ())]
    has_16_bits = image.format == "PNG" and any("16" in mode for mode in raw_modes)
    if image.mode.startswith(("I", "F")) or has_16_bits:
        raise SlideError(
            f"{path} has more than 8 bits per channel, but slides have 8: "
            "scale it to 8 bits with suitable black and white points"
        )
    if image.has_transparency_data:
        return on_white(image.convert("RGBA"))
    return np.array(image.convert("RGB"))
