"""Stage 10: write the maps of a slide as an OME-TIFF pyramid in register with the slide.

The raster begins at the slide's corner (0, 0), and the physical size of a cell is that of the
level-0 pixels that it covers, so that viewers align it with the slide without an offset.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from ..core import replacing
from ..errors import MissingExtra
from ..evaluation import Prediction
from ..maps import Layout, Raster, raster
from .provenance import Provenance
from .quantities import Channels, channels

LONGEST = 64
"""Levels are halved until no side is longer than this, in cells."""
TILE = 256


def write_ome_tiff(
    path: Path,
    p: Prediction,
    patches: Layout,
    *,
    size: tuple[int, int],
    mpp: float | None,
    about: Provenance,
    classes: Sequence[str] = (),
) -> None:
    """Write one channel per quantity (mean, std, probability; per class where there are classes).

    Values are float32, and NaN where there is no patch. Coarser levels are means of the cells that
    have a value. Quantities that the model lacks are left out; the annotation says why.
    """
    try:
        import imagecodecs
        import tifffile
    except ImportError as error:
        raise MissingExtra("tifffile with imagecodecs", "slides") from error
    del imagecodecs
    cells = raster(patches, size=size)
    held = channels(p, classes=classes)
    levels = [np.stack([cells.fill(q.values) for q in held.present])]
    while max(levels[-1].shape[1:]) > LONGEST:
        levels.append(np.stack([_halved(channel) for channel in levels[-1]]))
    metadata = _metadata(p, cells, held, mpp=mpp, about=about)
    with replacing(path) as temporary, tifffile.TiffWriter(
        temporary, bigtiff=True, ome=True
    ) as file:  # fmt: skip
        for k, level in enumerate(levels):
            side = min(TILE, 16 * math.ceil(max(level.shape[1:]) / 16))
            file.write(
                level,
                photometric="minisblack",
                tile=(side, side),
                compression="zlib",
                predictor=3,
                software=about.entries["software"],
                **(
                    {"metadata": metadata, "subifds": len(levels) - 1}
                    if k == 0
                    else {"metadata": None, "subfiletype": 1}
                ),
            )


def _metadata(
    p: Prediction, cells: Raster, held: Channels, *, mpp: float | None, about: Provenance
) -> dict[str, Any]:
    """Return what the OME-XML states, by the names that tifffile knows."""
    unit, scale = ("pixel", 1.0) if mpp is None else ("µm", mpp)
    count = len(held.present)
    return {
        "axes": "CYX",
        "Name": f"{p.name} (probsa map)",
        "Description": about.entries["statement"],
        "UUID": str(about.identifier("ome-tiff")),
        "Creator": about.entries["software"],
        "PhysicalSizeX": cells.cell * scale,
        "PhysicalSizeXUnit": unit,
        "PhysicalSizeY": cells.cell * scale,
        "PhysicalSizeYUnit": unit,
        "Channel": {"Name": [q.label for q in held.present]},
        "Plane": {
            f"Position{axis}{suffix}": [value] * count
            for axis in "XY"
            for suffix, value in (("", 0.0), ("Unit", unit))
        },
        "MapAnnotation": {
            **about.entries,
            "level0_pixels_per_cell": f"{cells.cell:g}",
            "largest_misplacement_level0_pixels": f"{cells.misplaced:g}",
            **{f"without_{key}": reason for key, reason in held.absent.items()},
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
