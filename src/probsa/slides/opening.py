"""Stage 1: open a slide with the right reader, and explain why other files cannot be opened.

OpenSlide reads the formats that it recognises as a vendor's, tifffile reads generic TIFFs because
it sees more levels and is faster, and Pillow reads plain images. Readers are imported on demand.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, SlideError, imports_from
from ._base import Slide
from .dicom_headers import looks_like_dicom, read_header
from .dicom_slides import SeveralPlanes, plane_problem_of_file
from .finding import special_files
from .resolution import check_mpp

_GENERIC = "generic-tiff"
_READABLE = (
    "supported formats: those of OpenSlide (Aperio .svs, Hamamatsu .ndpi, Leica .scn, MIRAX .mrxs, "
    "Philips and Ventana .tif/.bif, Zeiss .czi, DICOM slides .dcm, …), tiled TIFF, OME-TIFF, "
    "PNG, JPEG, BMP, WebP and JPEG 2000"
)
_WEB_PAGE = "is a web page: the download was refused; open it in a browser to see why"
_MAGIC = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: git lfs pull",
    b"PK\x03\x04": "is a ZIP archive: unpack it",
    b"\x1f\x8b": "is a gzip archive: unpack it",
    b"7z\xbc\xaf": "is a 7z archive: unpack it",
    b"\x89HDF": "is an HDF5 file, not a slide; if it holds features, pass its folder to --features",
    b"%PDF": "is a PDF",
    b"<!DOCTYPE": _WEB_PAGE,
    b"<html": _WEB_PAGE,
}


def open_slide(path: str | Path, *, mpp: float | None = None) -> Slide:
    """Open a slide of any format.

    Args:
        path: the slide file.
        mpp: micrometres per level-0 pixel, for a slide that does not state them. If the file
            states a value that differs by more than 2 %, this argument takes precedence, and
            `Slide.mpp_source` mentions both.

    Raises:
        SlideError: the file is missing, damaged, or not a slide; the message says which.
        MissingExtra: the readers are not installed.
    """
    path = Path(path)
    check_mpp(mpp)
    if path.is_dir():
        raise SlideError(
            f"{path} is a folder, but a slide is a file; a folder of DICOM files is a scan"
        )
    if not path.exists():
        raise SlideError(f"{path} does not exist")
    if not path.is_file():
        raise SlideError(f"{path} is a FIFO, a socket or a device, not a file")
    special = special_files(path)
    if special and not looks_like_dicom(path):
        raise SlideError(f"{special[0]} is no regular file: move it away from {path.name}")
    with path.open("rb") as f:
        head = f.read(1024)
    name = slide_name(path)
    from .images import PlainSlide, looks_plain
    from .tiff import TiffSlide, check_complete, is_tiff
    from .wsi import WsiSlide

    # a .mrxs file is itself a JPEG
    if looks_plain(head) and path.suffix.lower() != ".mrxs":
        return PlainSlide(path, name=name, mpp=mpp)
    vendor = _require("openslide").OpenSlide.detect_format(path)
    # the unused 128 bytes at the start of a DICOM file may look like another format
    if vendor is None and head[128:132] == b"DICM":
        raise SlideError(_dicom(path))
    if vendor == "aperio":
        _require("tifffile")
        check_complete(path)
    if vendor not in (None, _GENERIC):
        try:
            return WsiSlide(path, name=name, mpp=mpp, skipped=special)
        except SeveralPlanes:
            raise
        except SlideError as error:
            problem = plane_problem_of_file(path) if head[128:132] == b"DICM" else ""
            if not problem:
                raise
            raise SlideError(f"{path} {problem}") from error
    if is_tiff(head):
        _require("tifffile", "imagecodecs", "zarr")
        return TiffSlide(path, name=name, mpp=mpp, vendor=vendor)
    raise SlideError(f"{path} {_describe_file(path, head)}; {_READABLE}")


def slide_name(path: Path | str) -> str:
    """Return the name of a slide: its file name without the suffix (`.ome.tiff` is one suffix)."""
    path = Path(path)
    stem = path.stem
    return stem[:-4] if stem.lower().endswith(".ome") and len(stem) > 4 else stem


def _require(*modules: str) -> Any:
    """Import modules of the extra `slides`, and return the first."""
    with imports_from("slides", *modules):
        first, *_ = map(import_module, modules)
    return first


def _describe_file(path: Path, head: bytes) -> str:
    """Describe a file that no reader opens, as the end of a sentence that begins with its path."""
    if not head:
        return "is empty (0 bytes): copy it again"
    if not head.strip(b"\0"):
        return "starts with zero bytes, so the copy is probably incomplete; copy it again"
    if path.suffix.lower() == ".mrxs":
        return f"is a MIRAX slide whose folder {path.stem}/ is missing beside it or damaged"
    for begin, description in _MAGIC.items():
        if head.startswith(begin):
            return description
    text = head.decode("utf-8", errors="ignore")  # the 1024 bytes may end inside a character
    is_utf8 = len(text.encode()) >= len(head) - 3
    if is_utf8 and all(c >= " " or c in "\t\r\n" for c in text):
        lines = text.strip().splitlines()
        return f"is a text file that begins with {lines[0][:40]!r}" if lines else "is blank"
    return f"is of an unknown kind: it begins with the bytes {head[:8].hex(' ')}"


def _dicom(path: Path) -> str:
    """Say why a DICOM file is no slide."""
    if problem := plane_problem_of_file(path):
        return f"{path} {problem}"
    try:
        modality = read_header(path).modality or "unknown"
    except MissingExtra:
        modality = "unknown"
    if modality == "CT":
        return f"{path} is a CT slice, not a slide: give the folder of its series"
    if modality == "SM":
        return (
            f"{path} is a DICOM slide that OpenSlide cannot read (damaged, or not an image of a "
            "pyramid)"
        )
    return f"{path} is a DICOM file of modality {modality}, not a slide"
