"""Stage 10: the slices of a scan as its headers place them, without their pixels."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from ..cohorts import Record
from ..errors import InputError, SlideError
from ..slides import Header, read_header, stack

TOLERANCE = 0.05
"""Largest distance in millimetres between a slice and its place on an even grid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSlice:
    """One slice of a DICOM series with one slice per file."""

    path: Path
    position: float
    """Millimetres along the normal of the slices, as in the coordinates of the bag."""
    corner: Float64[np.ndarray, " 3"]
    """Centre of the first pixel, in millimetres (left, posterior, superior)."""
    orientation: Float64[np.ndarray, "2 3"]
    """Directions of growing column and of growing row."""
    spacing: tuple[float, float]
    """Millimetres between (rows, columns)."""
    rows: int
    columns: int


def series_slices(record: Record) -> tuple[SeriesSlice, ...]:
    """Return the slices of a series in ascending order of position.

    Raises:
        InputError: Slices have no position, orientation or pixel spacing, or the files hold several
            slices each.
        SlideError: The series cannot be read.
    """
    headers = [h for file in record.files if (h := _readable(Path(file))) is not None]
    if not headers:
        raise SlideError(f"{record.source} holds no slice that can be read: copy it again")
    places = stack([plane for header in headers for plane in header.planes]).places
    slices = []
    for place in places:
        plane = place.planes[0]
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
        slices.append(
            SeriesSlice(
                path=plane.path,
                position=place.position,
                corner=np.array(plane.position, np.float64),
                orientation=np.array(plane.orientation, np.float64).reshape(2, 3),
                spacing=(plane.spacing[0], plane.spacing[1]),
                rows=plane.rows,
                columns=plane.columns,
            )
        )
    return tuple(slices)


def check_even(corners: Float64[np.ndarray, "slices 3"], *, source: str) -> None:
    """Check that the slices of a scan form an even grid.

    Raises:
        InputError: They do not, or there is a single slice.
    """
    if len(corners) < 2:
        raise InputError(f"{source} has a single slice: a NIfTI volume needs two")
    even = np.linspace(corners[0], corners[-1], len(corners))
    if np.linalg.norm(corners - even, axis=1).max() > TOLERANCE:
        steps = np.linalg.norm(np.diff(corners, axis=0), axis=1)
        raise InputError(
            f"the slices of {source} are unevenly spaced ({steps.min():.2f} to {steps.max():.2f} "
            "mm), which no affine of a NIfTI file can state: export it as DICOM, which places each "
            "slice"
        )


def _readable(path: Path) -> Header | None:
    """Return a header with slices; the scan leaves out the other files as well."""
    try:
        header = read_header(path)
    except SlideError:
        return None
    return header if header.other is None and header.grey else None
