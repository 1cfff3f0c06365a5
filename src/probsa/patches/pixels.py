"""The pixels of one patch, at the patch's own resolution."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..slides import Slide
from ._base import Patches
from .reduction import factors, level_for


def read_patch(slide: Slide, patches: Patches, i: int) -> UInt8[np.ndarray, "size size 3"]:
    """Patch `i` as RGB; what of it lies outside of the slide is white.

    Read at the coarsest level that is no coarser than the patch. Where that is the patch's own
    resolution the pixels are as stored. A whole number of them to one is averaged (Pillow's BOX):
    as in the pyramids of scanners, so a slide with a level missing gives what it would hold.
    Otherwise Pillow's HAMMING, whose weights fall off smoothly: BOX would count some pixels in full
    and their neighbours not at all. Neither overshoots at edges, as LANCZOS does.

    Raises:
        RegionError: the slide cannot be decoded there.
    """
    size = patches.size
    at = level_for(slide, patches.size_level0 / size)
    down_x, down_y = factors(slide, at)
    corner_x, corner_y = (int(c) for c in patches.coords[i])
    left, top = corner_x / down_x, corner_y / down_y
    width, height = patches.size_level0 / down_x, patches.size_level0 / down_y

    times = max(1, round(width / size))
    whole = max(abs(width - times * size), abs(height - times * size)) <= 0.5
    if whole:  # less than half a pixel over the patch: not worth an interpolation
        left, top = round(left), round(top)
        width = height = times * size
    first_x, first_y = int(np.floor(left)), int(np.floor(top))
    across = int(np.ceil(left + width - 1e-6)) - first_x
    down = int(np.ceil(top + height - 1e-6)) - first_y
    downsample = slide.levels[at].downsample  # how readers find a corner, in both directions
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
    # floats may lie a hair beyond the region, which Pillow refuses
    box = (inner[0], inner[1], min(inner[2], across), min(inner[3], down))
    how = Image.Resampling.BOX if whole else Image.Resampling.HAMMING
    return np.asarray(Image.fromarray(pixels).resize((size, size), how, box=box)).copy()
