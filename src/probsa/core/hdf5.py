"""Open HDF5 files of unknown origin, and check what they state before anything is read.

Links to other files, data in other files and virtual datasets are refused: a file that was copied
from elsewhere should not make probsa read other files, or wait for a pipe.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..errors import BagError
from .files import replacing
from .untrusted import check_size, decoding

AGAIN = "copy or extract it again"
SIZES = re.compile(
    "patch_size(_level0)?|size_level0|pitch|(custom_)?downsample|level0_(width|height)|level_dim|"
    "mpp(_level0)?|(level0|target)_magnification|tile_size(_um|_px)?"
)
"""Attributes that are positive numbers."""
COUNTS = ("overlap", "patch_level")
"""Attributes that are numbers from 0."""
PAIRS = ("level_dim", "downsample")
"""Attributes with a number for each axis."""
TEXTS = re.compile(
    "(probsa_)?(encoder|kind)|probsa_made_with|extractor|feat_type|name|score_kind|stamp_version|unit"
)
"""Attributes that are text."""
MOST_EMPTY = 10_000
"""Chunks of a dataset of which most may be missing."""
LARGEST = 1e12
"""No number among these attributes is larger."""


class _Sink(io.FileIO):
    """A file that records its first error instead of raising it.

    HDF5 crashes with a segmentation fault if a write fails, for example on a full disk.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        try:
            while self.error is None and len(remaining):
                remaining = remaining[super().write(remaining) :]
        except OSError as e:
            self.error = e
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as e:
            self.error = self.error or e
            return size or 0


@contextmanager
def replacing_hdf5(path: Path) -> Iterator[h5py.File]:
    """Yield an open HDF5 file that replaces `path` once it is complete.

    Raises:
        OSError: the file could not be written, for example because the disk is full.
    """
    with replacing(path) as temporary, _Sink(temporary, "w+") as sink:
        with h5py.File(sink, "w") as f:
            yield f
        if sink.error is not None:
            raise OSError(sink.error.errno, sink.error.strerror, str(path))


@contextmanager
def open_hdf5(path: Path, *, again: str = AGAIN) -> Iterator[h5py.File]:
    """Open a file for reading, and raise BagError with its path if HDF5 cannot read it.

    Args:
        path: the file.
        again: what to do if it is damaged, for the message.

    Raises:
        BagError: the file is missing or damaged, or links to other files.
    """
    with decoding(path, kind="HDF5", again=again):
        if not h5py.is_hdf5(path):
            raise BagError(
                f"{path} is not an HDF5 file. Was it only partly copied, or is it in another "
                f"format? If so, {again}"
            )
        with h5py.File(path, "r") as f:
            found = f.visititems_links(_external)  # an error raised inside it would be lost
            if found is not None:
                raise BagError(
                    f"{path}: {found[0]!r} is a link to the file {found[1]!r}, which is not read: "
                    "copy the values into the file (h5repack), or leave the link out"
                )
            yield f


def _external(name: str | bytes, link: object) -> tuple[str | bytes, str] | None:
    return (name, str(link.filename)) if isinstance(link, h5py.ExternalLink) else None


def dataset_of(f: h5py.File, name: str, *, again: str = AGAIN) -> h5py.Dataset | None:
    """Return a dataset of an open file that may be read as a whole; None if there is none.

    Raises:
        BagError: its values are in other files or no simple values, or its stated size is above
            the limit or far above what is stored.
    """
    dataset, path = f.get(name), Path(str(f.filename))
    if not isinstance(dataset, h5py.Dataset):
        if f.get(name, getlink=True) is None:
            return None
        raise BagError(
            f"{path} has no dataset {name!r}, but a group or a broken link of that name: {again}"
        )
    what = f"the dataset {name!r}"
    if dataset.is_virtual or dataset.external:
        raise BagError(
            f"{path}: the values of {what} are in other files, which are not read: copy them into "
            "the file (h5repack)"
        )
    shape: Any = dataset.shape
    if shape is None or dataset.dtype.kind not in "biufSUc":
        values = "no values" if shape is None else f"values of type {dataset.dtype}"
        raise BagError(f"{path}: {what} has {values}, expected an array of numbers: {again}")
    chunk = int(np.prod(dataset.chunks or (), dtype=object)) * dataset.dtype.itemsize
    stated = int(np.prod(shape, dtype=object)) * dataset.dtype.itemsize
    stored = min(int(dataset.id.get_storage_size()), path.stat().st_size)
    check_size(
        path, what=what, stated=max(stated, chunk if stored else 0), stored=stored, again=again
    )
    if (chunks := dataset.chunks) is not None:
        parts = int(np.prod([-(-n // k) for n, k in zip(shape, chunks, strict=True)], dtype=object))
        # HDF5 needs much memory for each of many parts that are not stored
        if parts > MOST_EMPTY and (there := dataset.id.get_num_chunks()) < parts / 2:
            raise BagError(
                f"{path}: {what} states {parts:,} chunks, and {there:,} are stored: {again}"
            )
    return dataset


def attributes_of(item: h5py.Dataset | h5py.File) -> dict[str, Any]:
    """Return the attributes of a dataset or a file, of which those that probsa uses are checked.

    Raises:
        BagError: one of them is not what it should be: a positive number, or a text.
    """
    attributes = dict(item.attrs)
    for key, value in attributes.items():
        if expected := _missed(key, value):
            raise BagError(
                f"{item.file.filename}: the attribute {key!r} is {str(value)[:80]!r}, expected "
                f"{expected}: correct or remove the attribute, or make the file again"
            )
    return attributes


def _missed(key: str, value: Any) -> str:
    """Return what an attribute should be; empty if it is, or if probsa does not use it."""
    if TEXTS.fullmatch(key):
        # bags may have any name
        good = isinstance(value, str) and (key == "name" or value.isprintable())
        return "" if good else "a text"
    if not SIZES.fullmatch(key) and key not in COUNTS:
        return ""
    expected, least = (
        ("a number", 0.0) if key in COUNTS else ("a positive number", np.nextafter(0, 1))
    )
    if isinstance(value, str):  # TRIDENT writes 'None' for what it does not know
        return "" if value == "None" else expected
    numbers = np.asarray(value)
    counts = (1, 2) if key in PAIRS else (1,)
    if numbers.dtype.kind not in "iuf" or numbers.size not in counts:
        return expected
    return "" if ((numbers >= least) & (numbers <= LARGEST)).all() else expected
