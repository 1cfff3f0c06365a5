"""An in-memory slide: a pyramid of arrays, with regions that can be made unreadable."""

from pathlib import Path

import numpy as np

from probsa.errors import RegionError
from probsa.slides import Level, Slide


class ArraySlide(Slide):
    """A slide that reads like a file: white outside, corners in level-0 pixels.

    Args:
        images: the levels of the pyramid, largest first.
        mpp: µm per pixel of level 0.
        mpp_is_given: whether the user states them, and not the file.
        name: the name of the slide.
        broken: (x, y, width, height) of level-0 regions that cannot be decoded.
        downsamples: the downsample of each level; by default it follows from the sizes.

    Attributes:
        reads: (level, width, height) of every region that was read.
    """

    def __init__(
        self, *images, mpp=0.5, name="array", broken=(), downsamples=None, mpp_is_given=False
    ):
        self.images = images
        self.path = Path(f"{name}.tiff")
        self.name = name
        self.format = "array"
        self.mpp = mpp
        self.mpp_source = None if mpp is None else "given" if mpp_is_given else "file"
        self.mpp_is_given = mpp_is_given
        self.properties = {}
        self.broken = broken
        self.reads = []
        height, width = images[0].shape[:2]
        means = [(width / i.shape[1] + height / i.shape[0]) / 2 for i in images]
        self.levels = tuple(
            Level(width=i.shape[1], height=i.shape[0], downsample=d)
            for i, d in zip(images, downsamples or means, strict=True)
        )

    def _read(self, corner, level, *, width, height):
        x, y = corner
        self.reads.append((level, width, height))
        image = self.images[level]
        down = self.levels[level].downsample
        for left, top, w, h in self.broken:
            across = x < left + w and left < x + width * down
            if across and y < top + h and top < y + height * down:
                raise RegionError(f"{self.path}: broken at ({x}, {y})")
        out = np.full((height, width, 3), 255, np.uint8)
        level_x = round(x / down)
        level_y = round(y / down)
        left = max(level_x, 0)
        top = max(level_y, 0)
        part = image[top : max(level_y + height, 0), left : max(level_x + width, 0)]
        out[top - level_y :, left - level_x :][: part.shape[0], : part.shape[1]] = part
        return out

    def close(self):
        pass


class VastSlide(ArraySlide):
    """A square slide whose pixels are computed: one square in four is tissue.

    Args:
        side: width and height of level 0.
        downsamples: of the levels.
        square: side of the squares.
    """

    def __init__(self, side, *downsamples, square):
        shapes = [np.broadcast_to(np.uint8(0), (side // d, side // d, 3)) for d in downsamples]
        super().__init__(*shapes, mpp=0.25)
        self.square = square

    def read(self, *, x, y, level, width, height):
        self.reads.append((level, width, height))
        down = self.levels[level].downsample
        even_x, even_y = (
            (start + np.arange(n) * down) // self.square % 2 == 0
            for start, n in ((x, width), (y, height))
        )
        is_tissue = (even_x & even_y[:, None])[..., None]
        return np.where(is_tissue, np.uint8([200, 120, 160]), np.uint8(244))


def halved(image):
    """Return the next level of a pyramid: means of 2x2 pixels, without odd last rows or columns."""
    height, width = (n // 2 * 2 for n in image.shape[:2])
    x = image[:height, :width].astype(np.uint16)
    total = x[0::2, 0::2] + x[1::2, 0::2] + x[0::2, 1::2] + x[1::2, 1::2]
    return ((total + 2) // 4).astype(np.uint8)


def painted(width, height, *ellipses, colour=(200, 120, 160), seed=0):
    """Return white glass with noisy tissue in ellipses (centre x, y, radius x, y)."""
    y, x = np.mgrid[:height, :width].astype(np.float32) + 0.5
    inside = np.zeros((height, width), bool)
    for cx, cy, rx, ry in ellipses:
        inside |= ((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 <= 1
    image = np.full((height, width, 3), 244, np.uint8)
    noise = np.random.default_rng(seed).integers(0, 25, (inside.sum(), 3), np.uint8)
    image[inside] = np.array(colour, np.uint8) - 12 + noise
    return image
