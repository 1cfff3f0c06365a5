"""PANDA: 10,616 prostate biopsies from two hospitals, by ISUP grade or positive above grade 0.

The parts are those of Silva-Rodríguez et al. 2021: 8,469 train, 353 validate and 1,794 test. Train
and validation slides form the training part, from which runs take their own validation parts. The
masks of the two hospitals have different values. About a fifth of the slides have near-duplicates.
"""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from ...core import TextTable
from ...errors import BagError, InputError, SlideError, TableError
from .processed import ProcessedFolder, find_processed, need_processed
from .shares import mask_share
from .study import UNKNOWN, InstanceLabels, StudyDraft, StudySource

CLASSES = ("benign", "cancer")
GRADES = tuple(f"isup_{grade}" for grade in range(6))
"""The classes with `grades`, as the published partition names them."""
TOTAL, TRAINING, TEST = 10_616, 8_822, 1_794
CANCER = {"radboud": (3, 4, 5), "karolinska": (2,)}
"""Mask values of cancer: Gleason patterns (Radboud), or cancer of any pattern (Karolinska)."""
KNOWN = {"radboud": (0, 1, 2, 3, 4, 5), "karolinska": (0, 1, 2)}
"""Radboud: background, stroma, healthy epithelium, Gleason 3 to 5. Karolinska: background, benign,
cancer."""
MASKS = "train_label_masks"
_PARTS = {"train": "train", "val": "train", "validation": "train", "test": "test"}
_RAW = (
    "probsa patch ROOT/train_images --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset panda ROOT --features WORK --partition CSV --out DIR"
)
_PARTITION = (
    "partition_PANDA.csv (columns slide_name, Partition, isup_0 …): save data/partitions/"
    "partition_PANDA.xlsx of the repository jusiro/self-learning-wsi-prostate as CSV, and put it "
    "there or give --partition"
)


def recognised(root: Path) -> bool:
    """Return whether a folder contains PANDA, raw or processed."""
    release = find_processed(root, kind="patch_labels")
    if release is not None:
        return any(_is_name(p.stem) for p in release.base.glob("labels/*.npy"))
    return (root / "train_images").is_dir() or (root / MASKS).is_dir()


def processed(root: Path) -> ProcessedFolder:
    """Return the authors' processed folder.

    Raises:
        InputError: there is no such folder, or a part of it is missing.
    """
    return need_processed(root, kind="patch_labels", release="PANDA", raw=_RAW)


def draft(source: StudySource) -> StudyDraft:
    """Collect labels, parts and masks of the slides that have features.

    Raises:
        InputError: a file of the release is missing.
        TableError: a table is invalid.
    """
    release = source.processed
    raw = release is None
    study = StudyDraft(
        release="the raw download" if raw else "the authors' processed folder",
        classes=GRADES if source.options.grades else CLASSES,
    )
    labels, providers = _train(source)
    partition = _partition(source)
    parts = {k: part for k, (part, _) in partition.items()}
    clinical = {k: label for k, (_, label) in partition.items() if label is not None}
    differing = [k for k, label in clinical.items() if labels.get(k, label) != label]
    if differing:
        study.lists["train.csv_and_partition_differ"] = differing
        study.notes.append(f"train.csv and the partition disagree on {len(differing)} labels.")
    clinical |= labels
    if not parts and release is not None:
        parts = release.parts()
    if not parts:
        raise InputError(f"the parts are unknown: there is no {source.root}/{_PARTITION}")
    if source.options.grades and not clinical:
        raise InputError(
            f"no ISUP grade is known: --grades needs {source.root / 'train.csv'} (or --labels), or "
            "a partition with the columns isup_0 to isup_5"
        )
    for bag in source.bags.names:
        label = clinical.get(bag)
        if bag not in parts:
            study.excluded[bag] = "its part is unknown: it is not in the partition"
        elif label is None and (release is None or source.options.grades):
            unknown = "its ISUP grade is unknown: " if source.options.grades else ""
            study.excluded[bag] = f"{unknown}it is not in train.csv"
        else:
            if label is None and release is not None:
                study.derived.append(bag)
                label = release.label(bag)
            study.rows[bag] = {"label": label, "split": parts[bag]}
    _groups(source, study)
    _add_notes(study, clinical or parts, providers)
    if release is not None:
        study.instance_labels_of = lambda bag: InstanceLabels(
            values=release.instance_labels_of(bag, size=source.bags.size(bag)), stored=True
        )
    elif _has_masks(source, study):
        study.instance_labels_of = partial(_instance_labels, source, study, providers)
    return study


