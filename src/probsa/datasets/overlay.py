"""Instance labels from a separate folder: `<bag>.npy`, one integer per instance."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core import StoredBag, as_instance_labels, files_by_name, load_array, npy_files
from ..errors import BagError, hint


def label_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the files of labels in a folder, by the name of their bag.

    Raises:
        BagError: there is no folder, it is empty, or no file is named after one of these bags.
    """
    if not folder.is_dir():
        raise BagError(
            f"there is no folder {folder}: instance_labels is a folder of <bag>.npy, one integer "
            "per instance"
        )
    files = files_by_name(npy_files(folder))
    if not files:
        raise BagError(
            f"{folder} holds no .npy files: expected <bag>.npy, one integer per instance"
        )
    if not files.keys() & set(names):
        first = min(files)
        raise BagError(
            f"none of the {len(files)} files in {folder} is named after a bag: there is "
            f"{first}.npy.{hint(first, names)} Give the folder that belongs to these features"
        )
    return files


def overlaid(stored: StoredBag, path: Path) -> StoredBag:
    """Return a bag with the labels of a file: integers in row order, -1 for unknown ones."""
    array = load_array(path)
    n = len(stored.features)
    values = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if values.ndim != 1 or len(values) != n:
        raise BagError(
            f"bag {stored.name!r} has {n} instances, but {path} holds an array of the shape "
            f"{array.shape}: expected ({n},). The labels belong to other features: make them again"
        )
    labels = as_instance_labels(values, source=f"{path}: bag {stored.name!r}")
    if n and int(labels.min()) < -1:
        raise BagError(
            f"{path}: the instance labels of bag {stored.name!r} have the minimum {labels.min()}: "
            "expected integers from 0, or -1 if the label is unknown"
        )
    return replace(stored, instance_labels=labels)
