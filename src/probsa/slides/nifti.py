"""Read a NIfTI file as a `Scan`: slices along the axis that its affine calls superior.

It is oriented like DICOM series, so the same volume in both formats gives equal arrays.
"""

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..core import check_size
from ..errors import BagError, MissingExtra, SlideError
from . import _base
from .series import air_notes

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

SUFFIXES = (".nii", ".nii.gz")
_AGAIN = "copy it again"
_MILLIMETRES = {"meter": 1000.0, "mm": 1.0, "micron": 0.001, "unknown": 1.0}
_DAMAGED = (OSError, EOFError, ValueError, TypeError, ArithmeticError, MemoryError, zlib.error)
"""Errors of nibabel for damaged files."""
_OBLIQUE = 1.0
"""Angle in degrees between slices and axial plane above which a note is added."""


def is_nifti(path: Path) -> bool:
    """Return True if the file name has a NIfTI suffix."""
    return path.name.lower().endswith(SUFFIXES)


def stem(path: Path) -> str:
    """Return the file name without `.nii` or `.nii.gz`."""
    return re.sub(r"\.nii(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def open_nifti(name: str, path: Path) -> _base.Scan:
    """Read one file.

    Args:
        name: the name of the scan.
        path: a .nii or .nii.gz file.

    Raises:
        SlideError: the file is damaged, has more than three dimensions, or has colours.
        MissingExtra: nibabel is not installed.
    """
    image = _load(path)
    data, notes = _voxels(path, image)
    affine, scale = _affine(path, image, notes)
    from nibabel.orientations import aff2axcodes, apply_orientation, inv_ornt_aff, io_orientation

    orientation = io_orientation(affine)
    stored = "".join(str(code) for code in aff2axcodes(affine))
    if np.isnan(orientation).any():
        raise SlideError(f"{path} has an affine that leaves out an axis:\n{affine}")
    data = apply_orientation(data, orientation)
    affine = affine @ inv_ornt_aff(orientation, image.shape[:3])
    # axes to the right and front become columns to the left and rows to the back
    volume = np.ascontiguousarray(data.transpose(2, 1, 0)[:, ::-1, ::-1], dtype=np.float32)
    x, y, z = affine[:3, 0], affine[:3, 1], affine[:3, 2]
    normal = np.cross(x, y) / np.linalg.norm(np.cross(x, y))
    positions = affine[:3, 3] @ normal + np.arange(len(volume)) * (z @ normal)
    angle = float(np.degrees(np.arccos(min(1.0, abs(normal[2])))))
    if angle > _OBLIQUE:
        notes.append(f"The slices lie {angle:.1f} degrees off the axial plane.")
    if stored[2] not in "SI":
        notes.append(f"The voxels are stored as {stored}; slices were taken along the body's axis.")
    notes += air_notes(float(volume.min()))
    if volume.shape[0] == 1:
        notes.append("There is a single slice.")
    return _base.Scan(
        name=name,
        path=path,
        format="nifti",
        volume=volume,
        positions=positions,
        spacing=(float(np.linalg.norm(y)), float(np.linalg.norm(x))),
        thickness=None,
        notes=tuple(notes),
        properties={
            "axes": stored,
            "units": scale,
            "datatype": str(image.get_data_dtype()),
            "description": _text(image.header["descrip"]),
        },
    )


def _load(path: Path) -> "Nifti1Image":
    try:
        import nibabel
        from nibabel.filebasedimages import ImageFileError
        from nibabel.spatialimages import HeaderDataError
        from nibabel.wrapstruct import WrapStructError
    except ImportError as error:
        raise MissingExtra("nibabel", "ct") from error
    if path.stat().st_size == 0:
        raise SlideError(f"{path} is empty: copy it again")
    # a .nii file may be NIfTI-1 or NIfTI-2, for which nibabel has two classes
    errors: list[str] = []
    for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image):
        try:
            return kind.from_filename(path)
        except (ImageFileError, HeaderDataError, WrapStructError) as error:
            errors.append(str(error))
        except _DAMAGED as error:
            raise SlideError(f"{path} is damaged: {error}. Copy it again") from error
    raise SlideError(f"{path} is not NIfTI, although its name says so: {errors[0]}")


