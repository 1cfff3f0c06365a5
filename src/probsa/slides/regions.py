"""Stage 1: read regions by OpenSlide's rules, so that every reader gives the same pixels.

A region is read in blocks of 4096 pixels with integer level-0 corners. A block that begins outside
the slide is padded by whole pixels. A corner between two pixels of a level is interpolated.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8

from ..errors import InputError
from ._base import Slide

BLOCK = 4096
WHITE = 255
# OpenSlide's transformations have a precision of 1/256 pixel, so smaller shifts are ignored
_NO_SHIFT = 1 / 512

Pixels = Callable[[int, int, int, int], UInt8[np.ndarray, "height width 3"]]
"""A function from (left, top, width, height) in pixels of a level to RGB, white outside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A part of a region that is read in one call."""

    x: int
    y: int
    """Corner in level-0 pixels."""
    left: int
    top: int
    """Corner in the region, in pixels of the level."""
    width: int
    height: int


def check(slide: Slide, level: int, width: int, height: int) -> None:
    """Refuse a level that does not exist, and a region without pixels."""
    if not 0 <= level < len(slide.levels):
        known = ", ".join(str(i) for i in range(len(slide.levels)))
        raise InputError(f"{slide.path.name} has no level {level}; its levels: {known}")
    if width < 1 or height < 1:
        raise InputError(f"a region of {width} x {height} pixels has no pixels")


def blocks(x: int, y: int, width: int, height: int, *, downsample: float) -> Iterator[Block]:
    """Yield the blocks of a region; corners are truncated to integers, as OpenSlide does."""
    for top in range(0, height, BLOCK):
        for left in range(0, width, BLOCK):
            yield Block(
                x=int(x + left * downsample),
                y=int(y + top * downsample),
                left=left,
                top=top,
                width=min(BLOCK, width - left),
                height=min(BLOCK, height - top),
            )


def block_pixels(block: Block, pixels: Pixels, *, downsample: float) -> UInt8[np.ndarray, "h w 3"]:
    """Return the RGB pixels of a block, from a level that is read at integer positions."""
    pad_x, left, shift_x = _place(block.x, block.width, downsample)
    pad_y, top, shift_y = _place(block.y, block.height, downsample)
    width, height = block.width - pad_x, block.height - pad_y
    out = np.full((block.height, block.width, 3), WHITE, np.uint8)
    if width and height:
        more_x, more_y = int(shift_x > 0), int(shift_y > 0)
        read = pixels(left, top, width + more_x, height + more_y)
        out[pad_y:, pad_x:] = _blend(read, shift_x, shift_y)
    return out


def _place(corner: int, length: int, downsample: float) -> tuple[int, int, float]:
    """Return the padding in pixels, the first pixel of the level, and the fractional offset."""
    pad = min(int(max(-corner, 0) / downsample), length)
    at = max(corner, 0) / downsample
    first = math.floor(at + _NO_SHIFT)
    shift = at - first
    return pad, first, shift if shift > _NO_SHIFT else 0.0


def _blend(
    read: UInt8[np.ndarray, "height width 3"], shift_x: float, shift_y: float
) -> UInt8[np.ndarray, "h w 3"]:
    """Interpolate linearly; a shift down loses one row, a shift right one column."""
    if not shift_x and not shift_y:
        return read
    mixed = read.astype(np.float32)
    if shift_y:
        mixed = mixed[:-1] * (1 - shift_y) + mixed[1:] * shift_y
    if shift_x:
        mixed = mixed[:, :-1] * (1 - shift_x) + mixed[:, 1:] * shift_x
    return (mixed + 0.5).astype(np.uint8)


def on_white(
    colour: UInt8[np.ndarray, "height width 3"], alpha: UInt8[np.ndarray, "height width"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Blend colours of the given opacity with white."""
    if alpha.size and alpha.min() == WHITE:
        return np.ascontiguousarray(colour)
    share = alpha[..., None].astype(np.float32) / WHITE
    return (colour * share + WHITE * (1 - share) + 0.5).astype(np.uint8)


def crop(
    image: UInt8[np.ndarray, "all_rows all_columns 3"],
    left: int,
    top: int,
    *,
    width: int,
    height: int,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a part of an image in memory, white outside the image."""
    out = np.full((height, width, 3), WHITE, np.uint8)
    rows, columns = image.shape[:2]
    x0, x1 = max(left, 0), min(left + width, columns)
    y0, y1 = max(top, 0), min(top + height, rows)
    if x0 < x1 and y0 < y1:
        out[y0 - top : y1 - top, x0 - left : x1 - left] = image[y0:y1, x0:x1]
    return out
