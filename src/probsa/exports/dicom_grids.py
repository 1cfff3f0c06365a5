"""Stage 10: where the values of a bag lie in a DICOM slide or a CT series.

Sources are read without their pixels. Attributes of type 2 that de-identification removed are added
to the copies in memory, empty.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from ..cohorts import Record
from ..errors import InputError, MissingExtra
from ..evaluation import Prediction
from ..maps import Squares, match_positions
from .rasters import raster_of_patches
from .series import series_slices

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

TYPE_2 = (
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyID", "StudyDate",
    "StudyTime", "AccessionNumber", "ReferringPhysicianName",
)  # fmt: skip
"""Attributes that may be empty but must be present."""
COARSE = 4
"""Pixels along a side of a slice of a parametric map: each slice has a single value."""
TILE = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class DicomGrid:
    """The source images of an object and the places of its frames."""

    sources: tuple["Dataset", ...]
    frames: Callable[[Shaped[np.ndarray, " n"]], Shaped[np.ndarray, "frames height width"]]
    """Turns the value of each instance into frames; cells without an instance are NaN."""
    geometry: dict[str, Any] = field(default_factory=dict)
    """Arguments of highdicom's classes; empty: the geometry of the sources."""


def grid_of_slide(record: Record, patches: Squares, *, size: tuple[int, int]) -> DicomGrid:
    """Return the grid of the patches of a DICOM slide.

    Raises:
        InputError: The file is not the level of the pyramid that the patches were cut from, or does
            not state where it lies on the glass.
        MissingExtra: highdicom is not installed.
    """
    hd = highdicom()
    source = _read(Path(record.source))
    stated = (source.get("TotalPixelMatrixColumns"), source.get("TotalPixelMatrixRows"))
    if stated != size:
        raise InputError(
            f"{record.source} has {stated[0]} × {stated[1]} pixels, but level 0 of its slide has "
            f"{size[0]} × {size[1]}: give the file of level 0"
        )
    try:
        measures = source.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
        row_spacing, column_spacing = (float(v) for v in measures.PixelSpacing)
        along_row, along_column = np.array(source.ImageOrientationSlide, np.float64).reshape(2, 3)
        place = source.TotalPixelMatrixOriginSequence[0]
        origin = [
            float(place.get(f"{axis}OffsetInSlideCoordinateSystem", 0.0)) for axis in "XYZ"
        ]  # fmt: skip
    except (AttributeError, IndexError, ValueError) as error:
        raise InputError(
            f"{record.source} does not state where it lies on the glass ({error}), which a DICOM "
            "map needs: export it as OME-TIFF"
        ) from error
    raster = raster_of_patches(patches)
    # positions are those of the centres of pixels: half a cell from the corner of the first cell,
    # less the half pixel by which the slide's own origin lies inside its first pixel
    x, y = raster.left + (raster.cell - 1) / 2, raster.top + (raster.cell - 1) / 2
    corner = origin + along_row * x * column_spacing + along_column * y * row_spacing
    height, width = raster.owners.shape
    return DicomGrid(
        sources=(source,),
        frames=lambda values: raster.fill(values)[None],
        geometry={
            "pixel_measures": hd.PixelMeasuresSequence(
                pixel_spacing=_decimals(row_spacing * raster.cell, column_spacing * raster.cell),
                slice_thickness=float(measures.get("SliceThickness") or 0.001),
            ),
            "plane_orientation": hd.PlaneOrientationSequence("SLIDE", source.ImageOrientationSlide),
            "plane_positions": [
                hd.PlanePositionSequence("SLIDE", _decimals(*corner), pixel_matrix_position=(1, 1))
            ],
            "tile_pixel_array": True,
            "tile_size": (min(TILE, height), min(TILE, width)),
        },
    )


def grid_of_series(record: Record, p: Prediction, *, coarse: bool) -> DicomGrid:
    """Return the grid of the slices of a CT series that are instances of the bag.

    Args:
        record: The series.
        p: The bag's prediction.
        coarse: Whether a slice has `COARSE` pixels along each side, which cover it exactly, instead
            of those of the source.

    Raises:
        InputError: The series has no slice at one of the bag's positions, or is not placed in
            space.
        MissingExtra: highdicom is not installed.
    """
    hd = highdicom()
    slices = series_slices(record)
    positions = np.array([s.position for s in slices])
    index = match_positions(p, positions, path=Path(record.source))
    order = np.argsort(positions[index], kind="stable")
    chosen = [slices[k] for k in index[order]]
    first = chosen[0]
    shape = (COARSE, COARSE) if coarse else (first.rows, first.columns)
    geometry: dict[str, Any] = {}
    sources = tuple(_read(s.path) for s in chosen)
    if coarse:
        across, down = first.columns / COARSE, first.rows / COARSE
        shifts = [
            s.orientation[0] * s.spacing[1] * (across - 1) / 2
            + s.orientation[1] * s.spacing[0] * (down - 1) / 2
            for s in chosen
        ]
        geometry = {
            "pixel_measures": hd.PixelMeasuresSequence(
                pixel_spacing=_decimals(first.spacing[0] * down, first.spacing[1] * across),
                slice_thickness=float(sources[0].get("SliceThickness") or 0) or _thickness(chosen),
            ),
            "plane_orientation": hd.PlaneOrientationSequence(
                "PATIENT", sources[0].ImageOrientationPatient
            ),
            "plane_positions": [
                hd.PlanePositionSequence("PATIENT", _decimals(*(s.corner + shift)))
                for s, shift in zip(chosen, shifts, strict=True)
            ],
        }

    def frames(values: np.ndarray) -> np.ndarray:
        return np.repeat(values[order], shape[0] * shape[1]).reshape(-1, *shape)

    return DicomGrid(sources=sources, frames=frames, geometry=geometry)


def highdicom():  # noqa: ANN201 - the package is imported only when it is used
    """Return the package highdicom.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import highdicom
    except ImportError as error:
        raise MissingExtra("highdicom", "dicom") from error
    return highdicom


def _read(path: Path) -> "Dataset":
    from pydicom import dcmread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # values that violate the standard
        dataset = dcmread(path, stop_before_pixels=True)
    for keyword in TYPE_2:
        if keyword not in dataset:
            setattr(dataset, keyword, None)
    if not dataset.get("FrameOfReferenceUID"):
        raise InputError(f"{path} has no FrameOfReferenceUID, so a map cannot refer to its space")
    return dataset


def _thickness(chosen: list[Any]) -> float:
    steps = np.diff([s.position for s in chosen])
    return float(np.median(steps)) if len(steps) else 1.0


def _decimals(*values: float) -> list[float]:
    """Round to what a decimal string of 16 characters can hold, for any value below 10 m."""
    return [float(f"{v:.9f}") for v in values]
