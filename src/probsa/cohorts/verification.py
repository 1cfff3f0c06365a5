"""What is wrong with a folder, and what to do about it: nothing is changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..datasets.hdf5 import hdf5_files
from ..errors import BagError, InputError
from ..files import unfinished_below
from ..store import read_bag, stamp
from .coordinates import Coordinates, read_coordinates
from .locks import dead_locks
from .records import Record
from .work import PatchSet, WorkFolder


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
            table = Table("file", "problem", "what to do", box=None, pad_edge=False)
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
    work = WorkFolder(folder)
    found: list[Finding] = []
    files = 0
    for patch_set in work.sets().values():
        for part in (_of_patches(patch_set), _of_features(patch_set)):
            for read, finding in part:
                files += read
                found += [] if finding is None else [finding]
    if not work.sets():
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
    for record in patch_set.records():
        where = f"{patch_set.path.name}/{record.name}"
        if record.status != "done":
            advice = "mend or leave out the slide, then run probsa patch again"
            yield False, Finding(file=where, problem=record.reason, advice=advice)
            continue
        if not Path(record.source).exists():
            problem = f"its slide is no longer at {record.source}"
            advice = "give --slides FOLDER to extract and map"
            yield False, Finding(file=where, problem=problem, advice=advice)
        problem = _patches_problem(patch_set, record)
        advice = "run probsa patch again: it makes what is damaged anew"
        yield True, None if not problem else Finding(file=where, problem=problem, advice=advice)
    recorded = {r.name for r in patch_set.records()}
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
        again = f"run probsa extract --encoder {name.removeprefix('features_')} again"
        files = {p.stem: p for p in sorted(folder.glob("*.h5")) if not p.name.startswith(".")}
        for bag in sorted(done.keys() - files.keys()):
            record = Record.read(patch_set.record(name, bag))
            why = record.reason if record is not None and record.reason else "no features yet"
            yield False, Finding(file=f"{name}/{bag}.h5", problem=why, advice=again)
        encoders = set()
        for bag, path in files.items():
            problem, encoder = _features_problem(patch_set, done.get(bag), path)
            encoders |= {encoder} - {None}
            advice = f"{again} with --overwrite" if "other" in problem else f"remove it, {again}"
            yield (
                True,
                None
                if not problem
                else Finding(file=f"{name}/{bag}.h5", problem=problem, advice=advice),
            )
        if len(encoders) > 1:
            problem = f"features of {len(encoders)} encoders or weights: {', '.join(encoders)}"
            yield False, Finding(file=name, problem=problem, advice=f"{again} with --overwrite")


def _features_problem(
    patch_set: PatchSet, record: Record | None, path: Path
) -> tuple[str, str | None]:
    """What is wrong (empty: nothing), and which encoder made it."""
    try:
        bag = read_bag(path, keep_unreadable=True)
        encoder = stamp(path, "encoder")
    except BagError as e:
        return str(e), None
    if record is None:
        return "there are no patches of this name", encoder
    try:
        held = read_coordinates(patch_set.patches_file(record.name))
    except BagError:
        return "", encoder  # said of the patches
    if bag.coords is None or not _same(held, bag.coords.tolist()):
        return "made of other patches than are there now", encoder
    return "", encoder


def _same(held: Coordinates, coords: list[Any]) -> bool:
    return held.coords.tolist() == coords


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
