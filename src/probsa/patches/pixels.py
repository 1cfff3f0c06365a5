"""A whole slide as the image that tissue is found on: exact area averages, block by block.

Coordinates follow from it. What people look at is `Slide.region`, which averages whole pixels and
ends with the last whole one. Memory use is that of one block and the result.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from scipy.sparse import csr_array

from ..errors import RegionError
from ..slides import Slide
from .polygons import pairs

Sparse = Any
"""A `csr_array`; the types of scipy do not know its shape and its slices."""
BLOCK = 2048
"""Side of a block that is read in one call, in pixels of the level."""
NEARLY = 1.01
"""Tolerated factor by which a level may be too coarse: 16.03 counts as 16, 64.16 as 64."""
TINY = 1e-3
"""Smallest width of an interval that is averaged, in pixels of the level."""
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
        """Return a rectangle of the level; what cannot be decoded is white."""
        # readers use this factor for corners, in both directions
        scale = self.slide.levels[self.level].downsample
        left = round(x * scale)
        top = round(y * scale)
        try:
            return self.slide.read(x=left, y=top, level=self.level, width=width, height=height)
        except RegionError as error:
            if max(width, height) <= SMALLEST:
                self.lost.append((left, top, round(width * scale), round(height * scale)))
                lost_area = sum(w * h for _, _, w, h in self.lost)
                if 2 * lost_area > math.prod(self.slide.size):
                    raise RegionError(
                        f"{self.slide.path}: more than half of level {self.level} cannot be "
                        f"decoded: {error}"
                    ) from error
                return np.full((height, width, 3), 255, np.uint8)
        return self._read_quarters(x, y, width=width, height=height)

    def _read_quarters(self, x: int, y: int, *, width: int, height: int) -> np.ndarray:
        """Return a rectangle that cannot be decoded as a whole."""
        pixels = np.empty((height, width, 3), np.uint8)
        half_width = (width + 1) // 2
        half_height = (height + 1) // 2
        for top in (0, half_height):
            for left in (0, half_width):
                quarter = pixels[top : top + half_height, left : left + half_width]
                if quarter.size:
                    h, w = quarter.shape[:2]
                    quarter[:] = self.read(x + left, y + top, width=w, height=h)
        return pixels


def level_for(slide: Slide, scale: float) -> int:
    """Return the coarsest level whose pixels exceed `scale` level-0 pixels by at most 1 %."""
    fine_levels = [k for k, level in enumerate(slide.levels) if level.downsample <= NEARLY * scale]
    return max(fine_levels, key=lambda k: slide.levels[k].downsample, default=0)


def factors(slide: Slide, level: int) -> tuple[float, float]:
    """Return the level-0 pixels per pixel of a level (horizontal, vertical).

    The factor is an integer if the level's size is that fraction of the slide's, rounded either
    way: 741 of 2967 rows give 4.
    """
    return (
        _factor(slide.size[0], slide.levels[level].width),
        _factor(slide.size[1], slide.levels[level].height),
    )


def _factor(length: int, level_length: int) -> float:
    """Return the quotient of two lengths, or the integer that the shorter one is rounded from."""
    factor = round(length / level_length)
    rounded_down = length // factor
    rounded_up = -(-length // factor)
    if level_length in (rounded_down, rounded_up):
        return float(factor)
    return length / level_length


def whole_level(slide: Slide, level: int) -> Picture:
    """Return a whole level, read in one call to avoid interpolation at block borders."""
    reader = _Reader(slide=slide, level=level)
    width = slide.levels[level].width
    height = slide.levels[level].height
    pixels = reader.read(0, 0, width=width, height=height)
    scale = (slide.size[0] / width, slide.size[1] / height)
    return Picture(pixels=pixels, level=level, scale=scale, lost=reader.lost)


def reduced(slide: Slide, *, scale: float) -> Picture:
    """Return the slide with pixels of `scale` level-0 pixels, each the mean of the area it covers.

    Pixels start at the slide's corner and have equal size, so that scans of one slide at several
    magnifications have the same pixels.
    """
    level = level_for(slide, scale)
    reader = _Reader(slide=slide, level=level)
    width = slide.levels[level].width
    height = slide.levels[level].height
    # sides of a pixel of the image, in pixels of the level
    factor_x, factor_y = factors(slide, level)
    side_x = scale / factor_x
    side_y = scale / factor_y
    column_means = _axis_means(slide.size[0], scale, side=side_x, end=width)
    row_means = _axis_means(slide.size[1], scale, side=side_y, end=height)
    block_width = max(1, int(BLOCK / side_x))
    block_height = max(1, int(BLOCK / side_y))
    pixels = np.empty((row_means.shape[0], column_means.shape[0], 3), np.uint8)
    for top in range(0, pixels.shape[0], block_height):
        for left in range(0, pixels.shape[1], block_width):
            block = pixels[top : top + block_height, left : left + block_width]
            rows = row_means[top : top + block_height]
            columns = column_means[left : left + block_width]
            block[:] = _read_means(reader, rows, columns)
    return Picture(pixels=pixels, level=level, scale=(scale, scale), lost=reader.lost)


def _axis_means(length: int, scale: float, *, side: float, end: int) -> Sparse:
    """Return the matrix of means along one axis, from pixels of a level to those of the image.

    Args:
        length: Length of the slide in level-0 pixels.
        scale: Level-0 pixels per pixel of the image.
        side: Pixels of the level per pixel of the image.
        end: Length of the level in pixels.
    """
    count = max(1, math.ceil(length / scale - 1e-6))
    edges = np.arange(count + 1) * side
    # beyond the end of a truncated level, repeat its last pixel
    low = np.minimum(edges[:-1], end - TINY)
    high = np.maximum(np.minimum(edges[1:], end), low + TINY)
    return means(low, high, end).astype(np.float32)


def _read_means(
    reader: _Reader, rows: Sparse, columns: Sparse
) -> UInt8[np.ndarray, "height width 3"]:
    """Read a block of a level, and average it by the matrices of rows and of columns."""
    # the part of the level that the matrices use
    x = int(columns.indices.min())
    y = int(rows.indices.min())
    width = int(columns.indices.max()) + 1 - x
    height = int(rows.indices.max()) + 1 - y
    block = reader.read(x, y, width=width, height=height)
    # means over rows first: a sparse matrix multiplies arrays of two dimensions, (height, w · 3)
    means_yx = rows[:, y:][:, :height] @ block.reshape(height, -1).astype(np.float32)
    # then over columns, (width, h · 3)
    means_xy = means_yx.reshape(-1, width, 3).transpose(1, 0, 2).reshape(width, -1)
    means_xy = columns[:, x:][:, :width] @ means_xy
    rounded = np.clip(np.floor(means_xy + 0.5), 0, 255).astype(np.uint8)
    return rounded.reshape(-1, rows.shape[0], 3).transpose(1, 0, 2)


def means(low: Float[np.ndarray, " k"], high: Float[np.ndarray, " k"], end: int) -> csr_array:
    """Return the matrix, k × end, that takes means of cells over the intervals [low, high).

    Cell j is [j, j + 1); a cell counts by the share of the interval that it covers.
    """
    first = low.astype(np.int64)
    k, j = pairs(first, np.ceil(high).astype(np.int64))
    cover = np.minimum(j + 1, high[k]) - np.maximum(j, low[k])
    return csr_array((np.maximum(cover, 0) / (high - low)[k], (k, j)), shape=(len(low), end))
