"""The files of a prepared data set: labels with parts, instance labels, and a record.

OUT/labels.csv            bag,label[,group],split of every bag that has features
OUT/instance_labels/      <bag>.npy if the feature files hold no instance labels, or wrong ones
OUT/dataset.json          bags, exclusions and corrections; written last
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from ...core import (
    as_paths,
    as_record,
    check_replaceable,
    files_matching,
    foreign,
    foreign_files,
    named_file,
    open_output,
    read_json,
    remove_written,
    replacing,
    write_csv,
    write_json,
)
from ...errors import BagError, InputError, OutputExists
from ..bag_set import BagSet
from ..choices import StudyName
from ..formats.torchmil import TorchmilBags
from ..names import SPLIT_PARTS

LABELS = "labels.csv"
INSTANCES = "instance_labels"
STUDY_RECORD = "dataset.json"
RAW_DOWNLOAD = "the raw download"
PROCESSED_FOLDER = "the authors' processed folder"
UNKNOWN = -1
"""Label of instances whose label is unknown."""

OnBag = Callable[[int, int], None]
"""Called with (done, total)."""
InstanceLabels = tuple[Shaped[np.ndarray, " n"], bool]
"""Labels of a bag's instances, and whether the feature files or a folder beside them hold them."""


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
        as_paths(self)
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
        keys = ("features", "labels", "instance_labels", "feature_set", "classes")
        return {key: getattr(self, key) for key in keys} | {"unlabelled": "leave_out"}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class StudySource:
    """The files and options from which a data set is prepared."""

    root: Path
    bags: BagSet
    options: StudyOptions
    features: Path
    feature_set: str | None
    release: TorchmilBags | None = None
    """The bags as those of the authors' processed folder; None: the user extracted the features."""

    def patches(self, bag: str, *, why: str) -> tuple[Shaped[np.ndarray, "n 2"], float]:
        """Return the corners of a bag's patches and their side, in level-0 pixels."""
        coords = self.bags.stored(bag).coords
        side = self.bags.metadata(bag).size_level0
        if coords is None or side is None:
            raise BagError(
                f"bag {bag!r} in {self.bags.folder} does not state the positions and the size of "
                f"its patches, which are needed to apply {why}: extract the features with probsa "
                "extract, TRIDENT, or CLAM with its patches folder"
            )
        return coords, side

    def unknown(self, bag: str) -> InstanceLabels:
        """Return unknown labels for all instances of a bag."""
        return np.full(self.bags.size(bag), UNKNOWN), False


@dataclass(kw_only=True, slots=True)
class StudyDraft:
    """The content of a data set, as collected by its module."""

    classes: tuple[str, ...]
    release: str | None = None
    """Description of the source, if it is not that of a published data set."""
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
    """Write the folder of a data set."""
    if not draft.rows:
        raise InputError(
            f"none of the {len(source.bags)} bags in {source.bags.folder} is one of {name}'s: "
            f"{source.bags.names[0]!r}, for example, has no label. Bags must be named as the "
            "release names its slides or scans"
        )
    open_output(out, earlier=_earlier_files)
    check_replaceable(out / LABELS)
    write_json(out / STUDY_RECORD, {"name": name, "unfinished": True})
    first = next(iter(draft.rows.values()))
    columns = ("bag", *(c for c in ("label", "group", "fold", "split") if c in first))
    rows = [{"bag": bag, **row} for bag, row in sorted(draft.rows.items())]
    write_csv(out / LABELS, columns, rows)
    labels = _write_instance_labels(draft, source.bags, out, on_bag=on_bag)
    if draft.derived:
        draft.notes.append(
            f"The labels of {len(draft.derived)} bags are derived from instance labels, or taken "
            "from the release, because the clinical ones are not available."
        )
    if labels.changed:
        draft.notes.append(
            f"For {len(labels.changed)} of {labels.known_bags} bags, a label derived from the "
            "instances would differ from the label used here."
        )
    if draft.missing:
        draft.notes.append(f"{len(draft.missing)} members of the release have no features here.")
    instance_labels = out / INSTANCES if labels.files else draft.instance_labels
    study = Study(
        name=name,
        features=source.features.absolute(),
        labels=(out / LABELS).absolute(),
        instance_labels=instance_labels and instance_labels.absolute(),
        feature_set=source.feature_set,
        classes=draft.classes,
        notes=tuple(draft.notes),
        counts={
            **_counts(draft),
            "bags with known instances": labels.known_bags,
            "known instances": labels.known_instances,
            "positive instances": labels.positive_instances,
            "labels that a derivation would change": len(labels.changed),
        },
    )
    published = RAW_DOWNLOAD if source.release is None else PROCESSED_FOLDER
    record = {
        **study.to_dict(),
        "root": source.root.absolute(),
        "release": draft.release or published,
        "share": source.options.share,
        "excluded": draft.excluded,
        "corrected": draft.corrected,
        "labels_derived": sorted(draft.derived),
        "labels_a_derivation_would_change": labels.changed,
        "without_known_instances": labels.without_known,
        "without_features": draft.missing,
        **draft.lists,
        "annotations": {b: p.absolute() for b, p in draft.annotations.items()},
        "strata": draft.strata,
    }
    write_json(out / STUDY_RECORD, record)
    return study


