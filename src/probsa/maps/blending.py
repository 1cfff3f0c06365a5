"""Stage 10: blend patch colours with the tissue below them.

A square of one colour is one patch, as in every map: nothing is smoothed. Of overlapping patches,
each keeps the middle of its square; where these still overlap, the later row is on top.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from ..core import replacing
from ..errors import InputError
from ..evaluation import Prediction
from .layout import place
from .panels import PALETTE, Panel, norm_of
from .tissue import View

ALPHA = 0.6
"""Opacity of the colours over the tissue."""
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue (ITU-R BT.601)."""
ROWS = 1024
"""Rows of pixels blended at a time, to bound memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Squares:
    """Positions of a bag's patches on its slide, in level-0 pixels."""

    corners: Float[np.ndarray, "n 2"]
    """Top-left (x, y) of each patch."""
    side: float
    """Side length of a patch."""
    stride: float
    """Distance between neighbouring patches; less than the side if patches overlap."""

    @property
    def cells(self) -> tuple[Float[np.ndarray, "n 2"], float]:
        """Corners and side of the coloured squares: the middle of each patch, as wide as the
        stride.

        Corners are whole pixels: if the stride is not a whole number, some neighbours are one pixel
        further apart.
        """
        if self.stride >= self.side:
            adjacent = self.stride < self.side + 1
            return self.corners, float(np.ceil(self.stride - 1e-6)) if adjacent else self.side
        return self.corners + (self.side - self.stride) / 2, self.stride


def squares(p: Prediction, *, side: float | None = None) -> Squares:
    """Return the positions of a bag's patches on its slide.

    Args:
        p: The bag's prediction.
        side: Side length of a patch at level 0; None: the distance between neighbours, which is the
            same if patches do not overlap.

    Raises:
        BagError: The bag has no instances, or its coordinates are unusable.
        InputError: The bag's instances have no positions on a slide.
    """
    if p.coords is None or p.coords.shape[-1] != 2:
        reason = "has no coordinates" if p.coords is None else "is a scan: its instances are slices"
        raise InputError(f"bag {p.name!r} {reason}, so it has no squares on a slide")
    layout = place(p)
    return Squares(
        corners=np.asarray(p.coords, np.float64), side=side or layout.size, stride=layout.size
    )


def check_fits(patches: Squares, *, size: tuple[int, int], name: str, slide: str) -> None:
    """Check that each patch begins on the slide; padded patches may reach beyond its edge.

    Raises:
        InputError: A patch begins outside: the slide or the level of the coordinates is wrong.
    """
    low, high = patches.corners.min(0), patches.corners.max(0)
    if (low <= -patches.side).any() or (high >= np.array(size)).any():
        raise InputError(
            f"the patches of {name!r} begin at x {low[0]:,.0f} to {high[0]:,.0f}, y {low[1]:,.0f} "
            f"to {high[1]:,.0f}, but {slide} is {size[0]:,} × {size[1]:,} pixels at level 0: it is "
            "another slide, or the coordinates are of another scan or level"
        )


def owners(patches: Squares, picture: View) -> Int[np.ndarray, "height width"]:
    """Return the row of the patch that each pixel of a picture shows; −1 for none."""
    height, width = picture.image.shape[:2]
    corner = picture.left, picture.top
    return owners_on_grid(patches, corner=corner, cell=picture.scale, shape=(height, width))


def owners_on_grid(
    patches: Squares, *, corner: tuple[float, float], cell: float, shape: tuple[int, int]
) -> Int[np.ndarray, "height width"]:
    """Return the row of the patch that owns each cell of a grid; −1 for none.

    Args:
        patches: The patches.
        corner: Level-0 (x, y) of the grid's top-left corner.
        cell: Side length of a cell in level-0 pixels.
        shape: (height, width) of the grid in cells.
    """
    height, width = shape
    corners, side = patches.cells
    low = (corners - corner) / cell
    high = low + side / cell
    # both edges are rounded so that neighbours meet; a patch smaller than a cell gets the cell at
    # its centre
    first, last = (np.rint(v + 1e-9).astype(np.int64) for v in (low, high))
    first = np.where(last > first, first, np.floor((low + high) / 2).astype(np.int64))
    first = first.clip(0, (width - 1, height - 1))
    last = np.minimum(np.maximum(last, first + 1), (width, height))
    rows = np.full((height, width), -1, np.int32)
    for row, ((x, y), (right, bottom)) in enumerate(zip(first, last, strict=True)):
        rows[y:bottom, x:right] = row
    return rows


def colours(panel: Panel) -> UInt8[np.ndarray, "n 3"]:
    """Return the colour of each instance's value."""
    rgba = PALETTE[panel.quantity](norm_of(panel)(np.nan_to_num(panel.values)))
    return np.rint(np.asarray(rgba)[:, :3] * 255).astype(np.uint8)


def blend(
    picture: View,
    patch_rows: Int[np.ndarray, "height width"],
    panel: Panel,
    *,
    alpha: float = ALPHA,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return alpha · colour + (1 − alpha) · grey where a patch has a value, else the tissue.

    The tissue below a colour is reduced to its luminance: a stain would change the hue, which
    encodes the value.
    """
    has_value = np.append(np.isfinite(panel.values), False)  # the last entry stands for row −1
    colour = np.append(colours(panel), np.zeros((1, 3), np.uint8), axis=0).astype(np.float32)
    blended = picture.image.copy()
    for start in range(0, len(blended), ROWS):
        rows = slice(start, start + ROWS)
        inside = has_value[patch_rows[rows]]
        grey = blended[rows][inside] @ LUMINANCE
        mixed = alpha * colour[patch_rows[rows][inside]] + (1 - alpha) * grey[:, None]
        blended[rows][inside] = np.rint(mixed).astype(np.uint8)
    return blended


def write_picture(path: Path, pixels: UInt8[np.ndarray, "height width 3"]) -> None:
    """Write pixels as a PNG without axes, atomically."""
    with replacing(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="png")
