"""Read a NIfTI file as a `Scan`: slices along the axis that its affine calls superior.

It is oriented like DICOM series, so the same volume in both formats gives equal arrays.
"""

import gzip
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..core import check_size
from ..errors import SlideError, imports_from
from ._base import Scan, decoding
from .series import air_notes

if TYPE_CHECKING:
    from nibabel.nifti1 import Nifti1Image

SUFFIXES = (".nii", ".nii.gz")
_UNITS = {1: ("meter", 1000.0), 2: ("mm", 1.0), 3: ("micron", 0.001)}
"""Units of length and their millimetres, by NIfTI's code."""
_OBLIQUE = 1.0
"""Angle in degrees between slices and axial plane above which a note is added."""


def is_nifti(path: Path) -> bool:
    """Return True if the file name has a NIfTI suffix."""
    return path.name.lower().endswith(SUFFIXES)


def stem(path: Path) -> str:
    """Return the file name without `.nii` or `.nii.gz`."""
    return re.sub(r"\.nii(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def open_nifti(name: str, path: Path) -> Scan:
    """Read one file.

    Args:
        name: the name of the scan.
        path: a .nii or .nii.gz file.

    Raises:
        SlideError: the file is damaged, has more than three dimensions, or has colours.
        MissingExtra: nibabel is not installed.
    """
    with imports_from("ct", "nibabel"):
        import nibabel
    if path.stat().st_size == 0:
        raise SlideError(f"{path} is empty: copy it again")
    with decoding(path):
        # a .nii file may be NIfTI-1 or NIfTI-2, for which nibabel has two classes
        if nibabel.Nifti1Image.path_maybe_image(path)[0]:
            image = nibabel.Nifti1Image.from_filename(path)
        elif nibabel.Nifti2Image.path_maybe_image(path)[0]:
            image = nibabel.Nifti2Image.from_filename(path)
        else:
            raise SlideError(f"{path} is damaged, or not NIfTI, although its name says so")
        _check_volume(path, image)
        data = np.asarray(image.get_fdata(dtype=np.float32, caching="unchanged"))
    affine = np.array(image.affine, dtype=np.float64)
    unit, millimetres = _UNITS.get(int(image.header["xyzt_units"]) % 8, ("unknown", 1.0))
    affine[:3] *= millimetres
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise SlideError(f"{path} has an affine that cannot be used:\n{affine}")
    finite = np.isfinite(data)
    if not finite.any():
        raise SlideError(f"{path} contains no finite value")
    smallest = data[finite].min()
    data = np.where(finite, data, smallest).reshape(image.shape[:3])
    canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, affine))
    # axes to the right and front become columns to the left and rows to the back
    turned = np.asarray(canonical.dataobj).transpose(2, 1, 0)[:, ::-1, ::-1]
    volume = np.ascontiguousarray(turned, dtype=np.float32)
    x, y, z, origin = canonical.affine[:3].T
    # positions are measured along the normal of the slices, which z need not be
    normal = np.cross(x, y) / np.linalg.norm(np.cross(x, y))
    angle = float(np.degrees(np.arccos(min(1.0, abs(normal[2])))))
    axes = "".join(str(code) for code in nibabel.aff2axcodes(affine))
    notes = []
    if not finite.all():
        notes.append(
            f"{100 * np.mean(~finite):.1f} % of the voxels are not numbers and were set to the "
            f"minimum, {smallest:g}."
        )
    if not (int(image.header["sform_code"]) or int(image.header["qform_code"])):
        notes.append(
            "The file states no orientation: the slices are assumed to be axial, as stored."
        )
    if unit == "unknown":
        notes.append("The file states no unit of length: millimetres are assumed.")
    if angle > _OBLIQUE:
        notes.append(f"The slices lie {angle:.1f} degrees off the axial plane.")
    if axes[2] not in "SI":
        notes.append(f"The voxels are stored as {axes}; slices were taken along the body's axis.")
    notes += air_notes(float(smallest))
    if len(volume) == 1:
        notes.append("There is a single slice.")
    description, _, _ = image.header["descrip"].tobytes().partition(b"\0")
    return Scan(
        name=name,
        path=path,
        format="nifti",
        volume=volume,
        positions=origin @ normal + np.arange(len(volume)) * (z @ normal),
        spacing=(float(np.linalg.norm(y)), float(np.linalg.norm(x))),
        thickness=None,
        notes=tuple(notes),
        properties={
            "axes": axes,
            "units": unit,
            "datatype": str(image.get_data_dtype()),
            "description": description.decode("latin-1").strip(),
        },
    )


def _check_volume(path: Path, image: "Nifti1Image") -> None:
    """Compare the stated size of the volume with what is stored, before memory is taken."""
    shape = image.shape
    dtype = np.dtype(image.get_data_dtype())
    voxels = " x ".join(map(str, shape))
    if len(shape) < 3 or any(extra != 1 for extra in shape[3:]) or 0 in shape:
        raise SlideError(
            f"{path} has the shape {voxels}, where three dimensions were "
            "expected: write each volume to its own file"
        )
    if dtype.kind not in "iuf":
        raise SlideError(
            f"{path} holds {image.get_data_dtype()}, where one number per voxel was expected"
        )
    file_bytes = path.stat().st_size
    stated_bytes = math.prod(shape) * dtype.itemsize
    check_size(
        path,
        what="the volume",
        stated=4 * math.prod(shape),  # of the float32 in memory
        stored=file_bytes,
        again="copy it again",
    )
    if path.name.lower().endswith(".gz"):
        # the header is small, and what follows the volume is tolerated
        most_bytes = 2 * stated_bytes + 2**24
        stored_bytes = 0
        with gzip.open(path) as stream:  # to its end, where its checksum is: nibabel stops before
            while stored_bytes <= most_bytes and (block := stream.read(2**20)):
                stored_bytes += len(block)
    else:
        # less than a slice more
        most_bytes = stated_bytes + max(stated_bytes // shape[2], 1) - 1
        stored_bytes = file_bytes - int(getattr(image.dataobj, "offset", 0))
    if not stated_bytes <= stored_bytes <= most_bytes:
        raise SlideError(
            f"{path} is damaged: it states {voxels} voxels, {stated_bytes:,} bytes, but "
            f"{stored_bytes:,} are stored. Copy it again"
        )
