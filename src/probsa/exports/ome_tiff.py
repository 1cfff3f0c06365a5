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
from .quantities import missing_reasons

LONGEST = 64
"""Levels are halved until no side is longer than this, in cells."""
TILE = 256


def write_ome_tiff(bag: ExportBag) -> None:
    """Write one channel per quantity (mean, std, probability; per class where there are classes).

    Values are float32, and NaN where there is no patch. Coarser levels are means of the cells that
    have a value. Quantities that the model lacks are left out; the annotation says why.
    """
    with bag.slide("OME-TIFF") as slide:
        cells = raster(checked_squares(bag.p, slide, sources=bag.placed), size=slide.size)
        mpp = slide.mpp
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
            # TIFF asks for tiles whose sides are multiples of 16
            side = min(TILE, 16 * math.ceil(max(level.shape[1:]) / 16))
            place: dict[str, Any] = {"metadata": metadata, "subifds": len(levels) - 1}
            if k > 0:
                place = {"metadata": None, "subfiletype": 1}  # a reduced image
            file.write(
                level,
                photometric="minisblack",
                tile=(side, side),
                compression="zlib",
                predictor=3,  # of differences between floating-point numbers
                software=bag.about.entries["software"],
                **place,
            )


def _metadata(bag: ExportBag, cells: Raster, *, mpp: float | None) -> dict[str, Any]:
    """Return what the OME-XML states, by the names that tifffile knows."""
    unit, scale = ("pixel", 1.0) if mpp is None else ("µm", mpp)
    size = cells.cell * scale
    entries = bag.about.entries
    count = len(bag.channels)
    annotation = {
        **entries,
        "level0_pixels_per_cell": f"{cells.cell:g}",
        "largest_misplacement_level0_pixels": f"{cells.misplaced:g}",
    }
    for key, reason in missing_reasons(bag.p).items():
        annotation[f"without_{key}"] = reason
    return {
        "axes": "CYX",
        "Name": f"{bag.p.name} (probsa map)",
        "Description": entries["statement"],
        "UUID": str(bag.about.identifier("ome-tiff")),
        "Creator": entries["software"],
        "PhysicalSizeX": size,
        "PhysicalSizeXUnit": unit,
        "PhysicalSizeY": size,
        "PhysicalSizeYUnit": unit,
        "Channel": {"Name": [q.label for q in bag.channels]},
        "Plane": {
            "PositionX": [0.0] * count,
            "PositionXUnit": [unit] * count,
            "PositionY": [0.0] * count,
            "PositionYUnit": [unit] * count,
        },
        "MapAnnotation": annotation,
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
