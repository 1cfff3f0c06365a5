"""Draw an overview for visual inspection: the slide, its outlined tissue and its patches."""

import numpy as np
from jaxtyping import Int
from PIL import Image, ImageDraw

from ..slides import Slide
from ._base import Patches
from .polygons import Tissue
from .reduction import reduced

OUTLINE = (0, 70, 200, 255)
HOLE = (215, 70, 0, 255)
FILL = (0, 170, 90, 40)
BORDER = (0, 100, 55, 170)
SMALLEST_BORDER = 6
"""Patches narrower than this many pixels are drawn without a border, which would hide them."""


def thumbnail(slide: Slide, longest: int = 1024) -> Image.Image:
    """Return the whole slide as an image whose longer side has at most `longest` pixels."""
    return Image.fromarray(reduced(slide, scale=max(1.0, max(slide.size) / longest)).pixels)


def draw_overview(
    slide: Slide,
    tissue: Tissue,
    patches: Patches,
    *,
    longest: int = 1024,
    picture: Image.Image | None = None,
) -> Image.Image:
    """Draw patches in green, tissue outlines in blue and holes in orange on the thumbnail.

    `picture` is the thumbnail if it exists already. Without tissue the result is the thumbnail.
    """
    if picture is None:
        picture = thumbnail(slide, longest)
    overlay = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(overlay)
    scale = np.array(picture.size) / np.array(slide.size)
    side = patches.size_level0 * scale
    border = BORDER if side.min() >= SMALLEST_BORDER else None
    corners = patches.coords * scale
    for (left, top), (right, bottom) in zip(corners, corners + side, strict=True):
        draw.rectangle((left, top, right, bottom), fill=FILL, outline=border)
    thick = max(2, round(max(picture.size) / 350))
    for polygon in tissue.polygons:
        _outline(draw, polygon.outer * scale, OUTLINE, thick=thick)
        for hole in polygon.holes:
            _outline(draw, hole * scale, HOLE, thick=thick)
    return Image.alpha_composite(picture.convert("RGBA"), overlay).convert("RGB")


def _outline(
    draw: ImageDraw.ImageDraw,
    ring: np.ndarray,
    colour: tuple[int, int, int, int],
    *,
    thick: int,
) -> None:
    """Draw a closed line, with points on the same pixel drawn once."""
    points: Int[np.ndarray, "n 2"] = np.rint(ring).astype(np.int64)
    moved = np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))
    line = [(int(x), int(y)) for x, y in points[moved]]
    draw.line([*line, line[0]], fill=colour, width=thick, joint="curve")
