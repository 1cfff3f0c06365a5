"""Stage 10: small pictures for the list: the middle slice of a scan, or the map of a bag."""

import numpy as np
from PIL import Image

from ..evaluation import Prediction
from ..maps import place, value_range
from ..slides import WINDOWS, Scan, Windows, slice_image
from .colours import look_up_table
from .quantities import chosen_column, column_of
from .tiles import encoded

THUMBNAIL = 160
"""Longer side of a thumbnail in pixels."""
PLAIN = 70
"""Grey value of the background."""
BRAIN = Windows((WINDOWS["brain"], WINDOWS["brain"], WINDOWS["brain"]))


def slice_picture(scan: Scan) -> bytes:
    """Return the middle slice of a scan as JPEG."""
    image = Image.fromarray(slice_image(scan, len(scan.volume) // 2, BRAIN))
    height, width = scan.volume.shape[1:]
    across, down = width * scan.spacing[1], height * scan.spacing[0]
    scale = THUMBNAIL / max(across, down)
    return encoded(image.resize((max(1, round(across * scale)), max(1, round(down * scale)))))


def picture_of_values(p: Prediction) -> bytes:
    """Return the mean of each instance at its place as JPEG."""
    layout = place(p)
    values = column_of(p.attention_mean, chosen_column(p)).astype(np.float64)
    low, high = value_range(values)
    if p.score_has_level:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    table = look_up_table("signed" if p.score_has_level else "mean")
    step = np.rint(255 * np.clip((values - low) / (high - low), 0, 1)).astype(np.int64)
    span = layout.corners.max(0) + layout.size - layout.corners.min(0)
    scale = THUMBNAIL / float(span.max())
    width, height = np.maximum(1, np.rint(span * scale)).astype(int)
    if layout.strip:
        height = THUMBNAIL // 4
    image = np.full((height, width, 3), PLAIN, np.uint8)
    first = np.floor((layout.corners - layout.corners.min(0)) * scale).astype(int)
    side = max(1, int(np.ceil(layout.size * scale)))
    for (x, y), colour in zip(first.tolist(), table[step], strict=True):
        image[y : height if layout.strip else y + side, x : x + side] = colour
    return encoded(Image.fromarray(image))
