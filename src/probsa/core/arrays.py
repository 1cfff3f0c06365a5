"""Read .npy and .npz files of unknown origin, without unpickling and within a limit of memory."""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BagError
from .untrusted import check_size, decoding

AGAIN = "copy or make it again"
MOST_COLUMNS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayForm:
    """What an array with a row for each instance must be, in a file or in memory."""

    kinds: str = "fiub"
    """Kinds of NumPy's types; none may be wider than 8 bytes, which PyTorch does not have."""
    flat: bool = True
    """Whether it may have the shape (n,)."""
    columns: tuple[int, int] | None = None
    """Smallest and largest number of columns of the shape (n, columns); None: it has none."""

    def check(
        self, array: Any, *, what: str, where: Path | str, rows: int | None = None, again: str
    ) -> None:
        """Refuse another type or shape; a dataset of HDF5 is not read for that.

        Args:
            array: an array or a dataset.
            what: what messages call it.
            where: the file, or the bag.
            rows: number of instances; None if it is not known.
            again: what to do about it.

        Raises:
            BagError: it has another type or shape, or is empty.
        """
        shape = array.shape
        dtype = array.dtype
        low, high = self.columns or (0, 0)
        has_dimensions = (self.flat and len(shape) == 1) or (
            len(shape) == 2 and low <= shape[1] <= high
        )
        has_rows = 0 not in shape and (rows is None or shape[:1] == (rows,))
        is_numeric = dtype.kind in self.kinds and dtype.itemsize <= 8
        if has_dimensions and has_rows and is_numeric:
            return
        if self.flat:
            count = "a number" if self.columns is None else "numbers"
        else:
            count = f"{low} numbers" if low == high else f"{low} or {high} numbers"
        kind = "whole numbers: " if self.kinds == WHOLE else ""
        instances = "the" if rows is None else rows
        raise BagError(
            f"{where}: {what} is {dtype} of shape {shape}, expected {kind}{count} for each of "
            f"{instances} instances: {again}"
        )


WHOLE = "iub"
ONE_NUMBER = ArrayForm()
ONE_INDEX = ArrayForm(kinds=WHOLE)
NUMBERS = ArrayForm(columns=(1, MOST_COLUMNS))
"""One number for each instance, or one for each class or grade."""
CORNERS = ArrayForm(kinds="fiu", flat=False, columns=(2, 2))
POSITIONS = ArrayForm(kinds="fiu", flat=False, columns=(1, 2))
"""Corners of patches, or positions of slices."""


def load_array(path: Path, *, mapped: bool = False) -> np.ndarray:
    """Load the array of a .npy file, or the first array of an .npz file.

    Raises:
        BagError: the file is missing, damaged, in another format, or states more than it holds.
    """
    with decoding(path, kind=path.suffix, again=AGAIN):
        with path.open("rb") as f:
            is_archive = f.read(2) == b"PK"
        if is_archive:
            for array in load_arrays(path).values():
                return array
            raise BagError(f"{path} holds no array: {AGAIN}")
        # a map as large as the header states cannot be made of a smaller file
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        stored = path.stat().st_size
        check_size(path, what="the array", stated=array.nbytes, stored=stored, again=AGAIN)
        return array if mapped else np.load(path, allow_pickle=False)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Load all arrays of an .npz file, by name.

    Raises:
        BagError: the file is missing, damaged, in another format, or states more than it holds.
    """
    arrays: dict[str, np.ndarray] = {}
    with decoding(path, kind=path.suffix, again=AGAIN), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as f:
                stated = _stated_size(f)
            check_size(
                path,
                what=f"the array {member.filename[:80]!r}",
                stated=max(stated, member.file_size),
                stored=min(member.compress_size, path.stat().st_size),
                again=AGAIN,
            )
            with archive.open(member) as f:
                array = np.lib.format.read_array(f, allow_pickle=False)
            arrays[member.filename.removesuffix(".npy")] = array
    return arrays


def _stated_size(f: Any) -> int:
    """Return how many bytes the array of an open .npy file takes by its header."""
    version = np.lib.format.read_magic(f)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(f)
    else:
        # the header of version 3 differs from that of version 2 in the names of fields alone
        shape, _, dtype = np.lib.format.read_array_header_2_0(f)
    return math.prod(shape) * dtype.itemsize
