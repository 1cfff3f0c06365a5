"""CAMELYON16: 399 slides of lymph nodes, 270 to train on and 129 to test on.

The organisers' corrections hold by default: test_049 is a duplicate and left out, normal_086 is
tumor_111, test_114 is not annotated exhaustively and takes no part where patches are scored.
Source: Litjens et al., GigaScience 2018, and the README of the release.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import BagError, InputError, TableError
from ..labels import read_rows
from .annotations import read_area
from .processed import Processed, find_processed, need_processed
from .shares import polygon_share
from .study import UNKNOWN, Draft, Marks, Source

CLASSES = ("normal", "tumor")
DUPLICATE = "test_049"
MISLABELLED, CORRECTED = "normal_086", "tumor_111"
NOT_EXHAUSTIVE = "test_114"
OFFICIAL = (
    *(f"normal_{k:03d}" for k in range(1, 161) if k != 86),
    *(f"tumor_{k:03d}" for k in range(1, 112)),
    *(f"test_{k:03d}" for k in range(1, 131) if k != 49),
)
"""The slides that remain: 159 normal and 111 tumor to train on, 129 to test on."""
_WORDS = {
    **dict.fromkeys(("normal", "negative", "normal_tissue", "0", "0.0"), 0),
    **dict.fromkeys(("tumor", "tumour", "positive", "tumor_tissue", "1", "1.0"), 1),
}
_ANNOTATIONS = re.compile(r"annotation|^jsons?$|^xml$", re.IGNORECASE)
_RAW = (
    "probsa patch SLIDES --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset camelyon16 ROOT --features WORK --out DIR"
)


def official(name: str) -> str | None:
    """A slide's name as the organisers write it (`Tumor_001` is tumor_001); None: not theirs."""
    found = re.fullmatch(r"(normal|tumor|test)_(\d{1,3})", name.lower())
    return None if found is None else f"{found[1]}_{int(found[2]):03d}"


def recognised(root: Path) -> bool:
    """Whether a folder is CAMELYON16's, raw or processed."""
    held = find_processed(root, kind="patch_labels")
    if held is not None:
        return any(official(p.stem) for p in held.base.glob("labels/*.npy"))
    return any(official(p.stem) for p in _below(root, (".tif", ".xml")))


def draft(source: Source) -> Draft:
    """What is known of the slides that have features.

    Raises:
        InputError: a file of the release is missing, or an annotation is damaged.
        TableError: nothing says what a test slide is.
    """
    return _processed(source) if source.processed is not None else _raw(source)


def processed(root: Path) -> Processed:
    """The authors' folder.

    Raises:
        InputError: there is none, or a part is missing.
    """
    return need_processed(root, kind="patch_labels", release="CAMELYON16", raw=_RAW)


def _processed(source: Source) -> Draft:
    held = source.processed
    assert held is not None
    made, names = _begun(source, "the authors' processed folder")
    reference = _reference(source)
    for bag, slide in names.items():
        known = _by_name(slide, reference)
        if known is None:
            made.derived.append(bag)
        made.rows[bag] = _row(slide, held.label(bag) if known is None else known)
    stored = [b for b, r in made.rows.items() if held.label(b) != r["label"]]
    made.lists["stored_labels_that_are_not_the_clinical"] = stored
    if stored:
        made.notes.append(
            f"The release stores another label than the clinical one for {len(stored)} slides "
            f"({', '.join(stored[:5])}{', …' if len(stored) > 5 else ''}); the clinical one is "
            "taken."
        )
    if held.splits_file() is not None:
        parts = held.parts()
        other = [b for b, r in made.rows.items() if parts.get(b, r["split"]) != r["split"]]
        if other:
            made.lists["in_another_part_of_splits.csv"] = other
            made.notes.append(
                f"splits.csv has {len(other)} slides in another part than their names say "
                f"({', '.join(other[:5])}); the names are followed."
            )

    def marks(bag: str) -> Marks:
        values = held.marks(bag, size=source.bags.size(bag))
        if names[bag] == NOT_EXHAUSTIVE:
            return Marks(values=np.full(len(values), UNKNOWN))
        return Marks(values=values, stored=True)

    made.marks = marks
    made.annotations = _drawn(names, _annotations(source.root))
    return made


def _raw(source: Source) -> Draft:
    made, names = _begun(source, "the raw download")
    drawn = _annotations(source.root)
    reference = _reference(source)
    tested = any(slide.startswith("test_") for slide in drawn)
    for bag, slide in names.items():
        known = _by_name(slide, reference)
        if known is None:
            if not tested:
                raise TableError(
                    f"nothing says whether {bag} is tumor: testing/reference.csv of the release "
                    f"is not below {source.root}, nor are annotations of test slides. Download "
                    "it, or give --labels"
                )
            made.derived.append(bag)
        made.rows[bag] = _row(slide, int(slide in drawn) if known is None else known)
    if not drawn:
        packed = next(iter(_below(source.root, (".zip",))), None)
        made.notes.append(
            f"No annotations (tumor_001.xml, …) below {source.root}, so patches have no labels."
            + (f" {packed} is packed: unpack it." if packed else "")
        )
        return made
    bare = [
        b for b, r in made.rows.items() if r["label"] == 1 and _file_of(names[b], drawn) is None
    ]
    if bare:
        made.lists["tumor_without_annotation"] = bare
        made.notes.append(
            f"{len(bare)} tumor slides have no annotation ({', '.join(bare[:5])}): the labels of "
            "their patches are unknown."
        )
    made.annotations = _drawn(names, drawn)
    made.marks = partial(_marks, source, made, {b: made.annotations.get(b) for b in names})
    return made


