"""Check a work folder or a folder of features and advise what to do; nothing is changed."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core import (
    hdf5_files,
    is_abandoned,
    not_a_file,
    passed_over,
    read_bag,
    read_stamp,
    temporary_files_below,
)
from ..errors import BagError, InputError
from .coordinates import read_coordinates
from .records import NOUNS, Record
from .work import PatchSet, WorkFolder

OUTDATED = "made from different patches than those now in the folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A problem with a file, and what to do about it."""

    file: str
    problem: str
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The problems of a folder."""

    folder: Path
    files: int
    """Number of bags and files of coordinates that were read completely."""
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as JSON values."""
        findings = [asdict(f) for f in self.findings]
        return {"folder": str(self.folder), "files": self.files, "findings": findings}

    def render(self, console: Console) -> None:
        """Print a table of the problems and their number."""
        if self.findings:
            table = Table(box=None, pad_edge=False)
            for heading in ("file", "problem", "what to do"):
                table.add_column(heading, overflow="fold")
            for f in self.findings:
                table.add_row(f.file, f.problem, f.advice)
            console.print(table, markup=False)
        console.print(
            f"{self.files} files read, {len(self.findings)} problems: {self.folder}", markup=False
        )


def verify(folder: Path | str) -> Verification:
    """Read every file of a work folder, or every bag of a features folder, completely.

    The checks: files can be read, rows agree, values are finite, features belong to the current
    patches, all work is done, slides have not moved, and killed runs left nothing behind.

    Raises:
        InputError: There is no such folder, or nothing in it to verify.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    sets = WorkFolder(folder).sets()
    findings: list[Finding] = []
    files = 0
    for patch_set in sets.values():
        records = _read_records(patch_set, findings)
        for checks in (_check_patches(patch_set, records), _check_features(patch_set, records)):
            for was_read, finding in checks:
                files += was_read
                findings += [] if finding is None else [finding]
    if not sets:
        bags = hdf5_files(folder)
        files = len(bags)
        for path in bags:
            try:
                read_bag(path)
            except BagError as e:
                advice = "extract or copy it again, or remove it"
                file = str(path.relative_to(folder))
                findings.append(Finding(file=file, problem=str(e), advice=advice))
        for path in passed_over(folder, bags):
            advice = "give the folder that it leads to, or remove it"
            file = str(path.relative_to(folder))
            findings.append(Finding(file=file, problem=not_a_file(path), advice=advice))
        if not files:
            raise InputError(
                f"{folder} is not a work folder, and contains no bags (.h5): nothing to do"
            )
    advice = "run the command again, which removes it, or delete it"
    problem = "a half-written file that a killed run left"
    findings += [
        Finding(file=str(p.relative_to(folder)), problem=problem, advice=advice)
        for p in temporary_files_below(folder)
        if is_abandoned(p)
    ]
    return Verification(folder=folder, files=files, findings=tuple(findings))


Check = tuple[bool, Finding | None]
"""Whether a file was read, and the problem with it, if any."""


def _read_records(patch_set: PatchSet, findings: list[Finding]) -> list[Record]:
    """Return the records of patching; note those that have another name than their file."""
    records = []
    for path in patch_set.record_files("patch"):
        try:
            record = Record.read(path)
        except InputError as e:
            file = str(path.relative_to(patch_set.path.parent))
            advice = "remove the record, and run probsa patch again"
            findings.append(Finding(file=file, problem=str(e), advice=advice))
        else:
            records += [] if record is None else [record]
    return records


def _check_patches(patch_set: PatchSet, records: list[Record]) -> Iterator[Check]:
    current = patch_set.made_with
    for record in records:
        file = f"{patch_set.path.name}/{record.name}"
        noun = NOUNS[record.kind]
        if record.status != "done":
            if not Path(record.source).exists():
                continue  # the user removed it, as advised below
            advice = f"repair or remove the {noun}, then run probsa patch again"
            if record.status == "no_tissue":
                advice = "look at its thumbnail: remove the slide, or follow the reason"
            yield False, Finding(file=file, problem=record.reason, advice=advice)
            continue
        sources = (record.source, *record.files)
        missing = next((path for path in sources if not Path(path).exists()), None)
        if missing is not None:
            problem = f"its {noun} is no longer at {missing}"
            advice = "give --slides FOLDER to extract and map"
            yield False, Finding(file=file, problem=problem, advice=advice)
        if record.settings not in ("", current):
            problem = "its patches were made with settings other than the folder's current ones"
            advice = f"give --overwrite to probsa patch for this {noun} too"
            yield False, Finding(file=file, problem=problem, advice=advice)
        problem = _patches_problem(patch_set, record)
        advice = "remove it, and run probsa patch again"
        yield True, None if not problem else Finding(file=file, problem=problem, advice=advice)
    recorded = {record.name for record in records}
    for path in sorted(patch_set.patches.glob("*_patches.h5")):
        if path.name.removesuffix("_patches.h5") not in recorded:
            problem = "no record says how it was made"
            advice = "run probsa patch again"
            yield False, Finding(file=f"patches/{path.name}", problem=problem, advice=advice)


def _patches_problem(patch_set: PatchSet, record: Record) -> str:
    """Return the problem with a file of coordinates; empty if there is none."""
    try:
        coordinates = read_coordinates(patch_set.patches_file(record.name))
    except BagError as e:
        return str(e)
    if len(coordinates.coords) != record.count:
        return f"{len(coordinates.coords)} coordinates, {record.count} recorded"
    if record.kind == "slide":
        try:
            coordinates.patches()
        except BagError as e:
            return str(e)
    same = coordinates.made_with == record.made_with
    return "" if same else "made with other settings than recorded"


def _check_features(patch_set: PatchSet, records: list[Record]) -> Iterator[Check]:
    done = {r.name: r for r in records if r.status == "done"}
    for name in patch_set.feature_sets():
        folder = patch_set.path / name
        files = {p.stem: p for p in sorted(folder.glob("*.h5")) if not p.name.startswith(".")}
        again = f"run probsa extract --encoder {_encoder_of(name, files.values())} again"
        for bag in sorted(done.keys() - files.keys()):
            try:
                record = Record.read(patch_set.record(name, bag))
                problem = record.reason if record is not None else ""
            except InputError as e:
                problem = str(e)
            problem = problem or "no features yet"
            yield False, Finding(file=f"{name}/{bag}.h5", problem=problem, advice=again)
        for bag, path in files.items():
            problem = _features_problem(patch_set, done.get(bag), path)
            advice = f"{again} with --overwrite" if problem == OUTDATED else f"remove it, {again}"
            finding = Finding(file=f"{name}/{bag}.h5", problem=problem, advice=advice)
            yield True, finding if problem else None
        encoders = sorted({_stamp_of(path, "encoder") for path in files.values()} - {""})
        if len(encoders) > 1:
            problem = f"features of {len(encoders)} encoders or weights: {', '.join(encoders)}"
            yield False, Finding(file=name, problem=problem, advice=f"{again} with --overwrite")


def _encoder_of(folder: str, files: Iterable[Path]) -> str:
    """Return an encoder's name; that of its folder may lack special characters."""
    stamped = (_stamp_of(path, "encoder").rpartition("@")[0] for path in files)
    return next(filter(None, stamped), folder.removeprefix("features_"))


def _stamp_of(path: Path, key: str) -> str:
    """Return a stamp of a bag; empty if the bag has none or is damaged."""
    try:
        return read_stamp(path, key) or ""
    except BagError:
        return ""


def _features_problem(patch_set: PatchSet, record: Record | None, path: Path) -> str:
    """Return the problem with a bag of a work folder; empty if there is none."""
    try:
        bag = read_bag(path, keep_unreadable=True)
    except BagError as e:
        return str(e)
    if record is None:
        return "there are no patches of this name"
    try:
        coordinates = read_coordinates(patch_set.patches_file(record.name))
    except BagError:
        return ""  # reported with the patches
    same = bag.coords is not None and bag.coords.tolist() == coordinates.coords.tolist()
    fingerprint = _patches_fingerprint(_stamp_of(path, "made_with"))
    return "" if same and fingerprint in ("", coordinates.fingerprint) else OUTDATED


def _patches_fingerprint(made_with: str) -> str:
    """Return the fingerprint of the patches from the stamp of a bag; empty if it has none."""
    try:
        return str(json.loads(made_with)["patches"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return ""
