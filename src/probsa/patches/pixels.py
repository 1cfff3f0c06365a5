"""Read the pixels of a patch at its own resolution."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..slides import Slide
from ._base import Patches
from .reduction import factors, level_for


def read_patch(slide: Slide, patches: Patches, i: int) -> UInt8[np.ndarray, "size size 3"]:
    """Return patch `i` as RGB; pixels outside the slide are white.

    The patch is read at the coarsest level that is not coarser than the patch. At the patch's own
    resolution, pixels are returned as stored. If the factor is an integer, pixels are averaged
    (Pillow's BOX), as in the pyramids of scanners. Otherwise Pillow's HAMMING is used, whose
    weights fall off smoothly, because BOX would weight neighbouring pixels unevenly. Neither filter
    overshoots at edges, as LANCZOS does.

    Raises:
        RegionError: the slide cannot be decoded in this region.
    """
    size = patches.size
    at = level_for(slide, patches.size_level0 / size)
    down_x, down_y = factors(slide, at)
    corner_x, corner_y = (int(c) for c in patches.coords[i])
    left, top = corner_x / down_x, corner_y / down_y
    width, height = patches.size_level0 / down_x, patches.size_level0 / down_y

    times = max(1, round(width / size))
    whole = max(abs(width - times * size), abs(height - times * size)) <= 0.5
    if whole:  # less than half a pixel over the whole patch: no interpolation
        left, top = round(left), round(top)
        width = height = times * size
    first_x, first_y = int(np.floor(left)), int(np.floor(top))
    across = int(np.ceil(left + width - 1e-6)) - first_x
    down = int(np.ceil(top + height - 1e-6)) - first_y
    downsample = slide.levels[
        at
    ].downsample  # the factor that readers use for corners, in both directions
    pixels = slide.read(
        x=round(first_x * downsample),
        y=round(first_y * downsample),
        level=at,
        width=across,
        height=down,
    )
    if whole and times == 1:
        return pixels
    inner = (left - first_x, top - first_y, left - first_x + width, top - first_y + height)
    # rounding may put the box slightly beyond the region, which Pillow refuses
    box = (inner[0], inner[1], min(inner[2], across), min(inner[3], down))
    how = Image.Resampling.BOX if whole else Image.Resampling.HAMMING
    return np.asarray(Image.fromarray(pixels).resize((size, size), how, box=box)).copy()
