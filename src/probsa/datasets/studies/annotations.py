"""Tumour annotations of slides, and the share of each patch's level-0 pixels that they cover.

Polygons are read from ASAP's XML (CAMELYON16) or from the same polygons as JSON.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Bool, Float, Shaped

from ...errors import InputError, SlideError
from ...patches import Polygon, raster
from ...slides import open_slide

TUMOUR = ("_0", "_1", "tumor", "metastases", "none")
"""ASAP groups that are tumour; some annotations of the release are in `None`."""
NORMAL = ("_2", "exclusion", "normal")
"""Groups that are excluded from the surrounding tumour."""
PAIRS = 1 << 22
"""Maximum number of (edge, patch) pairs compared at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Area:
    """The points inside any polygon of `inside` and none of `outside`, in level-0 pixels."""

    inside: tuple[Polygon, ...]
    outside: tuple[Polygon, ...] = ()

    def raster(self, xs: np.ndarray, ys: np.ndarray) -> Bool[np.ndarray, "columns rows"]:
        """Return True where (xs[i], ys[j]) lies in the area."""
        return raster(self.inside, xs, ys) & ~raster(self.outside, xs, ys)


def read_area(path: Path) -> Area:
    """Read the annotated area of a slide; vertices are rounded to whole pixels.

    `.xml` is ASAP's format. `.json` is `{"positive": [{"vertices": [[x, y], …]}, …], "negative":
    […]}`. Points and lines, which ASAP files may contain, are ignored.
    """
    inside, outside = _xml_rings(path) if path.suffix.lower() == ".xml" else _json_rings(path)
    return Area(
        inside=tuple(Polygon(outer=ring) for ring in inside if len(ring) > 2),
        outside=tuple(Polygon(outer=ring) for ring in outside if len(ring) > 2),
    )


