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
from ..formats.torchmil import TorchmilBags
from .annotations import polygon_share, read_area
from .release import Release, stored_instance_labels, stored_label, stored_parts
from .study import InstanceLabels, OnBag, StudyDraft, StudySource

CLASSES = ("normal", "tumor")
TEST = "test_"
TUMOR = "tumor_"
"""How the names of test slides, and of training slides with a tumour, begin."""
DUPLICATE = "test_049"
MISLABELLED = "normal_086"
CORRECTED = "tumor_111"
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
    reference = _reference(source)
    annotations = _annotations(source.root)
    has_test_annotations = any(slide.startswith(TEST) for slide in annotations)
    for bag, slide in names.items():
        is_test = slide.startswith(TEST)
        label = reference.get(slide) if is_test else int(slide.startswith(TUMOR))
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
        study.rows[bag] = {"label": label, "split": "test" if is_test else "train"}
        path = annotations.get(slide)
        if path is None and slide == CORRECTED:
            path = annotations.get(MISLABELLED)
        if path is not None:
            study.annotations[bag] = path
    if release is not None:
        _note_differences(study, release)
    elif annotations:
        _note_unannotated(study)
    else:
        note = f"No annotations (tumor_001.xml, …) in {source.root}, so patches have no labels."
        archive = next(iter(_below(source.root, (".zip",))), None)
        if archive is not None:
            note += f" {archive} is an archive: unpack it."
        study.notes.append(note)
        return study
    study.instance_labels_of = lambda bag: _instance_labels(source, study, bag, slide=names[bag])
    return study


def _note_differences(study: StudyDraft, release: TorchmilBags) -> None:
    """Note labels and parts that the processed release has otherwise."""
    differing = []
    for bag, row in study.rows.items():
        if stored_label(release, bag) != row["label"]:
            differing.append(bag)
    study.lists["stored_labels_that_are_not_the_clinical"] = differing
    if differing:
        examples = ", ".join(differing[:5])
        if len(differing) > 5:
            examples += ", …"
        study.notes.append(
            f"For {len(differing)} slides ({examples}), the stored label differs from the "
            "clinical one, which is used."
        )
    parts = {} if release.splits_file is None else stored_parts(release)
    moved = []
    for bag, row in study.rows.items():
        if bag in parts and parts[bag] != row["split"]:
            moved.append(bag)
    if moved:
        study.lists["in_another_part_of_splits.csv"] = moved
        study.notes.append(
            f"splits.csv assigns {len(moved)} slides ({', '.join(moved[:5])}) to another part "
            "than their names; the names are used."
        )


def _note_unannotated(study: StudyDraft) -> None:
    """Note slides of tumours without an annotation."""
    unannotated = []
    for bag, row in study.rows.items():
        if row["label"] == 1 and bag not in study.annotations:
            unannotated.append(bag)
    if unannotated:
        study.lists["tumor_without_annotation"] = unannotated
        study.notes.append(
            f"{len(unannotated)} tumor slides have no annotation "
            f"({', '.join(unannotated[:5])}): the labels of their patches are unknown."
        )


def _instance_labels(
    source: StudySource, study: StudyDraft, bag: str, *, slide: str
) -> InstanceLabels:
    """Label the patches by the polygons; a normal slide without polygons has no tumour."""
    if slide == NOT_EXHAUSTIVE:
        return source.unknown(bag)
    if source.release is not None:
        return stored_instance_labels(source.release, bag)
    path = study.annotations.get(bag)
    if path is None:
        if study.rows[bag]["label"] == 1:
            return source.unknown(bag)
        return np.zeros(source.bags.size(bag), int), False
    coords, side = source.patches(bag, why="annotations")
    share = polygon_share(read_area(path), coords, side=side)
    return (share > source.options.share).astype(np.int64), False


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
    if DUPLICATE in bag_of:
        study.excluded[bag_of.pop(DUPLICATE)] = "a duplicate, removed by the organisers"
    names = {bag: slide for slide, bag in bag_of.items()}
    if MISLABELLED in bag_of:
        bag = bag_of[MISLABELLED]
        if CORRECTED in bag_of:
            study.excluded[bag] = f"the organisers renamed it {CORRECTED}, which is also present"
            del names[bag]
        else:
            study.corrected[bag] = f"it is {CORRECTED}: tumor"
            names[bag] = CORRECTED
    for bag, slide in list(names.items()):
        if slide not in OFFICIAL:
            study.excluded[bag] = "its number is not in the release"
            del names[bag]
    study.missing = sorted(set(OFFICIAL) - set(names.values()))
    if NOT_EXHAUSTIVE in bag_of:
        bag = bag_of[NOT_EXHAUSTIVE]
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
        slide = None
        for cell in row:
            if slide is None:
                slide = official(cell.removesuffix(".tif").removesuffix(".xml"))
            elif cell.lower() in _WORDS:
                labels[slide] = _WORDS[cell.lower()]
                break
    if not any(slide.startswith(TEST) for slide in labels):
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
