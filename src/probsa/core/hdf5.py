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
from .tables import finite_number, is_missing
from .untrusted import ALWAYS_ALLOWED, check_size, decoding

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
"""Largest number of chunks of a dataset that may have most of them missing."""
NOT_STATED = "None"
"""The text that TRIDENT writes for a value it does not know.

`attributes_of` also returns it for a number that cannot be true, such as a resolution of 0.
"""
UNWRITTEN = ("instance_labels", "unreadable")
"""Datasets that may be made with a shape and never be written: all have the fill value."""
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
            # HDF5 stops at the first link that `_external` returns; an error raised inside it
            # would be lost
            external_link = f.visititems_links(_external)
            if external_link is not None:
                name, target = external_link
                raise BagError(
                    f"{path}: {name!r} is a link to the file {target!r}, which is not read: "
                    "copy the values into the file (h5repack), or leave the link out"
                )
            yield f


def _external(name: str | bytes, link: object) -> tuple[str | bytes, str] | None:
    """Return the name of a link to another file, and that file; None for other links."""
    if not isinstance(link, h5py.ExternalLink):
        return None
    return name, str(link.filename)


def dataset_of(f: h5py.File, name: str, *, again: str = AGAIN) -> h5py.Dataset | None:
    """Return a dataset of an open file that may be read as a whole; None if there is none.

    Raises:
        BagError: its values are in other files or no simple values, or its stated size is above
            the limit or far above what is stored.
    """
    dataset = f.get(name)
    path = Path(str(f.filename))
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
    may_be_unwritten = name in UNWRITTEN and stated <= ALWAYS_ALLOWED
    if stored or not may_be_unwritten:
        if stored:
            stated = max(stated, chunk)  # HDF5 reads whole chunks, also of a smaller dataset
        check_size(path, what=what, stated=stated, stored=stored, again=again)
    if dataset.chunks is not None:
        counts = [-(-n // k) for n, k in zip(shape, dataset.chunks, strict=True)]
        chunks = int(np.prod(counts, dtype=object))
        # HDF5 needs much memory for each of many chunks that are not stored
        if chunks > MOST_EMPTY:
            stored_chunks = dataset.id.get_num_chunks()
            if stored_chunks < chunks / 2:
                raise BagError(
                    f"{path}: {what} states {chunks:,} chunks, and {stored_chunks:,} are stored: "
                    f"{again}"
                )
    return dataset


def attributes_of(item: h5py.Dataset | h5py.File) -> dict[str, Any]:
    """Return the attributes of a dataset or a file, of which those that probsa uses are checked.

    A number that cannot be one, such as a resolution of 0, -1 or NaN, an empty array or an empty
    text, states nothing: it becomes `NOT_STATED`. Texts may be byte strings, and numbers texts.

    Raises:
        BagError: one of them is not what it should be: a positive number, or a text.
    """
    attributes: dict[str, Any] = {}
    for key, value in item.attrs.items():
        try:
            attribute = _read_attribute(key, value)
        except _Unexpected as error:
            raise BagError(
                f"{item.file.filename}: the attribute {key!r} is {str(value)[:80]!r}, expected "
                f"{error.expected}: correct or remove the attribute, or make the file again"
            ) from None
        if attribute is not None:
            attributes[key] = attribute
    return attributes


class _Unexpected(ValueError):
    """The value of an attribute is of another kind than `expected`, such as “a text”."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def _read_attribute(key: str, value: Any) -> Any:
    """Return what an attribute states; None for a text that is empty.

    Raises:
        _Unexpected: the attribute is of another kind.
    """
    if TEXTS.fullmatch(key):
        if _is_empty(value) and not key.startswith("probsa_"):
            return None
        text = _as_text(value, errors="replace" if key == "name" else "strict")
        may_be_unprintable = key == "name"  # bags may have any name
        if text is None or not (may_be_unprintable or text.isprintable()):
            raise _Unexpected("a text")
        return text
    if SIZES.fullmatch(key) or key in COUNTS:
        return _read_number(key, value)
    return value


def _read_number(key: str, value: Any) -> Any:
    """Return an attribute that is a number, or a number for each axis; see `attributes_of`.

    Raises:
        _Unexpected: the attribute is of another kind.
    """
    may_be_zero = key in COUNTS
    expected = "a number" if may_be_zero else "a positive number"
    if _is_empty(value):
        return NOT_STATED
    text = _as_text(value)
    if text is not None:
        if is_missing(text.strip()):
            return NOT_STATED
        value = finite_number(text)
        if value is None:
            raise _Unexpected(expected)
    numbers = np.asarray(value)
    sizes = (1, 2) if key in PAIRS else (1,)
    if numbers.dtype.kind not in "iuf" or numbers.size not in sizes:
        raise _Unexpected(expected)
    is_finite = np.isfinite(numbers)
    if (numbers[is_finite] > LARGEST).any():
        raise _Unexpected(expected)
    is_in_range = numbers >= 0 if may_be_zero else numbers > 0
    return value if (is_finite & is_in_range).all() else NOT_STATED


def _is_empty(value: Any) -> bool:
    """Return whether an attribute has no value: no elements, or an empty text."""
    return isinstance(value, h5py.Empty) or np.size(value) == 0 or _as_text(value) == ""


def _as_text(value: Any, *, errors: str = "strict") -> str | None:
    """Return an attribute that is a text, or one element that is; None for any other."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        try:
            return value.rstrip(b"\0").decode("utf-8", errors)
        except UnicodeDecodeError:
            return None
    return str(value) if isinstance(value, str) else None
