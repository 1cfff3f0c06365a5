"""Draw an overview for visual inspection: the slide, its outlined tissue and its patches."""

import numpy as np
from PIL import Image, ImageDraw

from ..slides import Slide
from .grid import Patches
from .polygons import Tissue

OUTLINE = (0, 70, 200, 255)
HOLE = (215, 70, 0, 255)
FILL = (0, 170, 90, 40)
BORDER = (0, 100, 55, 170)
SMALLEST_BORDER = 6
"""Patches narrower than this many pixels are drawn without a border, which would hide them."""


def thumbnail(slide: Slide, longest: int = 1024) -> Image.Image:
    """Return the whole slide as an image whose longer side has at most `longest` pixels."""
    width, height = slide.size
    scale = max(1.0, max(slide.size) / longest)
    return Image.fromarray(slide.region((0.0, 0.0, width, height), scale=scale).image)


def draw_overview(picture: Image.Image, tissue: Tissue, patches: Patches) -> Image.Image:
    """Draw patches in green, tissue outlines in blue, holes and excluded areas in orange."""
    overlay = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(overlay)
    # the shorter side of the picture ends with its last whole pixel
    scale = max(picture.size) / max(tissue.slide_size)
    side = patches.size_level0 * scale
    border = BORDER if side >= SMALLEST_BORDER else None
    corners = patches.coords * scale
    for (left, top), (right, bottom) in zip(corners, corners + side, strict=True):
        draw.rectangle((left, top, right, bottom), fill=FILL, outline=border)
    line_width = max(2, round(max(picture.size) / 350))
    rings = []
    for polygon in tissue.polygons:
        rings.append((polygon.outer, OUTLINE))
        rings += [(hole, HOLE) for hole in polygon.holes]
    for polygon in tissue.excluded:
        rings.append((polygon.outer, HOLE))
        rings += [(hole, OUTLINE) for hole in polygon.holes]
    for ring, colour in rings:
        points = np.rint(ring * scale).astype(np.int64)
        # many corners of a ring may lie in one pixel of the picture, which is drawn once
        is_new = np.append(True, (np.diff(points, axis=0) != 0).any(axis=1))
        line = [(int(x), int(y)) for x, y in points[is_new]]
        draw.line([*line, line[0]], fill=colour, width=line_width, joint="curve")
    return Image.alpha_composite(picture.convert("RGBA"), overlay).convert("RGB")