def _xml_rings(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as XML: {error}. Copy it again") from error
    if root.tag != "ASAP_Annotations":
        raise InputError(f"{path} is a <{root.tag}>, expected ASAP's <ASAP_Annotations>")
    inside: list[np.ndarray] = []
    outside: list[np.ndarray] = []
    for index, annotation in enumerate(root.findall(".//Annotation")):
        group = annotation.get("PartOfGroup", "None")
        place = f"{path}: annotation {index} ({annotation.get('Name')})"
        if group.lower() not in (*TUMOUR, *NORMAL):
            raise InputError(
                f"{place} is of the group {group!r}; known are {', '.join(TUMOUR)} (tumour) and "
                f"{', '.join(NORMAL)} (none)"
            )
        corners = [(corner.get("X"), corner.get("Y")) for corner in annotation.iter("Coordinate")]
        rings = outside if group.lower() in NORMAL else inside
        rings.append(_ring(corners, place))
    return inside, outside


def _json_rings(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. Copy it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("positive"), list):
        raise InputError(f"{path}: expected an object with the lists positive and negative")

    def rings(key: str) -> list[np.ndarray]:
        polygons: Any = content.get(key, [])
        rings = []
        for k, polygon in enumerate(polygons):
            vertices = polygon.get("vertices") if isinstance(polygon, dict) else None
            rings.append(_ring(vertices, f"{path}: {key} {k}"))
        return rings

    return rings("positive"), rings("negative")


def _ring(corners: Any, where: str) -> Shaped[np.ndarray, "points 2"]:
    try:
        points = np.asarray(corners, np.float64).reshape(-1, 2)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: expected corners (x, y) of numbers: {error}") from error
    if not np.isfinite(points).all():
        raise InputError(f"{where}: a corner is not finite")
    return np.rint(points).astype(np.int32)


def polygon_share(
    area: Area, corners: Shaped[np.ndarray, "n 2"], *, side: float
) -> Float[np.ndarray, " n"]:
    """Return the share of each patch's level-0 pixels whose centres lie in the area.

    Pixels are counted only if an outline may cross the patch; otherwise one point decides.
    """
    crossed = np.zeros(len(corners), bool)
    within = {kind: np.zeros(len(corners), bool) for kind in ("inside", "outside")}
    for kind, contains in within.items():
        for polygon in getattr(area, kind):
            left, top, right, bottom = polygon.box
            x, y = corners.T
            overlaps_box = (x <= right) & (x + side >= left) & (y <= bottom) & (y + side >= top)
            nearby = np.flatnonzero(overlaps_box)
            is_crossed = _crossed(polygon.outer, corners[nearby], side)
            crossed[nearby[is_crossed]] = True
            uncrossed = nearby[~is_crossed]
            if len(uncrossed):
                from matplotlib.path import Path as Outline

                # such a patch is all inside or all outside, so its centre decides
                centres = corners[uncrossed] + side / 2
                contains[uncrossed] |= Outline(polygon.outer).contains_points(centres)
    shares = (within["inside"] & ~within["outside"]).astype(np.float64)
    for i in np.flatnonzero(crossed):
        shares[i] = area.raster(*_pixels(corners[i], side)).mean()
    return shares


def mask_share(
    path: Path,
    corners: Shaped[np.ndarray, "n 2"],
    *,
    side: float,
    positive: Collection[int],
    known: Collection[int],
    size: tuple[int, int] | None = None,
) -> tuple[Float[np.ndarray, " n"], tuple[int, ...]]:
    """Return the share of each patch's pixels that a mask marks as positive, and unknown values.

    The mask is as large as the slide at level 0, of the given (width, height) if known; its first
    channel holds the values. Pixels outside the slide count as negative.
    """
    shares = np.zeros(len(corners))
    counts = np.zeros(256, np.int64)
    with open_slide(path) as mask:
        width, height = mask.size
        if size is not None and size != mask.size:
            raise SlideError(
                f"{path} is {width}x{height} pixels, but its slide has {size[0]}x{size[1]}: the "
                "mask belongs to another slide or level"
            )
        for i, corner in enumerate(corners):
            xs, ys = _pixels(corner, side)
            # the part of the patch within the slide
            left = max(int(xs[0]), 0)
            top = max(int(ys[0]), 0)
            right = min(int(xs[-1]) + 1, width)
            bottom = min(int(ys[-1]) + 1, height)
            if right <= left or bottom <= top:
                continue
            pixels = mask.read(x=left, y=top, level=0, width=right - left, height=bottom - top)
            patch_counts = np.bincount(pixels[..., 0].ravel(), minlength=256)
            counts += patch_counts
            shares[i] = patch_counts[list(positive)].sum() / (len(xs) * len(ys))
    unknown = set(np.flatnonzero(counts).tolist()).difference(known)
    return shares, tuple(sorted(unknown))


def _pixels(
    corner: Shaped[np.ndarray, "2"], side: float
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " rows"]]:
    """Return the centres of a patch's pixels, as x and y coordinates."""
    across, down = (
        np.arange(np.ceil(start - 0.5), np.ceil(start + side - 0.5)) + 0.5
        for start in corner.tolist()
    )
    return across, down


def _crossed(
    ring: Shaped[np.ndarray, "points 2"], corners: Shaped[np.ndarray, "n 2"], side: float
) -> Bool[np.ndarray, " n"]:
    """Return whether the bounding box of any edge overlaps each patch, so an edge may cross it."""
    low = np.minimum(ring, np.roll(ring, -1, axis=0))
    high = np.maximum(ring, np.roll(ring, -1, axis=0))
    step = max(1, PAIRS // len(ring))
    crossed = np.zeros(len(corners), bool)
    for start in range(0, len(corners), step):
        block = corners[start : start + step, None]
        meets = (low <= block + side) & (high >= block)
        crossed[start : start + step] = (meets[..., 0] & meets[..., 1]).any(axis=1)
    return crossed
