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
from ._base import Scan, reading
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
    with reading(path):
        # a .nii file may be NIfTI-1 or NIfTI-2, for which nibabel has two classes
        kinds = (nibabel.Nifti1Image, nibabel.Nifti2Image)
        kind = next((k for k in kinds if k.path_maybe_image(path)[0]), None)
        if kind is None:
            raise SlideError(f"{path} is damaged, or not NIfTI, although its name says so")
        image = kind.from_filename(path)
        _check_volume(path, image)
        data = np.asarray(image.get_fdata(dtype=np.float32, caching="unchanged"))
    affine = np.array(image.affine, dtype=np.float64)
    unit, millimetres = _UNITS.get(int(image.header["xyzt_units"]) % 8, ("unknown", 1.0))
    affine[:3] *= millimetres
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise SlideError(f"{path} has an affine that cannot be used:\n{affine}")
    known = np.isfinite(data)
    if not known.any():
        raise SlideError(f"{path} contains no finite value")
    smallest = data[known].min()
    data = np.where(known, data, smallest).reshape(image.shape[:3])
    stored = "".join(str(code) for code in nibabel.aff2axcodes(affine))
    canonical = nibabel.as_closest_canonical(nibabel.Nifti1Image(data, affine))
    # axes to the right and front become columns to the left and rows to the back
    turned = np.asarray(canonical.dataobj).transpose(2, 1, 0)[:, ::-1, ::-1]
    volume = np.ascontiguousarray(turned, dtype=np.float32)
    x, y, z, origin = canonical.affine[:3].T
    normal = np.cross(x, y) / np.linalg.norm(np.cross(x, y))
    angle = float(np.degrees(np.arccos(min(1.0, abs(normal[2])))))
    oriented = int(image.header["sform_code"]) or int(image.header["qform_code"])
    notes = (
        (
            not known.all(),
            f"{100 * np.mean(~known):.1f} % of the voxels are not numbers and were set to the "
            f"minimum, {smallest:g}.",
        ),
        (
            not oriented,
            "The file states no orientation: the slices are assumed to be axial, as stored.",
        ),
        (unit == "unknown", "The file states no unit of length: millimetres are assumed."),
        (angle > _OBLIQUE, f"The slices lie {angle:.1f} degrees off the axial plane."),
        (
            stored[2] not in "SI",
            f"The voxels are stored as {stored}; slices were taken along the body's axis.",
        ),
        *((True, note) for note in air_notes(float(smallest))),
        (len(volume) == 1, "There is a single slice."),
    )
    return Scan(
        name=name,
        path=path,
        format="nifti",
        volume=volume,
        positions=origin @ normal + np.arange(len(volume)) * (z @ normal),
        spacing=(float(np.linalg.norm(y)), float(np.linalg.norm(x))),
        thickness=None,
        notes=tuple(note for holds, note in notes if holds),
        properties={
            "axes": stored,
            "units": unit,
            "datatype": str(image.get_data_dtype()),
            "description": image.header["descrip"]
            .tobytes()
            .split(b"\0")[0]
            .decode("latin-1")
            .strip(),
        },
    )


def _check_volume(path: Path, image: "Nifti1Image") -> None:
    """Compare the stated size of the volume with what is stored, before memory is taken."""
    shape, kind = image.shape, image.get_data_dtype()
    voxels = " x ".join(map(str, shape))
    if len(shape) < 3 or any(extra != 1 for extra in shape[3:]) or 0 in shape:
        raise SlideError(
            f"{path} has the shape {voxels}, where three dimensions were "
            "expected: write each volume to its own file"
        )
    if np.dtype(kind).kind not in "iuf":
        raise SlideError(f"{path} holds {kind}, where one number per voxel was expected")
    stored, size = path.stat().st_size, math.prod(shape) * np.dtype(kind).itemsize
    check_size(
        path, what="the volume", stated=4 * math.prod(shape), stored=stored, again="copy it again"
    )
    rest, most = (
        stored - int(getattr(image.dataobj, "offset", 0)),
        size + max(size // shape[2], 1) - 1,
    )
    if path.name.lower().endswith(".gz"):
        rest, most = 0, 2 * size + 2**24
        with gzip.open(path) as stream:  # to its end, where its checksum is: nibabel stops before
            while rest <= most and (block := stream.read(2**20)):
                rest += len(block)
    if not size <= rest <= most:
        raise SlideError(
            f"{path} is damaged: it states {voxels} voxels, {size:,} bytes, but {rest:,} are "
            "stored. Copy it again"
        )
