"""Stage 10: patches in colour over the tissue: which pixel belongs to which patch, and blending.

One square of one colour is one patch, here as in every map: nothing is smoothed. Where patches
overlap, each has the middle of its square, and of what overlaps still the later row is on top.
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
"""Share of the colour; the rest is tissue."""
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Of red, green and blue (ITU-R BT.601)."""
ROWS = 1024
"""Blended at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Squares:
    """Where the patches of a bag lie on its slide, in level-0 pixels."""

    corners: Float[np.ndarray, "n 2"]
    """Top-left (x, y) of each patch."""
    side: float
    """Of a patch."""
    stride: float
    """Distance between neighbours; less than the side where patches overlap."""

    @property
    def cells(self) -> tuple[Float[np.ndarray, "n 2"], float]:
        """Corners and side of what is coloured: the middle of each patch, as wide as the stride.

        Corners are whole pixels: where the stride is not, some neighbours are one further apart.
        """
        if self.stride >= self.side:
            meet = self.stride < self.side + 1
            return self.corners, float(np.ceil(self.stride - 1e-6)) if meet else self.side
        return self.corners + (self.side - self.stride) / 2, self.stride


def squares(p: Prediction, *, side: float | None = None) -> Squares:
    """The patches of a bag.

    Args:
        p: the bag's prediction.
        side: of a patch at level 0; None: the distance between neighbours, which is the same where
            patches do not overlap.

    Raises:
        BagError: no instances, or unusable coordinates.
        InputError: a bag that has no places on a slide.
    """
    if p.coords is None or p.coords.shape[-1] != 2:
        what = "has no coordinates" if p.coords is None else "is a scan: its instances are slices"
        raise InputError(f"bag {p.name!r} {what}, so it has no squares on a slide")
    layout = place(p)
    return Squares(
        corners=np.asarray(p.coords, np.float64), side=side or layout.size, stride=layout.size
    )


def check_fits(s: Squares, *, size: tuple[int, int], name: str, slide: str) -> None:
    """Patches may reach beyond the edge, as padded ones do, but each begins on the slide.

    Raises:
        InputError: they do not: the slide is another, or the coordinates are of another level.
    """
    low, high = s.corners.min(0), s.corners.max(0)
    if (low <= -s.side).any() or (high >= np.array(size)).any():
        raise InputError(
            f"the patches of {name!r} begin at x {low[0]:,.0f} to {high[0]:,.0f}, y {low[1]:,.0f} "
            f"to {high[1]:,.0f}, but {slide} is {size[0]:,} × {size[1]:,} pixels at level 0: it is "
            "another slide, or the coordinates are of another scan or level"
        )


def owners(s: Squares, seen: View) -> Int[np.ndarray, "height width"]:
    """The row of the patch that each pixel shows; -1: none."""
    height, width = seen.image.shape[:2]
    corners, side = s.cells
    low = (corners - (seen.left, seen.top)) / seen.scale
    high = low + side / seen.scale
    # both edges are rounded, so that neighbours meet; a patch below a pixel has that of its centre
    first, last = (np.rint(v + 1e-9).astype(np.int64) for v in (low, high))
    first = np.where(last > first, first, np.floor((low + high) / 2).astype(np.int64))
    first = first.clip(0, (width - 1, height - 1))
    last = np.minimum(np.maximum(last, first + 1), (width, height))
    found = np.full((height, width), -1, np.int32)
    for row, ((x, y), (right, bottom)) in enumerate(zip(first, last, strict=True)):
        found[y:bottom, x:right] = row
    return found


def colours(panel: Panel) -> UInt8[np.ndarray, "n 3"]:
    """The colour of each instance's value."""
    rgba = PALETTE[panel.quantity](norm_of(panel)(np.nan_to_num(panel.values)))
    return np.rint(np.asarray(rgba)[:, :3] * 255).astype(np.uint8)


def blend(
    seen: View, owner: Int[np.ndarray, "height width"], panel: Panel, *, alpha: float = ALPHA
) -> UInt8[np.ndarray, "height width 3"]:
    """alpha · colour + (1 − alpha) · grey tissue where a patch has a value; elsewhere the tissue.

    Grey, the tissue's luminance, because a stain below would change the hue that says the value.
    """
    known = np.append(np.isfinite(panel.values), False)  # the last entry answers for −1
    colour = np.append(colours(panel), np.zeros((1, 3), np.uint8), axis=0).astype(np.float32)
    out = seen.image.copy()
    for start in range(0, len(out), ROWS):
        rows = slice(start, start + ROWS)
        inside = known[owner[rows]]
        grey = out[rows][inside] @ LUMINANCE
        mixed = alpha * colour[owner[rows][inside]] + (1 - alpha) * grey[:, None]
        out[rows][inside] = np.rint(mixed).astype(np.uint8)
    return out


def write_picture(path: Path, pixels: UInt8[np.ndarray, "height width 3"]) -> None:
    """A PNG without decoration, atomically."""
    with replacing(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="png")
