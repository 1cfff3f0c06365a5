"""Lock files beside the files that they protect; each names its owner, which keeps it fresh.

The lock of a dead owner is taken over, by one process only. An owner on another machine counts as
dead if its lock was not touched for two minutes. If it was only suspended, both processes make the
same file and replace it atomically: only time is lost.
"""

import errno
import glob
import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import threading
import time
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from ..core import (
    STALE_AFTER,
    age,
    announce,
    call_at_stop,
    is_in_use,
    place,
    start_time,
    temporary_files,
    unfinished,
    unstoppable,
    withdraw,
)

LARGEST = 4096
"""Largest size in bytes of the content of a lock file."""
HEARTBEAT = 10.0
"""Seconds between two touches of a lock."""

log = logging.getLogger(__name__)
_HELD: "set[Lock]" = set()
"""The locks of this process, which one thread keeps fresh."""
if hasattr(os, "register_at_fork"):  # a forked process holds no locks
    os.register_at_fork(after_in_child=_HELD.clear)
call_at_stop(lambda: [lock.release() for lock in tuple(_HELD)])


class Lock(AbstractContextManager["Lock"]):
    """A lock that this process holds; as a context manager it is released at the end."""

    def __init__(self, path: Path, content: bytes, *, taken_over: bool) -> None:
        self.path, self.content, self.process = path, content, os.getpid()
        self.taken_over = taken_over
        """Whether the previous owner died while it held the lock."""
        _HELD.add(self)
        announce(path, content=content)

    def still_mine(self) -> bool:
        """Return False if another process took the lock over while this one was suspended."""
        found = _read(self.path)
        return found is not None and found[0] == self.content

    def release(self) -> None:
        """Remove the lock if it is still ours; do nothing in a forked process."""
        if os.getpid() == self.process:
            with unstoppable():
                _HELD.discard(self)
                withdraw(self.path)
                if self.still_mine():
                    self.path.unlink(missing_ok=True)

    def __exit__(self, *error: object) -> None:
        self.release()


@cache
def _start_heartbeats(process: int) -> None:
    """Start the thread, once in each process."""

    def beat() -> None:
        while True:
            time.sleep(HEARTBEAT)
            for lock in list(_HELD):
                with suppress(OSError):  # a file server may be away for a moment
                    if lock.still_mine():
                        os.utime(lock.path)
            for temporary in unfinished():  # of writers that went on without a lock, too
                with suppress(OSError):
                    os.utime(temporary)

    threading.Thread(target=beat, name="locks", daemon=True).start()


def lock_file(target: Path) -> Path:
    """Return the path of the lock of `target`."""
    return target.with_name(f".{target.name}.lock")


def lock_target(lock: Path) -> Path:
    """Return the path that a lock file protects."""
    return lock.with_name(lock.name[1:].removesuffix(".lock"))


def claim(target: Path) -> Lock | None:
    """Lock `target`; return None if a living process holds its lock.

    Half-written versions of `target` whose writers are dead are removed. A living process may write
    one although it has no lock; see `write_lock`.

    Args:
        target: The file or folder to be written. Its parent is created.

    Raises:
        OSError: The folder cannot be written to, or the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = lock_file(target)
    owner = {
        "token": secrets.token_hex(6),  # no two locks have the same content
        "host": socket.gethostname(),
        "place": place(),
        "pid": os.getpid(),
        "started": start_time(os.getpid()) or "",
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    content = json.dumps(owner).encode()
    _start_heartbeats(os.getpid())
    with unstoppable():
        taken_over = _acquire(path, content)
        if taken_over is None:
            return None
        lock = Lock(path, content, taken_over=taken_over)
    # remove half-written files, and stale guard files: their owners are gone
    half_written = [t for t in temporary_files(target) if not is_in_use(t)]
    for stale in (*half_written, *path.parent.glob(f"{glob.escape(path.name)}.*")):
        if stale.is_dir():  # `target` is a folder, written as a whole
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.unlink(missing_ok=True)
    return lock


def dead_locks(folder: Path) -> list[Path]:
    """List the lock files below a folder whose owners are dead."""
    return sorted(p for p in folder.rglob(".*.lock") if _dead_content(p) is not None)


def _acquire(path: Path, content: bytes) -> bool | None:
    """Make a lock file ours; return whether a dead owner had it, or None if a living one has it.

    Two processes may see at the same time that the owner is dead. The right to replace that owner
    is therefore itself a lock (the guard), named after the content of the owner's lock. The process
    that gets the guard checks that the lock file still names the dead owner, and renames the guard
    over it. A process that comes later may get the guard too, but finds another owner. If a process
    dies while it holds the guard, the guard is taken over in the same way.
    """
    if _create(path, content):
        return False
    dead = _dead_content(path)
    if dead is None:
        return None
    guard = path.with_name(f"{path.name}.{hashlib.sha256(dead).hexdigest()[:12]}")
    if _acquire(guard, content) is None:
        return None
    if _dead_content(path) != dead:
        guard.unlink(missing_ok=True)
        return None
    if _owner(dead) is None:
        log.warning("note: the lock %s is damaged: it is taken over from an unknown owner", path)
    try:
        guard.replace(path)
    except FileNotFoundError:
        # The owner was only suspended and released the lock; the next owner removed the guards.
        return None
    return True


def _create(path: Path, content: bytes) -> bool:
    """Write a new lock file; return False if it exists."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(content)
    except OSError as e:  # the disk is full; the system's error does not name the file
        path.unlink(missing_ok=True)
        raise OSError(e.errno, e.strerror, str(path)) from e
    return True


def _read(path: Path) -> tuple[bytes, float] | None:
    """Return the content and the time of the last touch, or None if there is no lock."""
    try:
        # open() asks the file server for the current state; stat() alone may use a cache
        with open(path, "rb", opener=_without_waiting) as f:
            return f.read(LARGEST), os.fstat(f.fileno()).st_mtime
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ESTALE):  # ESTALE: removed while we opened it
            return None
        raise


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would be waited for


def _owner(content: bytes) -> tuple[str, int, str] | None:
    """Return place, number and start time of the owner; None if its lock is damaged."""
    try:
        owner = json.loads(content)
        where, pid, started = owner["place"], owner["pid"], owner["started"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    if not isinstance(where, str) or not isinstance(started, str):
        return None
    return (where, pid, started) if isinstance(pid, int) and 0 < pid < 2**31 else None


def _dead_content(path: Path) -> bytes | None:
    """Return the content of a lock if its owner is dead."""
    found = _read(path)
    if found is None:
        return None
    content, touched = found
    where, pid, started = _owner(content) or ("", 0, "")
    if where == place():
        now = start_time(pid)
        if now is not None:  # a later process may have the same number
            return None if now and now == started else content
    return content if age(path.parent, touched) > STALE_AFTER else None
