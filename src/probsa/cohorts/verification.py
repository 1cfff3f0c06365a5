"""What is wrong with a folder, and what to do about it: nothing is changed."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..core import hdf5_files, read_bag, stamp, unfinished_below
from ..errors import BagError, InputError
from ..jobs import dead_locks
from .coordinates import read_coordinates
from .records import NOUNS, Record
from .work import PatchSet, WorkFolder

OUT_OF_DATE = "made of other patches than are there now"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    file: str
    problem: str
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What was looked at, and what was found."""

    folder: Path
    files: int
    """Bags and files of coordinates that were read whole."""
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        found = [{"file": f.file, "problem": f.problem, "advice": f.advice} for f in self.findings]
        return {"folder": str(self.folder), "files": self.files, "findings": found}

    def render(self, console: Console) -> None:
        """For people."""
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


def verify(folder: Path) -> Verification:
    """Reads every file of a work folder, or every bag of a folder of features, whole.

    Looked at: that files can be read, that rows agree and values are finite, that features belong
    to the patches that are there, that what was to be done was done, that slides are still where
    they were, and what killed runs left.

    Raises:
        InputError: no such folder, or nothing in it to verify.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    sets = WorkFolder(folder).sets()
    found: list[Finding] = []
    files = 0
    for patch_set in sets.values():
        for part in (_of_patches(patch_set), _of_features(patch_set)):
            for read, finding in part:
                files += read
                found += [] if finding is None else [finding]
    if not sets:
        for path in hdf5_files(folder):
            files += 1
            found += _of_bag(path, folder)
        if not files:
            raise InputError(f"{folder} is no work folder, and holds no bags (.h5): nothing to do")
    found += _left_over(folder)
    return Verification(folder=folder, files=files, findings=tuple(found))


Step = tuple[bool, Finding | None]
"""Whether a file was read, and what is wrong with it."""


def _of_patches(patch_set: PatchSet) -> Iterator[Step]:
    current, recorded = patch_set.made_with, set[str]()
    for record in patch_set.records():
        recorded.add(record.name)
        where = f"{patch_set.path.name}/{record.name}"
        if record.status != "done":
            if not Path(record.source).exists():
                continue  # left out, as advised
            advice = "mend or leave out the slide, then run probsa patch again"
            if record.status == "no_tissue":
                advice = "look at its thumbnail: leave it out, or follow the reason"
            yield False, Finding(file=where, problem=record.reason, advice=advice)
            continue
        gone = next((f for f in (record.source, *record.files) if not Path(f).exists()), None)
        if gone is not None:
            problem = f"its slide is no longer at {gone}"
            advice = "give --slides FOLDER to extract and map"
            yield False, Finding(file=where, problem=problem, advice=advice)
        if record.settings not in ("", current):
            problem = "its patches were made with other settings than the folder's are now"
            advice = f"give --overwrite to probsa patch for this {NOUNS[record.kind]} too"
            yield False, Finding(file=where, problem=problem, advice=advice)
        problem = _patches_problem(patch_set, record)
        advice = "run probsa patch again: it makes what is damaged anew"
        yield True, None if not problem else Finding(file=where, problem=problem, advice=advice)
    for path in sorted(patch_set.patches.glob("*_patches.h5")):
        if path.name.removesuffix("_patches.h5") not in recorded:
            problem = "no record says how it was made"
            advice = "run probsa patch again"
            yield False, Finding(file=f"patches/{path.name}", problem=problem, advice=advice)


def _patches_problem(patch_set: PatchSet, record: Record) -> str:
    try:
        held = read_coordinates(patch_set.patches_file(record.name))
    except BagError as e:
        return str(e)
    if len(held.coords) != record.count:
        return f"{len(held.coords)} coordinates, {record.count} recorded"
    return "" if held.made_with == record.made_with else "made with other settings than recorded"


def _of_features(patch_set: PatchSet) -> Iterator[Step]:
    done = {r.name: r for r in patch_set.records() if r.status == "done"}
    for name in patch_set.feature_sets():
        folder = patch_set.path / name
        files = {p.stem: p for p in sorted(folder.glob("*.h5")) if not p.name.startswith(".")}
        again = f"run probsa extract --encoder {_encoder_of(name, files.values())} again"
        for bag in sorted(done.keys() - files.keys()):
            record = Record.read(patch_set.record(name, bag))
            why = record.reason if record is not None and record.reason else "no features yet"
            yield False, Finding(file=f"{name}/{bag}.h5", problem=why, advice=again)
        for bag, path in files.items():
            problem = _features_problem(patch_set, done.get(bag), path)
            advice = (
                f"{again} with --overwrite" if problem == OUT_OF_DATE else f"remove it, {again}"
            )
            finding = Finding(file=f"{name}/{bag}.h5", problem=problem, advice=advice)
            yield True, finding if problem else None
        encoders = sorted({_stamped(path, "encoder") for path in files.values()} - {""})
        if len(encoders) > 1:
            problem = f"features of {len(encoders)} encoders or weights: {', '.join(encoders)}"
            yield False, Finding(file=name, problem=problem, advice=f"{again} with --overwrite")


def _encoder_of(folder: str, files: Iterable[Path]) -> str:
    """The encoder's name, of which a folder's name may lack what file systems refuse."""
    known = (_stamped(path, "encoder").rpartition("@")[0] for path in files)
    return next(filter(None, known), folder.removeprefix("features_"))


def _stamped(path: Path, key: str) -> str:
    """A stamp; empty where there is none, or the file is damaged, which is said elsewhere."""
    try:
        return stamp(path, key) or ""
    except BagError:
        return ""


def _features_problem(patch_set: PatchSet, record: Record | None, path: Path) -> str:
    """What is wrong; empty: nothing."""
    try:
        bag = read_bag(path, keep_unreadable=True)
    except BagError as e:
        return str(e)
    if record is None:
        return "there are no patches of this name"
    try:
        held = read_coordinates(patch_set.patches_file(record.name))
    except BagError:
        return ""  # said of the patches
    same = bag.coords is not None and bag.coords.tolist() == held.coords.tolist()
    known = _made_of(_stamped(path, "made_with"))
    return "" if same and known in ("", held.fingerprint) else OUT_OF_DATE


def _made_of(made_with: str) -> str:
    """The fingerprint of the patches in the stamp of a bag; empty where it has none."""
    try:
        return str(json.loads(made_with)["patches"])
    except (ValueError, TypeError, LookupError):
        return ""


def _of_bag(path: Path, folder: Path) -> list[Finding]:
    try:
        read_bag(path)
    except BagError as e:
        advice = "extract or copy it again, or leave it out"
        return [Finding(file=str(path.relative_to(folder)), problem=str(e), advice=advice)]
    return []


def _left_over(folder: Path) -> list[Finding]:
    """Half-written files and locks of processes that are gone."""
    advice = "run the command again, which clears it, or delete it"
    found = [(p, "a half-written file that a killed run left") for p in unfinished_below(folder)]
    found += [(p, "the lock of a process that is gone") for p in dead_locks(folder)]
    return [
        Finding(file=str(p.relative_to(folder)), problem=problem, advice=advice)
        for p, problem in found
    ]
