"""Stage 1: convert the samples of a TIFF to RGB on white."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import SlideError
from .regions import WHITE, on_white

if TYPE_CHECKING:
    import tifffile

Samples = UInt8[np.ndarray, "height width samples"]
Colours = Callable[[Samples], UInt8[np.ndarray, "height width 3"]]

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _CMYK, _YCBCR = 0, 1, 2, 3, 5, 6
_PREMULTIPLIED, _STRAIGHT = 1, 2
_COUNT = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3, _PALETTE: 1, _CMYK: 4, _YCBCR: 3}
"""Number of colour samples, without those of opacity."""
# codecs whose decoders return RGB whatever they store
_CONVERTED = {7, 33007, 34892}


def colours(page: "tifffile.TiffPage") -> Colours:
    """Return a function that converts the samples of a page to RGB.

    Raises:
        SlideError: the samples are not 8-bit colours, or there is no decoder for them.
    """
    name = page.parent.filename
    if page.dtype != np.dtype(np.uint8) or page.bitspersample != 8:
        raise SlideError(
            f"{name} has {page.bitspersample} bits per channel ({page.dtype}), but slides "
            "have 8: scale it to 8 bits with suitable black and white points"
        )
    kind, count = int(page.photometric), _COUNT.get(int(page.photometric))
    if count is None or (kind == _YCBCR and page.compression not in _CONVERTED):
        raise SlideError(
            f"{name} stores colours as {word(page.photometric)} with compression "
            f"{word(page.compression)}; write it as RGB (vips tiffsave IN OUT.tiff --tile)"
        )
    extra = page.samplesperpixel - count
    if extra not in (0, 1) or page.imagedepth > 1:
        raise SlideError(
            f"{name} has {page.samplesperpixel} channels where {count} were expected: it is not "
            "a bright-field image; give an image with three colours"
        )
    _check_codec(page, name)
    base = _base(page, kind)
    if not extra or not page.extrasamples:
        return lambda samples: np.ascontiguousarray(base(samples[..., :count]))
    alpha = int(page.extrasamples[0])
    if alpha == _STRAIGHT:
        return lambda s: on_white(base(s[..., :count]), s[..., count])
    if alpha == _PREMULTIPLIED:
        return lambda s: _premultiplied(base(s[..., :count]), s[..., count])
    return lambda samples: np.ascontiguousarray(base(samples[..., :count]))


def _check_codec(page: "tifffile.TiffPage", name: str) -> None:
    import tifffile

    if page.compression == 1:
        return
    try:
        tifffile.TIFF.DECOMPRESSORS[page.compression]
    except KeyError as e:
        raise SlideError(
            f"{name} is compressed by {word(page.compression)}, for which there is no decoder; "
            "convert it (vips tiffsave IN OUT.tiff --tile --pyramid --compression jpeg)"
        ) from e


def _base(page: "tifffile.TiffPage", kind: int) -> Colours:
    if kind == _PALETTE:
        # 16 bits per colour, of which the higher 8 are used
        table = np.asarray(page.colormap)
        table = (table >> 8).astype(np.uint8) if table.max() > WHITE else table.astype(np.uint8)
        return lambda samples: table.T[samples[..., 0]]
    if kind == _WHITE_IS_ZERO:
        return lambda samples: np.repeat(WHITE - samples, 3, axis=-1)
    if kind == _BLACK_IS_ZERO:
        return lambda samples: np.repeat(samples, 3, axis=-1)
    return _from_cmyk if kind == _CMYK else lambda samples: samples


def _from_cmyk(samples: Samples) -> UInt8[np.ndarray, "height width 3"]:
    """Convert without ink profiles: (255 - ink)(255 - black) / 255, as libtiff does."""
    light = WHITE - samples.astype(np.uint16)
    return (light[..., :3] * light[..., 3:] // WHITE).astype(np.uint8)


def _premultiplied(
    colour: UInt8[np.ndarray, "height width 3"], alpha: UInt8[np.ndarray, "height width"]
) -> UInt8[np.ndarray, "height width 3"]:
    mixed = colour.astype(np.uint16) + (WHITE - alpha)[..., None]
    return np.minimum(mixed, WHITE).astype(np.uint8)


def word(value: object) -> str:
    """Return the name of a TIFF constant, or its number if it has none."""
    return str(getattr(value, "name", value))
