"""Find the slides and CT series at the path given to `probsa patch`, and name each uniquely."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import InputError
from ..slides import (
    PLAIN_SUFFIXES,
    SLIDE_SUFFIXES,
    files_below,
    is_scan,
    list_scans,
    map_reason,
    open_slide,
    resolution_of,
    slide_files,
    slide_name,
)
from .records import Record
from .work import WorkFolder, bag_name, file_name, is_work_picture

Resolution = float | Mapping[str, float]
"""Micrometres per level-0 pixel: one value for all slides, or one per slide, by name."""


def find_inputs(source: Path | str, *, mpp: Resolution | None = None) -> list[Record]:
    """Return the slides and series at a path, sorted by name.

    A slide has the name of its file without the suffix. Slides of equal file names in several
    folders are named by these folders, as DICOM series are, with the parts joined by `_`.

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
    found = _named_by_folder(found, root=source if source.is_dir() else source.parent)
    found += [
        Record(
            name=bag_name(s.name),
            kind="ct",
            source=str(s.path.absolute()),
            files=tuple(str(f.absolute()) for f in s.files),
            format=s.format,
            notes=(*s.notes, *_name_notes(s.name)),
        )
        for s in scans.sources
    ]
    found += [
        Record(name=bag_name(f.name), kind="ct", source=str(f.files[0].absolute()), reason=f.reason)
        for f in scans.failures
    ]
    if not found:
        files = [source] if source.is_file() else files_below(source)
        kinds = sorted({p.suffix or p.name for p in files})[:8]
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


def check_source(source: Path) -> None:
    """Refuse a folder without slides and series; no slide and no series is opened.

    Raises:
        InputError: see `find_inputs`.
    """
    if not source.is_dir():
        return
    for folder, _, names in os.walk(source, followlinks=True):
        for path in (Path(folder, name) for name in names):
            if path.suffix.lower() in SLIDE_SUFFIXES or (path.is_file() and is_scan(path)):
                return
    find_inputs(source)


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


def inputs_by_name(source: Path) -> dict[str, Record]:
    """Return the slides and series at a path by name, also by the names of earlier versions."""
    records = find_inputs(source)
    return {file_name(r.name): r for r in records} | {r.name: r for r in records}


def keep_earlier_names(records: list[Record], work: WorkFolder) -> list[Record]:
    """Return the records with the names that a work folder knows their files by.

    An earlier version replaced characters such as `#`, and a folder of slides may have got another
    slide of the same file name since. A second name would make a second bag of the same slide.
    """
    names = work.names()
    taken = {record.name for record in records}
    kept: list[Record] = []
    for record in records:
        earlier = names.get(record.paths, record.name)
        if earlier != record.name and earlier not in taken:
            note = f"Its bag is called {earlier!r}, as before in this work folder."
            record = replace(record, name=earlier, notes=(*record.notes, note))
        kept.append(record)
    return kept


def _slide(path: Path) -> Record:
    """Return a slide; a map gets its whole file name, so that the slide of that name keeps it."""
    reason = map_reason(path)
    name = path.name if reason else slide_name(path)
    return Record(
        name=bag_name(name),
        kind="slide",
        source=str(path.absolute()),
        reason=reason,
        notes=_name_notes(name),
    )


def _name_notes(name: str) -> tuple[str, ...]:
    """Say that a bag cannot have the name of its file."""
    bag = bag_name(name)
    return () if bag == name.strip() else (f"No bag can be called {name!r}: it is {bag!r}.",)


def _named_by_folder(slides: list[Record], *, root: Path) -> list[Record]:
    """Name slides whose file names repeat by their folders below the root.

    A slide that is alone in its folder has the name of the folder, others that of their file too.
    """
    repeats = Counter(slide.name for slide in slides)
    beside = Counter(Path(slide.source).parent for slide in slides)
    taken = set(repeats)
    named: list[Record] = []
    for slide in slides:
        folder = Path(slide.source).parent
        parts = folder.relative_to(root.absolute()).parts
        if repeats[slide.name] == 1 or not parts:
            named.append(slide)
            continue
        name = "_".join(parts)
        if beside[folder] > 1 or bag_name(name) in taken:
            name = f"{name}_{slide.name}"
        taken.add(bag_name(name))
        notes = (*slide.notes, *_name_notes(name))
        named.append(replace(slide, name=bag_name(name), notes=notes))
    return named


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
