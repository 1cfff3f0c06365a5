"""A slide in memory, for tests: a pyramid of arrays, with regions that can be made unreadable."""

from pathlib import Path

import numpy as np

from probsa.errors import RegionError
from probsa.slides._base import Level, Slide


class ArraySlide(Slide):
    """Reads as a file does: white outside, corners in level-0 pixels, levels by number.

    `images` is a pyramid, largest first; `broken` lists (x, y, width, height) at level 0 that
    cannot be decoded; `reads` counts (level, width, height) of what was read.
    """

    def __init__(self, *images, mpp=0.5, name="array", broken=(), downsamples=None):
        self.images = images
        self.path = Path(f"{name}.tiff")
        self.name = name
        self.format = "array"
        self.mpp = mpp
        self.mpp_source = None if mpp is None else "given"
        self.properties = {}
        self.broken = broken
        self.reads = []
        height, width = images[0].shape[:2]
        means = [(width / i.shape[1] + height / i.shape[0]) / 2 for i in images]
        self.levels = tuple(
            Level(width=i.shape[1], height=i.shape[0], downsample=d)
            for i, d in zip(images, downsamples or means, strict=True)
        )

    def read(self, *, x, y, level, width, height):
        self.reads.append((level, width, height))
        image = self.images[level]
        down = self.levels[level].downsample
        for left, top, w, h in self.broken:
            across = x < left + w and left < x + width * down
            if across and y < top + h and top < y + height * down:
                raise RegionError(f"{self.path}: broken at ({x}, {y})")
        out = np.full((height, width, 3), 255, np.uint8)
        at_x, at_y = round(x / down), round(y / down)
        left, top = max(at_x, 0), max(at_y, 0)
        part = image[top : max(at_y + height, 0), left : max(at_x + width, 0)]
        out[top - at_y :, left - at_x :][: part.shape[0], : part.shape[1]] = part
        return out

    def close(self):
        pass


def halved(image):
    """The next level of a pyramid: means of 2x2, a last odd row or column left out."""
    height, width = (n // 2 * 2 for n in image.shape[:2])
    x = image[:height, :width].astype(np.uint16)
    total = x[0::2, 0::2] + x[1::2, 0::2] + x[0::2, 1::2] + x[1::2, 1::2]
    return ((total + 2) // 4).astype(np.uint8)


def painted(width, height, *ellipses, colour=(200, 120, 160), seed=0):
    """White glass with noisy tissue in ellipses (centre x, y, radius x, y)."""
    y, x = np.mgrid[:height, :width].astype(np.float32) + 0.5
    inside = np.zeros((height, width), bool)
    for cx, cy, rx, ry in ellipses:
        inside |= ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 <= 1
    image = np.full((height, width, 3), 244, np.uint8)
    noise = np.random.default_rng(seed).integers(0, 25, (inside.sum(), 3), np.uint8)
    image[inside] = np.array(colour, np.uint8) - 12 + noise
    return image
