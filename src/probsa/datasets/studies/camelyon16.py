"""CAMELYON16: 399 slides of lymph nodes, 270 for training and 129 for testing.

The organisers' corrections are applied: test_049, a duplicate, is excluded; normal_086 is renamed
to tumor_111; and test_114, not annotated exhaustively, is excluded from patch-level metrics.
Source: Litjens et al., GigaScience 2018, and the README of the release.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...core import TextTable
from ...errors import BagError, InputError, TableError
from .annotations import polygon_share, read_area
from .release import Release, stored_instance_labels, stored_label, stored_parts
from .study import InstanceLabels, OnBag, StudyDraft, StudySource

CLASSES = ("normal", "tumor")
DUPLICATE = "test_049"
MISLABELLED, CORRECTED = "normal_086", "tumor_111"
NOT_EXHAUSTIVE = "test_114"
OFFICIAL = (
    *(f"normal_{k:03d}" for k in range(1, 161) if k != 86),
    *(f"tumor_{k:03d}" for k in range(1, 112)),
    *(f"test_{k:03d}" for k in range(1, 131) if k != 49),
)
"""The slides after corrections: 159 normal and 111 tumor for training, 129 for testing."""
_WORDS = {
    **dict.fromkeys(("normal", "negative", "normal_tissue", "0", "0.0"), 0),
    **dict.fromkeys(("tumor", "tumour", "positive", "tumor_tissue", "1", "1.0"), 1),
}
_ANNOTATIONS = re.compile(r"annotation|^jsons?$|^xml$", re.IGNORECASE)


def official(name: str) -> str | None:
    """Return the official name of a slide (`Tumor_001` is tumor_001); None if it is not one."""
    match = re.fullmatch(r"(normal|tumor|test)_(\d{1,3})", name.lower())
    return None if match is None else f"{match[1]}_{int(match[2]):03d}"


def _draft(source: StudySource, _: OnBag | None) -> StudyDraft:
    release = source.release
    study = StudyDraft(classes=CLASSES)
    names = _included(source, study)
    reference, annotations = _reference(source), _annotations(source.root)
    has_test_annotations = any(slide.startswith("test_") for slide in annotations)
    for bag, slide in names.items():
        tests = slide.startswith("test_")
        label = reference.get(slide) if tests else int(slide.startswith("tumor_"))
        if label is None:
            study.derived.append(bag)
            if release is not None:
                label = stored_label(release, bag)
            elif has_test_annotations:
                label = int(slide in annotations)
            else:
                raise TableError(
                    f"the label of {bag} is unknown: {source.root} contains neither the release's "
                    "testing/reference.csv nor annotations of test slides. Download it, or give "
                    "--labels"
                )
        study.rows[bag] = {"label": label, "split": "test" if tests else "train"}
        path = annotations.get(slide) or (slide == CORRECTED and annotations.get(MISLABELLED))
        if path:
            study.annotations[bag] = path
    if release is not None:
        stored = {bag: stored_label(release, bag) for bag in study.rows}
        differing = [bag for bag, row in study.rows.items() if stored[bag] != row["label"]]
        study.lists["stored_labels_that_are_not_the_clinical"] = differing
        if differing:
            study.notes.append(
                f"For {len(differing)} slides ({', '.join(differing[:5])}"
                f"{', …' if len(differing) > 5 else ''}), the stored label differs from the "
                "clinical one, which is used."
            )
        parts = {} if release.splits_file is None else stored_parts(release)
        moved = [bag for bag, r in study.rows.items() if parts.get(bag, r["split"]) != r["split"]]
        if moved:
            study.lists["in_another_part_of_splits.csv"] = moved
            study.notes.append(
                f"splits.csv assigns {len(moved)} slides ({', '.join(moved[:5])}) to another part "
                "than their names; the names are used."
            )
    elif annotations:
        tumours = [bag for bag, row in study.rows.items() if row["label"] == 1]
        if unannotated := [bag for bag in tumours if bag not in study.annotations]:
            study.lists["tumor_without_annotation"] = unannotated
            study.notes.append(
                f"{len(unannotated)} tumor slides have no annotation "
                f"({', '.join(unannotated[:5])}): the labels of their patches are unknown."
            )
    else:
        archive = next(iter(_below(source.root, (".zip",))), None)
        study.notes.append(
            f"No annotations (tumor_001.xml, …) in {source.root}, so patches have no labels."
            + (f" {archive} is an archive: unpack it." if archive else "")
        )
        return study

    def instance_labels(bag: str) -> InstanceLabels:
        """Label the patches by the polygons; a normal slide without polygons has no tumour."""
        if names[bag] == NOT_EXHAUSTIVE:
            return source.unknown(bag)
        if release is not None:
            return stored_instance_labels(release, bag)
        path = study.annotations.get(bag)
        if path is None:
            tumour = study.rows[bag]["label"] == 1
            return source.unknown(bag) if tumour else (np.zeros(source.bags.size(bag), int), False)
        coords, side = source.patches(bag, why="annotations")
        share = polygon_share(read_area(path), coords, side=side)
        return (share > source.options.share).astype(np.int64), False

    study.instance_labels_of = instance_labels
    return study


def _included(source: StudySource, study: StudyDraft) -> dict[str, str]:
    """Return the official name of each included bag, and record the official exclusions."""
    bag_of: dict[str, str] = {}
    for bag in source.bags.names:
        slide = official(bag)
        if slide is None:
            study.excluded[bag] = "its name is not in the release"
        elif slide in bag_of:
            raise BagError(
                f"the bags {bag_of[slide]!r} and {bag!r} in {source.bags.folder} are both "
                f"{slide}: leave one out"
            )
        else:
            bag_of[slide] = bag
    if bag := bag_of.pop(DUPLICATE, None):
        study.excluded[bag] = "a duplicate, removed by the organisers"
    names = {bag: slide for slide, bag in bag_of.items()}
    if bag := bag_of.get(MISLABELLED):
        if CORRECTED in bag_of:
            study.excluded[bag] = f"the organisers renamed it {CORRECTED}, which is also present"
            del names[bag]
        else:
            study.corrected[bag] = f"it is {CORRECTED}: tumor"
            names[bag] = CORRECTED
    strange = [bag for bag, slide in names.items() if slide not in OFFICIAL]
    study.excluded |= dict.fromkeys(strange, "its number is not in the release")
    names = {bag: slide for bag, slide in names.items() if bag not in study.excluded}
    study.missing = sorted(set(OFFICIAL) - set(names.values()))
    if bag := bag_of.get(NOT_EXHAUSTIVE):
        study.corrected[bag] = "not annotated exhaustively: its patches' labels are unknown"
    study.notes.append(
        f"{len(names)} of the {len(OFFICIAL)} slides that remain of the official 400: {DUPLICATE} "
        f"is a duplicate and excluded, {MISLABELLED} is {CORRECTED}, and {NOT_EXHAUSTIVE} is "
        "excluded from patch-level metrics."
    )
    return names


def _reference(source: StudySource) -> dict[str, int]:
    """Read the labels of test slides: rows with a name and, in a later cell, Normal or Tumor."""
    tables = (p for p in _below(source.root, (".csv",)) if "reference" in p.stem)
    path = source.options.labels or next(tables, None)
    if path is None:
        return {}
    labels: dict[str, int] = {}
    # The release's table has no header; one that was added is a row without a slide.
    for row in TextTable.read(path, header=False).frame.itertuples(index=False, name=None):
        cells = iter(row)
        stems = (cell.removesuffix(".tif").removesuffix(".xml") for cell in cells)
        slide = next(filter(None, map(official, stems)), None)
        label = next((_WORDS[c.lower()] for c in cells if c.lower() in _WORDS), None)
        if slide is not None and label is not None:
            labels[slide] = label
    if not any(slide.startswith("test_") for slide in labels):
        raise TableError(
            f"{path}: no line holds a test slide followed by Normal or Tumor, as in "
            "`test_001,Tumor,…` of the release's reference.csv"
        )
    return labels


def _annotations(root: Path) -> dict[str, Path]:
    """Find the annotation of each slide; .json only counts in a folder named for annotations."""
    files: dict[str, Path] = {}
    for path in _below(root, (".xml", ".json")):
        slide = official(path.stem)
        folders = path.relative_to(root).parts[:-1]
        is_annotation = path.suffix.lower() == ".xml" or any(map(_ANNOTATIONS.search, folders))
        if slide is None or not is_annotation:
            continue
        if slide in files and files[slide].read_bytes() != path.read_bytes():
            raise InputError(f"{files[slide]} and {path} both annotate {slide}: leave one out")
        files.setdefault(slide, path)
    return files


def _below(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Find files in a folder and its subfolders by suffix, sorted within each folder."""
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield Path(parent) / name


RELEASE = Release(
    title="CAMELYON16",
    kind="patch_labels",
    command="probsa patch SLIDES --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset camelyon16 ROOT --features WORK --out DIR",
    is_bag=lambda name: official(name) is not None,
    is_download=lambda root: any(official(p.stem) for p in _below(root, (".tif", ".xml"))),
    draft=_draft,
)
