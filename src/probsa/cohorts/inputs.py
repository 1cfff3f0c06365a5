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
    records = _find_slides_and_series(source)
    if not records:
        files = [source] if source.is_file() else files_below(source)
        kinds = sorted({p.suffix or p.name for p in files})[:8]
        raise InputError(
            f"there are no slides, DICOM series or NIfTI files in {source}: found "
            f"{', '.join(kinds) or 'no file'}"
        )
    records = _make_names_unique(sorted(records, key=lambda r: r.name))
    if not isinstance(mpp, Mapping):
        return records
    resolutions: dict[str, float | None] = {}
    for record in records:
        if record.kind == "slide":
            source_name = Path(record.source).name
            resolutions[record.name] = resolution_of(mpp, record.name, source_name)
    if resolutions and all(value is None for value in resolutions.values()):
        raise InputError(
            f"the table of resolutions names none of the {len(resolutions)} slides: its first "
            f"line is for {next(iter(mpp), 'no slide')!r}, but the first slide is "
            f"{next(iter(resolutions))!r}"
        )
    return [replace(record, mpp=resolutions.get(record.name)) for record in records]


def _find_slides_and_series(source: Path) -> list[Record]:
    """Return what there is at a path, with names that may repeat."""
    scans = list_scans(source)
    studies = {scan.path for scan in scans.sources if scan.format == "dicom"}
    slides: list[Record] = []
    for path in slide_files(source):
        # plain images beside a DICOM series are previews of it
        is_plain = path.suffix.lower() in PLAIN_SUFFIXES
        if is_plain and (path.parent in studies or is_work_picture(path)):
            continue
        slides.append(_slide(path))
    records = _named_by_folder(slides, root=source if source.is_dir() else source.parent)
    for scan in scans.sources:
        records.append(
            Record(
                name=bag_name(scan.name),
                kind="ct",
                source=str(scan.path.absolute()),
                files=tuple(str(file.absolute()) for file in scan.files),
                format=scan.format,
                notes=(*scan.notes, *_name_notes(scan.name)),
            )
        )
    for failure in scans.failures:
        source_file = str(failure.files[0].absolute())
        name = bag_name(failure.name)
        records.append(Record(name=name, kind="ct", source=source_file, reason=failure.reason))
    return records


def check_source(source: Path) -> None:
    """Refuse a folder without slides and series, without opening any of them.

    The search ends at the first file that is one.

    Raises:
        InputError: see `find_inputs`.
    """
    if not source.is_dir():
        return
    for folder, _, names in os.walk(source, followlinks=True):
        for name in names:
            path = Path(folder, name)
            if path.suffix.lower() in SLIDE_SUFFIXES or (path.is_file() and is_scan(path)):
                return
    find_inputs(source)  # there is none, and this raises the error that says so


def resolve_mpp(record: Record, fallback: float | None) -> Record:
    """Return a slide with the resolution to open it with: `fallback` if it states none itself.

    Raises:
        SlideError: The slide has to be opened for this, and cannot be.
    """
    if fallback is None or record.kind != "slide":
        return record
    with open_slide(Path(record.source)) as slide:
        states_mpp = slide.mpp is not None
    return replace(record, mpp=None if states_mpp else fallback)


def inputs_by_name(source: Path) -> dict[str, Record]:
    """Return the slides and series at a path by name, also by the names of earlier versions."""
    records = find_inputs(source)
    return {file_name(r.name): r for r in records} | {r.name: r for r in records}


def keep_earlier_names(records: list[Record], work: WorkFolder) -> list[Record]:
    """Return the records with the names that a work folder knows their files by.

    An earlier version replaced characters such as `#`, and a folder of slides may have got another
    slide of the same file name since. A second name would make a second bag of the same slide.
    """
    earlier_names = work.names()
    new_names = {record.name for record in records}
    renamed: list[Record] = []
    for record in records:
        earlier = earlier_names.get(record.paths, record.name)
        if earlier != record.name and earlier not in new_names:
            note = f"Its bag is called {earlier!r}, as before in this work folder."
            record = replace(record, name=earlier, notes=(*record.notes, note))
        renamed.append(record)
    return renamed


def _slide(path: Path) -> Record:
    """Return the record of a slide, with a reason if the file is a map of one.

    A map is named by its whole file name: without the suffix, it could take the name of the slide
    that it is a map of.
    """
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
    if bag == name.strip():
        return ()
    return (f"No bag can be called {name!r}: it is {bag!r}.",)


def _named_by_folder(slides: list[Record], *, root: Path) -> list[Record]:
    """Name slides whose file names repeat by their folders below the root.

    `a/1/slide.svs` becomes `a_1`, or `a_1_slide` if its folder has other slides too.
    """
    slides_of_name = Counter(slide.name for slide in slides)
    slides_in_folder = Counter(Path(slide.source).parent for slide in slides)
    names = set(slides_of_name)
    records: list[Record] = []
    for slide in slides:
        folder = Path(slide.source).parent
        parts = folder.relative_to(root.absolute()).parts
        if slides_of_name[slide.name] > 1 and parts:
            name = "_".join(parts)
            if slides_in_folder[folder] > 1 or bag_name(name) in names:
                name = f"{name}_{slide.name}"
            names.add(bag_name(name))
            notes = (*slide.notes, *_name_notes(name))
            slide = replace(slide, name=bag_name(name), notes=notes)
        records.append(slide)
    return records


def _make_names_unique(records: list[Record]) -> list[Record]:
    """Number inputs with the same name, and let all but the first fail with a reason.

    Otherwise they would overwrite each other's files.
    """
    by_name: dict[str, Record] = {}
    for record in records:
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
