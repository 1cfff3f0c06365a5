"""The work folder of a cohort, with the layout of a TRIDENT job folder.

WORK/contours_geojson/ thumbnails/ contours/     tissue and pictures of each slide
WORK/20x_512px_0px_overlap/patches/              one patch set: one file of coordinates per slide
                           features_resnet50/    features: one bag per slide
                           settings.json patch.csv features_resnet50.csv records/
WORK/slices/                                     the same for the slices of CT series
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import (
    NOT_ON_WINDOWS,
    WINDOWS,
    as_paths,
    files_matching,
    named_file,
    samples,
    write_json,
)
from ..errors import InputError, hint
from .comparable import PATCHES, KnownOptions
from .comparable import TISSUE as TISSUE_OPTIONS
from .records import Record

TISSUE = "tissue.json"
SLICES = "slices"
"""Name of the patch set that contains CT series."""
MAX_NAME_BYTES = 160
"""Longest file name; file systems allow 255 bytes, including suffixes of temporary files."""


@dataclass(frozen=True, slots=True)
class PatchSet:
    """Paths of one set of patches and of the features made from it."""

    path: Path

    def __post_init__(self) -> None:
        as_paths(self)

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def patches(self) -> Path:
        """Folder of the coordinates."""
        return self.path / "patches"

    def patches_file(self, name: str) -> Path:
        return named_file(self.patches, name, "_patches.h5")

    def features(self, encoder: str) -> Path:
        """Return the folder of an encoder's features."""
        return self.path / f"features_{file_name(encoder)}"

    @property
    def made_with(self) -> str:
        """Digest of the settings with which all patches of the set should have been made."""
        settings = _read_settings(self.settings_file)
        tissue = _read_settings(self.path.parent / TISSUE)
        return digest(PATCHES.compared(settings), TISSUE_OPTIONS.compared(tissue))

    def record(self, stage: str, name: str) -> Path:
        """Return the path of a record; `stage` is `patch` or the name of a features folder."""
        return named_file(self.path / "records" / stage, name, ".json")

    def report(self, stage: str) -> Path:
        return self.path / f"{stage}.csv"

    def record_files(self, stage: str) -> list[Path]:
        return sorted((self.path / "records" / stage).glob("*.json"))

    def records(self, stage: str = "patch") -> Iterator[Record]:
        """Yield every record of a stage, sorted by name."""
        for path in self.record_files(stage):
            record = Record.read(path)
            if record is not None:
                yield record

    def feature_sets(self) -> list[str]:
        """List the names of the features folders that exist."""
        return sorted(p.name for p in self.path.glob("features_*") if p.is_dir())


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Paths of a cohort."""

    path: Path

    def __post_init__(self) -> None:
        as_paths(self)

    @property
    def tissue_file(self) -> Path:
        """File with the settings of tissue detection."""
        return self.path / TISSUE

    def contours(self, name: str) -> Path:
        return named_file(self.path / "contours_geojson", name, ".geojson")

    def thumbnail(self, name: str) -> Path:
        return named_file(self.path / "thumbnails", name, ".jpg")

    def overview(self, name: str) -> Path:
        """Return the path of the thumbnail with the outline of the tissue and the patches."""
        return named_file(self.path / "contours", name, ".jpg")

    def sets(self) -> dict[str, PatchSet]:
        """Return the patch sets that exist, by name."""
        files = sorted(self.path.glob("*/settings.json"))
        return {p.parent.name: PatchSet(p.parent) for p in files}

    def names(self) -> dict[tuple[str, ...], str]:
        """Return the names of the slides and scans that have patches here, by their files."""
        names = {}
        for patch_set in self.sets().values():
            for record in patch_set.records():
                if record.status != "failed":
                    names[record.paths] = record.name
        return names

    def choose(self, name: str | None = None) -> PatchSet:
        """Return the patch set of that name; without one, the only set, or only non-empty set.

        Raises:
            InputError: This is not a work folder, there is no such set, or several sets exist and
                no name was given.
        """
        sets = self.sets()
        if not sets:
            raise InputError(
                f"{self.path} is not a work folder, or contains no patches yet: run "
                f"`probsa patch SLIDES --out {self.path}` first"
            )
        if name is not None and name not in sets:
            raise InputError(
                f"{self.path} has no set of patches {name!r}.{hint(name, sets)} "
                f"Available: {', '.join(sets)}"
            )
        if name is not None:
            return sets[name]
        if len(sets) == 1:
            return next(iter(sets.values()))
        # one bad DICOM file among slides, or bad settings, can leave a set without patches
        with_patches = [s for s in sets.values() if any(r.status == "done" for r in s.records())]
        if len(with_patches) == 1:
            return with_patches[0]
        raise InputError(
            f"{self.path} contains several sets of patches: {', '.join(sets)}. Choose with --set"
        )


def file_name(name: str) -> str:
    """Convert a name to a plain file name: replace special characters, and shorten it.

    Folders of features have such names, and so had slides and scans before `bag_name`.
    """
    safe = re.sub(r"[^\w.@+=() -]", "_", name).strip(". ")
    return _shorten_name(safe, name) or "unnamed"


def bag_name(name: str) -> str:
    """Return the name of a slide or scan as the name of its bag, which its files have.

    It stays as it is, without spaces around it, so that labels match. What no file can be called
    is replaced: control characters, bytes that are no text, and names that are too long.
    """
    safe = "".join("_" if _is_unwritable(c) else c for c in name).strip()
    if WINDOWS:
        safe = NOT_ON_WINDOWS.sub("_", safe).rstrip(". ")
    if safe.startswith("."):
        safe = f"_{safe[1:]}"  # a hidden file would not be found again
    return _shorten_name(safe, name) or "unnamed"


def _is_unwritable(character: str) -> bool:
    """Return whether a character cannot stand in the name and the records of a bag."""
    # Cs: bytes of a file name that are not UTF-8; Cc: line ends and other control characters
    return character in "/\0" or unicodedata.category(character) in ("Cc", "Cs")


def _shorten_name(safe: str, name: str) -> str:
    """Return a name with at most `MAX_NAME_BYTES` bytes, of which the last are a digest."""
    if len(safe.encode()) <= MAX_NAME_BYTES:
        return safe
    suffix = digest(name)
    head = safe.encode()[: MAX_NAME_BYTES - len(suffix) - 1]
    return head.decode(errors="ignore") + f"_{suffix}"


def is_work_picture(path: Path) -> bool:
    """Return True if an image file is a picture in a work folder rather than a slide."""
    folder = path.parent
    if folder.name not in ("thumbnails", "contours"):
        return False
    work = WorkFolder(folder.parent)
    return (work.path / "contours_geojson").is_dir() or bool(work.sets())


def digest(*parts: Any) -> str:
    """Return a hash of JSON values, as 16 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_of(files: tuple[Path, ...]) -> str:
    """Return a hash of files: of their sizes, and of a megabyte at start, middle and end of each.

    Reading whole slides would take as long as encoding them. A slide that is scanned or converted
    again differs in all of these.
    """
    content = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        content.update(f"{path.name}:{size};".encode())
        with path.open("rb") as f:
            for part in samples(f, size):
                content.update(part)
    return content.hexdigest()[:16]


