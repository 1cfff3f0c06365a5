"""Stage 1: read plain images (PNG, JPEG, BMP, WebP, JPEG 2000) as one-level slides with Pillow.

They have no tiles, so the whole image is decoded when it is opened.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import SlideError
from ._base import Level, Slide
from .regions import check, crop, on_white
from .resolution import Resolution, from_density, settle

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "JPEG2000")
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
_DEEP = ("I", "F")
"""Prefixes of the modes with more than 8 bits: `I`, `I;16`, `F`."""
_ADVICE = (
    "convert it to a tiled TIFF, of which only the required parts are decoded "
    "(vips tiffsave IN OUT.tiff --tile --pyramid --compression jpeg)"
)


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
        self.path, self.name = path, name
        self._pixels, properties, stated = _load(path)
        height, width = self._pixels.shape[:2]
        self.format = properties["format"]
        self.levels = (Level(width=width, height=height, downsample=1.0),)
        resolution = settle(stated, mpp)
        self.mpp, self.mpp_source = resolution.mpp, resolution.source
        self.properties = {k: v for k, v in properties.items() if k != "format"}

    def read(
        self, *, x: int, y: int, level: int, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        """Return a region as RGB; see `Slide.read`."""
        check(self, level, width, height)
        if not self._pixels.size:
            raise SlideError(f"{self.path.name} is closed")
        return crop(self._pixels, x, y, width=width, height=height)

    def close(self) -> None:
        """Release the image; may be called more than once."""
        self._pixels = np.empty((0, 0, 3), np.uint8)


def _load(path: Path) -> tuple[UInt8[np.ndarray, "height width 3"], dict[str, str], Resolution]:
    """Return the pixels, the properties that the file states, and its resolution."""
    from PIL import Image, UnidentifiedImageError, __version__

    try:
        with warnings.catch_warnings():
            # Pillow warns above 89 million pixels and refuses twice as many; only refuse here
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                _refuse_deep(image, path)
                properties = {
                    "format": (image.format or "image").lower(),
                    "reader": f"Pillow {__version__}",
                    "mode": image.mode,
                }
                stated = _density(image)
                return _rgb(image), properties, stated
    except Image.DecompressionBombError as e:
        raise SlideError(f"{path} is too large for a plain image ({e}); {_ADVICE}") from e
    except UnidentifiedImageError as e:
        raise SlideError(
            f"{path} begins like an image but is damaged: Pillow cannot read it"
        ) from e
    except (OSError, SyntaxError, ValueError) as e:
        if isinstance(e, SlideError):
            raise
        raise SlideError(
            f"{path} cannot be decoded ({e}): it is damaged or truncated; copy it again"
        ) from e


def _refuse_deep(image: "Image", path: Path) -> None:
    # Pillow silently truncates 16-bit PNG colours to 8 bits; the raw mode reveals them
    sixteen = image.format == "PNG" and any("16" in str(t[3]) for t in getattr(image, "tile", ()))
    if image.mode.startswith(_DEEP) or sixteen:
        raise SlideError(
            f"{path} has more than 8 bits per channel, but slides have 8: "
            "scale it to 8 bits with suitable black and white points"
        )


def _density(image: "Image") -> Resolution:
    dpi = image.info.get("dpi")
    if not dpi or len(dpi) != 2:
        return Resolution()
    return from_density(float(dpi[0]), float(dpi[1]), unit="inch", source="dots per inch")


def _rgb(image: "Image") -> UInt8[np.ndarray, "height width 3"]:
    if image.mode in ("LA", "PA", "La", "RGBa", "RGBA") or "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA"))
        return on_white(pixels[..., :3], pixels[..., 3])
    return np.array(image.convert("RGB"))
