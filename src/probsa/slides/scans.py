"""Scans below a folder, listed from headers alone and opened one by one.

A damaged series does not prevent the others from being listed or opened.
"""

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from ..errors import SlideError
from . import nifti
from ._base import Scan
from .dicom_headers import MAY_BE_OPENED, SUFFIXES, Header, looks_like_dicom, read_header
from .folders import files_below
from .series import list_some


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanSource:
    """A scan that can be opened, as a small object that can be sent to other processes."""

    name: str
    """Unique in its listing, and stable as long as the folder does not change."""
    path: Path
    """The folder of a DICOM series, or the NIfTI file."""
    files: tuple[Path, ...]
    format: Literal["dicom", "nifti"]
    notes: tuple[str, ...] = ()
    """Remarks from the listing, which `open_scan` passes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanFailure:
    """Files that should have been a scan or a part of one."""

    name: str
    files: tuple[Path, ...]
    reason: str


_Named = TypeVar("_Named", ScanSource, ScanFailure)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanListing:
    """The scans, failures and other files below a folder."""

    sources: tuple[ScanSource, ...]
    failures: tuple[ScanFailure, ...]
    skipped: dict[str, int]
    """Kinds of files that are not slices (SR, DICOMDIR, localizer, …), with their counts."""


def list_scans(path: Path | str) -> ScanListing:
    """List the scans in a file or below a folder, from headers alone; links are followed.

    A DICOM series consists of the files in one folder that share a SeriesInstanceUID. Its name is
    the folder's path below `path` (parts joined by `_`), followed by the SeriesNumber if the folder
    contains several series. A file that the user names may be any grey image.

    Raises:
        SlideError: the path does not exist.
        MissingExtra: there are DICOM files, but pydicom is not installed.
    """
    path = Path(path)
    is_file = path.is_file()
    if not is_file and not path.is_dir():
        raise SlideError(f"there is no file or folder {path}")
    root = path.parent if is_file else path
    files = _sort_files(path)

    def name_of(folder: Path, file: str = "") -> str:
        # the path below the root, so that a new folder beside it changes no name
        parts = list(folder.relative_to(root).parts)
        if file:
            parts.append(file)
        return "_".join(parts) or root.resolve().name

    sources: list[ScanSource] = []
    series_in_folder = Counter(folder for folder, _ in files.series)
    folders_of_series = Counter(uid for _, uid in files.series)
    for (folder, uid), headers in files.series.items():
        name = name_of(folder, path.stem if is_file else "")
        if series_in_folder[folder] > 1:
            name += f"_{headers[0].number or uid or 'series'}"
        notes = []
        if uid and folders_of_series[uid] > 1:
            others = folders_of_series[uid] - 1
            notes.append(f"{others} other folder(s) hold slices of this series too.")
        if folder in files.broken:
            names = list_some([file.name for file, _ in files.broken[folder]])
            notes.append(f"Files beside the slices cannot be read: {names}.")
        sources.append(
            ScanSource(
                name=name,
                path=path if is_file else folder,
                files=tuple(header.path for header in headers),
                format="dicom",
                notes=tuple(notes),
            )
        )
    for file in files.niftis:
        name = name_of(file.parent, nifti.stem(file))
        sources.append(ScanSource(name=name, path=file, files=(file,), format="nifti"))
    failures: list[ScanFailure] = []
    for folder, broken in files.broken.items():
        # one failure per folder, so that a study of 300 damaged files is one failure
        paths = tuple(file for file, _ in broken)
        reasons = [reason for _, reason in broken]
        name = name_of(folder, paths[0].stem if len(paths) == 1 else "unreadable")
        failures.append(ScanFailure(name=name, files=paths, reason=list_some(reasons)))
    names = Counter(item.name for item in [*sources, *failures])
    return ScanListing(
        sources=tuple(_with_unique_name(source, names) for source in sources),
        failures=tuple(_with_unique_name(failure, names) for failure in failures),
        skipped=dict(sorted(files.skipped.items())),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Files:
    """The files at a path, by what they are."""

    series: dict[tuple[Path, str], list[Header]]
    """The slices of each DICOM series in a folder, by the folder and the SeriesInstanceUID."""
    niftis: list[Path]
    broken: dict[Path, list[tuple[Path, str]]]
    """The files of each folder that cannot be read, with the reasons."""
    skipped: Counter[str]
    """Kinds of files that are not slices, with their counts."""


def _sort_files(path: Path) -> _Files:
    """Tell what each file at a path is; see `list_scans`."""
    is_file = path.is_file()
    files = _Files(series=defaultdict(list), niftis=[], broken=defaultdict(list), skipped=Counter())
    for file in [path] if is_file else files_below(path):
        if not is_file and any(part.startswith(".") for part in file.relative_to(path).parts):
            files.skipped["hidden file"] += 1
        elif nifti.is_nifti(file):
            files.niftis.append(file)
        else:
            try:
                if not (file.suffix.lower() in SUFFIXES or looks_like_dicom(file)):
                    files.skipped["other file"] += 1
                    continue
                header = read_header(file)
            except (SlideError, OSError) as error:
                files.broken[file.parent].append((file, str(error)))
                continue
            if header.other is None or (is_file and header.other in MAY_BE_OPENED):
                files.series[file.parent, header.series].append(header)
            else:
                files.skipped[header.other] += 1
    return files


def open_scan(source: ScanSource) -> Scan:
    """Read one scan.

    Raises:
        SlideError: the scan cannot be read; the message names the file.
        MissingExtra: the reader of its format is not installed.
    """
    if source.format == "nifti":
        return nifti.open_nifti(source.name, source.path)
    from .dicom import open_series

    scan = open_series(source.name, source.path, files=source.files)
    return replace(scan, notes=(*scan.notes, *source.notes))


def open_scans(path: Path | str) -> list[Scan]:
    """Read every scan in a file or below a folder; notes on the scans name those that failed.

    All scans are in memory at once. For many scans, use `list_scans` and `open_scan`.

    Raises:
        SlideError: no scan can be read; the message gives the reasons.
    """
    listing = list_scans(path)
    if len(listing.sources) == 1 and not listing.failures:
        return [open_scan(listing.sources[0])]
    scans: list[Scan] = []
    problems = [f"{failure.name}: {failure.reason}" for failure in listing.failures]
    for source in listing.sources:
        try:
            scans.append(open_scan(source))
        except SlideError as error:
            problems.append(f"{source.name}: {error}")
    if not scans:
        skipped = [f"{count} x {kind}" for kind, count in listing.skipped.items()]
        reason = list_some(problems or skipped) or "it is an empty folder"
        raise SlideError(
            f"{path} holds no scan that can be read, neither DICOM slices nor NIfTI: {reason}"
        )
    if not problems:
        return scans
    note = f"Other scans beside it cannot be read: {list_some(problems)}."
    return [replace(scan, notes=(*scan.notes, note)) for scan in scans]


def _with_unique_name(item: _Named, names: Counter[str]) -> _Named:
    """Append a digest of the file names to a name that is not unique; it is reproducible."""
    if names[item.name] == 1:
        return item
    file_names = "\n".join(sorted(file.name for file in item.files))
    digest = hashlib.sha256(file_names.encode()).hexdigest()[:8]
    return replace(item, name=f"{item.name}_{digest}")
