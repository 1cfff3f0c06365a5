"""A work folder: what stages 1 to 3 make of a cohort, laid out as TRIDENT's job folder.

WORK/contours_geojson/ thumbnails/ contours/     tissue of each slide, and pictures of it
WORK/20x_512px_0px_overlap/patches/              one set of patches: coordinates, one file a slide
                           features_resnet50/    features, one bag a slide
                           settings.json patch.csv features_resnet50.csv records/
WORK/slices/                                     the same for the slices of CT series
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import write_json
from ..errors import InputError, hint
from ..jobs import writing
from .records import Record

TISSUE = "tissue.json"
SLICES = "slices"
"""Name of the set of a work folder that holds CT series."""
LONGEST = 160
"""Bytes of a name; file systems allow 255, of which endings and temporary names take some."""
ENDS = 1 << 20
"""Bytes at the start, the middle and the end of a file that tell it from another version of it."""


@dataclass(frozen=True, slots=True)
class PatchSet:
    """Paths of one set of patches, and of the features made of it."""

    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def patches(self) -> Path:
        """Folder of the coordinates."""
        return self.path / "patches"

    def patches_file(self, name: str) -> Path:
        return self.patches / f"{name}_patches.h5"

    def features(self, encoder: str) -> Path:
        """Folder of the features of an encoder."""
        return self.path / f"features_{file_name(encoder)}"

    @property
    def made_with(self) -> str:
        """Digest of the settings that all patches of the set should be of."""
        return digest(*(_held(p) for p in (self.settings_file, self.path.parent / TISSUE)))

    def record(self, stage: str, name: str) -> Path:
        """`stage` is `patch` or the name of a folder of features."""
        return self.path / "records" / stage / f"{name}.json"

    def report(self, stage: str) -> Path:
        return self.path / f"{stage}.csv"

    def records(self, stage: str = "patch") -> Iterator[Record]:
        """Every record of a stage, by name."""
        for path in sorted((self.path / "records" / stage).glob("*.json")):
            found = Record.read(path)
            if found is not None:
                yield found

    def feature_sets(self) -> list[str]:
        """Names of the folders of features that are there."""
        return sorted(p.name for p in self.path.glob("features_*") if p.is_dir())


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Paths of a cohort."""

    path: Path

    @property
    def tissue_file(self) -> Path:
        """How the tissue of this cohort was found."""
        return self.path / TISSUE

    def contours(self, name: str) -> Path:
        return self.path / "contours_geojson" / f"{name}.geojson"

    def thumbnail(self, name: str) -> Path:
        return self.path / "thumbnails" / f"{name}.jpg"

    def overview(self, name: str) -> Path:
        """Thumbnail with the tissue's outline and the patches."""
        return self.path / "contours" / f"{name}.jpg"

    def sets(self) -> dict[str, PatchSet]:
        """The sets of patches that are there, by name."""
        found = sorted(self.path.glob("*/settings.json"))
        return {p.parent.name: PatchSet(p.parent) for p in found}

    def choose(self, name: str | None = None) -> PatchSet:
        """The set of that name, or the only one, or the only one with patches in it.

        Raises:
            InputError: no work folder, no such set, or several and none named.
        """
        sets = self.sets()
        if not sets:
            raise InputError(
                f"{self.path} is no work folder, or holds no patches yet: run "
                f"`probsa patch SLIDES --out {self.path}` first"
            )
        if name is not None and name not in sets:
            raise InputError(
                f"{self.path} has no set of patches {name!r}.{hint(name, sets)} "
                f"There are: {', '.join(sets)}"
            )
        if name is None and len(sets) > 1:
            # one bad DICOM among slides, or settings that suited none, leave a set of failures
            made = {k: s for k, s in sets.items() if any(r.status == "done" for r in s.records())}
            sets = made if len(made) == 1 else sets
        if name is None and len(sets) > 1:
            raise InputError(
                f"{self.path} holds several sets of patches: {', '.join(sets)}. Choose with --set"
            )
        return sets[name if name is not None else next(iter(sets))]


def file_name(name: str) -> str:
    """A name as a file's: without what file systems refuse, the end of a long one as a digest."""
    kept = "".join(c if c.isalnum() or c in "-_.@+=() " else "_" for c in name).strip(". ")
    if len(kept.encode()) > LONGEST:
        told = digest(name)
        kept = kept.encode()[: LONGEST - len(told) - 1].decode(errors="ignore") + f"_{told}"
    return kept or "unnamed"


def is_picture_of_ours(path: Path) -> bool:
    """Whether a file is a picture that a work folder keeps, which looks like a plain slide."""
    folder = path.parent
    if folder.name not in ("thumbnails", "contours"):
        return False
    work = WorkFolder(folder.parent)
    return (work.path / "contours_geojson").is_dir() or bool(work.sets())


def digest(*parts: Any) -> str:
    """16 hexadecimal digits that differ where any part does; parts are JSON values."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_of(files: tuple[Path, ...]) -> str:
    """Digest of files: their sizes and a megabyte each of their start, middle and end.

    Reading whole slides would cost as much as encoding them; a slide that is scanned or converted
    anew differs in all four.
    """
    h = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        h.update(f"{path.name}:{size};".encode())
        with path.open("rb") as f:
            for start in sorted({0, max(0, size // 2 - ENDS // 2), max(0, size - ENDS)}):
                f.seek(start)
                h.update(f.read(ENDS))
    return h.hexdigest()[:16]


def settle(path: Path, wanted: Mapping[str, Any], *, overwrite: bool, what: str) -> None:
    """Writes what a folder is made with; what is there already must be the same.

    Raises:
        InputError: it was made with something else, and `overwrite` is not set.
    """
    plain = json.loads(json.dumps(wanted, default=str))
    if path.is_file() and not overwrite:
        held = _held(path)
        changed = [
            f"{k}: {_shown(held.get(k))} there, {_shown(plain.get(k))} asked for"
            for k in sorted({*held, *plain})
            if held.get(k) != plain.get(k)
        ]
        if changed:
            raise InputError(
                f"{path.parent} was made with other {what} ({'; '.join(changed)}). Give another "
                "--out, the same settings, or --overwrite to make everything in it anew"
            )
        return
    with writing(path):
        write_json(path, plain)


def _held(path: Path) -> dict[str, Any]:
    """What `settle` wrote; nothing where there is no such file, or a damaged one."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."
