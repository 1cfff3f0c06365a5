"""Instance labels from a separate folder: `<bag>.npy`, one integer per instance."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ..core import StoredBag, files_by_name, load_array, npy_files
from ..errors import BagError, hint


class Overlay:
    """Instance labels that override those in the bags' files; bags without a file keep theirs.

    Args:
        folder: A folder of `<bag>.npy` with integers in row order, -1 if the label is unknown.
        names: Names of the bags.

    Raises:
        BagError: the folder is missing, or none of its files is named after a bag.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        if not folder.is_dir():
            raise BagError(
                f"there is no folder {folder}: instance_labels is a folder of <bag>.npy, one "
                "integer per instance"
            )
        self.folder = folder
        self._files = files_by_name(npy_files(folder))
        if self._files and not self._files.keys() & set(names):
            first = min(self._files)
            raise BagError(
                f"none of the {len(self._files)} files in {folder} is named after a bag: there is "
                f"{first}.npy.{hint(first, names)} Give the folder that belongs to these features"
            )

    def over(self, stored: StoredBag) -> StoredBag:
        """Return the bag with the labels of its file in this folder, if there is one.

        Raises:
            BagError: the file differs in length from the bag, or holds invalid values.
        """
        path = self._files.get(stored.name)
        if path is None:
            return stored
        return replace(stored, instance_labels=read_instance_labels(path, stored))


def read_instance_labels(path: Path, bag: StoredBag) -> Int64[np.ndarray, " n"]:
    """Read the instance labels of a bag.

    Raises:
        BagError: the file differs in length from the bag, or holds invalid values.
    """
    array = load_array(path)
    values = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if values.ndim != 1 or len(values) != len(bag.features):
        raise BagError(
            f"bag {bag.name!r} has {len(bag.features)} instances, but {path} holds an array of the "
            f"shape {array.shape}: expected ({len(bag.features)},). The labels belong to other "
            "features: make them again"
        )
    if values.dtype.kind not in "biu" or (len(values) and int(values.min()) < -1):
        raise BagError(
            f"{path}: the instance labels of bag {bag.name!r} are of type {values.dtype} with the "
            f"minimum {values.min()}: expected integers from 0, or -1 if the label is unknown"
        )
    return values.astype(np.int64)
