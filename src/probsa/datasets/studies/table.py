"""A cohort of one's own: a folder of features and a table bag,label[,group][,fold|split]."""

from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats.arrays import load_array
from ..labels import match, read_table
from ..overlay import Overlay
from .study import INSTANCES, LABELS, UNKNOWN, Draft, Marks, Source

NEEDED = f"{LABELS} (bag,label[,group][,fold|split]) and features/"


def recognised(root: Path) -> bool:
    """Whether a folder holds a table of labels."""
    return (root / LABELS).is_file()


def draft(source: Source) -> Draft:
    """The table's bags, all of which must have features; further bags are left out.

    Raises:
        InputError: there is no table.
        TableError: it is not what it should be, or names a bag without features.
    """
    path = source.options.labels or source.root / LABELS
    if not path.is_file():
        raise InputError(f"there is no table {path}: a cohort needs {NEEDED}, or --labels")
    table = read_table(path, classes=source.options.classes)
    match(table, source.bags.names, allow_unlabelled=True)
    made = Draft(release=f"the table {path}", classes=table.classes)
    for r, bag in enumerate(table.bags):
        label = table.labels[r]
        assert label is not None, "read_table asks for labels"
        row: dict[str, object] = {"label": table.classes[label]}
        if table.groups is not None:
            row["group"] = table.groups[r]
        if table.folds is not None:
            row["fold"] = table.folds[r]
        if table.splits is not None:
            row["split"] = table.splits[r]
        made.rows[bag] = row
    without = [b for b in source.bags.names if b not in made.rows]
    made.excluded = dict.fromkeys(without, "the table does not name it")
    folder = given_instances(source)
    if folder is not None:
        Overlay(folder, source.bags.names)
        made.instance_labels = folder
        made.marks = lambda bag: _marks(source, folder, bag)
    return made


def given_instances(source: Source) -> Path | None:
    """The cohort's own folder of labels of instances."""
    beside = source.root / INSTANCES
    return source.options.instance_labels or (beside if beside.is_dir() else None)


def _marks(source: Source, folder: Path, bag: str) -> Marks:
    """Those of the folder; what bags' own files hold is not looked at here."""
    path = folder / f"{bag}.npy"
    if path.is_file():
        held = load_array(path, mapped=True)
        return Marks(values=held.reshape(len(held), -1)[:, 0], stored=True)
    return Marks(values=np.full(source.bags.size(bag), UNKNOWN), stored=True)
