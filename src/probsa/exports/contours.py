"""Stage 10: write the regions of a slide above levels of P(evidence) as GeoJSON for QuPath.

A region is the exact union of the cells of its patches, in level-0 pixels: nothing is smoothed or
interpolated. The features are annotations as QuPath 0.4 and later read and write them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from ..core import write_text
from ..errors import MissingExtra
from ..evaluation import Prediction
from ..maps import Layout
from .provenance import Provenance
from .quantities import Channel, channels, probabilities

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry

LEVELS = (0.5, 0.8, 0.9, 0.95)
COLOURS = ((68, 1, 84), (49, 104, 142), (53, 183, 121), (253, 231, 37))
"""Red, green and blue of each level: viridis, whose lightness rises with the level."""
DECIMALS = 3
"""Decimals of coordinates, in level-0 pixels."""


def write_contours(
    path: Path,
    p: Prediction,
    patches: Layout,
    *,
    mpp: float | None,
    about: Provenance,
    classes: Sequence[str] = (),
) -> None:
    """Write one annotation per level that any patch reaches, atomically.

    Measurements are the level, the number of patches, the area, the mean of P(evidence) and the
    largest standard deviation of the score, where it exists.
    """
    try:
        import shapely
    except ImportError as error:
        raise MissingExtra("shapely", "slides") from error
    columns = probabilities(p, classes=classes)
    deviations = {q.column: q.values for q in channels(p, classes=classes).of("std")}
    (first, side), lattice, stride = patches.cells, patches.lattice, patches.stride
    last = first + side
    # patches with gaps between them do not fill the cells of their lattice
    join = shapely.union_all
    if lattice is not None and stride < patches.side + 1:
        # edges that are computed from the lattice meet exactly
        join, low = shapely.coverage_union_all, np.array([lattice.left, lattice.top])
        first, last = (low + (lattice.index + k) * stride for k in (0, 1))
    corners = np.round(np.concatenate([first, last], axis=1), DECIMALS)
    boxes = shapely.box(*corners.T)
    features = []
    for q in columns:
        for level in LEVELS:
            # compared in float32: a stored probability of 0.9 reaches the level 0.9
            inside = q.values >= np.float32(level)
            if inside.any():
                region = shapely.normalize(join(boxes[inside]))
                std = deviations.get(q.column)
                features.append(_feature(region, q, level, inside, std=std, mpp=mpp, about=about))
    collection = {"type": "FeatureCollection", "probsa": about.entries, "features": features}
    write_text(path, json.dumps(collection, allow_nan=False) + "\n")


def _feature(
    region: "BaseGeometry",
    q: Channel,
    level: float,
    inside: Bool[np.ndarray, " n"],
    *,
    std: Float[np.ndarray, " n"] | None,
    mpp: float | None,
    about: Provenance,
) -> dict[str, Any]:
    from shapely.geometry import mapping

    name = f"P(evidence) ≥ {level:g}" + (f" {q.class_name}" if q.class_name else "")
    measurements: dict[str, float] = {
        "level": level,
        "patches": int(inside.sum()),
        "area px²": region.area,
        "mean P(evidence)": float(q.values[inside].mean(dtype=np.float64)),
    }
    if mpp is not None:
        measurements["area mm²"] = region.area * mpp**2 / 1e6
    if std is not None:
        measurements["largest standard deviation"] = float(std[inside].max())
    colour = list(COLOURS[LEVELS.index(level)])
    return {
        "type": "Feature",
        "id": str(about.identifier("contour", q.suffix, f"{level:g}")),
        "geometry": mapping(region),
        "properties": {
            "objectType": "annotation",
            "name": name,
            "classification": {"name": name, "color": colour},
            "isLocked": True,
            "measurements": measurements,
        },
    }
