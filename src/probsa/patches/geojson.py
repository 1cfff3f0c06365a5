"""Write and read tissue as GeoJSON for QuPath: level-0 pixels, one feature per piece.

QuPath's exports can be read, too: lists, features and collections of edited or new polygons. As in
QuPath, a class whose name ends in `*` is ignored: its area is excluded from the tissue.
"""

import json
import sys
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from ..core import replacing
from ..errors import InputError
from .polygons import DrawnShapes, Polygon, Tissue

COLOUR = (46, 139, 87)
EXCLUDED_COLOUR = (180, 180, 180)
EXCLUDED_CLASS = "Ignore*"
"""QuPath's own name for an area that is excluded."""
WITHOUT_AREA = ("Point", "MultiPoint", "LineString", "MultiLineString")
SLACK = 0.05
"""How far a hand-drawn corner may lie outside the slide, as a share of its longer side."""
NAMESPACE = uuid.UUID("6f1c6d0a-3f0e-5f5b-9a57-3f2f8c1d7a10")
"""Namespace of feature identifiers, so that the same tissue gives the same file."""


def write_geojson(path: Path | str, tissue: Tissue) -> None:
    """Write a FeatureCollection that QuPath opens as annotations, atomically."""
    path = Path(path)
    features = [_feature(polygon, k) for k, polygon in enumerate(tissue.polygons)]
    features += [_excluded_feature(polygon, k) for k, polygon in enumerate(tissue.excluded)]
    metadata = {"level": tissue.level, "scale": tissue.scale, "notes": tissue.notes}
    document = {"type": "FeatureCollection", "features": features, "probsa": metadata}
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as f:
        json.dump(document, f, separators=(",", ":"))


def _feature(polygon: Polygon, k: int) -> dict[str, Any]:
    properties = {
        "objectType": "annotation",
        "classification": {"name": "Tissue", "color": list(COLOUR)},
        "isLocked": False,
        "tissue_id": k,
    }
    return _annotation(polygon, properties, key=str(k))


def _excluded_feature(polygon: Polygon, k: int) -> dict[str, Any]:
    properties = {
        "objectType": "annotation",
        "classification": {"name": EXCLUDED_CLASS, "color": list(EXCLUDED_COLOUR)},
        "isLocked": False,
    }
    return _annotation(polygon, properties, key=f"excluded {k}")


def _annotation(polygon: Polygon, properties: dict[str, Any], *, key: str) -> dict[str, Any]:
    rings = [[*ring.tolist(), ring[0].tolist()] for ring in (polygon.outer, *polygon.holes)]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(NAMESPACE, f"{key} {rings[0][:4]}")),
        "geometry": {"type": "Polygon", "coordinates": rings},
        "properties": properties,
    }


def read_geojson(path: Path | str, size: tuple[int, int]) -> Tissue:
    """Read the polygons of a GeoJSON file as the tissue of a slide of the given (width, height).

    A polygon whose class ends in `*` is excluded from the tissue; every other polygon counts as
    tissue. Points and lines are left out. `Tissue.drawn` says what there was. Coordinates are
    rounded to pixels.

    Raises:
        InputError: The file is not GeoJSON, a shape is damaged, or it belongs to another slide.
    """
    path = Path(path)
    document = _read_document(path)
    polygons: list[Polygon] = []
    excluded: list[Polygon] = []
    tissue_classes: Counter[str] = Counter()
    excluded_classes: Counter[str] = Counter()
    without_area: Counter[str] = Counter()
    for k, feature in enumerate(_list_features(document, path)):
        properties = feature.get("properties") if isinstance(feature, dict) else None
        if not isinstance(properties, dict):
            properties = {}
        where = f"{path}: feature {k}"
        name = properties.get("name")
        if isinstance(name, str):
            where += f" ({name})"
        class_name = _class_name(properties)
        for rings in _polygons(feature, where, without_area=without_area):
            if not isinstance(rings, list) or not rings:
                raise InputError(
                    f"{where}: a polygon must be a list of rings; got {_describe(rings)}"
                )
            outer, *holes = [_ring(ring, size, where=where) for ring in rings]
            polygon = Polygon(outer=outer, holes=tuple(holes))
            if _is_ignored(class_name):
                excluded.append(polygon)
                excluded_classes[class_name] += 1
            else:
                polygons.append(polygon)
                tissue_classes[class_name] += 1
    return Tissue(
        polygons=tuple(polygons),
        slide_size=size,
        excluded=tuple(excluded),
        drawn=DrawnShapes(
            tissue=dict(tissue_classes),
            excluded=dict(excluded_classes),
            without_area=dict(without_area),
        ),
        notes=_stored_notes(document),
    )


