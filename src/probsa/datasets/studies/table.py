"""A user's own cohort: a folder of features and a table bag,label[,group][,fold|split]."""

import numpy as np

from ...core import as_instance_labels, load_array
from ...errors import InputError
from ..labels import check_labels_match, match_bags, read_table
from ..overlay import label_files
from .study import INSTANCES, LABELS, UNKNOWN, InstanceLabels, StudyDraft, StudySource

NEEDED = f"{LABELS} (bag,label[,group][,fold|split]) and features/"


def draft(source: StudySource) -> StudyDraft:
    """Collect the bags of the table, all of which must have features; exclude other bags."""
    path = source.options.labels or source.root / LABELS
    if not path.is_file():
        raise InputError(f"there is no table {path}: a cohort needs {NEEDED}, or --labels")
    table = match_bags(read_table(path, classes=source.options.classes), source.bags.names)
    check_labels_match(table, source.bags.names, allow_unlabelled=True)
    study = StudyDraft(classes=table.classes, release=f"the table {path}")
    names = [table.classes[y] for y in table.labels if y is not None]  # all have a label
    columns = {"label": names, "group": table.groups, "fold": table.folds, "split": table.splits}
    for row, bag in enumerate(table.bags):
        study.rows[bag] = {c: values[row] for c, values in columns.items() if values is not None}
    unlisted = [b for b in source.bags.names if b not in study.rows]
    study.excluded = dict.fromkeys(unlisted, "the table does not name it")
    beside = source.root / INSTANCES
    folder = source.options.instance_labels or (beside if beside.is_dir() else None)
    if folder is None:
        return study

    files = label_files(folder, source.bags.names)

    def instance_labels(bag: str) -> InstanceLabels:
        """Read the labels from the folder; labels in the feature files are not considered here."""
        if bag not in files:
            return np.full(source.bags.size(bag), UNKNOWN), True
        labels = as_instance_labels(load_array(files[bag]), source=files[bag])
        return labels, True

    study.instance_labels = folder
    study.instance_labels_of = instance_labels
    return study
