"""What a person checks by eye: the slide, its tissue outlined, its patches."""

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
"""Patches narrower than this in the picture are drawn without a border: it would hide them."""


def thumbnail(slide: Slide, longest: int = 1024) -> Image.Image:
    """The whole slide, its longer side `longest` pixels, or fewer where the slide has fewer."""
    return Image.fromarray(reduced(slide, scale=max(1.0, max(slide.size) / longest)).pixels)


def draw_overview(
    slide: Slide,
    tissue: Tissue,
    patches: Patches,
    *,
    longest: int = 1024,
    picture: Image.Image | None = None,
) -> Image.Image:
    """The thumbnail with patches in green, tissue outlined in blue and its holes in orange.

    A slide without tissue is its plain thumbnail; `picture` is the thumbnail, where it is there.
    """
    if picture is None:
        picture = thumbnail(slide, longest)
    over = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(over)
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
    return Image.alpha_composite(picture.convert("RGBA"), over).convert("RGB")


def _outline(
    draw: ImageDraw.ImageDraw,
    ring: np.ndarray,
    colour: tuple[int, int, int, int],
    *,
    thick: int,
) -> None:
    """A closed line; points that fall on the same pixel are drawn once."""
    points: Int[np.ndarray, "n 2"] = np.rint(ring).astype(np.int64)
    moved = np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))
    line = [(int(x), int(y)) for x, y in points[moved]]
    draw.line([*line, line[0]], fill=colour, width=thick, joint="curve")
