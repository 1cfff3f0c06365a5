"""Stage 10: write maps as DICOM parametric maps and segmentations, by highdicom.

One parametric map per quantity, and one segmentation of probability ≥ 0.5 with a segment per class.
All identifiers and times follow from the predictions and the source, so that a repeated export
gives the same objects. Sources are read without their pixels.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from ..cohorts import Record
from ..core import is_fault
from ..errors import InputError, imports_from
from ..evaluation import Prediction
from ..maps import Layout, checked_squares, match_slices, raster
from .bag import ExportBag
from .provenance import Provenance
from .quantities import Channel
from .series import series_planes, steps_of

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

SCHEME = "99PROBSA"
"""Our coding scheme; docs/exports.md lists its codes."""
MEANINGS = {
    "mean": "Mean of the model's score",
    "std": "Standard deviation of the model's score",
    "probability": "Probability of evidence",
    "evidence": "Evidence found by a model",
}
THRESHOLD = 0.5
"""Probability from which a cell belongs to the segment."""
SERIES = {"mean": 9001, "std": 9002, "probability": 9003, "segmentation": 9004}
"""Series numbers, far from those of scanners."""
RESEARCH = "Research use only. Not a medical device."
ASCII = {"±": "+/-", "−": "-", "≥": ">=", "µ": "u"}
"""Signs of our texts that DICOM's default character set lacks."""
TEXT = 64
"""Longest text of the value representation LO."""
LACKING = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors of highdicom for sources that lack something."""
TYPE_2 = (
    "PatientID",
    "PatientName",
    "PatientBirthDate",
    "PatientSex",
    "StudyID",
    "StudyDate",
    "StudyTime",
    "AccessionNumber",
    "ReferringPhysicianName",
)
"""Attributes that may be empty but must be present; de-identification may have removed them, and
they are added to the copies in memory."""
NEEDS_DICOM = "a DICOM map refers to the DICOM images that it describes"
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


def write_dicom(bag: ExportBag) -> None:
    """Write one parametric map per quantity, and the segmentation if there is a probability."""
    record = bag.placed.record(bag.p)
    if record.kind == "slide":
        with bag.slide("DICOM") as slide:
            if slide.format != "dicom":
                raise InputError(
                    f"{record.source} is not DICOM: {NEEDS_DICOM}. Convert the slide (for example "
                    "with wsidicomizer) and predict it again, or export it with --ome-tiff"
                )
            patches = checked_squares(bag.p, slide, sources=bag.placed)
            grid = mask_grid = _of_slide(record, patches, size=slide.size)
    elif record.format == "nifti":
        raise InputError(f"{record.source} is NIfTI: {NEEDS_DICOM}. Export it with --nifti")
    else:
        grid, mask_grid = _of_series(record, bag.p)
    for channel in bag.channels:
        _save(bag, _parametric_map(bag, channel, grid), part=channel.suffix)
    if probabilities := bag.of("probability"):
        _save(bag, _segmentation(bag, probabilities, mask_grid), part="segmentation")


def _of_slide(record: Record, patches: Layout, *, size: tuple[int, int]) -> DicomGrid:
    """Return the grid of a slide, whose cells are the squares of the patches."""
    hd = highdicom()
    source = _read(Path(record.source))
    columns = source.get("TotalPixelMatrixColumns")
    rows = source.get("TotalPixelMatrixRows")
    if (columns, rows) != size:
        raise InputError(
            f"{record.source} has {columns} × {rows} pixels, but level 0 of its slide has "
            f"{size[0]} × {size[1]}: give the file of level 0"
        )
    try:
        measures = source.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0]
        row_spacing, column_spacing = (float(v) for v in measures.PixelSpacing)
        along_row, along_column = np.array(source.ImageOrientationSlide, np.float64).reshape(2, 3)
        place = source.TotalPixelMatrixOriginSequence[0]
        origin = [float(place.get(f"{axis}OffsetInSlideCoordinateSystem", 0.0)) for axis in "XYZ"]
    except (AttributeError, IndexError, ValueError) as error:
        if is_fault(error):
            raise
        raise InputError(
            f"{record.source} does not state where it lies on the glass ({error}), which a DICOM "
            "map needs: export it as OME-TIFF"
        ) from error
    cells = raster(patches)
    # positions are those of the centres of pixels: half a cell from the corner of the first cell,
    # less the half pixel by which the slide's own origin lies inside its first pixel
    x = cells.left + (cells.cell - 1) / 2
    y = cells.top + (cells.cell - 1) / 2
    corner = origin + along_row * x * column_spacing + along_column * y * row_spacing
    height, width = cells.owners.shape
    return DicomGrid(
        sources=(source,),
        frames=lambda values: cells.fill(values)[None],
        geometry={
            "pixel_measures": hd.PixelMeasuresSequence(
                pixel_spacing=_decimals(row_spacing * cells.cell, column_spacing * cells.cell),
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


def _of_series(record: Record, p: Prediction) -> tuple[DicomGrid, DicomGrid]:
    """Return the grids of the slices that are instances of the bag.

    In the first, for parametric maps, a slice has `COARSE` pixels along each side, which cover it
    exactly; the second has the pixels of the source.
    """
    hd = highdicom()
    positions, planes = series_planes(record)
    index = match_slices(p, positions, path=Path(record.source))
    order = np.argsort(positions[index], kind="stable")
    bag_planes = [planes[k] for k in index[order]]
    first = bag_planes[0]
    assert first.spacing is not None
    sources = tuple(_read(plane.path) for plane in bag_planes)
    gaps = np.diff(positions[index[order]])
    usual_gap = float(np.median(gaps)) if len(gaps) else 1.0
    # centres of the coarse pixels lie further inside than those of the source
    factors = np.array([first.columns, first.rows]) / COARSE
    corners = [plane.position + (factors - 1) / 2 @ steps_of(plane) for plane in bag_planes]
    across, down = factors.tolist()
    geometry = {
        "pixel_measures": hd.PixelMeasuresSequence(
            pixel_spacing=_decimals(first.spacing[0] * down, first.spacing[1] * across),
            slice_thickness=float(sources[0].get("SliceThickness") or 0) or usual_gap,
        ),
        "plane_orientation": hd.PlaneOrientationSequence(
            "PATIENT", sources[0].ImageOrientationPatient
        ),
        "plane_positions": [
            hd.PlanePositionSequence("PATIENT", _decimals(*corner)) for corner in corners
        ],
    }

    def frames(rows: int, columns: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda values: np.repeat(values[order], rows * columns).reshape(-1, rows, columns)

    return (
        DicomGrid(sources=sources, frames=frames(COARSE, COARSE), geometry=geometry),
        DicomGrid(sources=sources, frames=frames(first.rows, first.columns)),
    )


def _parametric_map(bag: ExportBag, channel: Channel, grid: DicomGrid) -> "Dataset":
    """Return one quantity as a parametric map of float32."""
    hd = highdicom()
    from pydicom.sr.codedict import codes

    finite = channel.values[np.isfinite(channel.values)]
    low, high = 0.0, 1.0
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
    mapping = hd.pm.RealWorldValueMapping(
        lut_label=channel.key.upper(),
        lut_explanation=f"{channel.name} ({channel.unit})"[:TEXT],
        unit=codes.UCUM.NoUnits,
        value_range=(low, high),
        slope=1.0,
        intercept=0.0,
        quantity_definition=_concept(channel.key),
    )
    window = hd.VOILUTTransformation(
        window_center=(low + high) / 2,
        window_width=max(high - low, 1e-6),
        voi_lut_function="LINEAR_EXACT",  # others need a width of 1 or more
    )
    with _sources_of(grid):
        dataset = hd.pm.ParametricMap(
            grid.sources,
            grid.frames(channel.values)[..., None],
            real_world_value_mappings=[[mapping]],
            voi_lut_transformations=[window],
            contains_recognizable_visual_features=False,
            **_identity(
                bag,
                grid,
                series=channel.key,
                part=channel.suffix,
                number=1 + (channel.column or 0),
                name=channel.name,
            ),
            **grid.geometry,
        )
    if "ImageOrientationPatient" in grid.sources[0]:
        dataset.Laterality = grid.sources[0].get("Laterality")  # type 2C: may be empty
    return dataset


def _segmentation(bag: ExportBag, probabilities: Sequence[Channel], grid: DicomGrid) -> "Dataset":
    """Return where the probability is ≥ 0.5, with a segment per class; it may be empty."""
    hd = highdicom()
    from pydicom.sr.codedict import codes

    algorithm = hd.AlgorithmIdentificationSequence(
        name=bag.about.model[:TEXT],
        family=codes.DCM.ArtificialIntelligence,
        version=bag.about.version,
    )
    segments = [
        hd.seg.SegmentDescription(
            segment_number=number,
            segment_label=f"probability >= {THRESHOLD:g} {q.class_name}".strip()[:TEXT],
            segmented_property_category=_concept("evidence"),
            segmented_property_type=_concept("probability"),
            algorithm_type="AUTOMATIC",
            algorithm_identification=algorithm,
        )
        for number, q in enumerate(probabilities, start=1)
    ]
    mask = np.stack([grid.frames(q.values) >= THRESHOLD for q in probabilities], axis=-1)
    with _sources_of(grid):
        dataset = hd.seg.Segmentation(
            grid.sources,
            mask.astype(np.uint8),
            "BINARY",
            segments,
            omit_empty_frames=bool(mask.any()),
            **_identity(
                bag,
                grid,
                series="segmentation",
                part="segmentation",
                number=1,
                name="probability",
            ),
            **grid.geometry,
        )
    if "ImageOrientationSlide" in grid.sources[0]:
        dataset.PatientOrientation = None  # type 2C, and unknown on a slide
    return dataset


def _concept(key: str) -> Any:
    return highdicom().sr.CodedConcept(key.upper(), SCHEME, MEANINGS[key])


def _identity(
    bag: ExportBag, grid: DicomGrid, *, series: str, part: str, number: int, name: str
) -> dict[str, Any]:
    """Return what tells an object from others, by the names of highdicom's arguments.

    Args:
        bag: The bag.
        grid: The source images, from whose series the identifiers follow.
        series: Key of `SERIES`.
        part: What the file's name ends with.
        number: The number of the object in its series, from 1.
        name: What the object shows.
    """
    source = str(grid.sources[0].SeriesInstanceUID)
    about = bag.about
    return {
        "series_instance_uid": _uid(about, source, "series", series),
        "series_number": SERIES[series],
        "sop_instance_uid": _uid(about, source, "object", part),
        "instance_number": number,
        "manufacturer": "probsa developers",
        "manufacturer_model_name": about.model[:TEXT],
        "software_versions": f"probsa {about.version}",
        "device_serial_number": about.digest[:16],
        "content_description": RESEARCH,
        "content_label": series.upper()[:16],
        "series_description": f"probsa {name}, {about.score_kind}; research use only"[:TEXT],
    }


def _uid(about: Provenance, *parts: str) -> str:
    return f"2.25.{about.identifier('dicom', *parts).int}"


def _save(bag: ExportBag, dataset: "Dataset", *, part: str) -> None:
    """Replace what highdicom drew at random or read from the clock, and write the file."""
    about = bag.about
    day = about.predicted.strftime("%Y%m%d")
    time = about.predicted.strftime("%H%M%S")
    for event in ("Content", "InstanceCreation", "Series"):
        if f"{event}Date" in dataset or event == "Content":
            setattr(dataset, f"{event}Date", day)
            setattr(dataset, f"{event}Time", time)
    for equipment in dataset.get("ContributingEquipmentSequence", ()):
        if equipment.ManufacturerModelName == "highdicom":
            equipment.ContributionDateTime = f"{day}{time}"
    organisation = _uid(about, str(dataset.SOPInstanceUID), "dimensions", part)
    for item in (*dataset.DimensionOrganizationSequence, *dataset.DimensionIndexSequence):
        item.DimensionOrganizationUID = organisation
    # the time of the predictions is that of the content
    comments = [f"{key}: {value}" for key, value in about.entries.items() if key != "predicted"]
    dataset.ImageComments = _in_ascii("; ".join(comments))
    with bag.file(f"_{part}.dcm") as path:
        dataset.save_as(path, enforce_file_format=True)


def _in_ascii(text: str) -> str:
    """Return a text in the character set that DICOM has by default."""
    for sign, plain in ASCII.items():
        text = text.replace(sign, plain)
    return text.encode("ascii", "replace").decode("ascii")


@contextmanager
def _sources_of(grid: DicomGrid) -> Iterator[None]:
    """Raise what highdicom finds wrong with the sources as InputError, and hide its remarks."""
    logger = logging.getLogger("highdicom")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    except LACKING as error:
        if is_fault(error):
            raise
        name = grid.sources[0].get("filename", "the source")
        raise InputError(f"{name} lacks what a DICOM map needs: {error}") from error
    finally:
        logger.setLevel(before)


def highdicom():  # noqa: ANN201 - the package is imported only when it is used
    """Return the package highdicom."""
    with imports_from("dicom", "highdicom"):
        import highdicom
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


def _decimals(*values: float) -> list[float]:
    """Round to what a decimal string of 16 characters can hold, for any value below 10 m."""
    return [float(f"{v:.9f}") for v in values]