def earlier_files(folder: Path) -> list[Path]:
    """List the files of a work folder that a version of probsa without ledgers wrote.

    A record of patching proves that the pictures and patches of its slide are ours: the tools that
    write the same layout have no records.
    """
    work = WorkFolder(folder)
    files: list[Path] = []
    for patch_set in work.sets().values():
        names = _names_with_record(patch_set, "patch")
        if not names:
            continue
        files += [work.tissue_file, patch_set.settings_file]
        files += files_matching(patch_set.path, ("patch.csv", "patch_*of*.csv"))
        for name in names:
            files += [work.contours(name), work.thumbnail(name), work.overview(name)]
            files += [patch_set.patches_file(name), patch_set.record("patch", name)]
        for stage in patch_set.feature_sets():
            files += files_matching(patch_set.path, (f"{stage}.csv", f"{stage}_*of*.csv"))
            for name in _names_with_record(patch_set, stage):
                files.append(named_file(patch_set.path / stage, name, ".h5"))
                files.append(patch_set.record(stage, name))
    return files


def _names_with_record(patch_set: PatchSet, stage: str) -> list[str]:
    """Return the names of the slides or series with a record of a stage that can be read."""
    names = []
    for path in patch_set.record_files(stage):
        with suppress(InputError):  # it was changed by hand
            if Record.read(path) is not None:
                names.append(path.stem)
    return names


def write_settings(
    path: Path, settings: Mapping[str, Any], *, options: KnownOptions, overwrite: bool, what: str
) -> None:
    """Write the settings of a folder, or check that those in the folder are the same.

    Args:
        path: File of the settings.
        settings: The settings.
        options: How they are compared.
        overwrite: Replace different settings instead of refusing them.
        what: What error messages call the settings.

    Raises:
        InputError: The folder was made with other settings, and `overwrite` is not set.
    """
    plain = json.loads(json.dumps(settings, default=str))
    if overwrite or not path.is_file():
        write_json(path, plain)
        return
    stored = options.compared(_read_settings(path))
    requested = options.compared(plain)
    differences = []
    for key in sorted({*stored, *requested}):
        one = stored.get(key)
        other = requested.get(key)
        if one != other:
            differences.append(f"{key}: {_shorten(one)} there, {_shorten(other)} requested")
    if differences:
        raise InputError(
            f"{path.parent} was made with other {what} ({'; '.join(differences)}). Give another "
            "--out, the same settings, or --overwrite to redo everything in it"
        )


def stored_settings(patch_set: PatchSet) -> dict[str, Any]:
    """Return the settings that a set of patches was made with, empty if they are not stored."""
    settings = _read_settings(patch_set.settings_file)
    tissue = _read_settings(patch_set.path.parent / TISSUE)
    if settings and tissue:
        settings["tissue"] = tissue
    return settings


def _read_settings(path: Path) -> dict[str, Any]:
    """Read a file written by `write_settings`; return no settings if it is missing or damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _shorten(value: Any) -> str:
    """Return a setting as it is shown in a message."""
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."
