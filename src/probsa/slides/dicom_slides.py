"""Stage 1: DICOM slides with more than one plane, of which OpenSlide would read one or none.

Focal planes and optical paths (channels) are frames of their own at the same place. OpenSlide
refuses several focal planes, but takes the frames of several optical paths for one another.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import MissingExtra, SlideError
from .dicom_headers import number, read

_KEYS = (
    "TotalPixelMatrixFocalPlanes",
    "NumberOfOpticalPaths",
    "SamplesPerPixel",
    "BitsAllocated",
    "NumberOfFrames",
    "Rows",
    "Columns",
    "TotalPixelMatrixRows",
    "TotalPixelMatrixColumns",
)
_PREFIX = "dicom."
_PATH_PROPERTY = re.compile(r"dicom\.OpticalPathSequence\[([^]]*)")
"""Beginning of the names of the properties of one optical path, with its number."""


class SeveralPlanes(SlideError):
    """A slide that OpenSlide opens has planes that are not read; see `plane_problem`."""


def plane_problem(properties: Mapping[str, str]) -> str:
    """Return why a slide that OpenSlide opens cannot be read, from its properties; else empty."""
    values = {key: _whole(properties.get(_PREFIX + key)) for key in _KEYS}
    paths = {path[1] for path in map(_PATH_PROPERTY.match, properties) if path}
    return _problem(values, optical_paths=len(paths))


def plane_problem_of_file(path: Path) -> str:
    """Return why OpenSlide cannot read a file, from its header; empty if that does not tell."""
    try:
        dataset = read(path, pixels=False)
    except (SlideError, MissingExtra, OSError):
        return ""
    if dataset.get("Modality") != "SM":
        return ""
    values = {key: _whole(number(dataset, key)) for key in _KEYS}
    paths = dataset.get("OpticalPathSequence")
    return _problem(values, optical_paths=0 if paths is None else len(paths))


def _whole(value: str | float | None) -> int | None:
    """Return a whole number, or None."""
    text = "" if value is None else str(value)
    return int(float(text)) if text.replace(".", "", 1).isdigit() else None


def _problem(values: Mapping[str, int | None], *, optical_paths: int) -> str:
    """Return what is wrong with a slide of these numbers, as the end of a sentence; else empty."""
    focal_planes = values["TotalPixelMatrixFocalPlanes"] or 1
    optical_paths = max(values["NumberOfOpticalPaths"] or 1, optical_paths)
    if focal_planes > 1:
        return f"holds {focal_planes} focal planes, which are not read: export one plane"
    if optical_paths > 1:
        return (
            f"holds {optical_paths} optical paths (channels), which are not read: export one "
            "bright-field image with three colours"
        )
    samples = values["SamplesPerPixel"]
    bits = values["BitsAllocated"]
    if samples not in (None, 3) or bits not in (None, 8):
        return (
            f"has {samples or '?'} channel(s) of {bits or '?'} bits, where 3 of 8 bits were "
            "expected: it is not a bright-field image; give an image with three colours"
        )
    frames = values["NumberOfFrames"]
    tiles = 1
    for axis in ("Rows", "Columns"):
        whole = values[f"TotalPixelMatrix{axis}"]
        side = values[axis]
        tiles *= math.ceil(whole / side) if whole and side else 0
    if tiles and frames is not None and frames > tiles:
        return (
            f"has {frames} frames for {tiles} tiles, so it holds several focal planes or optical "
            "paths, which are not read: export one plane"
        )
    return ""
