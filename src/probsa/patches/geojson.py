"""Write and read tissue as GeoJSON for QuPath: level-0 pixels, one feature per piece.

QuPath's exports can be read, too: lists, features and collections of edited or new polygons.
"""

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from ..core import replacing
from ..errors import InputError
from .polygons import Polygon, Tissue

COLOUR = (46, 139, 87)
SLACK = 0.05
"""How far a hand-drawn corner may lie outside the slide, as a share of its longer side."""
NAMESPACE = uuid.UUID("6f1c6d0a-3f0e-5f5b-9a57-3f2f8c1d7a10")
"""Namespace of feature identifiers, so that the same tissue gives the same file."""


def write_geojson(path: Path | str, tissue: Tissue) -> None:
    """Write a FeatureCollection that QuPath opens as annotations, atomically."""
    path = Path(path)
    features = [_feature(polygon, k) for k, polygon in enumerate(tissue.polygons)]
    metadata = {"level": tissue.level, "scale": tissue.scale, "notes": tissue.notes}
    document = {"type": "FeatureCollection", "features": features, "probsa": metadata}
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as f:
        json.dump(document, f, separators=(",", ":"))


def _feature(polygon: Polygon, k: int) -> dict[str, Any]:
    rings = [[*ring.tolist(), ring[0].tolist()] for ring in (polygon.outer, *polygon.holes)]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(NAMESPACE, f"{k} {rings[0][:4]}")),
        "geometry": {"type": "Polygon", "coordinates": rings},
        "properties": {
            "objectType": "annotation",
            "classification": {"name": "Tissue", "color": list(COLOUR)},
            "isLocked": False,
            "tissue_id": k,
        },
    }


def read_geojson(path: Path | str, size: tuple[int, int]) -> Tissue:
    """Read the polygons of a GeoJSON file as the tissue of a slide of the given (width, height).

    Every polygon counts as tissue, whatever its class. Coordinates are rounded to pixels.

    Raises:
        InputError: the file is not GeoJSON, contains other shapes, or belongs to another slide.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: this is not GeoJSON: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    features = [document] if _type(document) else document
    if _type(document) == "FeatureCollection":
        features = document.get("features")
    if not isinstance(features, list):
        raise InputError(
            f"{path}: expected a GeoJSON FeatureCollection with a list of features, a feature or a "
            f"list of them; got {_type(document) or _shown(document)}"
        )
    polygons = []
    for k, feature in enumerate(features):
        properties = feature.get("properties") if isinstance(feature, dict) else None
        name = properties.get("name") if isinstance(properties, dict) else None
        where = f"{path}: feature {k}" + (f" ({name})" if isinstance(name, str) else "")
        for rings in _polygons(feature, where):
            if not isinstance(rings, list) or not rings:
                raise InputError(f"{where}: a polygon must be a list of rings; got {_shown(rings)}")
            outer, *holes = (_ring(ring, size, where=where) for ring in rings)
            polygons.append(Polygon(outer=outer, holes=tuple(holes)))
    metadata = document.get("probsa") if isinstance(document, dict) else None
    notes = metadata.get("notes") if isinstance(metadata, dict) else None
    known = tuple(map(str, notes)) if isinstance(notes, list) else ()
    return Tissue(polygons=tuple(polygons), slide_size=size, notes=known)


def _polygons(shape: Any, where: str) -> list[Any]:
    """Return the lists of rings in a feature or geometry."""
    kind = _type(shape)
    if kind == "Feature":
        return _polygons(shape.get("geometry"), where)
    if kind == "GeometryCollection" and isinstance(shape.get("geometries"), list):
        return [rings for part in shape["geometries"] for rings in _polygons(part, where)]
    if kind == "Polygon":
        return [shape.get("coordinates")]
    if kind == "MultiPolygon" and isinstance(shape.get("coordinates"), list):
        return shape["coordinates"]
    raise InputError(
        f"{where} is {kind or _shown(shape)}: tissue must be a Polygon or MultiPolygon. Delete it, "
        "or draw it as an area"
    )


def _ring(ring: Any, size: tuple[int, int], *, where: str) -> Int[np.ndarray, "points 2"]:
    """Return a ring without its repeated last point."""
    if not isinstance(ring, list) or not all(_is_point(p) for p in ring):
        raise InputError(f"{where}: a ring must be a list of points [x, y] of finite numbers")
    points = np.array([p[:2] for p in ring], np.float64).reshape(-1, 2)
    slack = SLACK * max(size)
    for x, y in points[((points < -slack) | (points > np.array(size) + slack)).any(axis=1)]:
        raise InputError(
            f"{where}: the point ({x:g}, {y:g}) lies outside the slide, which has "
            f"{size[0]}x{size[1]} pixels at level 0. Coordinates must be level-0 pixels of this "
            "slide; these may be in µm or from a scan at another magnification"
        )
    rounded = np.rint(points).astype(np.int32)
    if len(rounded) > 1 and (rounded[0] == rounded[-1]).all():
        rounded = rounded[:-1]
    if len(rounded) < 3:
        raise InputError(
            f"{where}: a ring needs at least three points; this one has {len(rounded)}"
        )
    return rounded


def _is_point(p: Any) -> bool:
    numbers = isinstance(p, list) and len(p) > 1 and all(isinstance(v, int | float) for v in p[:2])
    return numbers and all(abs(v) <= sys.float_info.max for v in p[:2])


def _type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def _shown(value: Any) -> str:
    """Describe a JSON value for messages."""
    if isinstance(value, dict | list):
        kind = "list" if isinstance(value, list) else "object"
        return f"a {kind} without a known type" if value else f"an empty {kind}"
    return "nothing" if value is None else repr(value)[:40]
