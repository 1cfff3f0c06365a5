"""A data set brought to what a run reads: labels with parts, labels of instances, and a record.

OUT/labels.csv            bag,label[,group],split of every bag that has features
OUT/instance_labels/      <bag>.npy where the features' files hold none, or wrong ones
OUT/dataset.json          what was found, left out and put right; whole once all else is
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ...core import replacing, write_csv, write_json
from ...errors import BagError, InputError, OutputExists
from ..bag_set import BagSet
from ..choices import StudyName
from .processed import UNKNOWN as UNKNOWN
from .processed import Processed

LABELS, INSTANCES, RECORD = "labels.csv", "instance_labels", "dataset.json"

OnBag = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyOptions:
    """What belongs to a data set and does not lie in its folder under its own name."""

    share: float = 0.5
    """A patch is positive where more than this share of its pixels is annotated."""
    labels: Path | None = None
    """Clinical labels: CAMELYON16's reference.csv, PANDA's train.csv, a cohort's own table."""
    partition: Path | None = None
    """PANDA: which slide is of which part (slide_name,Partition)."""
    duplicates: Path | None = None
    """PANDA: which slides are near-duplicates of one another (image_id,group_id)."""
    test_scans: Path | None = None
    """RSNA: slices of the test scans (bag_name,instance_name)."""
    train_scans: Path | None = None
    """RSNA: slices of the training scans; none: all other scans train."""
    instance_labels: Path | None = None
    """A cohort's own labels of instances: a folder of <bag>.npy."""
    classes: tuple[str, ...] | None = None
    """A cohort's classes in order, where its labels are names."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise InputError(f"share is {self.share:g}: give a share of pixels from 0 to below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A data set that is ready to be trained on."""

    name: str
    features: Path
    labels: Path
    instance_labels: Path | None
    """Folder of <bag>.npy that go before what the features' files hold; None: those alone."""
    feature_set: str | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    """What a reader of the results should know, in sentences."""
    counts: dict[str, int]

    @property
    def folder(self) -> Path:
        """Where its record lies."""
        return self.labels.parent

    def settings(self) -> dict[str, Any]:
        """The keys of a run's `data` section."""
        return {
            "features": self.features,
            "labels": self.labels,
            "instance_labels": self.instance_labels,
            "feature_set": self.feature_set,
            "classes": self.classes,
            "unlabelled": "leave_out",
        }

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """Labels of a bag's instances."""

    values: Shaped[np.ndarray, " n"]
    stored: bool = False
    """The features' files, or a folder beside them, hold these already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a data set is made from."""

    root: Path
    bags: BagSet
    options: StudyOptions
    features: Path
    feature_set: str | None
    processed: Processed | None = None
    """None: from the raw download, with features of one's own."""


@dataclass(kw_only=True, slots=True)
class Draft:
    """What a data set's module found."""

    release: str
    """What the folder is, in words."""
    classes: tuple[str, ...]
    rows: dict[str, dict[str, object]] = field(default_factory=dict)
    """Of each bag that takes part: label, split or fold, group."""
    marks: Callable[[str], Marks] | None = None
    """Labels of the instances of a bag that takes part."""
    notes: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    """Bags with features that take no part, and why."""
    corrected: dict[str, str] = field(default_factory=dict)
    derived: list[str] = field(default_factory=list)
    """Bags whose label follows from labels of instances: the clinical one is not at hand."""
    missing: list[str] = field(default_factory=list)
    """Members of the release that have no features."""
    lists: dict[str, list[str]] = field(default_factory=dict)
    """Bags that something is to be said of, by what it is."""
    instance_labels: Path | None = None
    """A folder beside the features that holds labels of instances already."""
    annotations: dict[str, Path] = field(default_factory=dict)
    """The file that says where the tumour of each slide is."""
    strata: dict[str, dict[str, str]] = field(default_factory=dict)
    """What divides the bags beside their labels: the hospital of each, say."""


def write_study(
    name: StudyName,
    draft: Draft,
    source: Source,
    *,
    out: Path,
    on_bag: OnBag | None = None,
) -> Study:
    """Writes a data set's folder.

    Raises:
        OutputExists: `out` holds a labels.csv that is not ours.
        InputError: no bag takes part.
        BagError: labels of instances that are not as many as the bag's rows.
    """
    check_out(out)
    if not draft.rows:
        raise InputError(
            f"none of the {len(source.bags)} bags in {source.bags.folder} is one of {name}'s: "
            f"there is {source.bags.names[0]!r}, which has no label. Bags are to be named as the "
            "release names its slides or scans"
        )
    write_json(out / RECORD, {"name": name, "unfinished": True})
    columns = [
        c for c in ("label", "group", "fold", "split") if c in next(iter(draft.rows.values()))
    ]
    rows = [{"bag": bag, **row} for bag, row in sorted(draft.rows.items())]
    write_csv(out / LABELS, ("bag", *columns), rows)
    known = _write_marks(draft, source.bags, out, on_bag=on_bag)
    written = out / INSTANCES
    given = draft.instance_labels
    study = Study(
        name=name,
        features=source.features.absolute(),
        labels=(out / LABELS).absolute(),
        instance_labels=written.absolute() if written.is_dir() else given and given.absolute(),
        feature_set=source.feature_set,
        classes=draft.classes,
        notes=(*draft.notes, *_said(draft, known)),
        counts=_counts(draft, known),
    )
    record = {
        **study.to_dict(),
        "root": source.root.absolute(),
        "release": draft.release,
        "share": source.options.share,
        "excluded": draft.excluded,
        "corrected": draft.corrected,
        "labels_derived": sorted(draft.derived),
        "labels_a_derivation_would_change": known.changed,
        "without_known_instances": known.bare,
        "without_features": draft.missing,
        **draft.lists,
        "annotations": {b: p.absolute() for b, p in draft.annotations.items()},
        "strata": draft.strata,
    }
    write_json(out / RECORD, record)
    return study


