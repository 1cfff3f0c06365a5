"""Stage 1: find the files in a folder that look like slides."""

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import MissingExtra, SlideError, absent_package
from . import nifti
from .dicom_headers import looks_like_dicom, read_header
from .folders import folders_below

PLAIN_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".jp2")
"""Suffixes of plain images, which may be slides or other pictures."""
SLIDE_SUFFIXES = (
    ".svs",
    ".tif",
    ".tiff",
    ".btf",
    ".tf8",
    ".ndpi",
    ".vms",
    ".vmu",
    ".scn",
    ".mrxs",
    ".svslide",
    ".bif",
    ".czi",
    ".dcm",
    *PLAIN_SUFFIXES,
)
"""Suffixes of files that may be slides, in lower case."""
_INDEXED = (".vms", ".vmu")
"""Suffixes of text files that name the images of a slide."""
_INDEX_BYTES = 1 << 20
_SUFFIXED = re.compile(r"([^0-9A-Za-z].*)?")
"""What follows the name of an index in the name of one of its images: not the rest of a word."""
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
    slides: list[Path] = []
    for parent, folders, names in folders_below(folder):
        lower_names = {name.lower() for name in names}
        # names that are removed from this list are not visited
        for name in list(folders):
            if name.startswith(".") or f"{name.lower()}.mrxs" in lower_names:
                folders.remove(name)
        slides += _slides_among([parent / name for name in names if not name.startswith(".")])
    return sorted(slides)


def special_files(path: Path) -> list[Path]:
    """Return the FIFOs, sockets and devices that OpenSlide would open with a slide, and hang.

    OpenSlide opens every file beside a DICOM slide, and those in the folder of a .mrxs or beside a
    .vms.
    """
    suffix = path.suffix.lower()
    folder = path.parent
    if suffix == ".mrxs":
        folder = path.with_suffix("")
    elif suffix not in _INDEXED and not looks_like_dicom(path):
        return []
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [f for f in files if f.exists() and not (f.is_file() or f.is_dir())]


def _slides_among(paths: Iterable[Path]) -> list[Path]:
    """Return the slides among the files of one folder, each by one of its files."""
    candidates = [path for path in paths if path.suffix.lower() in SLIDE_SUFFIXES]
    others = set(candidates)
    dicom_slides: list[Path] = []
    for path in candidates:
        suffix = path.suffix.lower()
        if suffix in _INDEXED:
            others.difference_update(_images_of_index(path, candidates))
        elif suffix == ".dcm" and path.is_file():
            others.discard(path)
            if _is_slide_class(path):
                dicom_slides.append(path)
    return [*others, *_largest_of_series(dicom_slides)]


def _images_of_index(index: Path, neighbours: Iterable[Path]) -> list[Path]:
    """Return the images that belong to a .vms or .vmu: those that it names.

    Without a name, these are the images whose name is the index's and a suffix such as `_macro`.
    """
    images = [path for path in neighbours if path.suffix.lower() in PLAIN_SUFFIXES]
    names: set[str] = set()
    if index.is_file():
        with index.open("rb") as f:
            text = f.read(_INDEX_BYTES).decode("latin-1")
        for line in text.splitlines():  # as `ImageFile=slide_0.jpg`
            _, _, value = line.partition("=")
            names.add(value.strip().lower())
    parts = [path for path in images if path.name.lower() in names]
    return parts or [p for p in images if _SUFFIXED.fullmatch(p.stem.removeprefix(index.stem))]


def _is_slide_class(path: Path) -> bool:
    """Return whether the class of a DICOM file, which stands near its beginning, is a slide's."""
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
    except ModuleNotFoundError as error:
        if absent_package(error) != "openslide":
            raise
        return paths
    largest: dict[str, Path] = {}
    for path in sorted(paths, key=lambda p: (-p.stat().st_size, p)):
        try:
            if special_files(path):
                series = _series_of_header(path)
            else:
                with openslide.OpenSlide(path) as slide:
                    series = slide.properties.get("dicom.SeriesInstanceUID", "")
        except openslide.OpenSlideError:
            series = _series_of_header(path)
        largest.setdefault(series or str(path), path)
    return list(largest.values())


def _series_of_header(path: Path) -> str:
    """Return the series of a file that OpenSlide refuses, such as one with several planes."""
    try:
        return read_header(path).series
    except (SlideError, MissingExtra):
        return ""
