"""Stage 1: which files of a folder look like slides."""

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import SlideError
from . import nifti
from .dicom_headers import looks_like_dicom

PLAIN_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".jp2")
"""Endings of plain images: slides, or pictures of something else."""
SLIDE_SUFFIXES = (
    ".svs", ".tif", ".tiff", ".btf", ".tf8", ".ndpi", ".vms", ".vmu", ".scn", ".mrxs", ".svslide",
    ".bif", ".czi", ".dcm", *PLAIN_SUFFIXES,
)  # fmt: skip
"""Endings of files that may be slides, in lower case."""
_SM_CLASS = b"1.2.840.10008.5.1.4.1.1.77.1.6"
"""DICOM's class of whole-slide images; it stands in the first bytes of a file."""


def is_scan(path: str | Path) -> bool:
    """Whether a file is for `open_scans`: NIfTI, or DICOM that is no whole-slide image."""
    path = Path(path)
    return nifti.is_nifti(path) or (looks_like_dicom(path) and not _is_slide_class(path))


def slide_files(folder: str | Path) -> list[Path]:
    """The files below a folder that look like slides by their ending, sorted; or the file given.

    A file is taken whatever its ending, unless it is a scan.

    Left out: hidden files and folders, the parts of slides of many files (the folder of a .mrxs,
    the images of a .vms), DICOM files that are no slides; of a DICOM slide its largest file stands
    for all.

    Raises:
        SlideError: there is no such path.
    """
    folder = Path(folder)
    if folder.is_file():
        return [] if is_scan(folder) else [folder]
    if not folder.is_dir():
        raise SlideError(f"there is no file or folder {folder}")
    found, seen = [], set()
    for at, folders, names in os.walk(folder, followlinks=True):
        here = Path(at)
        real = here.resolve()
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        lower = {n.lower() for n in names}
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f"{f.lower()}.mrxs" not in lower
        )
        found += _slides_among(here / n for n in names if not n.startswith("."))
    return sorted(found)


def _slides_among(paths: Iterable[Path]) -> list[Path]:
    likely = [p for p in paths if p.suffix.lower() in SLIDE_SUFFIXES and p.is_file()]
    whole = [p.stem for p in likely if p.suffix.lower() in (".vms", ".vmu")]
    dicom = [p for p in likely if p.suffix.lower() == ".dcm"]
    others = [
        p
        for p in likely
        if p.suffix.lower() != ".dcm"
        and not (p.suffix.lower() in PLAIN_SUFFIXES and any(p.stem.startswith(s) for s in whole))
    ]
    return others + _dicom_slides([p for p in dicom if _is_slide_class(p)])


def _is_slide_class(path: Path) -> bool:
    with path.open("rb") as f:
        return _SM_CLASS in f.read(1024)


def _dicom_slides(paths: list[Path]) -> list[Path]:
    """One file a series: the largest, which holds level 0; what cannot be opened for itself."""
    if len(paths) < 2:
        return paths
    try:
        import openslide
    except ImportError:
        return paths
    series: dict[str, Path] = {}
    for path in sorted(paths, key=lambda p: (-p.stat().st_size, p)):
        try:
            with openslide.OpenSlide(path) as slide:
                key = slide.properties.get("dicom.SeriesInstanceUID", str(path))
        except openslide.OpenSlideError:
            key = str(path)
        series.setdefault(key, path)
    return list(series.values())
