"""Write files atomically: under a temporary name, flushed to disk, then renamed."""

import csv
import errno
import hashlib
import io
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints

from filelock import FileLock, Timeout

from ..errors import BagError
from .ownership import LEDGER, check_replaceable, ledger_of, make_folder, note_written
from .stopping import keep, remove_at_stop
from .wording import protect_cell
from .writers import writer_token

WINDOWS = os.name == "nt"
UMASK = os.umask(0)
"""The permissions that the user denies to new files, read by setting them and set back."""
os.umask(UMASK)
PAUSES = (0.05, 0.2, 0.5)
"""Seconds between the attempts to replace a file that is open elsewhere (Windows)."""
PATIENCE = 30.0
"""Seconds that a writer of a shared table waits for another one, which may be suspended."""
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)
LONGEST_NAME = 200
"""Bytes of the longest name that a temporary file repeats whole: file systems allow 255 for the
temporary name, and the writer's token takes up to 45 of them. See `shortened`."""
DIGEST = 16
"""Hexadecimal digits of a hash that stand for the rest of a longer name."""
NOT_ON_WINDOWS = re.compile(r'[<>:"|?*\\]')


def optional_path(path: Path | str | None) -> Path | None:
    """Return a path that a user may give as text, or leave out."""
    return None if path is None else Path(path)


def as_paths(record: Any) -> None:
    """Turn texts that a user gave for the paths of a frozen dataclass into paths."""
    for name, annotation in get_type_hints(type(record)).items():
        value = getattr(record, name)
        if Path in (annotation, *get_args(annotation)) and isinstance(value, str):
            object.__setattr__(record, name, Path(value))


def check_file_name(name: str) -> str:
    """Return the name of a bag unchanged; refuse one that no file can be named after.

    Names of bags come from files of the user, and may lead to other folders.

    Raises:
        BagError: it would lead to another folder, or no file can have it.
    """
    if name in ("", ".", ".."):
        raise BagError(f"bag {name!r} cannot be a file name: rename it")
    if "/" in name or os.sep in name or "\0" in name:
        raise BagError(f"bag {name!r} cannot be a file name: rename it without '/' and null bytes")
    if WINDOWS and (NOT_ON_WINDOWS.search(name) or name[-1] in ". "):
        # 'a:b' would silently become a hidden stream of the file 'a'
        raise BagError(
            f'bag {name!r} cannot be a file name on Windows: rename it without <>:"|?*\\ and '
            "without a dot or space at the end"
        )
    return name


def named_file(folder: Path, name: str, suffix: str) -> Path:
    """Return the path of the file in a folder that is named after a bag.

    Raises:
        BagError: see `check_file_name`.
    """
    return folder / f"{check_file_name(name)}{suffix}"


def not_a_file(path: Path) -> str:
    """Return a message that says what is at a path instead of a file: nothing, a folder, a pipe."""
    if not os.path.lexists(path):
        return f"there is no file {path}"
    place = f"{path} is a link to {path.readlink()}, which" if path.is_symlink() else str(path)
    try:
        mode = path.stat().st_mode
    except OSError:
        return f"{place} cannot be found"
    kind = next((name for is_kind, name in KINDS if is_kind(mode)), "a device")
    return f"{place} is {kind}, not a file"


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Return whether there is a file at a path, or, with `folder`, whether there is a folder.

    Raises:
        BagError: there is something else than a file or a folder: a broken link or a pipe.
    """
    is_file_or_folder = path.is_file() or path.is_dir()
    if os.path.lexists(path) and not is_file_or_folder:
        raise BagError(not_a_file(path))
    return path.is_dir() if folder else path.is_file()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` on success and removed on failure.

    Raises:
        OutputExists: the file that is there is the user's; see `ownership`.
    """
    make_folder(path.parent)
    check_replaceable(path)
    temporary = temporary_path(path)
    try:
        temporary.touch(0o600, exist_ok=False)
        yield temporary
        with temporary.open("r+b") as f:  # Windows flushes only files that may be written
            os.fsync(f.fileno())
        temporary.chmod(0o666 & ~UMASK)
        check_replaceable(path)  # it may have been written in the meantime
        note_written(path, temporary)
        _rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        keep(temporary)  # it is renamed or removed: nothing is left to remove at a stop


def temporary_path(path: Path) -> Path:
    """Return a new path beside `path`, which is removed if the process is stopped; see `keep`."""
    return remove_at_stop(path.with_name(f".{shortened(path.name)}.{writer_token()}.tmp"))


def shortened(name: str) -> str:
    """Return the name of a file as its temporary file repeats it: at most `LONGEST_NAME` bytes.

    The end of a longer name is replaced by a hash of the whole name.
    """
    encoded = os.fsencode(name)
    if len(encoded) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:DIGEST]
    start = encoded[: LONGEST_NAME - DIGEST - 1].decode("utf-8", "ignore")
    return f"{start}-{digest}"


def _rename(source: Path, target: Path) -> None:
    """Rename over an existing file; on Windows, wait while another program has it open."""
    pauses = PAUSES if WINDOWS else ()
    for pause in pauses:
        try:
            source.replace(target)
            return
        except PermissionError:
            time.sleep(pause)
    source.replace(target)


@contextmanager
def locked(path: Path, *, patience: float = PATIENCE) -> Iterator[bool]:
    """Hold the lock of a file or folder that processes share; yield whether it is held.

    The lock is a file in the folder of the ledger. The system releases it when its owner ends,
    however that happens. On disks without locks, it always counts as held.

    Args:
        path: A path in an output folder.
        patience: Seconds to wait for another owner; a negative number waits for ever.
    """
    ledger = ledger_of(path)
    assert ledger is not None, "what processes share is in an output folder"
    name = hashlib.sha256(ledger.name_of(path).encode()).hexdigest()[:16]
    file = ledger.root / LEDGER / f"{name}.lock"
    lock = FileLock(file, timeout=patience, mode=0o666 & ~UMASK, fallback_to_soft=False)
    try:
        lock.acquire()
        is_held = True
    except Timeout:
        is_held = False
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        is_held = True  # this disk has no locks
    try:
        yield is_held
    finally:
        lock.release()


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that a disk is full or a user's quota is exceeded.

    HDF5 raises its own errors, which may lack the `errno`, so the message is searched as well.
    """
    if not isinstance(error, OSError | RuntimeError):
        return False
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOSPC, errno.EDQUOT):
        return True
    system_messages = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
    return any(message in str(error) for message in system_messages)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")  # the same on every system


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically; paths become strings."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def csv_text(header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return a table as the text of a CSV file; missing values become empty cells.

    Texts that a spreadsheet or a terminal would obey are neutralised; see `protect_cell`.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([protect_cell(name) for name in header])
    for row in rows:
        cells: list[object] = []
        for name in header:
            cell = row.get(name, "")
            is_text = isinstance(cell, str | Path)
            cells.append(protect_cell(str(cell)) if is_text else cell)
        writer.writerow(cells)
    return buffer.getvalue()


def write_csv(
    path: Path | str, header: Sequence[str], rows: Iterable[Mapping[str, object]]
) -> None:
    """Write a table atomically; see `csv_text`."""
    path = Path(path)
    write_text(path, csv_text(header, rows))
