"""Stage 10: write the map of a scan as NIfTI volumes on the scan's grid.

Each slice has one value, repeated over its pixels; slices without an instance are NaN. The same
values give the same bytes.
"""

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from ..cohorts import Record
from ..errors import InputError, imports_from
from ..maps import match_slices
from ..slides import Scan
from .bag import ExportBag
from .series import series_planes, steps_of

TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""DICOM's axes (left, posterior, superior) to NIfTI's (right, anterior, superior)."""
TOLERANCE = 0.05
"""Largest distance in millimetres between a slice and its place on an even grid."""


class Grid(NamedTuple):
    """The grid of a scan."""

    shape: tuple[int, int, int]
    """(columns, rows, slices), in the order of the affine."""
    affine: Float64[np.ndarray, "4 4"]
    """Voxel indices to (right, anterior, superior)."""
    positions: Float64[np.ndarray, " slices"]
    """Millimetres along the scan, as in the coordinates of the bag."""
    unit: str = "mm"


def write_nifti(bag: ExportBag) -> None:
    """Write each quantity as `….nii.gz`.

    The header has 80 bytes for text; the origin of the values is an extension of the header.
    """
    p = bag.p
    if p.coords is None or p.coords.shape[-1] != 1:
        raise InputError(
            f"bag {p.name!r} is not a scan: NIfTI is written for scans, OME-TIFF for slides"
        )
    nibabel = _nibabel()
    from nibabel.nifti1 import Nifti1Extension

    record = bag.placed.record(p)
    grid = _of_nifti(bag.placed.open(p)) if record.format == "nifti" else _of_series(record)
    slices = match_slices(p, grid.positions, path=Path(record.source))
    origin = "\n".join(f"{key}: {value}" for key, value in bag.about.entries.items())
    for channel in bag.channels:
        slice_values = np.full(grid.shape[2], np.nan, np.float32)
        slice_values[slices] = channel.values
        image = nibabel.Nifti1Image(np.broadcast_to(slice_values, grid.shape), grid.affine)
        image.set_sform(grid.affine, code="scanner")
        image.set_qform(None, code="unknown")  # it cannot state the shear of a tilted gantry
        image.header.set_xyzt_units(grid.unit)
        image.header["descrip"] = f"probsa {channel.name}; research use only".encode()[:79]
        image.header.extensions.append(Nifti1Extension("comment", origin.encode()))
        with bag.file(f"_{channel.suffix}.nii.gz") as path:
            path.write_bytes(gzip.compress(image.to_bytes(), compresslevel=6, mtime=0))


def _of_series(record: Record) -> Grid:
    """Return the grid of a DICOM series.

    Raises:
        InputError: No affine can state the positions of its slices.
    """
    positions, planes = series_planes(record)
    corners = np.array([plane.position for plane in planes], np.float64)
    if len(corners) < 2:
        raise InputError(f"{record.source} has a single slice: a NIfTI volume needs two")
    even = np.linspace(corners[0], corners[-1], len(corners))
    if np.linalg.norm(corners - even, axis=1).max() > TOLERANCE:
        steps = np.linalg.norm(np.diff(corners, axis=0), axis=1)
        raise InputError(
            f"the slices of {record.source} are unevenly spaced ({steps.min():.2f} to "
            f"{steps.max():.2f} mm), which no affine of a NIfTI file can state: export it as "
            "DICOM, which places each slice"
        )
    affine = np.eye(4)
    affine[:3, :2] = steps_of(planes[0]).T
    affine[:3, 2] = (corners[-1] - corners[0]) / (len(planes) - 1)
    affine[:3, 3] = corners[0]
    return Grid((planes[0].columns, planes[0].rows, len(planes)), TO_RAS @ affine, positions)


def _of_nifti(scan: Any) -> Grid:
    """Return the grid of a NIfTI file, in the order of axes in which the scan was read."""
    assert isinstance(scan, Scan)
    nibabel = _nibabel()
    image = nibabel.load(scan.path)
    slices, rows, columns = scan.volume.shape
    affine = nibabel.as_closest_canonical(image).affine
    positions = np.asarray(scan.positions, np.float64)
    unit, _ = image.header.get_xyzt_units()
    return Grid((columns, rows, slices), affine, positions, str(unit))


def _nibabel() -> Any:
    with imports_from("ct", "nibabel"):
        import nibabel
    return nibabel
