"""What a user gave to `probsa patch`: slides and series, each with a name of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core import BagKind, read_csv
from ..errors import InputError
from ..slides import PLAIN_SUFFIXES, list_scans, open_slide, slide_files, slide_name
from .records import Record
from .work import file_name, is_picture_of_ours

Resolution = float | Mapping[str, float]
"""Micrometres per level-0 pixel: of every slide, or by the slide's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One slide, or one CT series."""

    name: str
    kind: BagKind
    source: Path
    """The slide, or the folder or file that the series is in."""
    files: tuple[Path, ...] = ()
    """The slices of a DICOM series, or the NIfTI file."""
    format: str = ""
    mpp: float | None = None
    """As given for this slide: it goes before what the file says."""
    fallback: float | None = None
    """As given for all slides: it holds where a file does not say."""
    notes: tuple[str, ...] = ()
    """What the listing saw of a series."""
    reason: str = ""
    """Why it cannot be used; empty where nothing speaks against it so far."""

    def record(self) -> Record:
        """The record of something that failed, or was not yet tried."""
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
        """The record, with where its slide is now."""
        mine = self.record()
        return replace(record, source=mine.source, files=mine.files)


def find_inputs(source: Path, *, mpp: Resolution | None = None) -> list[Input]:
    """The slides and series at a path, sorted by name.

    Raises:
        InputError: there is nothing, or nothing that could be one.
    """
    if not source.exists():
        raise InputError(f"there is no file or folder {source}")
    scans = list_scans(source)
    studies = {s.path for s in scans.sources if s.format == "dicom"}
    found = [
        Input(name=file_name(slide_name(path)), kind="slide", source=path)
        for path in slide_files(source)
        if not (path.suffix.lower() in PLAIN_SUFFIXES and _is_preview(path, studies))
    ]
    found += [
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
    found += [
        Input(name=file_name(f.name), kind="ct", source=f.files[0], reason=f.reason)
        for f in scans.failures
    ]
    if not found:
        held = sorted({p.suffix or p.name for p in source.rglob("*") if p.is_file()})[:8]
        raise InputError(
            f"there are no slides, DICOM series or NIfTI files in {source}: found "
            f"{', '.join(held) or 'no file'}"
        )
    items = _told_apart(sorted(found, key=lambda i: i.name))
    if isinstance(mpp, Mapping):
        _check_names(items, mpp)
    return [_resolved(i, mpp) for i in items]


def _check_names(items: list[Input], mpp: Mapping[str, float]) -> None:
    """A table of resolutions without a single slide of these is of other slides."""
    slides = [i for i in items if i.kind == "slide"]
    if slides and not any(n in mpp for i in slides for n in (i.name, i.source.name)):
        raise InputError(
            f"the table of resolutions names none of the {len(slides)} slides: it has "
            f"{next(iter(mpp), 'no line')!r}, there is {slides[0].name!r}"
        )


def _is_preview(path: Path, studies: set[Path]) -> bool:
    """Whether an image is of the series that it lies beside, or of a slide in a work folder."""
    return path.parent in studies or is_picture_of_ours(path)


def read_resolutions(text: str) -> Resolution:
    """`0.25`, or a table with the columns `slide` and `mpp`.

    Raises:
        InputError: neither.
    """
    try:
        return _positive(float(text), text)
    except ValueError as e:
        if isinstance(e, InputError):
            raise
    path = Path(text)
    if not path.is_file():
        raise InputError(f"--slide-mpp is {text!r}: give µm per pixel, or a table `slide,mpp`")
    rows = read_csv(path)
    if not rows or not {"slide", "mpp"} <= rows[0].keys():
        raise InputError(f"{path} needs the columns slide and mpp")
    found = {}
    for row in rows:
        try:
            found[row["slide"]] = _positive(float(row["mpp"]), row["mpp"])
        except ValueError as e:
            raise InputError(f"{path}: mpp of {row['slide']!r} is {row['mpp']!r}") from e
    return found


def _positive(value: float, text: str) -> float:
    if not 0 < value < 1000:
        raise InputError(f"µm per pixel is {text}: expected a number between 0 and 1000")
    return value


def _resolved(item: Input, mpp: Resolution | None) -> Input:
    if mpp is None or item.kind != "slide":
        return item
    if isinstance(mpp, Mapping):
        names = (item.name, item.source.name)
        return replace(item, mpp=next((mpp[n] for n in names if n in mpp), None))
    return replace(item, fallback=mpp)


def settled(item: Input) -> Input:
    """With the resolution that holds for it: one that was given for all only fills a gap.

    Raises:
        SlideError: the slide has to be looked at for it, and cannot be opened.
    """
    if item.fallback is None or item.kind != "slide":
        return item
    with open_slide(item.source) as slide:
        known = slide.mpp is not None
    return replace(item, mpp=None if known else item.fallback, fallback=None)


def _told_apart(items: list[Input]) -> list[Input]:
    """Two of one name would overwrite each other: the second is not done, and says so."""
    first: dict[str, Input] = {}
    kept = []
    for item in items:
        other = first.setdefault(item.name, item)
        if other is not item:
            k = 2
            while f"{item.name} ({k})" in first:
                k += 1
            reason = (
                f"{other.source} is named {item.name!r} as well: rename one of the two, or patch "
                "their folders into two work folders"
            )
            item = replace(item, name=f"{item.name} ({k})", reason=item.reason or reason)
            first[item.name] = item
        kept.append(item)
    return kept
