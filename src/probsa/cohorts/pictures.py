"""Small pictures that a work folder keeps of each slide and series, to be looked at."""

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..core import replacing

JPEG_QUALITY = 85
SIDE = 192
"""Pixels of a slice in a contact sheet."""


def write_image(path: Path, image: Image.Image) -> None:
    """As JPEG, atomically."""
    with replacing(path) as temporary:
        image.convert("RGB").save(temporary, format="JPEG", quality=JPEG_QUALITY)


def contact_sheet(slices: Sequence[UInt8[np.ndarray, "height width 3"]]) -> Image.Image:
    """Slices side by side, in reading order."""
    columns = ceil(sqrt(len(slices)))
    rows = ceil(len(slices) / columns)
    sheet = Image.new("RGB", (columns * SIDE, rows * SIDE))
    for k, pixels in enumerate(slices):
        one = Image.fromarray(pixels)
        one.thumbnail((SIDE, SIDE))
        row, column = divmod(k, columns)
        corner = column * SIDE + (SIDE - one.width) // 2, row * SIDE + (SIDE - one.height) // 2
        sheet.paste(one, corner)
    return sheet
