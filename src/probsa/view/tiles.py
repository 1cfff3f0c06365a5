"""Stage 10: pictures for the page: tiles of a slide's pyramid, patches and thumbnails.

The addresses are those of Deep Zoom: level k of a pyramid whose level 0 is a single pixel, and the
column and row of a tile. Corners are level-0 pixels of the slide, whatever bounds it states.
"""

import io
import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..errors import RegionError
from ..evaluation import Prediction, column_of
from ..maps import Layout, quantity, raster
from ..slides import Box, Scan, Slide, displayed_slice
from .quantities import chosen_column

TILE = 254
OVERLAP = 1
"""Pixels that a tile shares with each neighbour, so that no seams show between scaled tiles."""
QUALITY = 85
PATCH = 144
"""Side of the picture of a patch, in pixels."""
THUMBNAIL = 160
"""Longer side of a thumbnail in pixels."""
PLAIN = 70
"""Grey value of the background."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pyramid:
    """The tiles of a slide, from its level `scale` downwards."""

    size: tuple[int, int]
    """(width, height) of the finest level, in its pixels."""
    scale: int
    """Level-0 pixels of the slide per pixel of the finest level, a power of 2."""

    @classmethod
    def of(cls, slide: Slide, *, max_mpp: float | None = None) -> "Pyramid":
        """Return the tiles of a slide, without levels finer than `max_mpp` µm per pixel.

        A slide of unknown resolution keeps all its levels.
        """
        scale = 1
        if max_mpp is not None and slide.mpp is not None:
            # the tolerance accepts 0.5 µm of a slide that states 0.25004 µm
            while slide.mpp * scale * 2 <= max_mpp * (1 + 1e-3):
                scale *= 2
        width, height = slide.size
        return cls(size=(math.ceil(width / scale), math.ceil(height / scale)), scale=scale)

    @property
    def levels(self) -> int:
        """Number of levels; the last is the finest.

        Level 0 is a single pixel, and each level has twice the sides of the one before.
        """
        return (max(self.size) - 1).bit_length() + 1

    def level_size(self, level: int) -> tuple[int, int]:
        """Return (width, height) of a level."""
        factor = 2 ** (self.levels - 1 - level)
        width, height = self.size
        return math.ceil(width / factor), math.ceil(height / factor)

    def tiles(self, level: int) -> tuple[int, int]:
        """Return the number of (columns, rows) of a level."""
        width, height = self.level_size(level)
        return math.ceil(width / TILE), math.ceil(height / TILE)

    def of_patches(self, level: int, patches: Layout) -> set[tuple[int, int]]:
        """Return the (column, row) of the tiles of a level on which patches lie."""
        side = TILE * self.scale * 2.0 ** (self.levels - 1 - level)
        first = np.floor(patches.corners / side).astype(int).tolist()
        last = np.floor((patches.corners + patches.side) / side).astype(int).tolist()
        tiles: set[tuple[int, int]] = set()
        for (left, top), (right, bottom) in zip(first, last, strict=True):
            tiles.update(product(range(left, right + 1), range(top, bottom + 1)))
        return tiles

    def box(self, level: int, column: int, row: int) -> tuple[Box, float] | None:
        """Return a tile's (left, top, right, bottom) in level-0 pixels, and its scale.

        It is None if there is no such tile.
        """
        if not 0 <= level < self.levels:
            return None
        columns, rows = self.tiles(level)
        if not (0 <= column < columns and 0 <= row < rows):
            return None
        width, height = self.level_size(level)
        scale = self.scale * 2.0 ** (self.levels - 1 - level)
        left = max(0, column * TILE - OVERLAP)
        top = max(0, row * TILE - OVERLAP)
        right = min(width, (column + 1) * TILE + OVERLAP)
        bottom = min(height, (row + 1) * TILE + OVERLAP)
        return (scale * left, scale * top, scale * right, scale * bottom), scale

    def to_page(self) -> dict[str, Any]:
        """Return the size and the tiles as the page reads them."""
        return {
            "width": self.size[0],
            "height": self.size[1],
            "scale": self.scale,
            "maxLevel": self.levels - 1,
            "tile": TILE,
            "overlap": OVERLAP,
        }


def tile_image(slide: Slide, pyramid: Pyramid, address: tuple[int, int, int]) -> bytes:
    """Return a tile, addressed by (level, column, row), as JPEG."""
    place = pyramid.box(*address)
    if place is None:
        raise RegionError(f"{slide.path} has no tile {address}")
    box, scale = place
    return jpeg(slide.region(box, scale=scale).image)


def patch_image(slide: Slide, corner: np.ndarray, side: float) -> bytes:
    """Return the picture of a patch as JPEG; `corner` and `side` are in level-0 pixels."""
    x, y = (float(v) for v in corner)
    scale = max(1.0, side / PATCH)
    pixels = slide.region((x, y, x + side, y + side), scale=scale).image
    return jpeg(pixels, size=(PATCH, PATCH))


def slice_picture(scan: Scan) -> bytes:
    """Return the middle slice of a scan as JPEG."""
    height, width = scan.volume.shape[1:]
    size = np.array([width * scan.spacing[1], height * scan.spacing[0]])
    across, down = np.maximum(1, np.rint(size * THUMBNAIL / size.max())).astype(int).tolist()
    return jpeg(displayed_slice(scan, len(scan.volume) // 2), size=(across, down))


def picture_of_values(p: Prediction, layout: Layout, limits: tuple[float, float]) -> bytes:
    """Return the mean of each instance at its place as JPEG, on the scale of all bags."""
    key = "evidence" if p.score_has_level else "mean"
    q = quantity(key, column_of(p.attention_mean, chosen_column(p)), name="")
    if q.kind.signed:
        largest = max(abs(v) for v in limits)
        limits = (-largest, largest)
    colours = replace(q, limits=limits).colours
    owners = raster(layout, finest=4, longest=THUMBNAIL).owners
    # the last colour stands for the owner −1, the cells without an instance
    image = np.append(colours, np.full((1, 3), PLAIN, np.uint8), axis=0)[owners]
    rows, columns = owners.shape
    factor = THUMBNAIL / max(rows, columns)
    width, height = np.maximum(1, np.rint(np.array([columns, rows]) * factor)).astype(int).tolist()
    if layout.strip:  # a single row of cells, which would be a line
        height = THUMBNAIL // 4
    return jpeg(image, size=(width, height), method=Image.Resampling.NEAREST)


def jpeg(
    pixels: UInt8[np.ndarray, "..."] | Image.Image,
    *,
    size: tuple[int, int] | None = None,
    method: Image.Resampling = Image.Resampling.BICUBIC,
) -> bytes:
    """Return an image as JPEG, optionally resized."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    if size is not None:
        image = image.resize(size, method)
    out = io.BytesIO()
    image.convert("RGB").save(out, format="JPEG", quality=QUALITY)
    return out.getvalue()
