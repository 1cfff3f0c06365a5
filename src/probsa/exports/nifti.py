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
from ..maps import match_positions
from ..slides import Scan
from .provenance import Provenance
from .quantities import Quantity
from .series import check_even, series_slices

TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""DICOM's axes (left, posterior, superior) to NIfTI's (right, anterior, superior)."""


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
    """Return the grid of a DICOM series.

    Raises:
        InputError: Its slices are unevenly spaced, or their headers do not place them.
    """
    slices = series_slices(record)
    corners = np.stack([s.corner for s in slices])
    check_even(corners, source=record.source)
    first = slices[0]
    affine = np.eye(4)
    affine[:3, 0] = first.orientation[0] * first.spacing[1]
    affine[:3, 1] = first.orientation[1] * first.spacing[0]
    affine[:3, 2] = (corners[-1] - corners[0]) / (len(slices) - 1)
    affine[:3, 3] = corners[0]
    return VolumeGrid(
        shape=(first.columns, first.rows, len(slices)),
        affine=TO_RAS @ affine,
        positions=np.array([s.position for s in slices]),
        source=Path(record.source),
    )


def grid_of_nifti(scan: Scan) -> VolumeGrid:
    """Return the grid of a scan that was read from NIfTI, with the axes right, anterior, superior.

    Raises:
        MissingExtra: nibabel is not installed.
    """
    nibabel = _nibabel()
    from nibabel.orientations import inv_ornt_aff, io_orientation

    image = nibabel.load(scan.path)
    slices, rows, columns = scan.volume.shape
    turned = image.affine @ inv_ornt_aff(io_orientation(image.affine), image.shape[:3])
    return VolumeGrid(
        shape=(columns, rows, slices),
        affine=turned,
        positions=np.asarray(scan.positions, np.float64),
        unit=str(image.header.get_xyzt_units()[0]),
        source=scan.path,
    )


def write_nifti(
    path: Path, p: Prediction, quantity: Quantity, *, grid: VolumeGrid, about: Provenance
) -> None:
    """Write one quantity as `….nii.gz`, atomically; the same values give the same bytes.

    The header has 80 bytes for text; the origin of the values is an extension of the header.

    Raises:
        InputError: The scan has no slice at one of the positions of the bag.
        MissingExtra: nibabel is not installed.
    """
    nibabel = _nibabel()
    from nibabel.nifti1 import Nifti1Extension

    index = match_positions(p, grid.positions, path=grid.source)
    along = np.full(grid.shape[2], np.nan, np.float32)
    along[index] = quantity.values
    image = nibabel.Nifti1Image(np.broadcast_to(along, grid.shape), grid.affine)
    image.set_sform(grid.affine, code="scanner")
    image.set_qform(None, code="unknown")  # it cannot state the shear of a tilted gantry
    image.header.set_xyzt_units(grid.unit)
    image.header["descrip"] = f"probsa {quantity.name}; research use only".encode()[:79]
    text = "\n".join(f"{key}: {value}" for key, value in about.entries.items())
    image.header.extensions.append(Nifti1Extension("comment", text.encode()))
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(image.to_bytes(), compresslevel=6, mtime=0))


def check_scan(p: Prediction) -> None:
    """Refuse bags that are not scans.

    Raises:
        InputError: The bag's instances have no positions along a scan.
    """
    if p.coords is None or p.coords.shape[-1] != 1:
        raise InputError(
            f"bag {p.name!r} is not a scan: NIfTI is written for scans, OME-TIFF for slides"
        )


def _nibabel() -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise MissingExtra("nibabel", "ct") from error
    return nibabel
