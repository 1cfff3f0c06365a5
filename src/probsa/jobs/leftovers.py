"""Files that one process writes at a time, and removal of what killed processes left of them.

A process that writes a file holds the lock of that file, or of the task that the file belongs to.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core import (
    Earlier,
    foreign,
    foreign_files,
    is_in_use,
    keep,
    open_output,
    remove_at_stop,
    seal_output,
    temporary_files,
    temporary_files_below,
    temporary_path,
    unstoppable,
)
from ..errors import OutputExists
from .locks import claim, dead_locks, lock_target

POLL, PATIENCE = 0.05, 30.0
"""Seconds between two attempts to lock a shared file, and seconds until `write_lock` gives up."""


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of an output folder, whose half-written versions by dead processes are removed.

    Raises:
        OutputExists: a living process holds the lock.
    """
    lock = claim(folder)
    if lock is None:
        raise OutputExists(
            f"another process is writing to {folder}: wait until it has ended, or give another "
            "folder"
        )
    with lock:
        yield


@contextmanager
def replacing_folder(folder: Path, *, earlier: Earlier | None = None) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success and is removed on failure.

    The lock of `folder` is held. An earlier folder is put aside until the new one has its place; if
    a killed process had put one aside, it is first put back. A link is followed.

    Args:
        folder: The folder.
        earlier: Returns the files of a folder without a ledger that may be replaced.

    Raises:
        OutputExists: a living process holds the lock, or the folder holds files that probsa did not
            write.
    """
    if folder.is_symlink():
        folder = folder.resolve()
    with sole_writer(folder):
        aside = re.compile(re.escape(f".{folder.name}.") + r"[a-z0-9_]+\.old")
        for old in [p for p in folder.parent.iterdir() if aside.fullmatch(p.name)]:
            if not folder.exists():
                old.replace(folder)
            elif not any(foreign_files(old)):
                shutil.rmtree(old, ignore_errors=True)
        _check_folder(folder, earlier)
        new = temporary_path(folder)
        old = new.with_suffix(".old")
        try:
            new.mkdir(0o755)
            open_output(new)
            yield new
            seal_output(new)
            _check_folder(folder, earlier)  # files may have been added in the meantime
            with unstoppable():
                if folder.exists():
                    folder.replace(old)
                try:
                    new.replace(folder)
                except OSError:
                    if old.exists():
                        old.replace(folder)
                    raise
                remove_at_stop(old)
            shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        finally:
            keep(new)
            keep(old)


def _check_folder(folder: Path, earlier: Earlier | None) -> None:
    """Refuse a folder with files that probsa did not write."""
    for path in foreign_files(folder, earlier=earlier):
        raise foreign(path)


def sweep(folder: Path, *, guard: Callable[[Path], Path | None]) -> None:
    """Remove half-written files and locks that killed processes left below a folder.

    Args:
        folder: the folder; it need not exist.
        guard: returns the file whose lock a process holds while it writes a file, or None for a
            file that is not to be touched.
    """
    if not folder.is_dir():
        return
    for temporary in temporary_files_below(folder):
        if is_in_use(temporary):
            continue
        name = temporary.name[1:].removesuffix(".tmp").rpartition(".")[0]
        protected = guard(temporary.with_name(name))
        lock = None if protected is None else claim(protected)
        if lock is not None:  # else its owner is alive and still writes the file
            with lock:
                temporary.unlink(missing_ok=True)
    remove_dead_locks(p for p in dead_locks(folder) if guard(lock_target(p)) == lock_target(p))


def remove_dead_locks(lock_files: Iterable[Path]) -> None:
    """Remove the lock files whose owners are dead."""
    for path in lock_files:
        lock = claim(lock_target(path))
        if lock is not None:
            lock.release()


@contextmanager
def write_lock(target: Path, *others: Path) -> Iterator[None]:
    """Lock shared files while they are written, and remove half-written versions of them.

    After `PATIENCE` seconds the block is entered without the lock, because its owner may be
    suspended for long. Each file is replaced atomically, all processes write the same content, and
    nobody removes the temporary files of a living process.

    Args:
        target: The file or folder whose lock protects all of them.
        others: More files, or folders with all files below them.
    """
    until = time.monotonic() + PATIENCE
    while (lock := claim(target)) is None and time.monotonic() < until:
        time.sleep(POLL)
    try:
        if lock is not None:
            for path in (target, *others):
                half_written = (
                    temporary_files_below(path) if path.is_dir() else temporary_files(path)
                )
                for temporary in half_written:
                    if not is_in_use(temporary):
                        temporary.unlink(missing_ok=True)
        yield
    finally:
        if lock is not None:
            lock.release()
