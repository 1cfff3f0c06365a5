"""Read .npy and .npz files of unknown origin, without unpickling and within a limit of memory."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BagError
from .files import not_a_file
from .sizes import check_size

AGAIN = "copy or make it again"


def load_array(path: Path, *, mapped: bool = False) -> np.ndarray:
    """Load the array of a .npy file, or the first array of an .npz file.

    Raises:
        BagError: the file is missing, damaged, in another format, or states more than it holds.
    """
    with _readable(path):
        with path.open("rb") as f:
            if f.read(2) == b"PK":
                return _first(load_arrays(path), path)
            f.seek(0)
            stored = path.stat().st_size
            _check_header(f, path, what="the array", bytes_left=lambda: stored - f.tell())
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Load all arrays of an .npz file, by name.

    Raises:
        BagError: the file is missing, damaged, in another format, or states more than it holds.
    """
    arrays: dict[str, np.ndarray] = {}
    with _readable(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            what = f"the array {member.filename[:80]!r}"
            check_size(
                path,
                what=what,
                stated=member.file_size,
                stored=min(member.compress_size, path.stat().st_size),
                again=AGAIN,
            )
            with archive.open(member) as f:
                size = member.file_size
                _check_header(f, path, what=what, bytes_left=lambda f=f, n=size: n - f.tell())
            with archive.open(member) as f:
                name = member.filename.removesuffix(".npy")
                arrays[name] = np.lib.format.read_array(f, allow_pickle=False)
    return arrays


def _first(arrays: dict[str, np.ndarray], path: Path) -> np.ndarray:
    if not arrays:
        raise BagError(f"{path} holds no array: {AGAIN}")
    return next(iter(arrays.values()))


def _check_header(f: Any, path: Path, *, what: str, bytes_left: Any) -> None:
    """Compare the size that the header states with the bytes that follow it."""
    version = np.lib.format.read_magic(f)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise BagError(f"{path}: {what} is in version {version} of .npy, expected 1 or 2: {AGAIN}")
    shape, _, dtype = read(f)
    if dtype.hasobject:
        raise BagError(
            f"{path} cannot be read: {what} holds pickled objects, which are not loaded since they "
            "could run code. Save numbers alone"
        )
    if any(n < 0 for n in shape):
        raise BagError(f"{path}: {what} states the shape {shape}: {AGAIN}")
    stated, stored = math.prod(shape) * dtype.itemsize, int(bytes_left())
    check_size(path, what=what, stated=stated, stored=stored, again=AGAIN)
    if stated > stored:
        raise BagError(
            f"{path} cannot be read as {path.suffix}: it is damaged or truncated ({what} states "
            f"{stated:,} bytes, of which {stored:,} are stored). {AGAIN.capitalize()}"
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of readers into one that names the file."""
    if not path.is_file():
        raise BagError(not_a_file(path))
    try:
        yield
    except BagError:
        raise
    # zipfile and zlib have errors of their own; damaged headers are parsed as Python literals.
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        LookupError,
        RuntimeError,
        SyntaxError,
        tokenize.TokenError,
        ArithmeticError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise BagError(
            f"{path} cannot be read as {path.suffix}: it is damaged or in another format "
            f"({error}). {AGAIN.capitalize()}"
        ) from error
