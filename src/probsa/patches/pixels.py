"""A whole slide as the image that tissue is found on: exact area averages, block by block.

Coordinates follow from it. What people look at is `Slide.region`, which averages whole pixels and
ends with the last whole one. Memory use is that of one block and the result.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt8
from scipy.sparse import csr_array

from ..errors import RegionError
from ..slides import Slide
from .polygons import pairs

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
    lost: list[tuple[int, int, int, int]]
    """(x, y, width, height) at level 0 of undecodable regions, which are white in the image."""


@dataclass(kw_only=True)
class _Reader:
    """Reads rectangles of a level and skips regions that cannot be decoded."""

    slide: Slide
    level: int
    lost: list[tuple[int, int, int, int]] = field(default_factory=list)

    def read(self, x: int, y: int, *, width: int, height: int) -> UInt8[np.ndarray, "_ _ 3"]:
        # readers use this factor for corners, in both directions
        scale = self.slide.levels[self.level].downsample
        left, top = round(x * scale), round(y * scale)
        try:
            return self.slide.read(x=left, y=top, level=self.level, width=width, height=height)
        except RegionError as error:
            if max(width, height) <= SMALLEST:
                self.lost.append((left, top, round(width * scale), round(height * scale)))
                if 2 * sum(w * h for _, _, w, h in self.lost) > math.prod(self.slide.size):
                    raise RegionError(
                        f"{self.slide.path}: more than half of level {self.level} cannot be "
                        f"decoded: {error}"
                    ) from error
                return np.full((height, width, 3), 255, np.uint8)
        pixels = np.empty((height, width, 3), np.uint8)
        w, h = (width + 1) // 2, (height + 1) // 2
        for i in (0, h):
            for j in (0, w):
                part = pixels[i : i + h, j : j + w]
                if part.size:
                    down, across = part.shape[:2]
                    part[:] = self.read(x + j, y + i, width=across, height=down)
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
    reader, here = _Reader(slide=slide, level=level), slide.levels[level]
    pixels = reader.read(0, 0, width=here.width, height=here.height)
    scale = slide.size[0] / here.width, slide.size[1] / here.height
    return Picture(pixels=pixels, level=level, scale=scale, lost=reader.lost)


def reduced(slide: Slide, *, scale: float) -> Picture:
    """Return the slide with pixels of `scale` level-0 pixels, each the mean of the area it covers.

    Pixels start at the slide's corner and have equal size, so that scans of one slide at several
    magnifications have the same pixels.
    """
    level = level_for(slide, scale)
    reader, here = _Reader(slide=slide, level=level), slide.levels[level]
    ratios = [scale / factor for factor in factors(slide, level)]
    axes = []
    for length, ratio, end in zip(slide.size, ratios, (here.width, here.height), strict=True):
        edges = np.arange(max(1, math.ceil(length / scale - 1e-6)) + 1) * ratio
        # beyond the end of a truncated level, repeat its last pixel
        low = np.minimum(edges[:-1], end - TINY)
        axes.append(means(low, np.maximum(np.minimum(edges[1:], end), low + TINY), end))
    columns, rows = (axis.astype(np.float32) for axis in axes)
    step_x, step_y = (max(1, int(BLOCK / ratio)) for ratio in ratios)
    pixels = np.empty((rows.shape[0], columns.shape[0], 3), np.uint8)
    for top in range(0, len(pixels), step_y):
        for left in range(0, pixels.shape[1], step_x):
            down, across = rows[top : top + step_y], columns[left : left + step_x]
            y, x = down.indices.min(), across.indices.min()
            height, width = down.indices.max() + 1 - y, across.indices.max() + 1 - x
            block = reader.read(int(x), int(y), width=int(width), height=int(height))
            mean = down[:, y:][:, :height] @ block.reshape(height, -1).astype(np.float32)
            turned = mean.reshape(-1, width, 3).transpose(1, 0, 2).reshape(width, -1)
            mean = (across[:, x:][:, :width] @ turned).reshape(-1, down.shape[0], 3)
            mean = np.clip(np.floor(mean + 0.5), 0, 255).astype(np.uint8)
            pixels[top : top + step_y, left : left + step_x] = mean.transpose(1, 0, 2)
    return Picture(pixels=pixels, level=level, scale=(scale, scale), lost=reader.lost)


def means(low: Float[np.ndarray, " k"], high: Float[np.ndarray, " k"], end: int) -> csr_array:
    """Return the matrix, k × end, that takes means of cells over the intervals [low, high).

    Cell j is [j, j + 1); a cell counts by the share of the interval that it covers.
    """
    first = low.astype(np.int64)
    k, j = pairs(first, np.ceil(high).astype(np.int64))
    cover = np.minimum(j + 1, high[k]) - np.maximum(j, low[k])
    return csr_array((np.maximum(cover, 0) / (high - low)[k], (k, j)), shape=(len(low), end))
