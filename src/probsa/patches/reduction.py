"""Downsample a slide by exact area averages of a level, block by block.

Memory use is that of one block and the result, whatever the size of the slide.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8
from scipy.sparse import csr_array

from ..errors import RegionError
from ..slides import Slide

BLOCK = 2048
"""Side of a block that is read in one call, in pixels of the level."""
NEARLY = 1.01
"""Tolerated factor by which a level may be too coarse: 16.03 counts as 16, 64.16 as 64."""
TINY = 1e-3
SMALLEST = 256
"""If a block cannot be decoded, its quarters are tried, down to this side (that of a tile)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """An image of a whole slide, with the regions that could not be read."""

    pixels: UInt8[np.ndarray, "height width 3"]
    level: int
    """Level that the image was computed from."""
    scale: tuple[float, float]
    """Level-0 pixels per pixel (horizontal, vertical); the last pixels may cover less."""
    lost: tuple[tuple[int, int, int, int], ...] = ()
    """(x, y, width, height) at level 0 of undecodable regions, which are white in the image."""


@dataclass(kw_only=True)
class _Reader:
    """Reads rectangles of a level and skips regions that cannot be decoded."""

    slide: Slide
    level: int
    lost: list[tuple[int, int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        here = self.slide.levels[self.level]
        self.size = here.width, here.height
        self.scale = here.downsample  # the factor that readers use for corners, in both directions

    def read(
        self, x: int, y: int, *, width: int, height: int
    ) -> UInt8[np.ndarray, "height width 3"]:
        left, top = round(x * self.scale), round(y * self.scale)
        try:
            return self.slide.read(x=left, y=top, level=self.level, width=width, height=height)
        except RegionError as error:
            if max(width, height) <= SMALLEST:
                extent = round(width * self.scale), round(height * self.scale)
                self.lost.append((left, top, *extent))
                gone = sum(w * h for _, _, w, h in self.lost)
                if 2 * gone > self.slide.size[0] * self.slide.size[1]:
                    raise RegionError(
                        f"{self.slide.path}: more than half of level {self.level} cannot be "
                        f"decoded: {error}"
                    ) from error
                return np.full((height, width, 3), 255, np.uint8)
        w, h = (width + 1) // 2, (height + 1) // 2
        pixels = np.empty((height, width, 3), np.uint8)
        for part_y in range(0, height, h):
            for part_x in range(0, width, w):
                down, across = min(h, height - part_y), min(w, width - part_x)
                part = self.read(x + part_x, y + part_y, width=across, height=down)
                pixels[part_y : part_y + down, part_x : part_x + across] = part
        return pixels


def level_for(slide: Slide, scale: float) -> int:
    """Return the coarsest level whose pixels exceed `scale` level-0 pixels by at most 1 %."""
    fine = [k for k, level in enumerate(slide.levels) if level.downsample <= NEARLY * scale]
    return max(fine, key=lambda k: slide.levels[k].downsample, default=0)


def factors(slide: Slide, level: int) -> tuple[float, float]:
    """Return the level-0 pixels per pixel of a level (horizontal, vertical).

    The factor is an integer if the level's size is that fraction of the slide's, rounded either
    way: 741 of 2967 rows give 4.
    """
    here = slide.levels[level]

    def factor(whole: int, part: int) -> float:
        times = round(whole / part)
        return float(times) if part in (whole // times, -(-whole // times)) else whole / part

    return factor(slide.size[0], here.width), factor(slide.size[1], here.height)


def whole_level(slide: Slide, level: int) -> Picture:
    """Return a whole level, read in one call to avoid interpolation at block borders."""
    reader = _Reader(slide=slide, level=level)
    pixels = reader.read(0, 0, width=reader.size[0], height=reader.size[1])
    scale = slide.size[0] / reader.size[0], slide.size[1] / reader.size[1]
    return Picture(pixels=pixels, level=level, scale=scale, lost=tuple(reader.lost))


def reduced(slide: Slide, *, scale: float) -> Picture:
    """Return the slide with pixels of `scale` level-0 pixels, each the mean of the area it covers.

    Pixels start at the slide's corner and have equal size, so that scans of one slide at several
    magnifications have the same pixels.
    """
    level = level_for(slide, scale)
    reader = _Reader(slide=slide, level=level)
    width, height = (max(1, math.ceil(length / scale - 1e-6)) for length in slide.size)
    ratio_x, ratio_y = (scale / factor for factor in factors(slide, level))
    step_x, step_y = max(1, int(BLOCK / ratio_x)), max(1, int(BLOCK / ratio_y))
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, step_y):
        bottom = min(top + step_y, height)
        y, h, rows = _shares(top, bottom, ratio=ratio_y, end=reader.size[1])
        for left in range(0, width, step_x):
            right = min(left + step_x, width)
            x, w, columns = _shares(left, right, ratio=ratio_x, end=reader.size[0])
            block = reader.read(x, y, width=w, height=h)
            pixels[top:bottom, left:right] = _average(block, rows, columns)
    return Picture(pixels=pixels, level=level, scale=(scale, scale), lost=tuple(reader.lost))


def _shares(start: int, stop: int, *, ratio: float, end: int) -> tuple[int, int, csr_array]:
    """Return the first input pixel under outputs start to stop, their number, and their shares."""
    edges = np.arange(start, stop + 1) * ratio
    # beyond the end of a truncated level, repeat its last pixel
    low = np.minimum(edges[:-1], end - TINY)
    high = np.maximum(np.minimum(edges[1:], end), low + TINY)
    first, last = int(low[0]), int(np.ceil(high[-1]))
    many = np.ceil(high).astype(np.int64) - low.astype(np.int64)
    output = np.repeat(np.arange(stop - start), many)
    inputs = np.arange(len(output)) - np.repeat(np.cumsum(many) - many, many)
    inputs += low.astype(np.int64)[output]
    cover = np.minimum(inputs + 1, high[output]) - np.maximum(inputs, low[output])
    cover = np.maximum(cover, 0) / (high - low)[output]
    entries = (output, inputs - first)
    shape = (stop - start, last - first)
    return first, last - first, csr_array((cover.astype(np.float32), entries), shape=shape)


def _average(
    block: UInt8[np.ndarray, "h w 3"], rows: csr_array, columns: csr_array
) -> UInt8[np.ndarray, "height width 3"]:
    height, width = block.shape[:2]
    down = rows @ block.reshape(height, width * 3).astype(np.float32)
    turned = down.reshape(-1, width, 3).transpose(1, 0, 2).reshape(width, -1)
    mean = (columns @ turned).reshape(-1, down.shape[0], 3).transpose(1, 0, 2)
    return np.clip(np.floor(mean + 0.5), 0, 255).astype(np.uint8)
