"""Stage 10: small pictures for the list: the middle slice of a scan, or the map of a bag."""

import numpy as np
from PIL import Image

from ..evaluation import Prediction
from ..maps import Layout, value_range
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


def picture_of_values(p: Prediction, layout: Layout) -> bytes:
    """Return the mean of each instance at its place as JPEG."""
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
    if layout.strip:
        for x, colour in zip(first[:, 0].tolist(), table[step], strict=True):
            image[:, x : x + side] = colour
    else:  # pixel by pixel of a square, since bags have many patches and pictures few pixels
        for dy, dx in np.ndindex(side, side):
            y = np.minimum(first[:, 1] + dy, height - 1)
            image[y, np.minimum(first[:, 0] + dx, width - 1)] = table[step]
    return encoded(Image.fromarray(image))