def read_study(folder: Path) -> Study:
    """The data set that `write_study` left in a folder.

    Raises:
        InputError: no such folder, or its record is damaged.
    """
    path = folder / RECORD
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held.get("unfinished"):
            raise InputError(f"{path}: it was not finished. Run probsa dataset again")
        labels = held["instance_labels"]
        return Study(
            name=held["name"],
            features=Path(held["features"]),
            labels=folder.absolute() / LABELS,
            instance_labels=None if labels is None else Path(labels),
            feature_set=held["feature_set"],
            classes=tuple(held["classes"]),
            notes=tuple(held["notes"]),
            counts=held["counts"],
        )
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}: make it with probsa dataset") from error
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is no record of a data set ({error}): run probsa dataset again"
        ) from error


def check_out(out: Path) -> None:
    """Refuses a folder with labels that somebody else wrote.

    Raises:
        OutputExists: there are such.
    """
    if (out / LABELS).exists() and not (out / RECORD).exists():
        raise OutputExists(
            f"{out} holds a {LABELS} that probsa dataset did not write: give another --out"
        )


@dataclass(kw_only=True, slots=True)
class _Known:
    """What the labels of instances amount to."""

    bags: int = 0
    """Bags with an instance whose label is known."""
    instances: int = 0
    positive: int = 0
    bare: list[str] = field(default_factory=list)
    """Bags without such an instance."""
    changed: list[str] = field(default_factory=list)
    """Bags whose label would be another if it were the largest of their instances'."""


def _write_marks(draft: Draft, bags: BagSet, out: Path, *, on_bag: OnBag | None) -> _Known:
    known, wanted = _Known(), set()
    for done, (bag, row) in enumerate(sorted(draft.rows.items())):
        if draft.marks is None:
            break
        marks = draft.marks(bag)
        values = marks.values
        if len(values) != bags.size(bag):
            raise BagError(
                f"bag {bag!r} has {bags.size(bag)} instances in {bags.folder}, but there are "
                f"{len(values)} labels of instances for it: they belong to other features"
            )
        if not marks.stored:
            wanted.add(f"{bag}.npy")
            with replacing(out / INSTANCES / f"{bag}.npy") as temporary, temporary.open("wb") as f:
                np.save(f, values.astype(np.int8))
        there = values[values != UNKNOWN]
        known.bags += bool(len(there))
        if not len(there):
            known.bare.append(bag)
        known.instances += len(there)
        known.positive += int((there > 0).sum())
        # with unknown instances only a positive one says something of the bag
        tells = len(there) == len(values) or (there > 0).any()
        if tells and bool((there > 0).any()) != (row["label"] not in (0, draft.classes[0])):
            known.changed.append(bag)
        if on_bag is not None:
            on_bag(done + 1, len(draft.rows))
    _remove_others(out / INSTANCES, wanted)
    return known


def _remove_others(folder: Path, wanted: set[str]) -> None:
    """Labels that an earlier run wrote here must not speak for this one."""
    if not folder.is_dir():
        return
    for path in folder.glob("*.npy"):
        if path.name not in wanted:
            path.unlink()
    if not wanted:
        folder.rmdir()


def _counts(draft: Draft, known: _Known) -> dict[str, int]:
    found = {"bags": len(draft.rows)}
    for part in ("train", "val", "test"):
        rows = [r for r in draft.rows.values() if r.get("split") == part]
        if rows:
            found[part] = len(rows)
            found |= {f"{part} {c}": n for c, n in _by_class(draft, rows).items()}
    found |= _by_class(draft, list(draft.rows.values()))
    for what, stratum in draft.strata.items():
        for value in sorted(set(stratum.values())):
            found[f"{what} {value}"] = sum(v == value for v in stratum.values())
    return found | {
        "excluded": len(draft.excluded),
        "without features": len(draft.missing),
        "labels derived": len(draft.derived),
        "bags with known instances": known.bags,
        "known instances": known.instances,
        "positive instances": known.positive,
        "labels that a derivation would change": len(known.changed),
    }


def _by_class(draft: Draft, rows: list[dict[str, object]]) -> dict[str, int]:
    return {
        name: sum(row["label"] in (index, name) for row in rows)
        for index, name in enumerate(draft.classes)
    }


def _said(draft: Draft, known: _Known) -> list[str]:
    said = []
    if draft.derived:
        said.append(
            f"The labels of {len(draft.derived)} bags are derived from their instances' or as the "
            "release stores them: the clinical ones are not at hand."
        )
    if known.changed:
        said.append(
            f"A label derived from the instances would differ from the label of "
            f"{len(known.changed)} of {known.bags} bags; the labels here are kept."
        )
    if draft.missing:
        said.append(f"{len(draft.missing)} members of the release have no features here.")
    return said
