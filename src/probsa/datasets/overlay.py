"""Labels of instances from a folder beside the features: `<bag>.npy`, one number an instance."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from ..core import StoredBag, by_name, npy_files
from ..errors import BagError, hint
from .formats.arrays import load_array


class Overlay:
    """Labels that go before what the bags' files hold; a bag without a file keeps its own.

    Args:
        folder: of the files: whole numbers, -1 where nothing is known, in the order of the rows.
        names: of the bags.

    Raises:
        BagError: no such folder, or none of its files is named after a bag.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        if not folder.is_dir():
            raise BagError(
                f"there is no folder {folder}: instance_labels is a folder of <bag>.npy, one whole "
                "number an instance"
            )
        self.folder = folder
        self._files = by_name(npy_files(folder))
        if self._files and not self._files.keys() & set(names):
            first = min(self._files)
            raise BagError(
                f"none of the {len(self._files)} files in {folder} is named after a bag: there is "
                f"{first}.npy.{hint(first, names)} Give the folder that belongs to these features"
            )

    def over(self, stored: StoredBag) -> StoredBag:
        """The bag with the labels of its file here, where there is one.

        Raises:
            BagError: the file has another length than the bag, or holds no such numbers.
        """
        path = self._files.get(stored.name)
        if path is None:
            return stored
        return replace(stored, instance_labels=read_instance_labels(path, stored))


def read_instance_labels(path: Path, bag: StoredBag) -> Int64[np.ndarray, " n"]:
    """The labels of a bag's instances.

    Raises:
        BagError: the file has another length than the bag, or holds no such numbers.
    """
    held = load_array(path)
    values = held[:, 0] if held.ndim == 2 and held.shape[1] == 1 else held
    if values.ndim != 1 or len(values) != len(bag.features):
        raise BagError(
            f"bag {bag.name!r} has {len(bag.features)} instances, but {path} holds an array of the "
            f"shape {held.shape}: expected ({len(bag.features)},). The labels belong to other "
            "features: make them again"
        )
    if values.dtype.kind not in "biu" or (len(values) and int(values.min()) < -1):
        raise BagError(
            f"{path}: the labels of bag {bag.name!r}'s instances are of type {values.dtype}, the "
            f"least is {values.min()}: expected whole numbers from 0, or -1 where nothing is known"
        )
    return values.astype(np.int64)
