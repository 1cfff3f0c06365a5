"""Small pictures of each slide and series that a work folder contains for visual checks."""

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from ..core import replacing

JPEG_QUALITY = 85
SLICE_SIZE = 192
"""Width and height of a slice in a contact sheet, in pixels."""


def write_image(path: Path, image: Image.Image) -> None:
    """Write an image as JPEG, atomically."""
    with replacing(path) as temporary:
        image.convert("RGB").save(temporary, format="JPEG", quality=JPEG_QUALITY)


def contact_sheet(slices: Sequence[UInt8[np.ndarray, "height width 3"]]) -> Image.Image:
    """Arrange slices in a grid, row by row."""
    columns = ceil(sqrt(len(slices)))
    rows = ceil(len(slices) / columns)
    sheet = Image.new("RGB", (columns * SLICE_SIZE, rows * SLICE_SIZE))
    for k, pixels in enumerate(slices):
        image = Image.fromarray(pixels)
        image.thumbnail((SLICE_SIZE, SLICE_SIZE))
        row, column = divmod(k, columns)
        left = column * SLICE_SIZE + (SLICE_SIZE - image.width) // 2
        top = row * SLICE_SIZE + (SLICE_SIZE - image.height) // 2
        sheet.paste(image, (left, top))
    return sheet