def read_study(folder: Path | str) -> Study:
    """Read the data set that `write_study` wrote to a folder, which may have been moved since.

    Raises:
        InputError: the folder is missing, or its record is unfinished or damaged.
    """
    folder = Path(folder)
    path = folder / STUDY_RECORD
    if not path.is_file():
        raise InputError(f"there is no {path}: make it with probsa dataset")
    advice = "run probsa dataset again"
    record = read_json(path, advice=advice)
    if isinstance(record, dict):
        if record.get("unfinished"):
            raise InputError(f"{path} was not finished. Run probsa dataset again")
        _move_paths(record, folder.absolute())
    return as_record(Study, record, where=str(path), advice=advice, complete=True)


def _move_paths(record: dict[str, Any], folder: Path) -> None:
    """Replace the paths in a record that lay in its former folder by those in its folder."""
    labels = record.get("labels")
    former_folder = Path(labels).parent if isinstance(labels, str) else folder
    record["labels"] = str(folder / LABELS)
    for key in ("features", "instance_labels"):
        former = record.get(key)
        if not isinstance(former, str) or not Path(former).is_relative_to(former_folder):
            continue
        moved = folder / Path(former).relative_to(former_folder)
        # a copy of the table and the record alone still uses the other files where they are
        if moved.exists():
            record[key] = str(moved)


def check_out(out: Path) -> None:
    """Reject an output folder with labels that probsa did not write."""
    if (out / LABELS).exists() and not (out / STUDY_RECORD).exists():
        raise OutputExists(
            f"{out} holds a {LABELS} that probsa dataset did not write: give another --out"
        )


def _earlier_files(out: Path) -> list[Path]:
    """List the files in a folder that a version of probsa without ledgers wrote; often none."""
    try:
        record = read_json(out / STUDY_RECORD)
    except InputError:  # there is no record, or it is damaged
        return []
    if not isinstance(record, dict) or "name" not in record:
        return []
    files = [out / STUDY_RECORD, out / LABELS]
    if record["name"] != "table":  # instance labels beside a cohort's table are the user's
        files += files_matching(out, (f"{INSTANCES}/*.npy",))
    return files


@dataclass(kw_only=True, slots=True)
class _WrittenLabels:
    """The instance labels of a data set."""

    files: set[str] = field(default_factory=set)
    """Names of the files that were written."""
    known_bags: int = 0
    """Number of bags with an instance of known label."""
    known_instances: int = 0
    positive_instances: int = 0
    without_known: list[str] = field(default_factory=list)
    """Bags without an instance of known label."""
    changed: list[str] = field(default_factory=list)
    """Bags whose label differs from the maximum of their instance labels."""


def _write_instance_labels(
    draft: StudyDraft, bags: BagSet, out: Path, *, on_bag: OnBag | None
) -> _WrittenLabels:
    """Write the instance labels that are not stored yet, and remove those of an earlier call.

    Raises:
        OutputExists: the user has files in the folder, which would count as labels of the set.
    """
    labels = _WrittenLabels()
    folder = out / INSTANCES
    users = set(foreign_files(folder))
    rows = sorted(draft.rows.items())
    labels_of = draft.instance_labels_of
    if labels_of is None:
        rows = []
    for index, (bag, row) in enumerate(rows, start=1):
        assert labels_of is not None
        values, is_stored = labels_of(bag)
        if len(values) != bags.size(bag):
            raise BagError(
                f"bag {bag!r} has {bags.size(bag)} instances in {bags.folder}, but there are "
                f"{len(values)} instance labels for it: they belong to other features"
            )
        if not is_stored:
            if users:
                raise foreign(min(users))
            path = named_file(folder, bag, ".npy")
            labels.files.add(path.name)
            with replacing(path) as temporary, temporary.open("wb") as f:
                np.save(f, values.astype(np.int8))
        is_known = values != UNKNOWN
        known_count = int(is_known.sum())
        positive_count = int((is_known & (values > 0)).sum())
        labels.known_instances += known_count
        labels.positive_instances += positive_count
        if known_count > 0:
            labels.known_bags += 1
        else:
            labels.without_known.append(bag)
        # If some instances are unknown, only a positive one determines the label of the bag.
        has_positive = positive_count > 0
        is_decidable = has_positive or known_count == len(values)
        # a label is the name of a class or its index; the first class is negative
        is_positive_bag = row["label"] not in (0, draft.classes[0])
        if is_decidable and has_positive != is_positive_bag:
            labels.changed.append(bag)
        if on_bag is not None:
            on_bag(index, len(rows))
    for path in folder.glob("*.npy"):
        if path.name not in labels.files and path not in users:
            remove_written(path)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return labels


def _counts(draft: StudyDraft) -> dict[str, int]:
    """Return the counts of bags by part, class and stratum."""

    def by_class(rows: Iterable[Mapping[str, object]], prefix: str = "") -> dict[str, int]:
        labels = [row["label"] for row in rows]
        class_counts: dict[str, int] = {}
        for index, name in enumerate(draft.classes):
            # a label is the name of a class or its index
            class_counts[f"{prefix}{name}"] = labels.count(index) + labels.count(name)
        return class_counts

    counts = {"bags": len(draft.rows)}
    for part in SPLIT_PARTS:
        rows = [row for row in draft.rows.values() if row.get("split") == part]
        if rows:
            counts |= {part: len(rows), **by_class(rows, f"{part} ")}
    counts |= by_class(draft.rows.values())
    for name, value_of in draft.strata.items():
        values = list(value_of.values())
        counts |= {f"{name} {value}": values.count(value) for value in sorted(set(values))}
    return counts | {
        "excluded": len(draft.excluded),
        "without features": len(draft.missing),
        "labels derived": len(draft.derived),
    }
