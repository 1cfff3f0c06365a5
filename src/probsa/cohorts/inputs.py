"""Find the slides and CT series at the path given to `probsa patch`, and name each uniquely."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core import BagKind
from ..errors import InputError
from ..slides import (
    PLAIN_SUFFIXES,
    list_scans,
    map_reason,
    open_slide,
    resolution_of,
    slide_files,
    slide_name,
)
from .records import Record
from .work import file_name, is_work_picture

Resolution = float | Mapping[str, float]
"""Micrometres per level-0 pixel: one value for all slides, or one per slide, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One slide or CT series."""

    name: str
    kind: BagKind
    source: Path
    """The slide, or the folder or file that contains the series."""
    files: tuple[Path, ...] = ()
    """Files of the slices of a DICOM series, or the NIfTI file."""
    format: str = ""
    mpp: float | None = None
    """Resolution given for this slide; it takes precedence over the file's."""
    fallback: float | None = None
    """Resolution given for all slides; it is used if the file has none."""
    notes: tuple[str, ...] = ()
    """Remarks on a series that were made when it was listed."""
    reason: str = ""
    """Why the input cannot be used; empty if no reason is known."""

    def record(self) -> Record:
        """Return the record of an input that failed or was not tried yet."""
        return Record(
            name=self.name,
            kind=self.kind,
            source=str(self.source.absolute()),
            files=tuple(str(f.absolute()) for f in self.files),
            format=self.format,
            mpp=self.mpp,
            reason=self.reason,
        )

    def moved(self, record: Record) -> Record:
        """Return an earlier record of this input with the current paths."""
        current = self.record()
        return replace(record, source=current.source, files=current.files)


def find_inputs(source: Path, *, mpp: Resolution | None = None) -> list[Input]:
    """Return the slides and series at a path, sorted by name.

    Raises:
        InputError: The path does not exist, or contains neither slides nor series.
    """
    if not source.exists():
        raise InputError(f"there is no file or folder {source}")
    scans = list_scans(source)
    studies = {s.path for s in scans.sources if s.format == "dicom"}
    inputs = [
        _slide(path)
        for path in slide_files(source)
        if not (path.suffix.lower() in PLAIN_SUFFIXES and _is_preview(path, studies))
    ]
    inputs += [
        Input(
            name=file_name(s.name),
            kind="ct",
            source=s.path,
            files=s.files,
            format=s.format,
            notes=s.notes,
        )
        for s in scans.sources
    ]
    inputs += [
        Input(name=file_name(f.name), kind="ct", source=f.files[0], reason=f.reason)
        for f in scans.failures
    ]
    if not inputs:
        kinds = sorted({p.suffix or p.name for p in source.rglob("*") if p.is_file()})[:8]
        raise InputError(
            f"there are no slides, DICOM series or NIfTI files in {source}: found "
            f"{', '.join(kinds) or 'no file'}"
        )
    inputs = _make_names_unique(sorted(inputs, key=lambda i: i.name))
    if isinstance(mpp, Mapping):
        _check_names(inputs, mpp)
    return [_with_mpp(i, mpp) for i in inputs]


def _slide(path: Path) -> Input:
    """Return a slide; a map gets its whole file name, so that the slide of that name keeps it."""
    reason = map_reason(path)
    name = path.name if reason else slide_name(path)
    return Input(name=file_name(name), kind="slide", source=path, reason=reason)


def _check_names(inputs: list[Input], mpp: Mapping[str, float]) -> None:
    """Refuse a table of resolutions that names none of the slides: it belongs to other slides."""
    slides = [i for i in inputs if i.kind == "slide"]
    if slides and not any(n in mpp for i in slides for n in (i.name, i.source.name)):
        raise InputError(
            f"the table of resolutions names none of the {len(slides)} slides: its first line is "
            f"for {next(iter(mpp), 'no slide')!r}, but the first slide is {slides[0].name!r}"
        )


def _is_preview(path: Path, studies: set[Path]) -> bool:
    """Return True for an image beside a DICOM series, or a picture in a work folder."""
    return path.parent in studies or is_work_picture(path)


def _with_mpp(item: Input, mpp: Resolution | None) -> Input:
    if mpp is None or item.kind != "slide":
        return item
    if isinstance(mpp, Mapping):
        return replace(item, mpp=resolution_of(mpp, item.name, item.source.name))
    return replace(item, fallback=mpp)


def resolve_mpp(item: Input) -> Input:
    """Return the input with its final resolution: use the fallback only if the file has none.

    Raises:
        SlideError: The slide has to be opened for this, and cannot be.
    """
    if item.fallback is None or item.kind != "slide":
        return item
    with open_slide(item.source) as slide:
        known = slide.mpp is not None
    return replace(item, mpp=None if known else item.fallback, fallback=None)


def _make_names_unique(inputs: list[Input]) -> list[Input]:
    """Number inputs with the same name, and let all but the first fail with a reason.

    Otherwise they would overwrite each other's files.
    """
    by_name: dict[str, Input] = {}
    unique = []
    for item in inputs:
        first = by_name.setdefault(item.name, item)
        if first is not item:
            k = 2
            while f"{item.name} ({k})" in by_name:
                k += 1
            reason = (
                f"{first.source} is named {item.name!r} as well: rename one of the two, or patch "
                "their folders into two work folders"
            )
            item = replace(item, name=f"{item.name} ({k})", reason=item.reason or reason)
            by_name[item.name] = item
        unique.append(item)
    return unique
