"""Read DICOM headers without loading pixels.

A file contains slices, or is an object of another kind, which the header names. Enhanced
multi-frame objects give one `Plane` per frame, from their functional groups.
"""

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import check_size
from ..errors import BagError, MissingExtra, SlideError

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

SCANS = ("CT", "MR", "PT", "NM", "OT", "")
"""Modalities whose images are slices of a volume. Some converters write OT or leave it empty."""
MAY_BE_OPENED = ("localizer", "screenshot")
"""Kinds that are skipped in a folder, but opened if the user names the file itself."""
SUFFIXES = (".dcm", ".dicom", ".ima")
# exceptions that pydicom raises on damaged files, besides its own errors
DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    zlib.error,
)
_DEFLATED = "1.2.840.10008.1.2.1.99"
_DIRECTORY = "1.2.840.10008.1.3.10"
_STORAGE = "1.2.840.10008.5.1.4.1.1."
_PARAMETRIC_MAP = _STORAGE + "30"
_SECONDARY_CAPTURE = _STORAGE + "7"
# CT, MR, PET, NM and their enhanced forms: an object of these classes without an image is broken
_IMAGE_CLASSES = tuple(_STORAGE + end for end in ("2", "2.1", "2.2", "4", "4.1", "20", "128"))
_DESCRIBED = (
    "Modality",
    "Manufacturer",
    "ManufacturerModelName",
    "SeriesDescription",
    "SeriesNumber",
    "ConvolutionKernel",
    "KVP",
    "PatientPosition",
    "SeriesInstanceUID",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plane:
    """One slice: the location of its pixels, and its position in the patient."""

    path: Path
    frame: int | None
    """Index of the frame in a multi-frame file; None if the file is one slice."""
    rows: int
    columns: int
    instance: int | None
    """InstanceNumber; for a frame, its place in the file."""
    position: tuple[float, ...] | None
    """ImagePositionPatient, mm: left, posterior, superior."""
    orientation: tuple[float, ...] | None
    """ImageOrientationPatient: the direction of a row, then that of a column."""
    location: float | None
    """SliceLocation, mm."""
    spacing: tuple[float, ...] | None
    thickness: float | None
    between: float | None
    """SpacingBetweenSlices, mm."""
    slope: float | None
    intercept: float | None
    units: str
    """RescaleType."""
    tilt: float | None
    """GantryDetectorTilt, degrees."""

    @property
    def label(self) -> str:
        """The name by which messages refer to the slice."""
        return (
            self.path.name if self.frame is None else f"frame {self.frame + 1} of {self.path.name}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The header of one DICOM file."""

    path: Path
    other: str | None
    """The kind of the object if it is not a slice of a scan: `SR`, `DICOMDIR`, `localizer`, …"""
    series: str
    number: str
    modality: str
    grey: bool
    """True if the image has a single grey channel."""
    photometric: str
    lossy: bool
    planes: tuple[Plane, ...]
    properties: dict[str, str]
    study: str = ""
    patient: str = ""
    """PatientID, used only to keep the scans of a patient together and never displayed."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress pydicom's warnings about values that violate the standard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def looks_like_dicom(path: Path) -> bool:
    """Return True if the file begins with the preamble, or with a header of group 2 or 8."""
    with path.open("rb") as f:
        start = f.read(132)
    if start[128:] == b"DICM":
        return True
    headless = start[:2] in (b"\x02\x00", b"\x08\x00") and len(start) == 132
    return headless and struct.unpack("<H", start[2:4])[0] <= 0x0100


def read(path: Path, *, pixels: bool) -> "Dataset":
    """Return the dataset of a file, with a transfer syntax even if the file states none.

    Raises:
        SlideError: the file is empty, damaged, or not DICOM.
        MissingExtra: pydicom is not installed.
    """
    dcmread, damaged = _pydicom()
    if path.stat().st_size == 0:
        raise SlideError(f"{path} is empty: copy it again")
    if not looks_like_dicom(path):
        raise SlideError(
            f"{path} is not DICOM: it begins neither with a preamble nor with a DICOM header"
        )
    try:
        _check_deflated(path)
        with path.open("rb") as f:
            dataset = dcmread(f, force=True, stop_before_pixels=not pixels)
            # pydicom stops before the pixels, so the remaining bytes show whether there are any
            left = path.stat().st_size - f.tell()
        _give_a_syntax(dataset)
    except BagError as error:
        raise SlideError(str(error)) from error
    except damaged as error:
        raise SlideError(f"{path} is damaged: {error}") from error
    deflated = dataset.file_meta.TransferSyntaxUID == _DEFLATED
    if not pixels and "Rows" in dataset and left < 8 and not deflated:
        raise SlideError(f"{path} has the header of an image but no pixels: copy it again")
    return dataset


def _check_deflated(path: Path) -> None:
    """Compare what a deflated file unpacks to with the limits, before pydicom unpacks it whole."""
    from pydicom.filereader import read_dataset, read_preamble

    with path.open("rb") as f:
        read_preamble(f, force=True)
        meta = read_dataset(
            f, is_implicit_VR=False, is_little_endian=True, stop_when=lambda tag, *_: tag >> 16 != 2
        )
        if meta.get("TransferSyntaxUID") != _DEFLATED:
            return
        stream, found, stored = zlib.decompressobj(-zlib.MAX_WBITS), 0, path.stat().st_size
        while block := stream.unconsumed_tail or f.read(2**16):
            found += len(stream.decompress(block, 2**20))
            check_size(
                path, what="its deflated part", stated=found, stored=stored, again="copy it again"
            )


def read_header(path: Path) -> Header:
    """Return the header of one file.

    Raises:
        SlideError: the file is damaged, or is an image without a position.
    """
    with quiet():
        dataset = read(path, pixels=False)
        try:
            return _header(path, dataset)
        except SlideError:
            raise
        except _pydicom()[1] as error:
            raise SlideError(f"{path} has a damaged header: {error}") from error


def number(dataset: "Dataset", key: str) -> float | None:
    """Return a value as a number; None if it is missing, empty or not a number."""
    found = numbers(dataset, key, 1)
    return None if found is None else found[0]


def numbers(dataset: "Dataset", key: str, count: int) -> tuple[float, ...] | None:
    """Return `count` values as numbers; None if they are missing or not numbers."""
    try:
        value = dataset.get(key)
        several = [value] if isinstance(value, (int, float, str)) else list(value or ())
        found = tuple(float(v) for v in several)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    finite = all(abs(v) < float("inf") for v in found)
    return found if len(found) == count and finite else None


def _pydicom() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return `dcmread`, and the exceptions that it raises on damaged files."""
    try:
        from pydicom import dcmread
        from pydicom.errors import BytesLengthException, InvalidDicomError
    except ImportError as error:
        raise MissingExtra("pydicom", "ct") from error
    return dcmread, (InvalidDicomError, BytesLengthException, *DAMAGED)


def _give_a_syntax(dataset: "Dataset") -> None:
    """Set the transfer syntax from the encoding that pydicom detected, if the file has none."""
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    if "TransferSyntaxUID" in dataset.file_meta:
        return
    implicit, little = dataset.original_encoding
    explicit = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else explicit


def _text(dataset: "Dataset", key: str) -> str:
    value = dataset.get(key)
    if value is None:
        return ""
    several = isinstance(value, (list, tuple)) or type(value).__name__ == "MultiValue"
    return "\\".join(map(str, value)) if several else str(value).strip()


def _header(path: Path, dataset: "Dataset") -> Header:
    photometric = _text(dataset, "PhotometricInterpretation")
    modality = _text(dataset, "Modality")
    other = _other(path, dataset, modality)
    lossy = _text(dataset, "LossyImageCompression") == "01"
    return Header(
        path=path,
        other=other,
        series=_text(dataset, "SeriesInstanceUID"),
        number=_text(dataset, "SeriesNumber"),
        modality=modality,
        grey=photometric in ("MONOCHROME1", "MONOCHROME2"),
        photometric=photometric,
        lossy=lossy,
        planes=_planes(path, dataset) if other in (None, *MAY_BE_OPENED) else (),
        properties={key: text for key in _DESCRIBED if (text := _text(dataset, key))},
        study=_text(dataset, "StudyInstanceUID"),
        patient=_text(dataset, "PatientID"),
    )


def _other(path: Path, dataset: "Dataset", modality: str) -> str | None:
    """Return the kind of the object if it is not a slice of a scan, otherwise None.

    Raises:
        SlideError: the object should contain an image but does not.
    """
    kind = _text(dataset, "SOPClassUID") or _text(dataset.file_meta, "MediaStorageSOPClassUID")
    if kind == _DIRECTORY:
        return "DICOMDIR"
    if kind == _PARAMETRIC_MAP:  # such as `probsa map` writes
        return "parametric map"
    if "Rows" not in dataset or "Columns" not in dataset:
        if kind in _IMAGE_CLASSES or (not kind and modality in SCANS):
            raise SlideError(f"{path} contains no image: it is empty or truncated; copy it again")
        return modality or "no image"
    if modality not in SCANS:
        return modality
    if kind.startswith(_SECONDARY_CAPTURE) and not _text(dataset, "ImageOrientationPatient"):
        several = (number(dataset, "NumberOfFrames") or 1) > 1
        return "film" if several else "screenshot"
    return "localizer" if "LOCALIZER" in _text(dataset, "ImageType").upper() else None


def _planes(path: Path, dataset: "Dataset") -> tuple[Plane, ...]:
    frames = dataset.get("PerFrameFunctionalGroupsSequence")
    if frames:
        shared = dataset.get("SharedFunctionalGroupsSequence") or [None]
        return tuple(
            _plane(path, dataset, _Groups(dataset, frame, shared[0]), index)
            for index, frame in enumerate(frames)
        )
    count = number(dataset, "NumberOfFrames") or 1
    if count > 1:
        raise SlideError(
            f"{path} has {count:.0f} frames but no position for each of them "
            "(PerFrameFunctionalGroupsSequence): convert it to enhanced CT or to one file per slice"
        )
    return (_plane(path, dataset, _Groups(dataset, None, None), None),)


class _Groups:
    """Look up values in a frame's functional groups, the shared groups, and the dataset."""

    def __init__(
        self, dataset: "Dataset", frame: "Dataset | None", shared: "Dataset | None"
    ) -> None:
        self._dataset = dataset
        self._places = [place for place in (frame, shared) if place is not None]

    def holder(self, sequence: str, key: str) -> "Dataset":
        """Return the dataset that `key` is read from."""
        for place in self._places:
            items = place.get(sequence)
            if items and key in items[0]:
                return items[0]
        return self._dataset

    def number(self, sequence: str, key: str) -> float | None:
        return number(self.holder(sequence, key), key)

    def numbers(self, sequence: str, key: str, count: int) -> tuple[float, ...] | None:
        return numbers(self.holder(sequence, key), key, count)


def _plane(path: Path, dataset: "Dataset", groups: _Groups, frame: int | None) -> Plane:
    instance = number(dataset, "InstanceNumber") if frame is None else frame + 1
    rescale = "PixelValueTransformationSequence"
    for key in ("RescaleSlope", "RescaleIntercept"):
        stated = _text(groups.holder(rescale, key), key)
        if stated and groups.number(rescale, key) is None:
            raise SlideError(f"{path}: {key} is {stated}, where a finite number was expected")
    measures = "PixelMeasuresSequence"
    return Plane(
        path=path,
        frame=frame,
        rows=int(dataset.Rows),
        columns=int(dataset.Columns),
        instance=None if instance is None else int(instance),
        position=groups.numbers("PlanePositionSequence", "ImagePositionPatient", 3),
        orientation=groups.numbers("PlaneOrientationSequence", "ImageOrientationPatient", 6),
        location=number(dataset, "SliceLocation") if frame is None else None,
        spacing=groups.numbers(measures, "PixelSpacing", 2),
        thickness=groups.number(measures, "SliceThickness"),
        between=groups.number(measures, "SpacingBetweenSlices"),
        slope=groups.number(rescale, "RescaleSlope"),
        intercept=groups.number(rescale, "RescaleIntercept"),
        units=_text(groups.holder(rescale, "RescaleType"), "RescaleType"),
        tilt=groups.number("CTAcquisitionDetailsSequence", "GantryDetectorTilt"),
    )
