"""RSNA 2019 intracranial haemorrhage: head CTs; a slice with any haemorrhage is positive.

The task has 1,000 training and 150 test scans; a scan is positive if any slice is. The scans are
defined only by lists of their slices (bag_name,instance_name), which are not part of the download.
Source: Flanders et al., Radiology: AI 2020; Wu et al., MICCAI 2023 (the lists).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core import TextTable, read_number
from ...errors import BagError, InputError, SlideError, TableError
from ...slides import Header, read_header, stack
from .release import Release, stored_instance_labels, stored_label, stored_parts
from .study import InstanceLabels, OnBag, StudyDraft, StudySource

CLASSES = ("normal", "haemorrhage")
TRAINING = 1_000
TEST = 150
IMAGES = "stage_2_train"
ANSWERS = "stage_2_train.csv"
LISTS = {"test": ("testing_example.csv", "test_scans.csv"), "train": ("train_scans.csv",)}
"""File names under which the lists of scans are searched."""
SAME_PLACE = 0.01
"""Tolerance in mm when matching rows of features to slices by position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedScan:
    """A scan of a list; slices are named by their file without suffix."""

    slices: frozenset[str]
    label: int | None
    """The label in the list, if it states one."""


def read_scans(path: Path) -> dict[str, ListedScan]:
    """Read a list of scans with one line per slice."""
    table = TextTable.read(path, expected="bag_name,instance_name").select(
        "bag_name", "instance_name", optional=["bag_label"]
    )
    slices: dict[str, set[str]] = defaultdict(set)
    labels: dict[str, int] = {}
    for line, row in table.numbered:
        bag = row["bag_name"]
        slices[bag].add(row["instance_name"].removesuffix(".dcm"))
        if "bag_label" in row:
            where = f"{path}, line {line}, scan {bag!r}"
            label = int(read_number(row["bag_label"], "bag_label", where=where, whole=True))
            if labels.setdefault(bag, label) != label:
                raise TableError(f"{path}: scan {bag!r} has two labels, expected one")
    return {
        bag: ListedScan(slices=frozenset(names), label=labels.get(bag))
        for bag, names in slices.items()
    }


def read_answers(path: Path) -> dict[str, int]:
    """Read whether each slice shows any haemorrhage, from lines `ID_<slice>_any,<0 or 1>`."""
    if not path.is_file():
        raise InputError(
            f"{path} of RSNA's download is missing (lines ID_<slice>_any,0 or 1): download it too, "
            "or give --labels"
        )
    answers: dict[str, int] = {}
    cells = TextTable.read(path, header=False).frame
    # The file has 4.5 million lines, of which only those of `any` are used.
    for line, key, *others in cells[cells[0].str.endswith("_any")].itertuples(name=None):
        name = key.removesuffix("_any")
        label = others[0] if others else ""
        if label not in ("0", "1") or answers.setdefault(name, int(label)) != int(label):
            raise TableError(f"{path}, line {line}: slice {name!r} has the label {label!r}")
    if not answers:
        raise TableError(f"{path} has no line ID_<slice>_any,<0 or 1>: is it stage_2_train.csv?")
    return answers


def _draft(source: StudySource, on_file: OnBag | None) -> StudyDraft:
    release = source.release
    if release is None:
        return _raw(source, on_file)
    study = StudyDraft(classes=CLASSES)
    parts = stored_parts(release)
    for bag in source.bags.names:
        if bag not in parts:
            study.excluded[bag] = "it is not in splits.csv"
        else:
            study.rows[bag] = {"label": stored_label(release, bag), "split": parts[bag]}
    study.missing = sorted(set(parts) - set(source.bags.names))
    study.instance_labels_of = lambda bag: stored_instance_labels(release, bag)
    study.notes.append(
        "The processed folder does not identify patients, so scans of one patient may be in "
        "several parts."
    )
    _add_notes(study)
    return study


def _raw(source: StudySource, on_file: OnBag | None) -> StudyDraft:
    study = StudyDraft(classes=CLASSES)
    options = source.options
    answers = read_answers(options.labels or source.root / ANSWERS)
    test_list = options.test_scans or _first_file(source.root, LISTS["test"])
    train_list = options.train_scans or _first_file(source.root, LISTS["train"])
    test = None if test_list is None else read_scans(test_list)
    train = None if train_list is None else read_scans(train_list)
    if test is None:
        raise InputError(
            f"the test scans are unknown: {source.root} holds no {LISTS['test'][0]}. Give "
            "--test-scans, a table bag_name,instance_name with a line for each slice of each of "
            f"the {TEST} test scans"
        )
    listed = {**test, **(train or {})}
    scan_of: dict[str, ListedScan] = {}
    test_slices: set[str] = set()
    for scan in test.values():
        scan_of |= dict.fromkeys(scan.slices, scan)
        test_slices |= scan.slices
    for scan in (train or {}).values():
        scan_of |= dict.fromkeys(scan.slices, scan)
    chosen, damaged = _chosen(source, None if train is None else set(scan_of), on_file)
    study.lists["damaged_slices"] = sorted(damaged)
    present: set[str] = set()
    for bag, headers in chosen.items():
        slices = {h.path.stem for h in headers}
        scan = next((scan_of[s] for s in slices if s in scan_of), None)
        if scan is None and train is not None:
            study.excluded[bag] = "it is in no list"
            continue
        present |= slices
        study.rows[bag] = {
            "label": _label(bag, slices, scan, answers=answers, damaged=damaged),
            "group": headers[0].patient or bag,
            "split": "test" if slices & test_slices else "train",
        }
    unseen = [bag for bag in source.bags.names if bag not in chosen]
    study.excluded |= dict.fromkeys(unseen, "no slice of it is in the download")
    study.missing = sorted(name for name, scan in listed.items() if not scan.slices & present)
    test_patients = {row["group"] for row in study.rows.values() if row["split"] == "test"}
    for bag, row in list(study.rows.items()):  # no patient trains and tests
        if row["split"] == "train" and row["group"] in test_patients:
            study.excluded[bag] = "its patient is in the test part"
            del study.rows[bag]
    _add_notes(study, listed=train is not None)
    study.instance_labels_of = lambda bag: _instance_labels(source, bag, chosen[bag], answers)
    return study


