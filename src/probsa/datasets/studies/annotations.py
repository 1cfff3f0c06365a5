"""What annotators drew on a slide: ASAP's XML (CAMELYON16), or the same polygons as JSON."""

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
"""ASAP groups that are tumour; `None` is what some annotations of the release were left in."""
NORMAL = ("_2", "exclusion", "normal")
"""Groups that lie in tumour and are none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Area:
    """Everything that lies in one of `inside` and in none of `outside`; level-0 pixels."""

    inside: tuple[Polygon, ...]
    outside: tuple[Polygon, ...] = ()


def read_area(path: Path) -> Area:
    """The annotated area of a slide; corners are rounded to whole pixels.

    `.xml`: ASAP's. `.json`: `{"positive": [{"vertices": [[x, y], …]}, …], "negative": […]}`.

    Raises:
        InputError: the file is damaged, or holds something else.
    """
    return _from_xml(path) if path.suffix.lower() == ".xml" else _from_json(path)


def _from_xml(path: Path) -> Area:
    try:
        whole = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as XML: {error}. Copy it again") from error
    found = whole.findall(".//Annotation")
    if whole.tag != "ASAP_Annotations":
        raise InputError(f"{path} is a <{whole.tag}>, expected ASAP's <ASAP_Annotations>")
    inside, outside = [], []
    for k, annotation in enumerate(found):
        group = annotation.get("PartOfGroup", "None")
        where = f"{path}: annotation {k} ({annotation.get('Name')})"
        if group.lower() not in (*TUMOUR, *NORMAL):
            raise InputError(
                f"{where} is of the group {group!r}; known are {', '.join(TUMOUR)} (tumour) and "
                f"{', '.join(NORMAL)} (none)"
            )
        corners = [(c.get("X"), c.get("Y")) for c in annotation.iter("Coordinate")]
        (outside if group.lower() in NORMAL else inside).append(_ring(corners, where))
    return _area(inside, outside)


def _from_json(path: Path) -> Area:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. Copy it again") from error
    if not isinstance(whole, dict) or not isinstance(whole.get("positive"), list):
        raise InputError(f"{path}: expected an object with the lists positive and negative")
    drawn = {
        key: [_ring(_vertices(p), f"{path}: {key} {k}") for k, p in enumerate(whole.get(key, []))]
        for key in ("positive", "negative")
    }
    return _area(drawn["positive"], drawn["negative"])


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
    """Points and lines, which ASAP keeps too, have no area."""
    return Area(
        inside=tuple(Polygon(outer=r) for r in inside if len(r) > 2),
        outside=tuple(Polygon(outer=r) for r in outside if len(r) > 2),
    )
