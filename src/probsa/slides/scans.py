"""Scans below a folder: what there is, listed from headers alone, and each opened by itself.

One damaged series does not keep the others from being listed or opened.
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
    """One scan that can be opened: small, and the same in every process."""

    name: str
    """Unique in its listing, and the same as long as the folder is."""
    path: Path
    """The folder of a DICOM series, else the file."""
    files: tuple[Path, ...]
    format: Literal["dicom", "nifti"]
    notes: tuple[str, ...] = ()
    """What the listing saw; `open_scan` hands it on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanFailure:
    """Files that should have been a scan, or part of one."""

    name: str
    files: tuple[Path, ...]
    reason: str


_Named = TypeVar("_Named", ScanSource, ScanFailure)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanListing:
    """What lies below a folder."""

    sources: tuple[ScanSource, ...]
    failures: tuple[ScanFailure, ...]
    skipped: dict[str, int]
    """Files that are no slices (SR, DICOMDIR, localizer, other files, …), with their number."""


def list_scans(path: Path | str) -> ScanListing:
    """The scans of a file, or below a folder, from headers alone.

    A DICOM series is what shares a SeriesInstanceUID in one folder. Names are the folder's path
    below `path` (parts joined by `_`), with the SeriesNumber where it holds several series.

    Raises:
        SlideError: there is no such path.
        MissingExtra: pydicom is not installed, and there are DICOM files.
    """
    path = Path(path)
    if path.is_file():
        return _list_file(path)
    if not path.is_dir():
        raise SlideError(f"there is no file or folder {path}")
    found = _Found(path)
    for file in sorted(path.rglob("*")):
        if file.is_file():
            found.take(file)
    return found.listing()


def open_scan(source: ScanSource) -> _base.Scan:
    """Reads one scan.

    Raises:
        SlideError: it cannot be read; the message names the file.
        MissingExtra: what reads its format is not installed.
    """
    if source.format == "nifti":
        return nifti.open_nifti(source.name, source.path)
    from .dicom import open_series

    scan = open_series(source.name, source.path, files=source.files)
    return _with_notes(scan, source.notes)


def open_scans(path: Path | str) -> list[_base.Scan]:
    """Every scan of a file or below a folder; those that fail are named in the others' notes.

    All are held in memory at once: for many, take `list_scans` and `open_scan`.

    Raises:
        SlideError: there is none that can be read; the message has the reasons.
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
    beside = (f"Beside it there are what cannot be read: {listed(failed)}.",) if failed else ()
    return [_with_notes(scan, beside) for scan in scans]


def _with_notes(scan: _base.Scan, notes: tuple[str, ...]) -> _base.Scan:
    return replace(scan, notes=(*scan.notes, *notes)) if notes else scan


def _list_file(path: Path) -> ScanListing:
    """A file that the user named is opened whatever it shows, if it is one image of grey."""
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
class _Found:
    """Collects the files below a folder."""

    root: Path
    series: dict[tuple[Path, str], list[Header]] = field(default_factory=lambda: defaultdict(list))
    niftis: list[Path] = field(default_factory=list)
    broken: dict[Path, list[tuple[Path, str]]] = field(default_factory=lambda: defaultdict(list))
    skipped: Counter[str] = field(default_factory=Counter)

    def take(self, file: Path) -> None:
        """Sorts one file in."""
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
        """What was found, with names that are unique."""
        sources = [*self._dicom_sources(), *self._nifti_sources()]
        failures = self._failures()
        taken = Counter(thing.name for thing in [*sources, *failures])
        return ScanListing(
            sources=tuple(_told_apart(s, taken) for s in sources),
            failures=tuple(_told_apart(f, taken) for f in failures),
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
            if wrong := self.broken.get(folder):
                told = listed([file.name for file, _ in wrong])
                notes.append(f"Files beside the slices cannot be read: {told}.")
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
        """One a folder: a study of 300 damaged files is one failure, not 300."""
        failures = []
        for folder, wrong in self.broken.items():
            one = wrong[0][0].stem if len(wrong) == 1 else "unreadable"
            name = self._name(folder, one)
            reason = listed([reason for _, reason in wrong])
            files = tuple(file for file, _ in wrong)
            failures.append(ScanFailure(name=name, files=files, reason=reason))
        return failures

    def _name(self, folder: Path, file: str = "") -> str:
        """The path below the root, so that a new folder beside it changes no name."""
        parts = [*folder.relative_to(self.root).parts, *([file] if file else [])]
        return "_".join(parts) or self.root.resolve().name


def _told_apart(thing: _Named, taken: Counter[str]) -> _Named:
    """Names that several have get a digest of the files' names, which is the same on every run."""
    if taken[thing.name] == 1:
        return thing
    told = "\n".join(sorted(file.name for file in thing.files))
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    return replace(thing, name=f"{thing.name}_{digest}")
