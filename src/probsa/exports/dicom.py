"""Stage 10: write maps as DICOM parametric maps and segmentations, by highdicom.

One parametric map per quantity, and one segmentation of P(evidence) ≥ 0.5 with a segment per class.
All identifiers and times follow from the predictions and the source, so that a repeated export
gives the same objects.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import replacing
from ..errors import InputError
from .dicom_grids import DicomGrid, highdicom
from .provenance import Provenance
from .quantities import Quantity

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
"""P(evidence) from which a cell belongs to the segment."""
SERIES = {"mean": 9001, "std": 9002, "probability": 9003, "segmentation": 9004}
"""Series numbers, far from those of scanners."""
RESEARCH = "Research use only. Not a medical device."
TEXT = 64
"""Longest text of the value representation LO."""
FAULTS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Errors of highdicom for sources that lack something."""


def write_parametric_map(
    path: Path, quantity: Quantity, *, grid: DicomGrid, about: Provenance
) -> None:
    """Write one quantity as a parametric map of float32, atomically.

    Raises:
        InputError: The source lacks an attribute that the object needs.
        MissingExtra: highdicom is not installed.
    """
    hd = highdicom()
    from pydicom.sr.codedict import codes

    finite = quantity.values[np.isfinite(quantity.values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    concept = _concept(quantity.key)
    mapping = hd.pm.RealWorldValueMapping(
        lut_label=quantity.key.upper(),
        lut_explanation=f"{quantity.name} ({quantity.unit})"[:TEXT],
        unit=codes.UCUM.NoUnits,
        value_range=(low, high),
        slope=1.0,
        intercept=0.0,
        quantity_definition=concept,
    )
    window = hd.VOILUTTransformation(
        window_center=(low + high) / 2,
        window_width=max(high - low, 1e-6),
        voi_lut_function="LINEAR_EXACT",  # others need a width of 1 or more
    )
    with _sources_of(grid):
        dataset = hd.pm.ParametricMap(
            grid.sources,
            grid.frames(quantity.values)[..., None],
            real_world_value_mappings=[[mapping]],
            voi_lut_transformations=[window],
            contains_recognizable_visual_features=False,
            **_identity(grid, quantity.key, quantity.suffix, about=about, name=quantity.name),
            **grid.geometry,
        )
    if "ImageOrientationPatient" in grid.sources[0]:
        dataset.Laterality = grid.sources[0].get("Laterality")  # type 2C: may be empty
    _save(dataset, path, about=about, part=quantity.suffix)


def write_segmentation(
    path: Path, chances: Sequence[Quantity], *, grid: DicomGrid, about: Provenance
) -> None:
    """Write where P(evidence) ≥ 0.5 as a binary segmentation, atomically; it may be empty.

    Args:
        path: Path of the file.
        chances: P(evidence), one item per class.
        grid: Where the values lie.
        about: The origin of the values.

    Raises:
        InputError: The source lacks an attribute that the object needs.
        MissingExtra: highdicom is not installed.
    """
    hd = highdicom()
    from pydicom.sr.codedict import codes

    algorithm = hd.AlgorithmIdentificationSequence(
        name=about.model[:TEXT], family=codes.DCM.ArtificialIntelligence, version=about.version
    )
    segments = [
        hd.seg.SegmentDescription(
            segment_number=number,
            segment_label=f"P(evidence) >= {THRESHOLD:g} {q.class_name}".strip()[:TEXT],
            segmented_property_category=_concept("evidence"),
            segmented_property_type=_concept("probability"),
            algorithm_type="AUTOMATIC",
            algorithm_identification=algorithm,
        )
        for number, q in enumerate(chances, start=1)
    ]
    mask = np.stack([grid.frames(q.values) >= THRESHOLD for q in chances], axis=-1)
    with _sources_of(grid):
        dataset = hd.seg.Segmentation(
            grid.sources,
            mask.astype(np.uint8),
            "BINARY",
            segments,
            omit_empty_frames=bool(mask.any()),
            **_identity(grid, "segmentation", "segmentation", about=about, name="P(evidence)"),
            **grid.geometry,
        )
    if "ImageOrientationSlide" in grid.sources[0]:
        dataset.PatientOrientation = None  # type 2C, and unknown on a slide
    _save(dataset, path, about=about, part="segmentation")


def _concept(key: str) -> Any:
    return highdicom().sr.CodedConcept(
        value=key.upper(), scheme_designator=SCHEME, meaning=MEANINGS[key]
    )


def _identity(
    grid: DicomGrid, series: str, part: str, *, about: Provenance, name: str
) -> dict[str, Any]:
    source = str(grid.sources[0].SeriesInstanceUID)
    return {
        "series_instance_uid": _uid(about, source, "series", series),
        "series_number": SERIES[series],
        "sop_instance_uid": _uid(about, source, "object", part),
        "instance_number": 1 + int(part.rpartition("_class")[2] if "_class" in part else 0),
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


def _save(dataset: "Dataset", path: Path, *, about: Provenance, part: str) -> None:
    """Replace what highdicom drew at random or read from the clock, and write the file."""
    day, time = about.predicted.strftime("%Y%m%d"), about.predicted.strftime("%H%M%S")
    for what in ("Content", "InstanceCreation", "Series"):
        if f"{what}Date" in dataset or what == "Content":
            setattr(dataset, f"{what}Date", day)
            setattr(dataset, f"{what}Time", time)
    for equipment in dataset.get("ContributingEquipmentSequence", ()):
        if equipment.ManufacturerModelName == "highdicom":
            equipment.ContributionDateTime = f"{day}{time}"
    organisation = _uid(about, str(dataset.SOPInstanceUID), "dimensions", part)
    for item in (*dataset.DimensionOrganizationSequence, *dataset.DimensionIndexSequence):
        item.DimensionOrganizationUID = organisation
    dataset.ImageComments = "; ".join(
        f"{key}: {value}" for key, value in about.entries.items() if key != "predicted"
    )
    with replacing(path) as temporary:
        dataset.save_as(temporary, enforce_file_format=True)


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
    except FAULTS as error:
        name = grid.sources[0].get("filename", "the source")
        raise InputError(f"{name} lacks what a DICOM map needs: {error}") from error
    finally:
        logger.setLevel(before)
