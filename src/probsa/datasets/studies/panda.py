"""PANDA: 10,616 prostate biopsies from two hospitals, by ISUP grade or positive above grade 0.

The parts are those of Silva-Rodríguez et al. 2021: 8,469 train, 353 validate and 1,794 test. Train
and validation slides form the training part, from which runs take their own validation parts. The
masks of the two hospitals have different values. About a fifth of the slides have near-duplicates.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core import TextTable
from ...errors import InputError, SlideError, TableError
from .annotations import mask_share
from .release import Release, stored_instance_labels, stored_label, stored_parts
from .study import InstanceLabels, OnBag, StudyDraft, StudySource

CLASSES = ("benign", "cancer")
GRADES = tuple(f"isup_{grade}" for grade in range(6))
"""The classes with `grades`, as the published partition names them."""
TOTAL = 10_616
TRAINING = 8_822
TEST = 1_794
CANCER = {"radboud": (3, 4, 5), "karolinska": (2,)}
"""Mask values of cancer: Gleason patterns (Radboud), or cancer of any pattern (Karolinska)."""
KNOWN = {"radboud": (0, 1, 2, 3, 4, 5), "karolinska": (0, 1, 2)}
"""Radboud: background, stroma, healthy epithelium, Gleason 3 to 5. Karolinska: background, benign,
cancer."""
MASKS = "train_label_masks"
_PARTS = {"train": "train", "val": "train", "validation": "train", "test": "test"}
_PARTITION = (
    "partition_PANDA.csv (columns slide_name, Partition, isup_0 …): save data/partitions/"
    "partition_PANDA.xlsx of the repository jusiro/self-learning-wsi-prostate as CSV, and put it "
    "there or give --partition"
)


def read_train(path: Path) -> dict[str, tuple[int, str]]:
    """Read the ISUP grade and the hospital of each slide in train.csv."""
    slides = {}
    columns = ("image_id", "isup_grade", "data_provider")
    for line, row in TextTable.read(path, expected=",".join(columns)).select(*columns).numbered:
        name, grade, provider = (row[column] for column in columns)
        if grade not in ("0", "1", "2", "3", "4", "5") or provider not in CANCER:
            raise TableError(
                f"{path}, line {line}: slide {name!r} has the ISUP grade {grade!r} and the "
                f"provider {provider!r}; expected 0 to 5, and {' or '.join(CANCER)}"
            )
        slides[name] = (int(grade), provider)
    return slides


def read_partition(path: Path, *, grades: bool = False) -> dict[str, tuple[str, int | None]]:
    """Read the part of each slide (`train` or `test`), and its label where a column states it.

    Of the columns isup_0 to isup_5, that of the slide's grade is 1. The label is the grade, or
    whether it exceeds 0.
    """
    columns = GRADES if grades else GRADES[:1]
    table = TextTable.read(path, expected="slide_name,Partition,isup_0,…").select(
        "slide_name", "Partition", optional=columns
    )
    has_grades = set(columns) <= set(table.columns)
    slides: dict[str, tuple[str, int | None]] = {}
    for line, row in table.numbered:
        place = f"{path}, line {line}: slide {row['slide_name']!r}"
        part = row["Partition"].lower()
        if part not in _PARTS:
            raise TableError(
                f"{place} is in the part {row['Partition']!r}, expected train, val or test"
            )
        label = None
        if has_grades:
            label = _stated_label([row[column] for column in columns], place=place, grades=grades)
        slides[row["slide_name"]] = (_PARTS[part], label)
    return slides


def _stated_label(cells: Sequence[str], *, place: str, grades: bool) -> int | None:
    """Return the label that the columns of grades state; None if a cell is empty."""
    for cell in cells:
        if cell not in ("", "0", "1", "0.0", "1.0"):
            raise TableError(
                f"{place} has {cell!r} among the columns isup_0 to isup_5, expected 0 or 1"
            )
    slide_grades = [grade for grade, cell in enumerate(cells) if cell in ("1", "1.0")]
    if grades and len(slide_grades) != 1:
        raise TableError(
            f"{place} has {len(slide_grades)} grades among isup_0 to isup_5, expected exactly one"
        )
    if "" in cells:
        return None
    return slide_grades[0] if grades else int(not slide_grades)


def _draft(source: StudySource, _: OnBag | None) -> StudyDraft:
    release = source.release
    grades = source.options.grades
    study = StudyDraft(classes=GRADES if grades else CLASSES)
    train: dict[str, tuple[int, str]] = {}
    train_file = source.options.labels or _first(source.root, "train.csv")
    if train_file is not None:
        train = read_train(train_file)
    elif release is None:
        raise InputError(
            f"{source.root / 'train.csv'} of PANDA's raw download is missing (image_id, "
            "data_provider, isup_grade, gleason_score): download it too, or give --labels"
        )
    partition_file = source.options.partition or _first(source.root, "*partition*.csv")
    partition = {}
    if partition_file is not None:
        partition = read_partition(partition_file, grades=grades)
    parts = {bag: part for bag, (part, _) in partition.items()}
    clinical = {bag: label for bag, (_, label) in partition.items() if label is not None}
    labels = {bag: grade if grades else int(grade > 0) for bag, (grade, _) in train.items()}
    differing = [bag for bag, label in clinical.items() if labels.get(bag, label) != label]
    if differing:
        study.lists["train.csv_and_partition_differ"] = differing
        study.notes.append(f"train.csv and the partition disagree on {len(differing)} labels.")
    clinical |= labels
    if not parts and release is not None:
        parts = stored_parts(release)
    if not parts:
        raise InputError(f"the parts are unknown: there is no {source.root}/{_PARTITION}")
    if grades and not clinical:
        raise InputError(
            f"no ISUP grade is known: --grades needs {source.root / 'train.csv'} (or --labels), or "
            "a partition with the columns isup_0 to isup_5"
        )
    for bag in source.bags.names:
        label = clinical.get(bag)
        if bag not in parts:
            study.excluded[bag] = "its part is unknown: it is not in the partition"
        elif label is not None:
            study.rows[bag] = {"label": label, "split": parts[bag]}
        elif release is None or grades:
            unknown = "its ISUP grade is unknown: " if grades else ""
            study.excluded[bag] = f"{unknown}it is not in train.csv"
        else:
            study.derived.append(bag)
            study.rows[bag] = {"label": stored_label(release, bag), "split": parts[bag]}
    _group_duplicates(source, study)
    providers = {bag: train[bag][1] for bag in study.rows if bag in train}
    study.missing = sorted(set(clinical or parts) - set(study.rows) - set(study.excluded))
    study.strata = {"provider": providers}
    split = Counter(row["split"] for row in study.rows.values())
    study.notes.append(
        f"{len(study.rows):,} of {TOTAL:,} slides: {split['train']:,} of {TRAINING:,} train "
        f"(the partition's train and val), {split['test']:,} of {TEST:,} test."
    )
    folder = source.root / MASKS
    if release is not None:
        study.instance_labels_of = lambda bag: stored_instance_labels(release, bag)
    elif not folder.is_dir():
        study.notes.append(f"There is no {folder}, so patches have no labels.")
    else:
        study.instance_labels_of = lambda bag: _by_mask(source, study, bag, providers.get(bag))
        without_mask = [bag for bag in study.rows if not _mask(source, bag).is_file()]
        study.lists |= {"without_mask": without_mask, "damaged_masks": []}
        if without_mask:
            study.notes.append(
                f"{len(without_mask)} slides have no mask in {folder} "
                f"({', '.join(without_mask[:3])}): the labels of their patches are unknown."
            )
    return study


def _first(root: Path, pattern: str) -> Path | None:
    paths = [*sorted(root.glob(pattern)), *sorted(root.glob(f"dataset/{pattern}"))]
    return paths[0] if paths else None


def _group_duplicates(source: StudySource, study: StudyDraft) -> None:
    """Group near-duplicates within each part, and note those that the partition separates."""
    path = source.options.duplicates or _first(source.root, "*duplicate*.csv")
    if path is None:
        study.notes.append(
            "Near-duplicate slides are unknown, so they are not kept together (--duplicates reads "
            "them from a table with the columns image_id and group_id)."
        )
        return
    duplicates = TextTable.read(path).select("image_id", "group_id")
    cluster = {row["image_id"]: row["group_id"] for row in duplicates.rows}
    members = {bag: row["split"] for bag, row in study.rows.items() if bag in cluster}
    for bag, row in study.rows.items():
        row["group"] = bag
        if bag in members:
            row["group"] = f"duplicates-{cluster[bag]}-{members[bag]}"
    training_clusters = {cluster[bag] for bag, split in members.items() if split == "train"}
    leaks = []
    for bag, split in members.items():
        if split == "test" and cluster[bag] in training_clusters:
            leaks.append(bag)
    study.lists["test_with_a_near_duplicate_in_training"] = leaks
    study.notes.append(
        f"{len(members)} slides are in {len(set(cluster.values()))} clusters of near-duplicates, "
        "which stay together in validation parts. In the published partition, "
        f"{len(leaks)} test slides have near-duplicates in the training part, which makes the test "
        "metrics optimistic."
    )


def _mask(source: StudySource, bag: str) -> Path:
    return source.root / MASKS / f"{bag}_mask.tiff"


def _by_mask(
    source: StudySource, study: StudyDraft, bag: str, provider: str | None
) -> InstanceLabels:
    """Label patches by their slide's mask; unknown if it, or its hospital, is not usable."""
    path = _mask(source, bag)
    if provider is None or not path.is_file():
        return source.unknown(bag)
    coords, side = source.patches(bag, why="masks")
    try:
        shares, unknown_values = mask_share(
            path,
            coords,
            side=side,
            positive=CANCER[provider],
            known=KNOWN[provider],
            size=source.bags.metadata(bag).slide_size,
        )
    except SlideError as error:
        study.lists["damaged_masks"].append(bag)
        study.notes.append(f"The mask of {bag} cannot be used: {error}.")
        return source.unknown(bag)
    if unknown_values:
        raise InputError(
            f"{path} contains the values {', '.join(map(str, unknown_values))}, but according to "
            f"train.csv slide {bag!r} is from {provider}, whose masks contain "
            f"{', '.join(map(str, KNOWN[provider]))}: the provider or the mask is wrong"
        )
    return (shares > source.options.share).astype(np.int64), False


RELEASE = Release(
    title="PANDA",
    kind="patch_labels",
    command="probsa patch ROOT/train_images --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset panda ROOT --features WORK --partition CSV --out DIR",
    is_bag=lambda name: re.fullmatch("[0-9a-f]{32}", name) is not None,
    is_download=lambda root: (root / "train_images").is_dir() or (root / MASKS).is_dir(),
    draft=_draft,
)