def _read_document(path: Path) -> Any:
    """Return the JSON value in a file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: this is not GeoJSON: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _list_features(document: Any, path: Path) -> list[Any]:
    """Return the features of a collection, of a list, or the only one."""
    kind = _type(document)
    features = document
    if kind == "FeatureCollection":
        features = document.get("features")
    elif kind:
        features = [document]
    if not isinstance(features, list):
        raise InputError(
            f"{path}: expected a GeoJSON FeatureCollection with a list of features, a feature or a "
            f"list of them; got {kind or _describe(document)}"
        )
    return features


def _stored_notes(document: Any) -> tuple[str, ...]:
    """Return the notes that `write_geojson` has stored with the tissue."""
    metadata = document.get("probsa") if isinstance(document, dict) else None
    notes = metadata.get("notes") if isinstance(metadata, dict) else None
    return tuple(map(str, notes)) if isinstance(notes, list) else ()


def drawn_notes(tissue: Tissue) -> tuple[str, ...]:
    """Return sentences that say which drawn shapes are tissue, and which are not."""
    if tissue.drawn is None:
        return ()
    shapes = tissue.drawn
    note = f"Taken as tissue: {_list_classes(shapes.tissue) or 'no polygon'}"
    if shapes.excluded:
        note += f"; excluded: {_list_classes(shapes.excluded)}"
    notes = [f"{note}."]
    if shapes.without_area:
        kinds = ", ".join(f"{n} x {kind}" for kind, n in sorted(shapes.without_area.items()))
        notes.append(f"Shapes without an area were left out: {kinds}.")
    return tuple(notes)


def _list_classes(counts: Mapping[str, int]) -> str:
    """List classes with their numbers of polygons."""
    classes = [f"{n} of class {name}" for name, n in sorted(counts.items()) if name]
    if "" in counts:
        classes.append(f"{counts['']} without a class")
    return ", ".join(classes)


def _class_name(properties: Mapping[str, Any]) -> str:
    """Return the class of a feature as QuPath writes it; empty if it has none."""
    classification = properties.get("classification")
    name = classification
    if isinstance(classification, dict):
        name = classification.get("name")
        parts = classification.get("names")
        if not name and isinstance(parts, list):
            # QuPath 0.6 lists the parts of a derived class
            name = ": ".join(map(str, parts))
    return name.strip() if isinstance(name, str) else ""


def _is_ignored(class_name: str) -> bool:
    """Return whether QuPath ignores a class: its name, or that of a part of it, ends in `*`."""
    return any(part.strip().endswith("*") for part in class_name.split(":"))


def _polygons(shape: Any, where: str, *, without_area: Counter[str]) -> list[Any]:
    """Return the lists of rings in a feature or geometry; count the shapes without an area."""
    kind = _type(shape)
    if kind == "Feature":
        return _polygons(shape.get("geometry"), where, without_area=without_area)
    if kind == "GeometryCollection" and isinstance(shape.get("geometries"), list):
        polygons: list[Any] = []
        for part in shape["geometries"]:
            polygons += _polygons(part, where, without_area=without_area)
        return polygons
    if kind in WITHOUT_AREA:
        without_area[kind] += 1
        return []
    if kind == "Polygon":
        return [shape.get("coordinates")]
    if kind == "MultiPolygon" and isinstance(shape.get("coordinates"), list):
        return shape["coordinates"]
    raise InputError(
        f"{where} is {kind or _describe(shape)}: tissue must be a Polygon or MultiPolygon. Delete "
        "it, or draw it as an area"
    )


def _ring(ring: Any, size: tuple[int, int], *, where: str) -> Int[np.ndarray, "points 2"]:
    """Return a ring without its repeated last point."""
    if not isinstance(ring, list) or not all(_is_point(p) for p in ring):
        raise InputError(f"{where}: a ring must be a list of points [x, y] of finite numbers")
    points = np.array([p[:2] for p in ring], np.float64).reshape(-1, 2)
    slack = SLACK * max(size)
    is_outside = ((points < -slack) | (points > np.array(size) + slack)).any(axis=1)
    if is_outside.any():
        x, y = points[is_outside][0]
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


def _is_point(value: Any) -> bool:
    """Return whether a JSON value is a list that begins with two finite numbers."""
    if not isinstance(value, list) or len(value) < 2:
        return False
    for coordinate in value[:2]:
        # JSON may hold whole numbers that no float can
        if not isinstance(coordinate, int | float) or not abs(coordinate) <= sys.float_info.max:
            return False
    return True


def _type(value: Any) -> str | None:
    """Return the type of a GeoJSON object; None if it states none."""
    if not isinstance(value, dict):
        return None
    kind = value.get("type")
    return kind if isinstance(kind, str) else None


def _describe(value: Any) -> str:
    """Describe a JSON value for messages."""
    if value is None:
        return "nothing"
    if not isinstance(value, dict | list):
        return repr(value)[:40]
    kind = "list" if isinstance(value, list) else "object"
    return f"a {kind} without a known type" if value else f"an empty {kind}"