def _marks(source: Source, made: Draft, files: dict[str, Path | None], bag: str) -> Marks:
    """From the polygons; a normal slide without any has no positive patch."""
    n, path = source.bags.size(bag), files[bag]
    if official(bag) == NOT_EXHAUSTIVE or (path is None and made.rows[bag]["label"] == 1):
        return Marks(values=np.full(n, UNKNOWN))
    if path is None:
        return Marks(values=np.zeros(n, np.int64))
    coords, side = source.bags.stored(bag).coords, source.bags.metadata(bag).size_level0
    if coords is None or side is None:
        raise BagError(
            f"bag {bag!r} in {source.bags.folder} does not state where its patches are and how "
            "large, without which no annotation can be laid on it: make the features with "
            "probsa extract, TRIDENT, or CLAM with its patches folder"
        )
    share = polygon_share(read_area(path), coords, side=side)
    return Marks(values=(share > source.options.share).astype(np.int64))


def _begun(source: Source, release: str) -> tuple[Draft, dict[str, str]]:
    """A draft with the official exclusions, and the official name of every bag that stays."""
    made = Draft(release=release, classes=CLASSES)
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for bag in source.bags.names:
        slide = official(bag)
        if slide is None:
            made.excluded[bag] = "its name is none of the release's"
        elif slide in taken:
            raise BagError(
                f"the bags {taken[slide]!r} and {bag!r} in {source.bags.folder} are both {slide}: "
                "leave one out"
            )
        else:
            taken[slide], names[bag] = bag, slide
    if DUPLICATE in taken:
        made.excluded[taken[DUPLICATE]] = "a duplicate, removed by the organisers"
    if MISLABELLED in taken:
        bag = taken[MISLABELLED]
        if CORRECTED in taken:
            made.excluded[bag] = f"the organisers renamed it {CORRECTED}, which is there too"
        else:
            made.corrected[bag] = f"it is {CORRECTED}: tumor"
            names[bag] = CORRECTED
    names = {b: s for b, s in names.items() if b not in made.excluded}
    for bag in [b for b, s in names.items() if s not in OFFICIAL]:
        made.excluded[bag] = "its number is none of the release's"
        del names[bag]
    made.missing = sorted(set(OFFICIAL) - set(names.values()))
    for bag, slide in names.items():
        if slide == NOT_EXHAUSTIVE:
            made.corrected[bag] = "not annotated exhaustively: its patches' labels are unknown"
    made.notes.append(
        f"{len(names)} of the {len(OFFICIAL)} slides that remain of the official 400: {DUPLICATE} "
        f"is a duplicate and out, {MISLABELLED} is {CORRECTED}, {NOT_EXHAUSTIVE} is out where "
        "patches are scored."
    )
    return made, names


def _row(slide: str, label: int) -> dict[str, object]:
    return {"label": label, "split": "test" if slide.startswith("test_") else "train"}


def _by_name(slide: str, reference: dict[str, int]) -> int | None:
    """Training slides say what they are in their names; test slides in reference.csv."""
    if slide.startswith("test_"):
        return reference.get(slide)
    return int(slide.startswith("tumor_"))


def _reference(source: Source) -> dict[str, int]:
    """Labels of test slides: rows of a name and, in a later cell, Normal or Tumor."""
    path = source.options.labels
    if path is None:
        path = next((p for p in _below(source.root, (".csv",)) if "reference" in p.stem), None)
    if path is None:
        return {}
    header, rows = read_rows(path)
    found: dict[str, int] = {}
    for _, row in [(1, header), *rows]:
        at = next((k for k, cell in enumerate(row) if official(_stem(cell))), None)
        words = [] if at is None else [c.lower() for c in row[at + 1 :] if c.lower() in _WORDS]
        if at is not None and words:
            found[official(_stem(row[at])) or ""] = _WORDS[words[0]]
    if not any(slide.startswith("test_") for slide in found):
        raise TableError(
            f"{path}: no line names a test slide and Normal or Tumor after it, as "
            "`test_001,Tumor,…` of the release's reference.csv does"
        )
    return found


def _stem(cell: str) -> str:
    return cell.removesuffix(".tif").removesuffix(".xml")


def _annotations(root: Path) -> dict[str, Path]:
    """The file of each slide, in a folder that says it holds annotations."""
    found: dict[str, Path] = {}
    for path in _below(root, (".xml", ".json")):
        slide = official(path.stem)
        inside = any(_ANNOTATIONS.search(part) for part in path.relative_to(root).parts[:-1])
        if slide is None or not (inside or path.suffix.lower() == ".xml"):
            continue
        if slide in found and found[slide].read_bytes() != path.read_bytes():
            raise InputError(f"{found[slide]} and {path} both annotate {slide}: leave one out")
        found.setdefault(slide, path)
    return found


def _file_of(slide: str, drawn: dict[str, Path]) -> Path | None:
    return drawn.get(slide) or (drawn.get(MISLABELLED) if slide == CORRECTED else None)


def _drawn(names: dict[str, str], drawn: dict[str, Path]) -> dict[str, Path]:
    """The annotation of each bag that has one."""
    of = {bag: _file_of(slide, drawn) for bag, slide in names.items()}
    return {bag: path for bag, path in of.items() if path is not None}


def _below(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files below a folder by their ending, sorted within each folder."""
    for at, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield Path(at) / name