def read_train(path: Path) -> dict[str, tuple[int, str]]:
    """Read the ISUP grade and the hospital of each slide in train.csv.

    Raises:
        TableError: a column is missing, a grade is not 0 to 5, or a hospital is unknown.
    """
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

    Args:
        path: the table. Of its columns isup_0 to isup_5, that of the slide's grade is 1.
        grades: return the grade, 0 to 5, instead of whether it exceeds 0.

    Raises:
        TableError: a column is missing, a part is not train, val or test, or a slide does not have
            exactly one grade.
    """
    wanted = GRADES if grades else GRADES[:1]
    table = TextTable.read(path, expected="slide_name,Partition,isup_0,…").select(
        "slide_name", "Partition", optional=wanted
    )
    columns = wanted if set(wanted) <= set(table.columns) else ()
    slides: dict[str, tuple[str, int | None]] = {}
    for line, row in table.numbered:
        name, part = row["slide_name"], row["Partition"].lower()
        if part not in _PARTS:
            raise TableError(
                f"{path}, line {line}: slide {name!r} is in the part {row['Partition']!r}, "
                "expected train, val or test"
            )
        cells = [row[column] for column in columns]
        unknown = [cell for cell in cells if cell not in ("", "0", "1", "0.0", "1.0")]
        if unknown:
            raise TableError(
                f"{path}, line {line}: slide {name!r} has {unknown[0]!r} among the columns "
                "isup_0 to isup_5, expected 0 or 1"
            )
        own = [k for k, cell in enumerate(cells) if cell in ("1", "1.0")]
        if grades and columns and len(own) != 1:
            raise TableError(
                f"{path}, line {line}: slide {name!r} has {len(own)} grades among isup_0 to "
                "isup_5, expected exactly one"
            )
        label = None if "" in cells or not cells else own[0] if grades else int(not own)
        slides[name] = (_PARTS[part], label)
    return slides


def _train(source: StudySource) -> tuple[dict[str, int], dict[str, str]]:
    """Return the label and the hospital of each slide; only the raw download needs train.csv."""
    grades = source.options.grades
    path = source.options.labels or _first(source.root, "train.csv")
    if path is None:
        if source.processed is not None:
            return {}, {}
        raise InputError(
            f"{source.root / 'train.csv'} of PANDA's raw download is missing (image_id, "
            "data_provider, isup_grade, gleason_score): download it too, or give --labels"
        )
    rows = read_train(path)
    labels = {s: g if grades else int(g > 0) for s, (g, _) in rows.items()}
    return labels, {s: p for s, (_, p) in rows.items()}


def _partition(source: StudySource) -> dict[str, tuple[str, int | None]]:
    path = source.options.partition or _first(source.root, "*partition*.csv")
    return {} if path is None else read_partition(path, grades=source.options.grades)


def _first(root: Path, pattern: str) -> Path | None:
    paths = [*sorted(root.glob(pattern)), *sorted(root.glob(f"dataset/{pattern}"))]
    return paths[0] if paths else None


def _groups(source: StudySource, study: StudyDraft) -> None:
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
    for bag, r in study.rows.items():
        r["group"] = f"duplicates-{cluster[bag]}-{r['split']}" if bag in cluster else bag
    trained = {cluster[b] for b, r in study.rows.items() if b in cluster and r["split"] == "train"}
    leaks = [
        b
        for b, r in study.rows.items()
        if r["split"] == "test" and b in cluster and cluster[b] in trained
    ]
    cluster_sizes = Counter(cluster.values())
    study.lists["test_with_a_near_duplicate_in_training"] = leaks
    study.notes.append(
        f"{sum(b in cluster for b in study.rows)} slides are in {len(cluster_sizes)} "
        "clusters of near-duplicates, which stay together in validation parts. In the published "
        f"partition, {len(leaks)} test slides have near-duplicates in the training part, which "
        "makes the test metrics optimistic."
    )


def _add_notes(
    study: StudyDraft, known_slides: dict[str, int] | dict[str, str], providers: dict[str, str]
) -> None:
    study.missing = sorted(set(known_slides) - set(study.rows) - set(study.excluded))
    study.strata = {"provider": {bag: providers[bag] for bag in study.rows if bag in providers}}
    parts = Counter(row["split"] for row in study.rows.values())
    study.notes.append(
        f"{len(study.rows):,} of {TOTAL:,} slides: {parts['train']:,} of {TRAINING:,} train "
        f"(the partition's train and val), {parts['test']:,} of {TEST:,} test."
    )


def _has_masks(source: StudySource, study: StudyDraft) -> bool:
    folder = source.root / MASKS
    if not folder.is_dir():
        study.notes.append(f"There is no {folder}, so patches have no labels.")
        return False
    without_mask = [bag for bag in study.rows if not _mask(source, bag).is_file()]
    study.lists["without_mask"] = without_mask
    study.lists["damaged_masks"] = []
    if without_mask:
        study.notes.append(
            f"{len(without_mask)} slides have no mask in {folder} ({', '.join(without_mask[:3])}): "
            "the labels of their patches are unknown."
        )
    return True


def _mask(source: StudySource, bag: str) -> Path:
    return source.root / MASKS / f"{bag}_mask.tiff"


def _instance_labels(
    source: StudySource, study: StudyDraft, providers: dict[str, str], bag: str
) -> InstanceLabels:
    """Label patches by their slide's mask, or as unknown if the mask is missing or damaged."""
    path, instances = _mask(source, bag), source.bags.size(bag)
    if not path.is_file():
        return InstanceLabels(values=np.full(instances, UNKNOWN))
    metadata, coords = source.bags.metadata(bag), source.bags.stored(bag).coords
    if coords is None or metadata.size_level0 is None:
        raise BagError(
            f"bag {bag!r} in {source.bags.folder} does not state the positions and the size of its "
            "patches, which are needed to apply masks: extract the features with probsa extract"
        )
    provider = providers[bag]
    try:
        shares, unknown_values = mask_share(
            path,
            coords,
            side=metadata.size_level0,
            positive=CANCER[provider],
            known=KNOWN[provider],
            size=metadata.slide_size,
        )
    except SlideError as error:
        study.lists["damaged_masks"].append(bag)
        study.notes.append(f"The mask of {bag} cannot be used: {error}.")
        return InstanceLabels(values=np.full(instances, UNKNOWN))
    if unknown_values:
        raise InputError(
            f"{path} contains the values {', '.join(map(str, unknown_values))}, but according to "
            f"train.csv slide {bag!r} is from {provider}, whose masks contain "
            f"{', '.join(map(str, KNOWN[provider]))}: the provider or the mask is wrong"
        )
    return InstanceLabels(values=(shares > source.options.share).astype(np.int64))


def _is_name(name: str) -> bool:
    return len(name) == 32 and set(name) <= set("0123456789abcdef")
