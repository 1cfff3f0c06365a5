"""Stage 1: find the files in a folder that look like slides."""

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import SlideError
from . import nifti
from .dicom_headers import looks_like_dicom

PLAIN_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".jp2")
"""Suffixes of plain images, which may be slides or other pictures."""
SLIDE_SUFFIXES = (
    ".svs", ".tif", ".tiff", ".btf", ".tf8", ".ndpi", ".vms", ".vmu", ".scn", ".mrxs", ".svslide",
    ".bif", ".czi", ".dcm", *PLAIN_SUFFIXES,
)  # fmt: skip
"""Suffixes of files that may be slides, in lower case."""
_STORAGE = b"1.2.840.10008.5.1.4.1.1."
_SM_CLASS = _STORAGE + b"77.1.6"
"""The DICOM class of whole-slide images. The class of a file is the first one in it; others are
those of the images that it refers to."""


def is_scan(path: str | Path) -> bool:
    """Return True if `open_scans` reads a file: NIfTI, or DICOM except whole-slide images."""
    path = Path(path)
    return nifti.is_nifti(path) or (looks_like_dicom(path) and not _is_slide_class(path))


def slide_files(folder: str | Path) -> list[Path]:
    """Return the files below a folder whose suffix is that of a slide, sorted.

    If `folder` is a file, it is returned whatever its suffix, unless it is a scan.

    The following are skipped: hidden files and folders, the parts of multi-file slides (the folder
    of a .mrxs, the images of a .vms), and DICOM files that are not slides. A DICOM slide is
    represented by its largest file. FIFOs and links to nothing are listed: opening them names them.

    Raises:
        SlideError: the path does not exist.
    """
    folder = Path(folder)
    if folder.is_file():
        return [] if is_scan(folder) else [folder]
    if not folder.is_dir():
        raise SlideError(f"there is no file or folder {folder}")
    slides, seen = [], set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        here = Path(parent)
        real = here.resolve()
        if real in seen:  # a symbolic link to a folder already visited
            folders.clear()
            continue
        seen.add(real)
        lower = {n.lower() for n in names}
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f"{f.lower()}.mrxs" not in lower
        )
        slides += _slides_among(here / n for n in names if not n.startswith("."))
    return sorted(slides)


def check_files(path: Path) -> None:
    """Refuse a slide with a FIFO, a socket or a device among its files: OpenSlide would hang.

    OpenSlide opens every file beside a DICOM slide, and those in the folder of a .mrxs or .vms.
    """
    suffix, folder = path.suffix.lower(), path.parent
    if suffix == ".mrxs":
        folder = path.with_suffix("")
    elif suffix not in (".vms", ".vmu") and not looks_like_dicom(path):
        return
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise SlideError(f"{file} is no regular file: move it away from {path.name}")


def _slides_among(paths: Iterable[Path]) -> list[Path]:
    likely = [p for p in paths if p.suffix.lower() in SLIDE_SUFFIXES]
    whole = tuple(p.stem for p in likely if p.suffix.lower() in (".vms", ".vmu"))
    dicom = [p for p in likely if p.suffix.lower() == ".dcm" and p.is_file()]
    parts = [p for p in likely if p.suffix.lower() in PLAIN_SUFFIXES and p.stem.startswith(whole)]
    others = {*likely} - {*dicom, *parts}
    return [*others, *_largest_of_series([p for p in dicom if _is_slide_class(p)])]


def _is_slide_class(path: Path) -> bool:
    with path.open("rb") as f:
        head = f.read(1024)
    first = head.find(_STORAGE)
    return first >= 0 and head.startswith(_SM_CLASS, first)


def _largest_of_series(paths: list[Path]) -> list[Path]:
    """Return the largest file of each series, which holds level 0, and files that do not open."""
    if len(paths) < 2:
        return paths
    try:
        import openslide
    except ImportError:
        return paths
    series: dict[str, Path] = {}
    for path in sorted(paths, key=lambda p: (-p.stat().st_size, p)):
        try:
            check_files(path)
            with openslide.OpenSlide(path) as slide:
                key = slide.properties.get("dicom.SeriesInstanceUID", str(path))
        except (SlideError, openslide.OpenSlideError):
            key = str(path)
        series.setdefault(key, path)
    return list(series.values())
