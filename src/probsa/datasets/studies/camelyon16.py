"""CAMELYON16: 399 slides of lymph nodes, 270 for training and 129 for testing.

The organisers' corrections are applied: test_049, a duplicate, is excluded; normal_086 is renamed
to tumor_111; and test_114, not annotated exhaustively, is excluded from patch-level metrics.
Source: Litjens et al., GigaScience 2018, and the README of the release.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ...core import TextTable
from ...errors import BagError, InputError, TableError
from .annotations import read_area
from .processed import ProcessedFolder, find_processed, need_processed
from .shares import polygon_share
from .study import UNKNOWN, InstanceLabels, StudyDraft, StudySource

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
_RAW = (
    "probsa patch SLIDES --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset camelyon16 ROOT --features WORK --out DIR"
)


def official(name: str) -> str | None:
    """Return the official name of a slide (`Tumor_001` is tumor_001); None if it is not one."""
    match = re.fullmatch(r"(normal|tumor|test)_(\d{1,3})", name.lower())
    return None if match is None else f"{match[1]}_{int(match[2]):03d}"


def recognised(root: Path) -> bool:
    """Return whether a folder contains CAMELYON16, raw or processed."""
    release = find_processed(root, kind="patch_labels")
    if release is not None:
        return any(official(p.stem) for p in release.base.glob("labels/*.npy"))
    return any(official(p.stem) for p in _below(root, (".tif", ".xml")))


def draft(source: StudySource) -> StudyDraft:
    """Collect labels, parts and annotations of the slides that have features.

    Raises:
        InputError: a file of the release is missing, or an annotation is damaged.
        TableError: the label of a test slide is unknown.
    """
    return _processed(source) if source.processed is not None else _raw(source)


def processed(root: Path) -> ProcessedFolder:
    """Return the authors' processed folder.

    Raises:
        InputError: there is no such folder, or a part of it is missing.
    """
    return need_processed(root, kind="patch_labels", release="CAMELYON16", raw=_RAW)


def _processed(source: StudySource) -> StudyDraft:
    release = source.processed
    assert release is not None
    study, names = _start_draft(source, "the authors' processed folder")
    reference = _reference(source)
    for bag, slide in names.items():
        label = _by_name(slide, reference)
        if label is None:
            study.derived.append(bag)
        study.rows[bag] = _row(slide, release.label(bag) if label is None else label)
    differing = [name for name, row in study.rows.items() if release.label(name) != row["label"]]
    study.lists["stored_labels_that_are_not_the_clinical"] = differing
    if differing:
        study.notes.append(
            f"For {len(differing)} slides ({', '.join(differing[:5])}"
            f"{', …' if len(differing) > 5 else ''}), the stored label differs from the clinical "
            "one, which is used."
        )
    if release.splits_file() is not None:
        parts = release.parts()
        moved = [
            name
            for name, row in study.rows.items()
            if parts.get(name, row["split"]) != row["split"]
        ]
        if moved:
            study.lists["in_another_part_of_splits.csv"] = moved
            study.notes.append(
                f"splits.csv assigns {len(moved)} slides ({', '.join(moved[:5])}) to another part "
                "than their names; the names are used."
            )

    def marks(bag: str) -> InstanceLabels:
        labels = release.instance_labels_of(bag, size=source.bags.size(bag))
        if names[bag] == NOT_EXHAUSTIVE:
            return InstanceLabels(values=np.full(len(labels), UNKNOWN))
        return InstanceLabels(values=labels, stored=True)

    study.instance_labels_of = marks
    study.annotations = _annotations_by_bag(names, _annotations(source.root))
    return study


def _raw(source: StudySource) -> StudyDraft:
    study, names = _start_draft(source, "the raw download")
    annotations = _annotations(source.root)
    reference = _reference(source)
    has_test_annotations = any(slide.startswith("test_") for slide in annotations)
    for bag, slide in names.items():
        label = _by_name(slide, reference)
        if label is None:
            if not has_test_annotations:
                raise TableError(
                    f"the label of {bag} is unknown: {source.root} contains neither the release's "
                    "testing/reference.csv nor annotations of test slides. Download it, or give "
                    "--labels"
                )
            study.derived.append(bag)
        study.rows[bag] = _row(slide, int(slide in annotations) if label is None else label)
    if not annotations:
        archive = next(iter(_below(source.root, (".zip",))), None)
        study.notes.append(
            f"No annotations (tumor_001.xml, …) in {source.root}, so patches have no labels."
            + (f" {archive} is an archive: unpack it." if archive else "")
        )
        return study
    unannotated = [
        b
        for b, r in study.rows.items()
        if r["label"] == 1 and _file_of(names[b], annotations) is None
    ]
    if unannotated:
        study.lists["tumor_without_annotation"] = unannotated
        study.notes.append(
            f"{len(unannotated)} tumor slides have no annotation ({', '.join(unannotated[:5])}): "
            "the labels of their patches are unknown."
        )
    study.annotations = _annotations_by_bag(names, annotations)
    study.instance_labels_of = partial(
        _instance_labels, source, study, {b: study.annotations.get(b) for b in names}
    )
    return study


def _instance_labels(
    source: StudySource, study: StudyDraft, files: dict[str, Path | None], bag: str
) -> InstanceLabels:
    """Label the patches by the polygons; a normal slide without polygons has no positive patch."""
    instances, path = source.bags.size(bag), files[bag]
    if official(bag) == NOT_EXHAUSTIVE or (path is None and study.rows[bag]["label"] == 1):
        return InstanceLabels(values=np.full(instances, UNKNOWN))
    if path is None:
        return InstanceLabels(values=np.zeros(instances, np.int64))
    coords, side = source.bags.stored(bag).coords, source.bags.metadata(bag).size_level0
    if coords is None or side is None:
        raise BagError(
            f"bag {bag!r} in {source.bags.folder} does not state the positions and the size of its "
            "patches, which are needed to apply annotations: extract the features with probsa "
            "extract, TRIDENT, or CLAM with its patches folder"
        )
    share = polygon_share(read_area(path), coords, side=side)
    return InstanceLabels(values=(share > source.options.share).astype(np.int64))


def _start_draft(source: StudySource, release: str) -> tuple[StudyDraft, dict[str, str]]:
    """Start a draft with the official exclusions; also return the names of the included bags."""
    study = StudyDraft(release=release, classes=CLASSES)
    names: dict[str, str] = {}
    bag_of_slide: dict[str, str] = {}
    for bag in source.bags.names:
        slide = official(bag)
        if slide is None:
            study.excluded[bag] = "its name is not in the release"
        elif slide in bag_of_slide:
            raise BagError(
                f"the bags {bag_of_slide[slide]!r} and {bag!r} in {source.bags.folder} are both "
                f"{slide}: leave one out"
            )
        else:
            bag_of_slide[slide], names[bag] = bag, slide
    if DUPLICATE in bag_of_slide:
        study.excluded[bag_of_slide[DUPLICATE]] = "a duplicate, removed by the organisers"
    if MISLABELLED in bag_of_slide:
        bag = bag_of_slide[MISLABELLED]
        if CORRECTED in bag_of_slide:
            study.excluded[bag] = f"the organisers renamed it {CORRECTED}, which is also present"
        else:
            study.corrected[bag] = f"it is {CORRECTED}: tumor"
            names[bag] = CORRECTED
    names = {b: s for b, s in names.items() if b not in study.excluded}
    for bag in [b for b, s in names.items() if s not in OFFICIAL]:
        study.excluded[bag] = "its number is not in the release"
        del names[bag]
    study.missing = sorted(set(OFFICIAL) - set(names.values()))
    for bag, slide in names.items():
        if slide == NOT_EXHAUSTIVE:
            study.corrected[bag] = "not annotated exhaustively: its patches' labels are unknown"
    study.notes.append(
        f"{len(names)} of the {len(OFFICIAL)} slides that remain of the official 400: {DUPLICATE} "
        f"is a duplicate and excluded, {MISLABELLED} is {CORRECTED}, and {NOT_EXHAUSTIVE} is "
        "excluded from patch-level metrics."
    )
    return study, names


def _row(slide: str, label: int) -> dict[str, object]:
    return {"label": label, "split": "test" if slide.startswith("test_") else "train"}


def _by_name(slide: str, reference: dict[str, int]) -> int | None:
    """Return the label: from the name of a training slide, from reference.csv for a test slide."""
    if slide.startswith("test_"):
        return reference.get(slide)
    return int(slide.startswith("tumor_"))


def _reference(source: StudySource) -> dict[str, int]:
    """Read the labels of test slides: rows with a name and, in a later cell, Normal or Tumor."""
    path = source.options.labels
    if path is None:
        path = next((p for p in _below(source.root, (".csv",)) if "reference" in p.stem), None)
    if path is None:
        return {}
    labels: dict[str, int] = {}
    # The release's table has no header; one that was added is a row without a slide.
    for row in TextTable.read(path, header=False).frame.itertuples(index=False, name=None):
        name_cell = next((k for k, cell in enumerate(row) if official(_stem(cell))), None)
        label_words = (
            []
            if name_cell is None
            else [w.lower() for w in row[name_cell + 1 :] if w.lower() in _WORDS]
        )
        if name_cell is not None and label_words:
            labels[official(_stem(row[name_cell])) or ""] = _WORDS[label_words[0]]
    if not any(slide.startswith("test_") for slide in labels):
        raise TableError(
            f"{path}: no line holds a test slide followed by Normal or Tumor, as in "
            "`test_001,Tumor,…` of the release's reference.csv"
        )
    return labels


def _stem(cell: str) -> str:
    return cell.removesuffix(".tif").removesuffix(".xml")


def _annotations(root: Path) -> dict[str, Path]:
    """Find the annotation of each slide; .json only counts in a folder named for annotations."""
    files: dict[str, Path] = {}
    for path in _below(root, (".xml", ".json")):
        slide = official(path.stem)
        in_annotation_folder = any(
            _ANNOTATIONS.search(part) for part in path.relative_to(root).parts[:-1]
        )
        if slide is None or not (in_annotation_folder or path.suffix.lower() == ".xml"):
            continue
        if slide in files and files[slide].read_bytes() != path.read_bytes():
            raise InputError(f"{files[slide]} and {path} both annotate {slide}: leave one out")
        files.setdefault(slide, path)
    return files


def _file_of(slide: str, annotations: dict[str, Path]) -> Path | None:
    return annotations.get(slide) or (annotations.get(MISLABELLED) if slide == CORRECTED else None)


def _annotations_by_bag(names: dict[str, str], annotations: dict[str, Path]) -> dict[str, Path]:
    """Return the annotation of each bag that has one."""
    files = {bag: _file_of(slide, annotations) for bag, slide in names.items()}
    return {bag: path for bag, path in files.items() if path is not None}


def _below(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Find files in a folder and its subfolders by suffix, sorted within each folder."""
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):
                yield Path(parent) / name
