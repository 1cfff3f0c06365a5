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
    keep,
    remove_at_stop,
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
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` on success and is removed on failure.

    The lock of `folder` is held. An earlier folder is put aside until the new one has its place; if
    a killed process had put one aside, it is first put back. A link is followed.

    Raises:
        OutputExists: a living process holds the lock.
    """
    if folder.is_symlink():
        folder = folder.resolve()
    with sole_writer(folder):
        aside = re.compile(re.escape(f".{folder.name}.") + r"[a-z0-9_]{8}\.old")
        for old in [p for p in folder.parent.iterdir() if aside.fullmatch(p.name)]:
            if folder.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.replace(folder)
        new = temporary_path(folder)
        old = new.with_suffix(".old")
        try:
            new.mkdir(0o755)
            yield new
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

    After `PATIENCE` seconds the block is entered without the lock, which is safe: each file is
    replaced atomically, and all processes write the same content.

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
                for temporary in (
                    temporary_files_below(path) if path.is_dir() else temporary_files(path)
                ):
                    temporary.unlink(missing_ok=True)
        yield
    finally:
        if lock is not None:
            lock.release()