def _voxels(path: Path, image: "Nifti1Image") -> tuple[Float[np.ndarray, "i j k"], list[str]]:
    """Return the scaled values as float32; non-finite values become the smallest finite one."""
    shape = image.shape
    if len(shape) < 3 or any(extra != 1 for extra in shape[3:]) or 0 in shape:
        raise SlideError(
            f"{path} has the shape {' x '.join(map(str, shape))}, where three dimensions were "
            "expected: write each volume to its own file"
        )
    if np.dtype(image.get_data_dtype()).kind not in "iuf":
        raise SlideError(
            f"{path} holds {image.get_data_dtype()}, where one number per voxel was expected"
        )
    _check_volume(path, image)
    try:
        data = np.asarray(image.get_fdata(dtype=np.float32, caching="unchanged"))
    except _DAMAGED as error:
        raise SlideError(f"{path} is damaged: {error}. Copy it again") from error
    data = data.reshape(shape[:3])
    known = np.isfinite(data)
    if known.all():
        return data, []
    if not known.any():
        raise SlideError(f"{path} contains no finite value")
    smallest = data[known].min()
    share = 100 * float(np.mean(~known))
    note = f"{share:.1f} % of the voxels are not numbers and were set to the minimum, {smallest:g}."
    return np.where(known, data, smallest), [note]


def _check_volume(path: Path, image: "Nifti1Image") -> None:
    """Compare the stated size of the volume with what is stored, before memory is taken."""
    stored = path.stat().st_size
    values, scaled = math.prod(image.shape), 4
    size = values * np.dtype(image.get_data_dtype()).itemsize
    try:
        check_size(path, what="the volume", stated=values * scaled, stored=stored, again=_AGAIN)
    except BagError as error:
        raise SlideError(str(error)) from error
    if path.name.lower().endswith(".gz"):
        _check_sum(path, size=size)
        return
    rest = stored - int(getattr(image.dataobj, "offset", 0))
    if not size <= rest < size + max(size // image.shape[2], 1):
        raise SlideError(
            f"{path} is damaged: it states {' x '.join(map(str, image.shape))} voxels, {size:,} "
            f"bytes, but {rest:,} are stored. Copy it again"
        )


def _check_sum(path: Path, *, size: int) -> None:
    """Read a compressed file to its end, where its checksum is, which nibabel does not do."""
    most, found = 2 * size + 2**24, 0
    try:
        with gzip.open(path) as stream:
            while block := stream.read(2**20):
                found += len(block)
                if found > most:
                    raise SlideError(
                        f"{path} holds far more than the {size:,} bytes that it states: {_AGAIN}"
                    )
    except _DAMAGED as error:
        if isinstance(error, SlideError):
            raise
        raise SlideError(f"{path} is damaged: {error}. Copy it again") from error


def _affine(
    path: Path, image: "Nifti1Image", notes: list[str]
) -> tuple[Float[np.ndarray, "4 4"], str]:
    """Return the affine to millimetres (right, anterior, superior) and the unit of the file."""
    header = image.header
    if int(header["sform_code"]) == 0 and int(header["qform_code"]) == 0:
        notes.append(
            "The file states no orientation: the slices are assumed to be axial, as stored."
        )
    try:
        unit = str(header.get_xyzt_units()[0])
    except KeyError:
        unit = "unknown"
    if unit == "unknown":
        notes.append("The file states no unit of length: millimetres are assumed.")
    affine = np.array(image.affine, dtype=np.float64)
    affine[:3] *= _MILLIMETRES[unit]
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise SlideError(f"{path} has an affine that cannot be used:\n{affine}")
    return affine, unit


def _text(value: np.ndarray) -> str:
    return bytes(value.tobytes()).split(b"\0")[0].decode("latin-1").strip()
