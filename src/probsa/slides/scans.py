"""Scans below a folder, listed from headers alone and opened one by one.

A damaged series does not prevent the others from being listed or opened.
"""

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from ..errors import SlideError
from . import _base, nifti
from .dicom_headers import MAY_BE_OPENED, SUFFIXES, Header, looks_like_dicom, read_header
from .series import listed


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
    """List the scans in a file or below a folder, from headers alone.

    A DICOM series consists of the files in one folder that share a SeriesInstanceUID. Its name is
    the folder's path below `path` (parts joined by `_`), followed by the SeriesNumber if the folder
    contains several series.

    Raises:
        SlideError: the path does not exist.
        MissingExtra: there are DICOM files, but pydicom is not installed.
    """
    path = Path(path)
    if path.is_file():
        return _list_file(path)
    if not path.is_dir():
        raise SlideError(f"there is no file or folder {path}")
    collector = _Collector(path)
    for file in sorted(path.rglob("*")):
        if file.is_file():
            collector.take(file)
    return collector.listing()


def open_scan(source: ScanSource) -> _base.Scan:
    """Read one scan.

    Raises:
        SlideError: the scan cannot be read; the message names the file.
        MissingExtra: the reader of its format is not installed.
    """
    if source.format == "nifti":
        return nifti.open_nifti(source.name, source.path)
    from .dicom import open_series

    scan = open_series(source.name, source.path, files=source.files)
    return _with_notes(scan, source.notes)


def open_scans(path: Path | str) -> list[_base.Scan]:
    """Read every scan in a file or below a folder; notes on the scans name those that failed.

    All scans are in memory at once. For many scans, use `list_scans` and `open_scan`.

    Raises:
        SlideError: no scan can be read; the message gives the reasons.
    """
    listing = list_scans(path)
    if len(listing.sources) == 1 and not listing.failures:
        return [open_scan(listing.sources[0])]
    scans: list[_base.Scan] = []
    failed = [f"{failure.name}: {failure.reason}" for failure in listing.failures]
    for source in listing.sources:
        try:
            scans.append(open_scan(source))
        except SlideError as error:
            failed.append(f"{source.name}: {error}")
    if not scans:
        skipped = [f"{count} x {kind}" for kind, count in listing.skipped.items()]
        reason = listed(failed or skipped) or "it is an empty folder"
        raise SlideError(
            f"{path} holds no scan that can be read, neither DICOM slices nor NIfTI: {reason}"
        )
    beside = (f"Other scans beside it cannot be read: {listed(failed)}.",) if failed else ()
    return [_with_notes(scan, beside) for scan in scans]


def _with_notes(scan: _base.Scan, notes: tuple[str, ...]) -> _base.Scan:
    return replace(scan, notes=(*scan.notes, *notes)) if notes else scan


def _list_file(path: Path) -> ScanListing:
    """Return a listing of a file that the user named; any grey image is accepted."""
    if nifti.is_nifti(path):
        source = ScanSource(name=nifti.stem(path), path=path, files=(path,), format="nifti")
        return ScanListing(sources=(source,), failures=(), skipped={})
    try:
        if not (path.suffix.lower() in SUFFIXES or looks_like_dicom(path)):
            return ScanListing(sources=(), failures=(), skipped={"other file": 1})
        header = read_header(path)
    except (SlideError, OSError) as error:
        failure = ScanFailure(name=path.stem, files=(path,), reason=str(error))
        return ScanListing(sources=(), failures=(failure,), skipped={})
    if header.other is not None and header.other not in MAY_BE_OPENED:
        return ScanListing(sources=(), failures=(), skipped={header.other: 1})
    source = ScanSource(name=path.stem, path=path, files=(path,), format="dicom")
    return ScanListing(sources=(source,), failures=(), skipped={})


@dataclass(slots=True)
class _Collector:
    """Collects and classifies the files below a folder."""

    root: Path
    series: dict[tuple[Path, str], list[Header]] = field(default_factory=lambda: defaultdict(list))
    niftis: list[Path] = field(default_factory=list)
    broken: dict[Path, list[tuple[Path, str]]] = field(default_factory=lambda: defaultdict(list))
    skipped: Counter[str] = field(default_factory=Counter)

    def take(self, file: Path) -> None:
        """Classify one file."""
        if any(part.startswith(".") for part in file.relative_to(self.root).parts):
            self.skipped["hidden file"] += 1
        elif nifti.is_nifti(file):
            self.niftis.append(file)
        else:
            self._take_other(file)

    def _take_other(self, file: Path) -> None:
        try:
            if not (file.suffix.lower() in SUFFIXES or looks_like_dicom(file)):
                self.skipped["other file"] += 1
                return
            header = read_header(file)
        except (SlideError, OSError) as error:
            self.broken[file.parent].append((file, str(error)))
            return
        if header.other is None:
            self.series[file.parent, header.series].append(header)
        else:
            self.skipped[header.other] += 1

    def listing(self) -> ScanListing:
        """Return the scans and failures, with unique names."""
        sources = [*self._dicom_sources(), *self._nifti_sources()]
        failures = self._failures()
        taken = Counter(item.name for item in [*sources, *failures])
        return ScanListing(
            sources=tuple(_with_unique_name(s, taken) for s in sources),
            failures=tuple(_with_unique_name(f, taken) for f in failures),
            skipped=dict(sorted(self.skipped.items())),
        )

    def _dicom_sources(self) -> list[ScanSource]:
        in_folder = Counter(folder for folder, _ in self.series)
        folders = Counter(uid for _, uid in self.series)
        sources = []
        for (folder, uid), headers in self.series.items():
            name = self._name(folder)
            if in_folder[folder] > 1:
                name += f"_{headers[0].number or uid or 'series'}"
            notes = []
            if uid and folders[uid] > 1:
                notes.append(f"{folders[uid] - 1} other folder(s) hold slices of this series too.")
            if unreadable := self.broken.get(folder):
                file_names = listed([file.name for file, _ in unreadable])
                notes.append(f"Files beside the slices cannot be read: {file_names}.")
            files = tuple(header.path for header in headers)
            sources.append(
                ScanSource(name=name, path=folder, files=files, format="dicom", notes=tuple(notes))
            )
        return sources

    def _nifti_sources(self) -> list[ScanSource]:
        return [
            ScanSource(
                name=self._name(file.parent, nifti.stem(file)),
                path=file,
                files=(file,),
                format="nifti",
            )
            for file in self.niftis
        ]

    def _failures(self) -> list[ScanFailure]:
        """Return one failure per folder, so that a study of 300 damaged files is one failure."""
        failures = []
        for folder, unreadable in self.broken.items():
            file_name = unreadable[0][0].stem if len(unreadable) == 1 else "unreadable"
            name = self._name(folder, file_name)
            reason = listed([reason for _, reason in unreadable])
            files = tuple(file for file, _ in unreadable)
            failures.append(ScanFailure(name=name, files=files, reason=reason))
        return failures

    def _name(self, folder: Path, file: str = "") -> str:
        """Return the path below the root, so that a new folder beside it changes no name."""
        parts = [*folder.relative_to(self.root).parts, *([file] if file else [])]
        return "_".join(parts) or self.root.resolve().name


def _with_unique_name(item: _Named, taken: Counter[str]) -> _Named:
    """Append a digest of the file names to a name that is not unique; it is reproducible."""
    if taken[item.name] == 1:
        return item
    file_names = "\n".join(sorted(file.name for file in item.files))
    digest = hashlib.sha256(file_names.encode()).hexdigest()[:8]
    return replace(item, name=f"{item.name}_{digest}")
