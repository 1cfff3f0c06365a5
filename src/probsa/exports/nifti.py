"""Stage 10: write the map of a scan as NIfTI volumes on the scan's grid.

Each slice has one value, repeated over its pixels; slices without an instance are NaN.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from ..cohorts import Record
from ..core import replacing
from ..errors import InputError, MissingExtra
from ..evaluation import Prediction
from ..maps import match_slices
from ..slides import Scan
from .provenance import Provenance
from .quantities import Channel
from .series import series_planes, steps_of

TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""DICOM's axes (left, posterior, superior) to NIfTI's (right, anterior, superior)."""
TOLERANCE = 0.05
"""Largest distance in millimetres between a slice and its place on an even grid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeGrid:
    """The grid of a scan."""

    shape: tuple[int, int, int]
    """(columns, rows, slices), in the order of the affine."""
    affine: Float64[np.ndarray, "4 4"]
    """Voxel indices to (right, anterior, superior)."""
    positions: Float64[np.ndarray, " slices"]
    """Millimetres along the scan, as in the coordinates of the bag."""
    unit: str = "mm"
    source: Path


def grid_of_series(record: Record) -> VolumeGrid:
    """Return the grid of a DICOM series."""
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
    return VolumeGrid(
        shape=(planes[0].columns, planes[0].rows, len(planes)),
        affine=TO_RAS @ affine,
        positions=positions,
        source=Path(record.source),
    )


def grid_of_nifti(scan: Scan) -> VolumeGrid:
    """Return the grid of a scan that is NIfTI, with the axes right, anterior, superior."""
    image = _nibabel().load(scan.path)
    slices, rows, columns = scan.volume.shape
    return VolumeGrid(
        shape=(columns, rows, slices),
        affine=_nibabel().as_closest_canonical(image).affine,
        positions=np.asarray(scan.positions, np.float64),
        unit=str(image.header.get_xyzt_units()[0]),
        source=scan.path,
    )


def write_nifti(
    path: Path, p: Prediction, channel: Channel, *, grid: VolumeGrid, about: Provenance
) -> None:
    """Write one quantity as `….nii.gz`, atomically; the same values give the same bytes.

    The header has 80 bytes for text; the origin of the values is an extension of the header.
    """
    nibabel = _nibabel()
    from nibabel.nifti1 import Nifti1Extension

    along = np.full(grid.shape[2], np.nan, np.float32)
    along[match_slices(p, grid.positions, path=grid.source)] = channel.values
    image = nibabel.Nifti1Image(np.broadcast_to(along, grid.shape), grid.affine)
    image.set_sform(grid.affine, code="scanner")
    image.set_qform(None, code="unknown")  # it cannot state the shear of a tilted gantry
    image.header.set_xyzt_units(grid.unit)
    image.header["descrip"] = f"probsa {channel.name}; research use only".encode()[:79]
    text = "\n".join(f"{key}: {value}" for key, value in about.entries.items())
    image.header.extensions.append(Nifti1Extension("comment", text.encode()))
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(image.to_bytes(), compresslevel=6, mtime=0))


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtra("nibabel", "ct") from error
    return nibabel
