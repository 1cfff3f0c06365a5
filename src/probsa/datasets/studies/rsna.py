"""RSNA 2019 intracranial haemorrhage: head CTs, a slice positive where any haemorrhage is seen.

The task of 1,150 scans: 1,000 train and 150 test, scans positive where a slice is. Which scans
these are is known from lists of their slices alone (bag_name,instance_name), given beside the data.
Source: Flanders et al., Radiology: AI 2020; Wu et al., MICCAI 2023 (the lists).
"""

import csv
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from ...errors import BagError, InputError, SlideError, TableError
from ...slides import Header, read_header, stack
from ..labels import read_rows
from .processed import Processed, find_processed, need_processed
from .study import Draft, Marks, OnBag, Source

CLASSES = ("normal", "haemorrhage")
TRAINING, TEST = 1_000, 150
IMAGES, ANSWERS = "stage_2_train", "stage_2_train.csv"
LISTS = {"test": ("testing_example.csv", "test_scans.csv"), "train": ("train_scans.csv",)}
"""Names under which lists of scans are looked for."""
SAME_PLACE = 0.01
"""Millimetres within which a row of features and a slice are the same."""
_RAW = (
    "probsa patch ROOT/stage_2_train --out WORK, probsa extract WORK --encoder NAME, then "
    "probsa dataset rsna ROOT --features WORK --test-scans CSV --out DIR"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedScan:
    """A scan of a list: its slices by file name without ending."""

    slices: frozenset[str]
    label: int | None
    """As the list says it, where it does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Series:
    """One series of the download."""

    headers: tuple[Header, ...]

    @property
    def slices(self) -> frozenset[str]:
        return frozenset(h.path.stem for h in self.headers)

    @property
    def patient(self) -> str:
        return self.headers[0].patient


def recognised(root: Path) -> bool:
    """Whether a folder is RSNA's, raw or processed."""
    if find_processed(root, kind="slice_labels") is not None:
        return any((root / above / "slice_labels").is_dir() for above in ("", "dataset", "root"))
    return (root / IMAGES).is_dir() or (root / ANSWERS).is_file()


def processed(root: Path) -> Processed:
    """The authors' folder.

    Raises:
        InputError: there is none, or a part is missing.
    """
    return need_processed(root, kind="slice_labels", release="RSNA", raw=_RAW)


def draft(source: Source, on_file: OnBag | None = None) -> Draft:
    """What is known of the scans that have features.

    Raises:
        InputError: a file of the release, or the list of test scans, is missing.
        TableError: a table is not what it should be, or a slice has no label.
        BagError: a bag's rows are not the slices of its scan.
    """
    return _processed(source) if source.processed is not None else _raw(source, on_file)


def read_scans(path: Path) -> dict[str, ListedScan]:
    """The scans of a list, a line a slice.

    Raises:
        TableError: a column is missing, or a scan has two labels.
    """
    header, rows = read_rows(path)
    for column in ("bag_name", "instance_name"):
        if column not in header:
            raise TableError(
                f"{path} has no column {column!r}: it has {', '.join(header)}; a list of scans has "
                "bag_name and instance_name, a line a slice"
            )
    bag, instance = header.index("bag_name"), header.index("instance_name")
    at = header.index("bag_label") if "bag_label" in header else None
    slices: dict[str, set[str]] = defaultdict(set)
    labels: dict[str, set[int]] = defaultdict(set)
    for _, row in rows:
        slices[row[bag]].add(row[instance].removesuffix(".dcm"))
        if at is not None:
            labels[row[bag]].add(int(float(row[at])))
    two = next((b for b, y in labels.items() if len(y) > 1), None)
    if two is not None:
        raise TableError(f"{path}: scan {two!r} has two labels: a scan has one")
    return {
        b: ListedScan(slices=frozenset(s), label=next(iter(labels[b]), None))
        for b, s in slices.items()
    }


def read_answers(path: Path) -> dict[str, int]:
    """Whether any haemorrhage is seen in a slice, from lines `ID_<slice>_any,<0 or 1>`.

    Raises:
        InputError: the file is missing.
        TableError: it is another table, or gives a slice two labels.
    """
    if not path.is_file():
        raise InputError(
            f"{path} of RSNA's download is missing (lines ID_<slice>_any,0 or 1): download it too, "
            "or give --labels"
        )
    found: dict[str, int] = {}
    with path.open(newline="", encoding="utf-8-sig") as f:
        # four and a half million lines: only those of `any` are kept
        for line, row in enumerate(csv.reader(f), start=1):
            if len(row) != 2 or not row[0].endswith("_any"):
                continue
            name = row[0].removesuffix("_any")
            if row[1] not in ("0", "1") or found.setdefault(name, int(row[1])) != int(row[1]):
                raise TableError(f"{path}, line {line}: slice {name!r} has the label {row[1]!r}")
    if not found:
        raise TableError(f"{path} has no line ID_<slice>_any,<0 or 1>: is it stage_2_train.csv?")
    return found


def _processed(source: Source) -> Draft:
    held = source.processed
    assert held is not None
    made = Draft(release="the authors' processed folder", classes=CLASSES)
    parts = held.parts()
    for bag in source.bags.names:
        if bag not in parts:
            made.excluded[bag] = "splits.csv does not name it"
        else:
            made.rows[bag] = {"label": held.label(bag), "split": parts[bag]}
    made.missing = sorted(set(parts) - set(source.bags.names))
    made.marks = lambda b: Marks(values=held.marks(b, size=source.bags.size(b)), stored=True)
    made.notes.append(
        "Patients are not known from the processed folder, so scans of one patient may stand in "
        "several parts."
    )
    _say(made)
    return made


def _raw(source: Source, on_file: OnBag | None) -> Draft:
    made = Draft(release="the raw download", classes=CLASSES)
    options = source.options
    answers = read_answers(options.labels or source.root / ANSWERS)
    test, train = _list(source.root, options.test_scans, "test"), None
    if test is None:
        raise InputError(
            f"which scans test is not known: {source.root} holds no {LISTS['test'][0]}. Give "
            "--test-scans, a table bag_name,instance_name with a line for each slice of each of "
            f"the {TEST} test scans"
        )
    train = _list(source.root, options.train_scans, "train")
    by_slice = {s: scan for of in (test, train or {}) for scan in of.values() for s in scan.slices}
    chosen, damaged = _chosen(source, None if train is None else set(by_slice), on_file)
    made.lists["damaged_slices"] = sorted(damaged)
    tested = {s for scan in test.values() for s in scan.slices}
    trained = None if train is None else {s for scan in train.values() for s in scan.slices}
    for bag, series in chosen.items():
        if series.slices & tested:
            part = "test"
        elif trained is None or series.slices & trained:
            part = "train"
        else:
            made.excluded[bag] = "no list names it"
            continue
        listed = next((by_slice[s] for s in series.slices if s in by_slice), None)
        label = _label(bag, series, listed, answers=answers, damaged=damaged)
        made.rows[bag] = {"label": label, "group": series.patient or bag, "split": part}
    made.excluded |= {
        b: "no slice of it is in the download" for b in source.bags.names if b not in chosen
    }
    present = {s for bag in made.rows for s in chosen[bag].slices}
    named = {**test, **(train or {})}
    made.missing = sorted(n for n, scan in named.items() if not scan.slices & present)
    _keep_patients_apart(made)
    _say(made, listed=train is not None)
    made.marks = partial(_marks, source, chosen, answers)
    return made


def _list(root: Path, given: Path | None, part: str) -> dict[str, ListedScan] | None:
    path = given or next((root / n for n in LISTS[part] if (root / n).is_file()), None)
    return None if path is None else read_scans(path)


def _chosen(
    source: Source, named: set[str] | None, on_file: OnBag | None
) -> tuple[dict[str, _Series], set[str]]:
    """The series of each bag, by the UID that its name ends in, and the files that are damaged.

    Args:
        source: of the bags and the download.
        named: the slices of all listed scans, which alone are opened: the download has 752,803.
        on_file: called with (done, total).
    """
    images = source.root / IMAGES
    if not images.is_dir():
        raise InputError(
            f"the folder {images} of RSNA's download is missing: its DICOM headers say which "
            "slices a scan has, and in which order"
        )
    files = sorted(images.rglob("*.dcm"))
    if named is not None:
        files = [f for f in files if f.stem in named]
    series: dict[str, list[Header]] = defaultdict(list)
    studies: dict[str, set[str]] = defaultdict(set)
    damaged: set[str] = set()
    for done, path in enumerate(files, start=1):
        try:
            header = read_header(path)
        except SlideError:
            damaged.add(path.stem)
            continue
        if header.other is None:
            series[header.series].append(header)
            studies[header.study].add(header.series)
        if on_file is not None:
            on_file(done, len(files))
    found = {}
    for bag in source.bags.names:
        uid = (re.findall(r"ID_[0-9a-f]+", bag) or [bag])[-1]
        several = studies.get(uid, {uid})
        if len(several) == 1 and (headers := series.get(next(iter(several)))):
            found[bag] = _Series(headers=tuple(headers))
    return found, damaged


def _label(
    bag: str,
    series: _Series,
    listed: ListedScan | None,
    *,
    answers: dict[str, int],
    damaged: set[str],
) -> int:
    """Positive where a slice is; a scan has the slices and the label that its list says."""
    slices = series.slices if listed is None else listed.slices
    if series.slices | (slices & damaged) != slices:
        raise TableError(
            f"bag {bag!r} has {len(series.slices)} slices in the download, its list {len(slices)}: "
            "the download is not complete, or the list is of another"
        )
    for name in sorted(slices):
        if name not in answers:
            raise TableError(f"slice {name!r} of bag {bag!r} has no line {name}_any in {ANSWERS}")
    label = max(answers[name] for name in slices)
    if listed is not None and listed.label not in (None, label):
        raise TableError(f"bag {bag!r}: its list says {listed.label}, {ANSWERS} says {label}")
    return label


def _keep_patients_apart(made: Draft) -> None:
    """Nobody's scans both train and test: those that would train are left out."""
    tested = {r["group"] for r in made.rows.values() if r["split"] == "test"}
    for bag in [b for b, r in made.rows.items() if r["split"] == "train" and r["group"] in tested]:
        made.excluded[bag] = "its patient is in the test part"
        del made.rows[bag]


def _say(made: Draft, *, listed: bool = True) -> None:
    count = {p: sum(r["split"] == p for r in made.rows.values()) for p in ("train", "test")}
    made.notes.append(
        f"{count['train']:,} scans train and {count['test']} test; the task has {TRAINING:,} and "
        f"{TEST}."
    )
    if not listed:
        made.notes.append(
            "Which scans train is not listed (--train-scans), so all others do: this is not the "
            "task of 1,150 scans."
        )


def _marks(source: Source, chosen: dict[str, _Series], answers: dict[str, int], bag: str) -> Marks:
    """The slices' labels in the order of the bag's rows, which are positions along the axis."""
    headers = chosen[bag].headers
    try:
        places = stack([plane for header in headers for plane in header.planes]).places
    except SlideError as error:
        raise BagError(f"bag {bag!r}: its slices cannot be put in order: {error}") from error
    stored = source.bags.stored(bag)
    row = _rows_of(stored.coords, np.array([p.position for p in places]), len(stored.features))
    if row is None:
        raise BagError(
            f"bag {bag!r} has {len(stored.features)} rows in {source.bags.folder}, which are not "
            f"at the positions of its {len(places)} slices in {source.root / IMAGES}: the features "
            "are of other files. Make them again"
        )
    # of slices at one position the first is what features are made of
    labels = [answers[places[k].planes[0].path.stem] for k in row]
    return Marks(values=np.array(labels, np.int64))


def _rows_of(
    coords: Shaped[np.ndarray, "n 1"] | None, positions: Shaped[np.ndarray, " slices"], n: int
) -> list[int] | None:
    """Which slice each row is; None where that cannot be told."""
    if coords is None:
        return list(range(n)) if n == len(positions) else None
    apart = np.abs(coords[:, :1] - positions[None])
    return None if (apart.min(axis=1) > SAME_PLACE).any() else apart.argmin(axis=1).tolist()
