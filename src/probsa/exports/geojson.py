"""Stage 10: write maps as GeoJSON for QuPath, in level-0 pixels: regions, or one tile per patch.

A region is the exact union of the cells of the patches that reach a level of probability: nothing
is smoothed. Features are as QuPath 0.4 and later read and write them. For tiles, use File > Import
objects, then Measure > Measurement maps.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from ..errors import InputError, ProbSAError, imports_from
from ..maps import class_names
from .bag import ExportBag
from .quantities import Channel, missing_reasons

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry

COLOURS = {
    0.5: (68, 1, 84),
    0.8: (49, 104, 142),
    0.9: (53, 183, 121),
    0.95: (253, 231, 37),
}
"""Red, green and blue of each level: viridis, whose lightness rises with the level."""
LEVELS = tuple(COLOURS)
"""The probabilities that a region's patches reach, in ascending order."""
ROUNDING = 1.0
"""Corners are rounded to whole pixels: a smaller gap between two patches is not one."""
DECIMALS = 3
"""Decimals of coordinates, in level-0 pixels."""
CHUNK = 1000
"""Number of tiles that are held as text at a time."""


def write_contours(bag: ExportBag) -> None:
    """Write one annotation per level that any patch reaches.

    Measurements are the level, the number of patches, the area, the mean probability and the
    largest standard deviation of the score, where it exists. If the slide can be read, a region
    ends where its slide ends, also where patches reach beyond. `bag.notes` names a bag whose slide
    cannot be read, and one without such a patch.
    """
    with imports_from("slides", "shapely"):
        import shapely
    if reason := missing_reasons(bag.p).get("probability"):
        raise InputError(f"bag {bag.p.name!r} has no probability: {reason}")
    patches = bag.squares
    mpp, slide_area = _slide_frame(bag)
    lattice = patches.lattice
    stride = patches.stride
    if lattice is not None and stride < patches.side + ROUNDING:
        # edges that are computed from the lattice meet exactly, which joins the cells fast
        join = shapely.coverage_union_all
        corner = np.array([lattice.left, lattice.top])
        first = corner + lattice.index * stride
        last = corner + (lattice.index + 1) * stride
    else:
        # patches with gaps between them do not fill the cells of their lattice
        join = shapely.union_all
        first, side = patches.cells
        last = first + side
    corners = np.concatenate([first, last], axis=1)
    left, top, right, bottom = np.round(corners, DECIMALS).T
    boxes = shapely.box(left, top, right, bottom)
    features = []
    for q in bag.of("probability"):
        for level in LEVELS:
            # compared in float32: a stored probability of 0.9 reaches the level 0.9
            inside = q.values >= np.float32(level)
            if not inside.any():
                continue
            region = join(boxes[inside])
            if slide_area is not None:
                region = shapely.intersection(region, slide_area)
            region = shapely.normalize(region)
            features.append(_annotation(bag, region, q, inside, level=level, mpp=mpp))
    if not features:
        bag.notes.append(f"no patch of {bag.p.name!r} has a probability of {LEVELS[0]:g} or more")
    _write(bag, features)


def write_tiles(bag: ExportBag) -> None:
    """Write the patches of a bag as tiles with all quantities of the table, in constant memory."""
    _write(bag, _tiles(bag))


def _slide_frame(bag: ExportBag) -> "tuple[float | None, BaseGeometry | None]":
    """Return a slide's µm per pixel, and its area in level-0 pixels; None for what is not known.

    If the slide cannot be read, `bag.notes` says so.
    """
    from shapely import box

    if bag.sources is None:
        return None, None
    try:
        with bag.slide("GeoJSON") as slide:
            return slide.mpp, box(0, 0, *slide.size)
    except ProbSAError as error:
        bag.notes.append(
            f"the regions of {bag.p.name!r} may reach beyond its slide and have no area in mm²: "
            f"{error}"
        )
        return None, None


def _annotation(
    bag: ExportBag,
    region: "BaseGeometry",
    q: Channel,
    inside: Bool[np.ndarray, " n"],
    *,
    level: float,
    mpp: float | None,
) -> dict[str, Any]:
    """Return the annotation of a region, which covers the patches `inside`."""
    from shapely.geometry import mapping

    name = f"probability ≥ {level:g}"
    if q.class_name:
        name += f" {q.class_name}"
    measurements: dict[str, float] = {
        "level": level,
        "patches": int(inside.sum()),
        "area px²": region.area,
        "mean probability": float(q.values[inside].mean(dtype=np.float64)),
    }
    if mpp is not None:
        measurements["area mm²"] = region.area * mpp**2 / 1e6
    for std in bag.of("std"):
        if std.column == q.column:
            measurements["largest standard deviation"] = float(std.values[inside].max())
    return {
        "type": "Feature",
        "id": str(bag.about.identifier("contour", q.suffix, f"{level:g}")),
        "geometry": mapping(region),
        "properties": {
            "objectType": "annotation",
            "name": name,
            "classification": {"name": name, "color": COLOURS[level]},
            "isLocked": True,
            "measurements": measurements,
        },
    }


def _tiles(bag: ExportBag) -> Iterator[dict[str, Any]]:
    """Yield a tile per patch, with the finite ones of its values."""
    patches = bag.squares
    columns = {q.label: q.values for q in bag.quantities}
    for start in range(0, len(patches.corners), CHUNK):
        rows = slice(start, start + CHUNK)
        low = np.rint(patches.corners[rows]).astype(np.int64).tolist()
        high = np.rint(patches.corners[rows] + patches.side).astype(np.int64).tolist()
        # the shortest decimal that identifies a float32: 0.1, not 0.10000000149011612
        values = {name: [float(str(v)) for v in c[rows]] for name, c in columns.items()}
        for k, ((left, top), (right, bottom)) in enumerate(zip(low, high, strict=True)):
            ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
            finite = {name: v[k] for name, v in values.items() if math.isfinite(v[k])}
            yield {
                "type": "Feature",
                "geometry": {"type": "Polygon", "coordinates": [ring]},
                "properties": {"objectType": "tile", "measurements": finite},
            }


def _bag_prediction(bag: ExportBag) -> dict[str, float]:
    """Return what is predicted of the whole bag, by the names of predictions.csv."""
    p = bag.p
    names: Sequence[str] = p.outputs.names
    if not names:
        count = len(p.probability)
        # a single probability is that of the second of two classes
        names = class_names(p, count, bag.classes[-count:])
    return {name: float(str(v)) for name, v in zip(names, p.probability, strict=True)}


def _write(bag: ExportBag, features: Iterable[dict[str, Any]]) -> None:
    """Write the features one after another, so that they are never all in memory as text."""
    with bag.file(".geojson") as path, path.open("w", encoding="utf-8") as file:
        entries = {**bag.about.entries, "prediction": _bag_prediction(bag)}
        origin = json.dumps(entries, allow_nan=False)
        file.write(f'{{"type":"FeatureCollection","probsa":{origin},"features":[')
        for k, feature in enumerate(features):
            text = json.dumps(feature, separators=(",", ":"), allow_nan=False)
            separator = "," if k > 0 else ""
            file.write(f"{separator}\n{text}")
        file.write("\n]}\n")
