"""Stage 10: the slices of a scan as its headers place them, without their pixels."""

from pathlib import Path

import numpy as np
from jaxtyping import Float64

from ..cohorts import Record
from ..errors import InputError, SlideError
from ..slides import Header, Plane, read_header, stack


def series_planes(record: Record) -> tuple[Float64[np.ndarray, " slices"], list[Plane]]:
    """Return the positions of the slices of a series in ascending order, and their headers.

    Each header states where the slice lies; there is one slice per file.
    """
    headers = []
    for file in record.files:
        header = _readable(Path(file))
        if header is not None:
            headers.append(header)
    if not headers:
        raise SlideError(f"{record.source} holds no slice that can be read: copy it again")
    places = stack([plane for header in headers for plane in header.planes]).places
    planes = [place.planes[0] for place in places]
    for plane in planes:
        if plane.frame is not None:
            raise InputError(
                f"{plane.path} holds several slices (enhanced multi-frame): maps are written for "
                "series with one slice per file, so split it first"
            )
        if plane.position is None or plane.orientation is None or plane.spacing is None:
            raise InputError(
                f"{plane.path} does not state the position, the orientation or the pixel spacing "
                "of its slice, which a map in space needs"
            )
    return np.array([place.position for place in places]), planes


def steps_of(plane: Plane) -> Float64[np.ndarray, "2 3"]:
    """Return the millimetres from one pixel to the next along a row, and along a column."""
    assert plane.orientation is not None and plane.spacing is not None
    directions = np.array(plane.orientation, np.float64).reshape(2, 3)
    between_rows, between_columns = plane.spacing[:2]
    return directions * np.array([between_columns, between_rows])[:, None]


def _readable(path: Path) -> Header | None:
    """Return a header with slices; the scan leaves out the other files as well."""
    try:
        header = read_header(path)
    except SlideError:
        return None
    if header.other is not None or not header.grey:
        return None
    return header
