"""Read the annotations of a slide: ASAP's XML (CAMELYON16), or the same polygons as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Int

from ...errors import InputError
from ...patches import Polygon

TUMOUR = ("_0", "_1", "tumor", "metastases", "none")
"""ASAP groups that are tumour; some annotations of the release are in `None`."""
NORMAL = ("_2", "exclusion", "normal")
"""Groups that are excluded from the surrounding tumour."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Area:
    """The points inside any polygon of `inside` and none of `outside`, in level-0 pixels."""

    inside: tuple[Polygon, ...]
    outside: tuple[Polygon, ...] = ()


def read_area(path: Path) -> Area:
    """Read the annotated area of a slide; vertices are rounded to whole pixels.

    `.xml` is ASAP's format. `.json` is `{"positive": [{"vertices": [[x, y], …]}, …], "negative":
    […]}`.

    Raises:
        InputError: the file is damaged or in another format.
    """
    return _from_xml(path) if path.suffix.lower() == ".xml" else _from_json(path)


def _from_xml(path: Path) -> Area:
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as XML: {error}. Copy it again") from error
    annotations = root.findall(".//Annotation")
    if root.tag != "ASAP_Annotations":
        raise InputError(f"{path} is a <{root.tag}>, expected ASAP's <ASAP_Annotations>")
    inside, outside = [], []
    for index, annotation in enumerate(annotations):
        group = annotation.get("PartOfGroup", "None")
        where = f"{path}: annotation {index} ({annotation.get('Name')})"
        if group.lower() not in (*TUMOUR, *NORMAL):
            raise InputError(
                f"{where} is of the group {group!r}; known are {', '.join(TUMOUR)} (tumour) and "
                f"{', '.join(NORMAL)} (none)"
            )
        corners = [(corner.get("X"), corner.get("Y")) for corner in annotation.iter("Coordinate")]
        (outside if group.lower() in NORMAL else inside).append(_ring(corners, where))
    return _area(inside, outside)


def _from_json(path: Path) -> Area:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. Copy it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("positive"), list):
        raise InputError(f"{path}: expected an object with the lists positive and negative")
    rings = {
        key: [_ring(_vertices(p), f"{path}: {key} {k}") for k, p in enumerate(content.get(key, []))]
        for key in ("positive", "negative")
    }
    return _area(rings["positive"], rings["negative"])


def _vertices(polygon: Any) -> Any:
    return polygon.get("vertices") if isinstance(polygon, dict) else None


def _ring(corners: Any, where: str) -> Int[np.ndarray, "points 2"]:
    try:
        points = np.asarray(corners, np.float64).reshape(-1, 2)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: expected corners (x, y) of numbers: {error}") from error
    if not np.isfinite(points).all():
        raise InputError(f"{where}: a corner is not finite")
    return np.rint(points).astype(np.int32)


def _area(inside: list[np.ndarray], outside: list[np.ndarray]) -> Area:
    """Build an area, ignoring points and lines, which ASAP files may contain."""
    return Area(
        inside=tuple(Polygon(outer=ring) for ring in inside if len(ring) > 2),
        outside=tuple(Polygon(outer=ring) for ring in outside if len(ring) > 2),
    )
