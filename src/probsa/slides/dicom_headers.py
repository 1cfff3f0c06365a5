"""Read DICOM headers without loading pixels.

A file contains slices, or is an object of another kind, which the header names. Enhanced
multi-frame objects give one `Plane` per frame, from their functional groups.
"""

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import check_size
from ..errors import SlideError, imports_from
from ._base import decoding

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

SCANS = ("CT", "MR", "PT", "NM", "OT", "")
"""Modalities whose images are slices of a volume. Some converters write OT, or none at all."""
MAY_BE_OPENED = ("localizer", "screenshot")
"""Kinds that are skipped in a folder, but opened if the user names the file itself."""
SUFFIXES = (".dcm", ".dicom", ".ima")
_DEFLATED = "1.2.840.10008.1.2.1.99"
_STORAGE = "1.2.840.10008.5.1.4.1.1."
_KINDS = {"1.2.840.10008.1.3.10": "DICOMDIR", _STORAGE + "30": "parametric map"}
"""Classes of objects that are never slices; `probsa map` writes parametric maps."""
_SECONDARY_CAPTURE = _STORAGE + "7"
# CT, MR, PET, NM and their enhanced forms: an object of these classes without an image is broken
_IMAGE_CLASSES = tuple(_STORAGE + end for end in ("2", "2.1", "2.2", "4", "4.1", "20", "128"))
_PREFIX_BYTES = 1024
"""Bytes at the start of a file that tell whether it is DICOM."""
_UID_ROOT = b"1.2.840.10008."
"""How the identifiers begin that DICOM itself defines."""
_ELEMENT_HEADER = 8
"""Bytes of the shortest header of a data element: group, element, type and length."""
_UNDEFINED = 0xFFFFFFFF
"""The length of a sequence that ends with a delimiter."""
_LONG_KINDS = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"UC", b"UN", b"UR", b"UT")
"""Value representations with a length of four bytes."""
_SHORT_KINDS = tuple(b"AE AS AT CS DA DS DT FD FL IS LO LT PN SH SL SS ST TM UI UL US".split())
"""Value representations with a length of two bytes."""
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
_FUNCTIONAL_GROUPS = {
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "SliceThickness": "PixelMeasuresSequence",
    "SpacingBetweenSlices": "PixelMeasuresSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
    "RescaleType": "PixelValueTransformationSequence",
    "GantryDetectorTilt": "CTAcquisitionDetailsSequence",
}
"""The functional group of a frame (or shared by all frames) that holds a value, by its keyword."""


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
        frame = "" if self.frame is None else f"frame {self.frame + 1} of "
        return frame + self.path.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The header of one DICOM file."""

    path: Path
    other: str | None
    """The kind of the object if it is not a slice of a scan: `SR`, `DICOMDIR`, `localizer`, …"""
    series: str
    number: str
    modality: str
    photometric: str
    lossy: bool
    planes: tuple[Plane, ...]
    properties: dict[str, str]
    study: str = ""
    patient: str = ""
    """PatientID, which keeps the scans of a patient together and is never displayed."""

    @property
    def grey(self) -> bool:
        """True if the image has a single grey channel."""
        return self.photometric in ("MONOCHROME1", "MONOCHROME2")


def looks_like_dicom(path: Path) -> bool:
    """Return True if the file has the mark after the preamble, or begins with a header's elements.

    The preamble is 128 bytes of any content, which the mark `DICM` follows.
    """
    with path.open("rb") as f:
        start = f.read(_PREFIX_BYTES)
        size = f.seek(0, 2)
    return start[128:132] == b"DICM" or (len(start) >= 132 and _has_elements(start, size))


def _has_elements(start: bytes, size: int) -> bool:
    """Return True if these first bytes are data elements of group 2 or 8 in ascending order.

    Old files have no preamble. A number at the start of another file may look like a first element,
    but not like several whose lengths lead from one to the next.
    """

    def number_at(offset: int, width: int) -> int:
        return int.from_bytes(start[offset : offset + width], "little")

    if number_at(0, 2) not in (2, 8) or number_at(2, 2) > 0x0100:
        return False
    position = 0
    count = 0
    last_tag = (0, -1)
    while position + 12 <= len(start):
        tag = (number_at(position, 2), number_at(position + 2, 2))
        group, element = tag
        if group % 2 or tag <= last_tag:  # odd groups are private
            return False
        last_tag = tag
        kind = start[position + 4 : position + 6]
        if kind in _LONG_KINDS:
            header = 12
            length = number_at(position + 8, 4)
        elif kind in _SHORT_KINDS:
            header = 8
            length = number_at(position + 6, 2)
        else:  # implicit: the length stands where the kind would
            header = 8
            length = number_at(position + 4, 4)
        count += 1
        if start.startswith(_UID_ROOT, position + header):
            return True  # a class or a transfer syntax, after which the rest may be deflated
        if length == _UNDEFINED:
            break
        end = position + header + length
        is_group_length = element == 0  # always four bytes
        if length % 2 or end > size or (is_group_length and length != 4):
            return False
        position = end
    # three elements, or two of which the second leads beyond the bytes at hand
    return count >= 3 or (count == 2 and position > len(start))


def read(path: Path, *, pixels: bool) -> "Dataset":
    """Return the dataset of a file, with a transfer syntax even if the file states none.

    Args:
        path: The file.
        pixels: Whether to read the pixels too.

    Raises:
        SlideError: the file is empty, damaged, not DICOM, or has the header of an image but no
            pixels.
        MissingExtra: pydicom is not installed.
    """
    with imports_from("ct", "pydicom"):
        from pydicom import dcmread, uid
    if path.stat().st_size == 0:
        raise SlideError(f"{path} is empty: copy it again")
    if not looks_like_dicom(path):
        raise SlideError(
            f"{path} is not DICOM: it begins neither with a preamble nor with a DICOM header"
        )
    with decoding(path):
        _check_deflated(path)
        with path.open("rb") as f:
            dataset = dcmread(f, force=True, stop_before_pixels=not pixels)
            # pydicom stops before the pixels, so the remaining bytes show whether there are any
            bytes_left = path.stat().st_size - f.tell()
        if "TransferSyntaxUID" not in dataset.file_meta:
            is_implicit, is_little_endian = dataset.original_encoding
            if is_implicit:
                syntax = uid.ImplicitVRLittleEndian
            elif is_little_endian:
                syntax = uid.ExplicitVRLittleEndian
            else:
                syntax = uid.ExplicitVRBigEndian
            dataset.file_meta.TransferSyntaxUID = syntax
    syntax = dataset.file_meta.TransferSyntaxUID
    if not isinstance(syntax, uid.UID) or not syntax.is_transfer_syntax:
        raise SlideError(
            f"{path}: the transfer syntax is {str(syntax)[:80]!r}, expected one of DICOM: "
            "export the file again"
        )
    # a deflated file is unpacked as a whole, so that no bytes are left
    may_lack_pixels = not pixels and "Rows" in dataset and syntax != _DEFLATED
    if may_lack_pixels and bytes_left < _ELEMENT_HEADER:
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
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        stored_bytes = path.stat().st_size
        unpacked_bytes = 0
        while block := stream.unconsumed_tail or f.read(2**16):
            unpacked_bytes += len(stream.decompress(block, 2**20))
            check_size(
                path,
                what="its deflated part",
                stated=unpacked_bytes,
                stored=stored_bytes,
                again="copy it again",
            )


def read_header(path: Path) -> Header:
    """Return the header of one file.

    Raises:
        SlideError: the file is damaged, its image is missing or has no size, or it has several
            frames without a position for each of them.
    """
    with decoding(path):
        dataset = read(path, pixels=False)
        other = _other_kind(path, dataset)
        texts = {key: _text(dataset, key) for key in _DESCRIBED}
        return Header(
            path=path,
            other=other,
            series=_text(dataset, "SeriesInstanceUID"),
            number=_text(dataset, "SeriesNumber"),
            modality=_text(dataset, "Modality"),
            photometric=_text(dataset, "PhotometricInterpretation"),
            lossy=_text(dataset, "LossyImageCompression") == "01",
            planes=_planes(path, dataset) if other in (None, *MAY_BE_OPENED) else (),
            properties={key: text for key, text in texts.items() if text},
            study=_text(dataset, "StudyInstanceUID"),
            patient=_text(dataset, "PatientID"),
        )


def numbers(dataset: "Dataset", key: str, count: int) -> tuple[float, ...] | None:
    """Return `count` finite values; None if there are not as many, or not only finite numbers."""
    try:
        value = dataset.get(key)
        items = [value] if isinstance(value, (int, float, str)) else list(value or ())
        values = tuple(float(item) for item in items)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
    if len(values) != count or not all(map(math.isfinite, values)):
        return None
    return values


def number(dataset: "Dataset", key: str) -> float | None:
    """Return a finite number; None if it is missing, empty or not a number."""
    values = numbers(dataset, key, 1)
    return None if values is None else values[0]


def _text(dataset: "Dataset", key: str) -> str:
    """Return a value as text, several values separated by backslashes; empty if it is missing."""
    from pydicom.multival import MultiValue

    value = dataset.get(key)
    if isinstance(value, (list, tuple, MultiValue)):
        return "\\".join(map(str, value))
    return "" if value is None else str(value).strip()


def _items(dataset: "Dataset", key: str) -> "list[Dataset]":
    """Return the items of a sequence; none if it is missing, empty or of another type."""
    from pydicom.sequence import Sequence

    value = dataset.get(key)
    return list(value) if isinstance(value, Sequence) else []


def _side(path: Path, dataset: "Dataset", key: str) -> int:
    """Return `Rows` or `Columns`.

    Raises:
        SlideError: it is empty, or not one positive number.
    """
    value = number(dataset, key)
    if value is None or value < 1:
        raise SlideError(
            f"{path}: {key} is {_text(dataset, key) or 'empty'}, where a positive number was "
            "expected: copy it again"
        )
    return int(value)


def _other_kind(path: Path, dataset: "Dataset") -> str | None:
    """Return the kind of the object if it is not a slice of a scan, otherwise None.

    Raises:
        SlideError: the object should contain an image but does not.
    """
    modality = _text(dataset, "Modality")
    sop_class = _text(dataset, "SOPClassUID")
    if not sop_class:
        sop_class = _text(dataset.file_meta, "MediaStorageSOPClassUID")
    if sop_class in _KINDS:
        return _KINDS[sop_class]
    if "Rows" not in dataset or "Columns" not in dataset:
        if sop_class in _IMAGE_CLASSES or (not sop_class and modality in SCANS):
            raise SlideError(f"{path} contains no image: it is empty or truncated; copy it again")
        return modality or "no image"
    if modality not in SCANS:
        return modality
    is_capture = sop_class.startswith(_SECONDARY_CAPTURE)
    if is_capture and not _text(dataset, "ImageOrientationPatient"):
        frames = number(dataset, "NumberOfFrames") or 1
        return "film" if frames > 1 else "screenshot"
    if "LOCALIZER" in _text(dataset, "ImageType").upper():
        return "localizer"
    return None


def _planes(path: Path, dataset: "Dataset") -> tuple[Plane, ...]:
    """Return the slices of an image: one, or those of its frames."""
    frames = _items(dataset, "PerFrameFunctionalGroupsSequence")
    if frames:
        shared = _items(dataset, "SharedFunctionalGroupsSequence")[:1]
        return tuple(_plane(path, dataset, (group, *shared), i) for i, group in enumerate(frames))
    count = number(dataset, "NumberOfFrames") or 1
    if count > 1:
        raise SlideError(
            f"{path} has {count:.0f} frames but no position for each of them "
            "(PerFrameFunctionalGroupsSequence): convert it to enhanced CT or to one file per slice"
        )
    return (_plane(path, dataset, (), None),)


def _plane(
    path: Path, dataset: "Dataset", groups: "tuple[Dataset, ...]", frame: int | None
) -> Plane:
    """Return one slice.

    Args:
        path: The file.
        dataset: Its header.
        groups: The functional groups of the frame, then those of all frames; empty for a file that
            is one slice.
        frame: The index of the frame; None for a file that is one slice.

    Raises:
        SlideError: The image has no size, or the rescale is not a number.
    """

    def holder(key: str) -> "Dataset":
        """Return what holds a value: a functional group, or else the header itself."""
        for group in groups:
            items = _items(group, _FUNCTIONAL_GROUPS[key])
            if items and key in items[0]:
                return items[0]
        return dataset

    def values_of(key: str, count: int) -> tuple[float, ...] | None:
        return numbers(holder(key), key, count)

    def value_of(key: str) -> float | None:
        return number(holder(key), key)

    def rescale(key: str) -> float | None:
        value = value_of(key)
        text = _text(holder(key), key)
        if text and value is None:
            raise SlideError(f"{path}: {key} is {text}, where a finite number was expected")
        return value

    if frame is None:
        instance = number(dataset, "InstanceNumber")
        location = number(dataset, "SliceLocation")
    else:
        instance = frame + 1
        location = None
    return Plane(
        path=path,
        frame=frame,
        rows=_side(path, dataset, "Rows"),
        columns=_side(path, dataset, "Columns"),
        instance=None if instance is None else int(instance),
        position=values_of("ImagePositionPatient", 3),
        orientation=values_of("ImageOrientationPatient", 6),
        location=location,
        spacing=values_of("PixelSpacing", 2),
        thickness=value_of("SliceThickness"),
        between=value_of("SpacingBetweenSlices"),
        slope=rescale("RescaleSlope"),
        intercept=rescale("RescaleIntercept"),
        units=_text(holder("RescaleType"), "RescaleType"),
        tilt=value_of("GantryDetectorTilt"),
    )
