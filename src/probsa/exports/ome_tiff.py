"""Stage 10: write the maps of a slide as an OME-TIFF pyramid in register with the slide.

The raster begins at the slide's corner (0, 0), and the physical size of a cell is that of the
level-0 pixels that it covers, so that viewers align it with the slide without an offset.
"""

import math
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float32

from ..errors import imports_from
from ..maps import Raster, checked_squares, raster
from .bag import ExportBag
from .quantities import lacking

LONGEST = 64
"""Levels are halved until no side is longer than this, in cells."""
TILE = 256


def write_ome_tiff(bag: ExportBag) -> None:
    """Write one channel per quantity (mean, std, probability; per class where there are classes).

    Values are float32, and NaN where there is no patch. Coarser levels are means of the cells that
    have a value. Quantities that the model lacks are left out; the annotation says why.
    """
    with bag.slide("OME-TIFF") as slide:
        cells, mpp = (
            raster(checked_squares(bag.p, slide, sources=bag.placed), size=slide.size),
            slide.mpp,
        )
    with imports_from("slides", "imagecodecs", "tifffile"):
        import imagecodecs
        import tifffile
    del imagecodecs
    levels = [np.stack([cells.fill(q.values) for q in bag.channels])]
    while max(levels[-1].shape[1:]) > LONGEST:
        levels.append(np.stack([_halved(channel) for channel in levels[-1]]))
    metadata = _metadata(bag, cells, mpp=mpp)
    with bag.file(".ome.tiff") as path, tifffile.TiffWriter(path, bigtiff=True, ome=True) as file:
        for k, level in enumerate(levels):
            side = min(TILE, 16 * math.ceil(max(level.shape[1:]) / 16))
            more = {"metadata": None, "subfiletype": 1}
            file.write(
                level,
                photometric="minisblack",
                tile=(side, side),
                compression="zlib",
                predictor=3,
                software=bag.about.entries["software"],
                **(more if k else {"metadata": metadata, "subifds": len(levels) - 1}),
            )


def _metadata(bag: ExportBag, cells: Raster, *, mpp: float | None) -> dict[str, Any]:
    """Return what the OME-XML states, by the names that tifffile knows."""
    unit, scale = ("pixel", 1.0) if mpp is None else ("µm", mpp)
    entries, count = bag.about.entries, len(bag.channels)
    plane = {"Position{}": 0.0, "Position{}Unit": unit}
    size = {"PhysicalSize{}": cells.cell * scale, "PhysicalSize{}Unit": unit}
    return {
        "axes": "CYX",
        "Name": f"{bag.p.name} (probsa map)",
        "Description": entries["statement"],
        "UUID": str(bag.about.identifier("ome-tiff")),
        "Creator": entries["software"],
        **{key.format(axis): value for axis in "XY" for key, value in size.items()},
        "Channel": {"Name": [q.label for q in bag.channels]},
        "Plane": {key.format(axis): [v] * count for axis in "XY" for key, v in plane.items()},
        "MapAnnotation": {
            **entries,
            "level0_pixels_per_cell": f"{cells.cell:g}",
            "largest_misplacement_level0_pixels": f"{cells.misplaced:g}",
            **{f"without_{key}": reason for key, reason in lacking(bag.p).items()},
        },
    }


def _halved(
    image: Float32[np.ndarray, "height width"],
) -> Float32[np.ndarray, "half_height half_width"]:
    """Return the means of two by two cells, over those that have a value."""
    height, width = image.shape
    padded = np.pad(image, ((0, height % 2), (0, width % 2)), constant_values=np.nan)
    blocks = padded.reshape(padded.shape[0] // 2, 2, padded.shape[1] // 2, 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")
        return np.asarray(np.nanmean(blocks, axis=(1, 3), dtype=np.float64), np.float32)
