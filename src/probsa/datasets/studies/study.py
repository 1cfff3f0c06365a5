"""The files of a prepared data set: labels with parts, instance labels, and a record.

OUT/labels.csv            bag,label[,group],split of every bag that has features
OUT/instance_labels/      <bag>.npy if the feature files hold no instance labels, or wrong ones
OUT/dataset.json          bags, exclusions and corrections; written last
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ...core import as_typed, named_file, read_json, replacing, write_csv, write_json
from ...errors import BagError, InputError, OutputExists
from ..bag_set import BagSet
from ..choices import StudyName
from .processed import UNKNOWN as UNKNOWN
from .processed import ProcessedFolder

LABELS, INSTANCES, STUDY_RECORD = "labels.csv", "instance_labels", "dataset.json"

OnBag = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyOptions:
    """Options of a data set, and paths of files that are not at their default location."""

    share: float = 0.5
    """A patch is positive if more than this share of its pixels is annotated."""
    labels: Path | None = None
    """Clinical labels: CAMELYON16's reference.csv, PANDA's train.csv, or a cohort's table."""
    grades: bool = False
    """PANDA: label slides with their ISUP grade, 0 to 5, instead of benign or cancer."""
    partition: Path | None = None
    """PANDA: the part of each slide (slide_name,Partition)."""
    duplicates: Path | None = None
    """PANDA: clusters of near-duplicate slides (image_id,group_id)."""
    test_scans: Path | None = None
    """RSNA: slices of the test scans (bag_name,instance_name)."""
    train_scans: Path | None = None
    """RSNA: slices of the training scans; None: all scans outside the test part."""
    instance_labels: Path | None = None
    """A cohort's instance labels: a folder of <bag>.npy."""
    classes: tuple[str, ...] | None = None
    """A cohort's classes in order, if its labels are names."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise InputError(f"share is {self.share:g}: give a share of pixels from 0 to below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A data set that is ready for training."""

    name: str
    features: Path
    labels: Path
    instance_labels: Path | None
    """Folder of <bag>.npy that overrides the labels in the feature files; None: no override."""
    feature_set: str | None
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    """Sentences that readers of the results should know."""
    counts: dict[str, int]

    @property
    def folder(self) -> Path:
        """The folder of the record."""
        return self.labels.parent

    def settings(self) -> dict[str, Any]:
        """Return the keys of a run's `data` section."""
        return {
            "features": self.features,
            "labels": self.labels,
            "instance_labels": self.instance_labels,
            "feature_set": self.feature_set,
            "classes": self.classes,
            "unlabelled": "leave_out",
        }

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceLabels:
    """Labels of a bag's instances."""

    values: Shaped[np.ndarray, " n"]
    stored: bool = False
    """Whether the feature files, or a folder beside them, already hold these labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySource:
    """The files and options from which a data set is prepared."""

    root: Path
    bags: BagSet
    options: StudyOptions
    features: Path
    feature_set: str | None
    processed: ProcessedFolder | None = None
    """None: the raw download, with features extracted by the user."""


@dataclass(kw_only=True, slots=True)
class StudyDraft:
    """The content of a data set, as collected by its module."""

    release: str
    """Description of the source folder."""
    classes: tuple[str, ...]
    rows: dict[str, dict[str, object]] = field(default_factory=dict)
    """Label, split or fold, and group of each included bag."""
    instance_labels_of: Callable[[str], InstanceLabels] | None = None
    """Returns the instance labels of an included bag."""
    notes: list[str] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    """Bags with features that are left out, with the reason."""
    corrected: dict[str, str] = field(default_factory=dict)
    derived: list[str] = field(default_factory=list)
    """Bags whose label is derived from instance labels, as the clinical one is unavailable."""
    missing: list[str] = field(default_factory=list)
    """Members of the release that have no features."""
    lists: dict[str, list[str]] = field(default_factory=dict)
    """Further lists of bags for the record, by key."""
    instance_labels: Path | None = None
    """A folder beside the features that already holds instance labels."""
    annotations: dict[str, Path] = field(default_factory=dict)
    """The tumour annotation of each slide."""
    strata: dict[str, dict[str, str]] = field(default_factory=dict)
    """Further groupings of the bags, for example by hospital."""


def write_study(
    name: StudyName,
    draft: StudyDraft,
    source: StudySource,
    *,
    out: Path,
    on_bag: OnBag | None = None,
) -> Study:
    """Write the folder of a data set.

    Raises:
        OutputExists: `out` holds a labels.csv that probsa did not write.
        InputError: no bag is included.
        BagError: the number of instance labels differs from the number of instances.
    """
    check_out(out)
    if not draft.rows:
        raise InputError(
            f"none of the {len(source.bags)} bags in {source.bags.folder} is one of {name}'s: "
            f"{source.bags.names[0]!r}, for example, has no label. Bags must be named as the "
            "release names its slides or scans"
        )
    write_json(out / STUDY_RECORD, {"name": name, "unfinished": True})
    columns = [
        c for c in ("label", "group", "fold", "split") if c in next(iter(draft.rows.values()))
    ]
    rows = [{"bag": bag, **row} for bag, row in sorted(draft.rows.items())]
    write_csv(out / LABELS, ("bag", *columns), rows)
    label_counts = _write_instance_labels(draft, source.bags, out, on_bag=on_bag)
    written = out / INSTANCES
    instance_labels = written if written.is_dir() else draft.instance_labels
    study = Study(
        name=name,
        features=source.features.absolute(),
        labels=(out / LABELS).absolute(),
        instance_labels=instance_labels and instance_labels.absolute(),
        feature_set=source.feature_set,
        classes=draft.classes,
        notes=(*draft.notes, *_label_notes(draft, label_counts)),
        counts=_counts(draft, label_counts),
    )
    record = {
        **study.to_dict(),
        "root": source.root.absolute(),
        "release": draft.release,
        "share": source.options.share,
        "excluded": draft.excluded,
        "corrected": draft.corrected,
        "labels_derived": sorted(draft.derived),
        "labels_a_derivation_would_change": label_counts.changed,
        "without_known_instances": label_counts.bare,
        "without_features": draft.missing,
        **draft.lists,
        "annotations": {b: p.absolute() for b, p in draft.annotations.items()},
        "strata": draft.strata,
    }
    write_json(out / STUDY_RECORD, record)
    return study


def read_study(folder: Path) -> Study:
    """Read the data set that `write_study` wrote to a folder.

    Raises:
        InputError: the folder is missing, or its record is unfinished or damaged.
    """
    path = folder / STUDY_RECORD
    try:
        advice = "run probsa dataset again"
        if not path.is_file():
            raise InputError(f"there is no {path}: make it with probsa dataset")
        record = read_json(path, advice=advice)
        record = as_typed(record, dict[str, Any], where=str(path), advice=advice)
        if record.get("unfinished"):
            raise InputError(f"{path} was not finished. Run probsa dataset again")
        labels = record["instance_labels"]
        return Study(
            name=record["name"],
            features=Path(record["features"]),
            labels=folder.absolute() / LABELS,
            instance_labels=None if labels is None else Path(labels),
            feature_set=record["feature_set"],
            classes=tuple(record["classes"]),
            notes=tuple(record["notes"]),
            counts=record["counts"],
        )
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a record of a data set ({error}): run probsa dataset again"
        ) from error


def check_out(out: Path) -> None:
    """Reject an output folder with labels that probsa did not write.

    Raises:
        OutputExists: there are such labels.
    """
    if (out / LABELS).exists() and not (out / STUDY_RECORD).exists():
        raise OutputExists(
            f"{out} holds a {LABELS} that probsa dataset did not write: give another --out"
        )


@dataclass(kw_only=True, slots=True)
class _InstanceCounts:
    """Counts of the instance labels of a data set."""

    bags: int = 0
    """Number of bags with at least one instance of known label."""
    instances: int = 0
    positive: int = 0
    bare: list[str] = field(default_factory=list)
    """Bags without such an instance."""
    changed: list[str] = field(default_factory=list)
    """Bags whose label differs from the maximum of their instance labels."""


def _write_instance_labels(
    draft: StudyDraft, bags: BagSet, out: Path, *, on_bag: OnBag | None
) -> _InstanceCounts:
    counts, written = _InstanceCounts(), set()
    for index, (bag, row) in enumerate(sorted(draft.rows.items())):
        if draft.instance_labels_of is None:
            break
        labels = draft.instance_labels_of(bag)
        values = labels.values
        if len(values) != bags.size(bag):
            raise BagError(
                f"bag {bag!r} has {bags.size(bag)} instances in {bags.folder}, but there are "
                f"{len(values)} instance labels for it: they belong to other features"
            )
        if not labels.stored:
            written.add(f"{bag}.npy")
            path = named_file(out / INSTANCES, bag, ".npy")
            with replacing(path) as temporary, temporary.open("wb") as f:
                np.save(f, values.astype(np.int8))
        known = values[values != UNKNOWN]
        counts.bags += bool(len(known))
        if not len(known):
            counts.bare.append(bag)
        counts.instances += len(known)
        counts.positive += int((known > 0).sum())
        # If some instances are unknown, only a positive one determines the label of the bag.
        is_decidable = len(known) == len(values) or (known > 0).any()
        if is_decidable and bool((known > 0).any()) != (row["label"] not in (0, draft.classes[0])):
            counts.changed.append(bag)
        if on_bag is not None:
            on_bag(index + 1, len(draft.rows))
    _remove_others(out / INSTANCES, written)
    return counts


def _remove_others(folder: Path, written: set[str]) -> None:
    """Remove instance labels that an earlier call wrote."""
    if not folder.is_dir():
        return
    for path in folder.glob("*.npy"):
        if path.name not in written:
            path.unlink()
    if not written:
        folder.rmdir()


def _counts(draft: StudyDraft, label_counts: _InstanceCounts) -> dict[str, int]:
    counts = {"bags": len(draft.rows)}
    for part in ("train", "val", "test"):
        rows = [r for r in draft.rows.values() if r.get("split") == part]
        if rows:
            counts[part] = len(rows)
            counts |= {f"{part} {c}": n for c, n in _by_class(draft, rows).items()}
    counts |= _by_class(draft, list(draft.rows.values()))
    for name, value_of in draft.strata.items():
        for value in sorted(set(value_of.values())):
            counts[f"{name} {value}"] = sum(v == value for v in value_of.values())
    return counts | {
        "excluded": len(draft.excluded),
        "without features": len(draft.missing),
        "labels derived": len(draft.derived),
        "bags with known instances": label_counts.bags,
        "known instances": label_counts.instances,
        "positive instances": label_counts.positive,
        "labels that a derivation would change": len(label_counts.changed),
    }


def _by_class(draft: StudyDraft, rows: list[dict[str, object]]) -> dict[str, int]:
    return {
        name: sum(row["label"] in (index, name) for row in rows)
        for index, name in enumerate(draft.classes)
    }


def _label_notes(draft: StudyDraft, label_counts: _InstanceCounts) -> list[str]:
    notes = []
    if draft.derived:
        notes.append(
            f"The labels of {len(draft.derived)} bags are derived from instance labels, or taken "
            "from the release, because the clinical ones are not available."
        )
    if label_counts.changed:
        notes.append(
            f"For {len(label_counts.changed)} of {label_counts.bags} bags, a label derived from "
            "the instances would differ from the label used here."
        )
    if draft.missing:
        notes.append(f"{len(draft.missing)} members of the release have no features here.")
    return notes