def _first_file(root: Path, names: Sequence[str]) -> Path | None:
    """Return the first file of these names that a folder has."""
    for name in names:
        if (root / name).is_file():
            return root / name
    return None


def _chosen(
    source: StudySource, listed_slices: set[str] | None, on_file: OnBag | None
) -> tuple[dict[str, Sequence[Header]], set[str]]:
    """Return the slices of each bag, by the UID at the end of its name, and the damaged files.

    Of the 752,803 files, only those of `listed_slices` are opened, if these are known.
    """
    images = source.root / IMAGES
    if not images.is_dir():
        raise InputError(
            f"the folder {images} of RSNA's download is missing: its DICOM headers define the "
            "slices of each scan and their order"
        )
    files = sorted(images.rglob("*.dcm"))
    if listed_slices is not None:
        files = [f for f in files if f.stem in listed_slices]
    series: dict[str, list[Header]] = defaultdict(list)
    studies: dict[str, set[str]] = defaultdict(set)
    damaged: set[str] = set()
    for count, path in enumerate(files, start=1):
        try:
            header = read_header(path)
        except SlideError:
            damaged.add(path.stem)
            continue
        if header.other is None:
            series[header.series].append(header)
            studies[header.study].add(header.series)
        if on_file is not None:
            on_file(count, len(files))
    chosen = {}
    for bag in source.bags.names:
        uid = (re.findall(r"ID_[0-9a-f]+", bag) or [bag])[-1]
        series_ids = studies.get(uid, {uid})
        if len(series_ids) == 1:  # the name may be that of a study, which has one series
            (series_id,) = series_ids
            if series.get(series_id):
                chosen[bag] = series[series_id]
    return chosen, damaged


def _label(
    bag: str,
    present: set[str],
    listed: ListedScan | None,
    *,
    answers: Mapping[str, int],
    damaged: set[str],
) -> int:
    """Return the label of a scan, positive if a slice is, and check it against the list."""
    slices = present if listed is None else listed.slices
    if present | (slices & damaged) != slices:
        raise TableError(
            f"bag {bag!r} has {len(present)} slices in the download, but {len(slices)} in "
            "its list: the download is incomplete, or the list belongs to another download"
        )
    for name in sorted(slices):
        if name not in answers:
            raise TableError(f"slice {name!r} of bag {bag!r} has no line {name}_any in {ANSWERS}")
    label = max(answers[name] for name in slices)
    if listed is not None and listed.label not in (None, label):
        raise TableError(
            f"bag {bag!r} has the label {listed.label} in its list, but {label} in {ANSWERS}"
        )
    return label


def _add_notes(study: StudyDraft, *, listed: bool = True) -> None:
    counts = Counter(row["split"] for row in study.rows.values())
    study.notes.append(
        f"{counts['train']:,} training and {counts['test']} test scans; the task has {TRAINING:,} "
        f"and {TEST}."
    )
    if not listed:
        study.notes.append(
            "There is no list of training scans (--train-scans), so all scans outside the test "
            "part are used for training: this is not the task of 1,150 scans."
        )


def _instance_labels(
    source: StudySource, bag: str, headers: Sequence[Header], answers: Mapping[str, int]
) -> InstanceLabels:
    """Label the rows of a bag by their slices, matched by position along the axis."""
    try:
        places = stack([plane for header in headers for plane in header.planes]).places
    except SlideError as error:
        raise BagError(f"bag {bag!r}: its slices cannot be put in order: {error}") from error
    stored = source.bags.stored(bag)
    if stored.coords is None:
        rows = np.arange(len(places))
        fits = len(stored.features) == len(places)
    else:
        positions = np.array([[place.position for place in places]])
        distances = np.abs(stored.coords[:, :1] - positions)
        rows = distances.argmin(axis=1)
        fits = distances.min(axis=1).max() <= SAME_PLACE
    if not fits:
        raise BagError(
            f"bag {bag!r} has {len(stored.features)} rows in {source.bags.folder}, which do not "
            f"match the positions of its {len(places)} slices in {source.root / IMAGES}: the "
            "features belong to other files. Extract them again"
        )
    # Of several slices at one position, features are extracted from the first.
    labels = [answers[places[index].planes[0].path.stem] for index in rows]
    return np.array(labels, np.int64), False


RELEASE = Release(
    title="RSNA",
    kind="slice_labels",
    command="probsa patch ROOT/stage_2_train --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset rsna ROOT --features WORK --test-scans CSV --out DIR",
    is_bag=lambda _: True,
    is_download=lambda root: (root / IMAGES).is_dir() or (root / ANSWERS).is_file(),
    draft=_draft,
)
