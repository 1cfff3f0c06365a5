"""Stage 10: the slices of a CT scan for the page."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from PIL import Image

from ..errors import InputError
from ..evaluation import Prediction
from ..maps import match_slices
from ..slides import Scan, window_presets
from .scripts import packed

INT16 = (-32768, 32767)
"""Lowest and highest value that the page can hold of a slice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanView:
    """A scan in memory, and the slice of each instance of the bag."""

    scan: Scan
    slices: Int[np.ndarray, " n"]
    size: tuple[int, int]
    """(width, height) in pixels of the slices that the page gets."""


def scan_view(p: Prediction, scan: Scan, *, most_pixels: int | None) -> ScanView:
    """Return a scan for the page; slices longer than `most_pixels` are averaged to that."""
    height, width = scan.volume.shape[1:]
    factor = 1.0 if most_pixels is None else min(1.0, most_pixels / max(width, height))
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    slices = match_slices(p, scan.positions, path=scan.path)
    return ScanView(scan=scan, slices=slices, size=size)


def scan_page(view: ScanView) -> dict[str, Any]:
    """Return what the page needs to know before it shows a slice."""
    scan = view.scan
    height, width = scan.volume.shape[1:]
    across, down = view.size
    reduced = ""
    if view.size != (width, height):
        reduced = f"Slices are shown at {across} × {down} of {width} × {height} pixels."
    return {
        "count": len(scan.volume),
        "width": across,
        "height": down,
        "aspect": width * scan.spacing[1] / (height * scan.spacing[0]),
        "positions": packed(np.asarray(scan.positions), "f4"),
        "slices": packed(view.slices, "i4"),
        "windows": {name: list(window) for name, window in window_presets(scan).items()},
        "sides": scan.plane == "axial",
        "notes": list(scan.notes),
        "reduced": reduced,
    }


def slice_values(view: ScanView, i: int) -> dict[str, str]:
    """Return slice `i`, by position, in whole Hounsfield units."""
    if not 0 <= i < len(view.scan.volume):
        raise InputError(f"{view.scan.path} has no slice {i}: it has {len(view.scan.volume)}")
    pixels = np.asarray(view.scan.volume[i], np.float32)
    if view.size != pixels.shape[::-1]:
        pixels = np.asarray(Image.fromarray(pixels).resize(view.size, Image.Resampling.BOX))
    return packed(np.clip(np.rint(pixels), *INT16), "i2")
