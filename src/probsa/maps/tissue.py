"""Stage 10: read the tissue below a map: part of a slide at a chosen resolution, in bounded memory.

The coarsest pyramid level that is fine enough is read in blocks and averaged to the picture's
pixels, so that a slide with a single level costs time but not memory.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..errors import InputError, RegionError, SlideError
from ..slides import Slide

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in level-0 pixels."""

BLOCK = 2048
"""Side length of the blocks that are read, in pixels of a level."""
MOST_PIXELS = 64_000_000
"""Largest picture; a larger one suggests a mistaken resolution."""
LONGEST = 1200
"""Default length of a panel's longer side, in pixels."""
WHOLE_FROM = 0.3
"""Fraction of the slide spanned by the patches from which the whole slide is shown."""
MARGIN = 0.04
"""Margin around the patches, as a fraction of their longer side."""
UNDECODED = 220
"""Grey value of blocks that cannot be decoded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Part of a slide as a picture."""

    image: UInt8[np.ndarray, "height width 3"]
    left: float
    top: float
    """Level-0 position of the picture's top left corner."""
    scale: float
    """Level-0 pixels per pixel of the picture, on both axes."""
    mpp: float | None
    """Micrometres per pixel of the picture."""
    whole: bool
    """Whether the whole slide is shown."""
    undecoded: int = 0
    """Number of blocks that could not be decoded; they are grey."""
    blocks: int = 1

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Bounds (left, right, bottom, top) in level-0 pixels."""
        height, width = self.image.shape[:2]
        right, bottom = self.left + width * self.scale, self.top + height * self.scale
        return self.left, right, bottom, self.top


def shown_box(corners: np.ndarray, side: float, *, size: tuple[int, int]) -> tuple[Box, bool]:
    """Return the part of a slide that a map shows, and whether that is the whole slide.

    The part is the patches with a margin, or the whole slide if they span much of it.

    Args:
        corners: Level-0 (x, y) of the patches, shape (n, 2).
        side: Side length of a patch, in level-0 pixels.
        size: (width, height) of the slide.
    """
    low, high = corners.min(0), corners.max(0) + side
    span = high - low
    if span[0] * span[1] >= WHOLE_FROM * size[0] * size[1]:
        return (0.0, 0.0, float(size[0]), float(size[1])), True
    margin = max(side / 2, MARGIN * float(span.max()))
    low = np.maximum(np.floor(low - margin), 0)
    high = np.minimum(np.ceil(high + margin), size)
    return (float(low[0]), float(low[1]), float(high[0]), float(high[1])), False


def chosen_scale(
    box: Box, *, longest: int = LONGEST, resolution: float | None = None, mpp: float | None = None
) -> float:
    """Return the level-0 pixels per pixel of the picture.

    Args:
        box: The part of the slide that is shown.
        longest: Length of the picture's longer side in pixels; smaller parts are enlarged by a
            whole number.
        resolution: Micrometres per pixel instead; never finer than the slide.
        mpp: Micrometres per level-0 pixel.

    Raises:
        SlideError: A resolution is given and `mpp` is unknown.
        InputError: The picture would have more than `MOST_PIXELS` pixels.
    """
    width, height = box[2] - box[0], box[3] - box[1]
    if resolution is None:
        scale = max(width, height) / longest
        if scale < 1:
            return 1 / int(1 / scale)
    elif mpp is None:
        raise SlideError(
            "the slide does not state its resolution, so --resolution cannot be applied: give "
            "--slide-mpp (µm per level-0 pixel), or --longest instead"
        )
    else:
        scale = max(1.0, resolution / mpp)
    pixels = width * height / scale**2
    if pixels > MOST_PIXELS:
        coarsest_needed = scale * (pixels / MOST_PIXELS) ** 0.5
        coarse = f", --resolution {coarsest_needed * mpp:.3g}" if mpp is not None else ""
        raise InputError(
            f"a picture of {width / scale:,.0f} × {height / scale:,.0f} pixels is too large: give "
            f"at most --longest {int(max(width, height) / coarsest_needed)}{coarse}"
        )
    return scale


def view(slide: Slide, box: Box, *, scale: float, mpp: float | None, whole: bool = False) -> View:
    """Read part of a slide.

    Args:
        slide: The slide, open for reading.
        box: The part to read.
        scale: Level-0 pixels per pixel of the picture; below 1 it is one over a whole number, and
            pixels are repeated rather than interpolated.
        mpp: Micrometres per level-0 pixel.
        whole: Whether `box` is the whole slide.

    Raises:
        RegionError: No block of the part can be decoded.
    """
    read_scale = max(1.0, scale)
    width = max(1, int((box[2] - box[0]) / read_scale + 1e-6))
    height = max(1, int((box[3] - box[1]) / read_scale + 1e-6))
    level = _level(slide, read_scale)
    step = max(1, int(BLOCK * slide.levels[level].downsample / read_scale))
    image = np.empty((height, width, 3), np.uint8)
    blocks = failed = 0
    reason: RegionError | None = None
    for y in range(0, height, step):
        for x in range(0, width, step):
            part = image[y : y + step, x : x + step]
            blocks += 1
            try:
                corner = (box[0] + x * read_scale, box[1] + y * read_scale)
                part[:] = _averaged(
                    slide, corner, level=level, shape=part.shape[:2], scale=read_scale
                )
            except RegionError as error:
                part[:] = UNDECODED
                failed += 1
                reason = error
    if failed == blocks and reason is not None:
        raise reason
    if scale < 1:
        times = round(1 / scale)
        image = image.repeat(times, axis=0).repeat(times, axis=1)
    return View(
        image=image,
        left=box[0],
        top=box[1],
        scale=scale,
        mpp=None if mpp is None else mpp * scale,
        whole=whole,
        undecoded=failed,
        blocks=blocks,
    )


def _level(slide: Slide, scale: float) -> int:
    """Return the coarsest level that is at least as fine as the picture."""
    fine = [k for k, v in enumerate(slide.levels) if v.downsample <= scale * (1 + 1e-3)]
    return max(fine, key=lambda k: slide.levels[k].downsample, default=0)


def _averaged(
    slide: Slide, corner: tuple[float, float], *, level: int, shape: tuple[int, ...], scale: float
) -> np.ndarray:
    """Return one block; each pixel is the mean of the level's pixels whose centres it covers."""
    down = slide.levels[level].downsample
    height, width = shape
    left, top = corner[0] / down, corner[1] / down
    right, bottom = left + width * scale / down, top + height * scale / down
    x, y = int(left + 1e-6), int(top + 1e-6)
    w, h = int(np.ceil(right - x - 1e-6)), int(np.ceil(bottom - y - 1e-6))
    pixels = slide.read(
        x=round(x * down), y=round(y * down), level=level, width=max(1, w), height=max(1, h)
    )
    if pixels.shape[:2] == (height, width):
        return pixels
    inside = (max(left - x, 0.0), max(top - y, 0.0), min(right - x, w), min(bottom - y, h))
    reduced = Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX, box=inside)
    return np.asarray(reduced)
