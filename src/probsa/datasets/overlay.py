"""Instance labels from a separate folder: `<bag>.npy`, one integer per instance."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

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
        array, n = load_array(path), len(stored.features)
        values = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if values.ndim != 1 or len(values) != n:
            raise BagError(
                f"bag {stored.name!r} has {n} instances, but {path} holds an array of the shape "
                f"{array.shape}: expected ({n},). The labels belong to other features: make them "
                "again"
            )
        if values.dtype.kind not in "biu" or (n and int(values.min()) < -1):
            raise BagError(
                f"{path}: the instance labels of bag {stored.name!r} are of type {values.dtype} "
                f"with the minimum {values.min()}: expected integers from 0, or -1 if the label is "
                "unknown"
            )
        return replace(stored, instance_labels=values.astype(np.int64))
