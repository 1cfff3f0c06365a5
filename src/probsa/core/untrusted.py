"""Files of unknown origin: what they may need of memory, and errors that name them.

They may state any size, so that all readers ask here before they allocate memory.
"""

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ..errors import BagError
from .faults import is_fault
from .files import not_a_file

MAX_BAG_GB = 8.0
"""Default of `--max-bag-gb`: gigabytes (10⁹ bytes) that the arrays of one file may take."""
MOST_COMPRESSED = 100
"""Largest plausible ratio of stated to stored bytes. Features compress to about a half."""
ALWAYS_ALLOWED = 64 * 10**6
"""Bytes below which an array may be compressed further, as labels that are all zero are."""

DAMAGED = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    EOFError,
    AssertionError,
    SyntaxError,
    SystemError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What h5py, NumPy, PyTorch and the decoders beneath them raise for damaged files.

Of those that a mistake in a program raises as well, `is_fault` sorts out ours.
"""

_LIMIT: ContextVar[float | None] = ContextVar("max_bag_gb", default=None)


@contextmanager
def bag_limit(gigabytes: float | None) -> Iterator[None]:
    """Set the largest size of one bag for what is done inside; None keeps the present one."""
    token = _LIMIT.set(_LIMIT.get() if gigabytes is None else gigabytes)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def max_bag_gb(default: float = MAX_BAG_GB) -> float:
    """Return the largest size of one bag that is set, or a default."""
    limit = _LIMIT.get()
    return default if limit is None else limit


@contextmanager
def decoding(path: Path, *, kind: str, again: str) -> Iterator[None]:
    """Turn the errors of whatever decodes a file into one that names it.

    Args:
        path: the file.
        kind: what it is read as.
        again: what to do if it is damaged.

    Raises:
        BagError: there is no file, or it cannot be decoded.
    """
    if not path.is_file():
        raise BagError(not_a_file(path))
    try:
        yield
    except BagError:
        raise
    except DAMAGED as error:
        if is_fault(error):
            raise
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        raise BagError(
            f"{path} cannot be read as {kind}: it is damaged, truncated or in another format "
            f"({reason}). {again[:1].upper()}{again[1:]}"
        ) from error


def check_size(path: Path, *, what: str, stated: int, stored: int, again: str) -> None:
    """Refuse an array that is too large, or far larger than what is stored of it.

    Args:
        path: the file.
        what: what messages call the array.
        stated: bytes that the array would take in memory.
        stored: bytes of it on disk, which may be compressed.
        again: what to do about it.

    Raises:
        BagError: the array is larger than the limit, or cannot be in the file.
    """
    limit = max_bag_gb()
    if stated > limit * 1e9:
        raise BagError(
            f"{path}: {what} would take {_size(stated)} of memory, more than {limit:g} GB: give "
            f"a larger --max-bag-gb if that is right, or {again}"
        )
    if stored == 0 and stated > 0:
        raise BagError(f"{path}: nothing is stored of {what} ({_size(stated)}): {again}")
    if stated > max(ALWAYS_ALLOWED, MOST_COMPRESSED * stored):
        raise BagError(
            f"{path}: {what} states {_size(stated)}, but the file stores {_size(stored)} of it: it "
            f"is damaged or was made to exhaust memory: {again}"
        )


def _size(size: int) -> str:
    return f"{size / 1e9:,.3g} GB" if size >= 10**8 else f"{size:,} bytes"
