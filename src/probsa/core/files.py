"""Files that exist are complete: written under a temporary name, flushed, renamed."""

import csv
import errno
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed to it at the end, removed if anything fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as f:
            os.fsync(f.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class _Sink(io.FileIO):
    """A file that keeps its first error to itself.

    HDF5 does not survive one: a full disk would end the process with a segmentation fault.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while self.error is None and len(left):
                left = left[super().write(left) :]
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
    """An HDF5 file to be filled, which becomes `path` once it is whole.

    Raises:
        OSError: it could not be written: the disk is full.
    """
    with replacing(path) as temporary, _Sink(temporary, "w+") as sink:
        with h5py.File(sink, "w") as f:
            yield f
        if sink.error is not None:
            raise OSError(sink.error.errno, sink.error.strerror, str(path))


def unfinished(path: Path) -> list[Path]:
    """Temporary files that killed processes left of `path`, and those of whoever writes it now."""
    if not path.parent.is_dir():
        return []
    name = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]+\.tmp")
    return sorted(p for p in path.parent.iterdir() if name.fullmatch(p.name))


def unfinished_below(folder: Path) -> list[Path]:
    """The same of every file below a folder."""
    name = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
    return sorted(p for p in folder.rglob(".*.tmp") if name.fullmatch(p.name))


def full_disk(error: BaseException) -> bool:
    """Whether an error says that a disk, or a user's share of it, is full.

    HDF5 has its own words for it, and does not always pass the number on.
    """
    if not isinstance(error, OSError | RuntimeError):
        return False
    number = error.errno if isinstance(error, OSError) else None
    words = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
    return number in (errno.ENOSPC, errno.EDQUOT) or any(w in str(error) for w in words)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically, indented; paths become strings."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Writes a table atomically; a missing value is an empty cell."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, header, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, every cell a string without blanks around it."""
    with path.open(newline="", encoding="utf-8-sig") as f:
        return [
            {(k or "").strip(): (v or "").strip() for k, v in row.items() if k is not None}
            for row in csv.DictReader(f)
        ]
