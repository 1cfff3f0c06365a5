"""A user's own cohort: a folder of features and a table bag,label[,group][,fold|split]."""

from pathlib import Path

import numpy as np

from ...core import load_array
from ...errors import InputError
from ..labels import check_labels_match, read_table
from ..overlay import Overlay
from .study import INSTANCES, LABELS, UNKNOWN, InstanceLabels, StudyDraft, StudySource

NEEDED = f"{LABELS} (bag,label[,group][,fold|split]) and features/"


def recognised(root: Path) -> bool:
    """Return whether a folder holds a label table."""
    return (root / LABELS).is_file()


def draft(source: StudySource) -> StudyDraft:
    """Collect the bags of the table, all of which must have features; exclude other bags.

    Raises:
        InputError: there is no table.
        TableError: the table is invalid, or names a bag without features.
    """
    path = source.options.labels or source.root / LABELS
    if not path.is_file():
        raise InputError(f"there is no table {path}: a cohort needs {NEEDED}, or --labels")
    table = read_table(path, classes=source.options.classes)
    check_labels_match(table, source.bags.names, allow_unlabelled=True)
    study = StudyDraft(release=f"the table {path}", classes=table.classes)
    for row_index, bag in enumerate(table.bags):
        label = table.labels[row_index]
        assert label is not None, "read_table asks for labels"
        row: dict[str, object] = {"label": table.classes[label]}
        if table.groups is not None:
            row["group"] = table.groups[row_index]
        if table.folds is not None:
            row["fold"] = table.folds[row_index]
        if table.splits is not None:
            row["split"] = table.splits[row_index]
        study.rows[bag] = row
    unlisted = [b for b in source.bags.names if b not in study.rows]
    study.excluded = dict.fromkeys(unlisted, "the table does not name it")
    folder = given_instances(source)
    if folder is not None:
        Overlay(folder, source.bags.names)
        study.instance_labels = folder
        study.instance_labels_of = lambda bag: _instance_labels(source, folder, bag)
    return study


def given_instances(source: StudySource) -> Path | None:
    """Return the cohort's folder of instance labels, if there is one."""
    beside = source.root / INSTANCES
    return source.options.instance_labels or (beside if beside.is_dir() else None)


def _instance_labels(source: StudySource, folder: Path, bag: str) -> InstanceLabels:
    """Read the labels from the folder; labels in the feature files are not considered here."""
    path = folder / f"{bag}.npy"
    if path.is_file():
        labels = load_array(path, mapped=True)
        return InstanceLabels(values=labels.reshape(len(labels), -1)[:, 0], stored=True)
    return InstanceLabels(values=np.full(source.bags.size(bag), UNKNOWN), stored=True)
