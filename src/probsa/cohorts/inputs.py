"""Find the slides and CT series at the path given to `probsa patch`, and name each uniquely."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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


def find_inputs(source: Path | str, *, mpp: Resolution | None = None) -> list[Record]:
    """Return the slides and series at a path, sorted by name.

    Those that cannot be used have a reason. A resolution that a table gives for a slide is noted.

    Raises:
        InputError: The path does not exist, or contains neither slides nor series.
    """
    source = Path(source)
    if not source.exists():
        raise InputError(f"there is no file or folder {source}")
    scans = list_scans(source)
    studies = {s.path for s in scans.sources if s.format == "dicom"}
    found = [
        _slide(path)
        for path in slide_files(source)
        if not (
            path.suffix.lower() in PLAIN_SUFFIXES
            and (path.parent in studies or is_work_picture(path))
        )
    ]
    found += [
        Record(
            name=file_name(s.name),
            kind="ct",
            source=str(s.path.absolute()),
            files=tuple(str(f.absolute()) for f in s.files),
            format=s.format,
            notes=s.notes,
        )
        for s in scans.sources
    ]
    found += [
        Record(
            name=file_name(f.name), kind="ct", source=str(f.files[0].absolute()), reason=f.reason
        )
        for f in scans.failures
    ]
    if not found:
        kinds = sorted({p.suffix or p.name for p in source.rglob("*") if p.is_file()})[:8]
        raise InputError(
            f"there are no slides, DICOM series or NIfTI files in {source}: found "
            f"{', '.join(kinds) or 'no file'}"
        )
    found = _make_names_unique(sorted(found, key=lambda r: r.name))
    if not isinstance(mpp, Mapping):
        return found
    given = {
        r.name: resolution_of(mpp, r.name, Path(r.source).name) for r in found if r.kind == "slide"
    }
    if given and all(value is None for value in given.values()):
        raise InputError(
            f"the table of resolutions names none of the {len(given)} slides: its first line is "
            f"for {next(iter(mpp), 'no slide')!r}, but the first slide is {next(iter(given))!r}"
        )
    return [replace(r, mpp=given.get(r.name)) for r in found]


def resolve_mpp(record: Record, fallback: float | None) -> Record:
    """Return a slide with the resolution to open it with: `fallback` if it states none itself.

    Raises:
        SlideError: The slide has to be opened for this, and cannot be.
    """
    if fallback is None or record.kind != "slide":
        return record
    with open_slide(Path(record.source)) as slide:
        known = slide.mpp is not None
    return replace(record, mpp=None if known else fallback)


def _slide(path: Path) -> Record:
    """Return a slide; a map gets its whole file name, so that the slide of that name keeps it."""
    reason = map_reason(path)
    name = file_name(path.name if reason else slide_name(path))
    return Record(name=name, kind="slide", source=str(path.absolute()), reason=reason)


def _make_names_unique(found: list[Record]) -> list[Record]:
    """Number inputs with the same name, and let all but the first fail with a reason.

    Otherwise they would overwrite each other's files.
    """
    by_name: dict[str, Record] = {}
    for record in found:
        first = by_name.setdefault(record.name, record)
        if first is not record:
            k = 2
            while f"{record.name} ({k})" in by_name:
                k += 1
            reason = (
                f"{first.source} is named {record.name!r} as well: rename one of the two, or patch "
                "their folders into two work folders"
            )
            name = f"{record.name} ({k})"
            by_name[name] = replace(record, name=name, reason=record.reason or reason)
    return list(by_name.values())
