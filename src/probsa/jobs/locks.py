"""Lock files beside the files that they protect; each names its owner, which keeps it fresh.

The lock of a dead owner is taken over, by one process only. An owner on another machine counts as
dead if its lock was not touched for two minutes. If it was only suspended, both processes make the
same file and replace it atomically: only time is lost.
"""

import errno
import json
import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal

from ..core import as_record, temporary_files

LARGEST = 4096
"""Largest size in bytes of the content of a lock file."""
TOKEN = re.compile(r"[A-Za-z0-9]{1,40}")
HEARTBEAT = 10.0
"""Seconds between two touches of a lock."""
STALE_AFTER = 120.0
"""Seconds without a touch after which an owner on another machine, or an unknown one, counts as
dead."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """A process that holds a lock, as described in the lock file."""

    token: str = ""
    """Random and unique to this lock. It ends the name of the guard file; if the file could not be
    read, it is empty."""
    host: str = ""
    place: str = ""
    """Host name, boot identifier and process namespace, within which `pid` is unique."""
    pid: int = 0
    started: str = ""
    """When the process started, as the system writes it: a later process may reuse `pid`."""
    since: str = ""
    """When the lock was taken; for people who look at the file."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lock:
    """A lock that this process holds; as a context manager it is released at the end."""

    path: Path
    owner: Owner
    heartbeat: float
    taken_over: bool
    """Whether the previous owner died while it held the lock."""

    def still_mine(self) -> bool:
        """Return False if another process took the lock over while this one was suspended."""
        content = _read(self.path)
        return content is not None and content[0].token == self.owner.token

    def touch(self) -> None:
        """Show that the owner is alive."""
        with suppress(OSError):  # a file server may be away for a moment; the next touch counts
            if self.still_mine():
                os.utime(self.path)

    def release(self) -> None:
        """Remove the lock if it is still ours; do nothing in a forked process."""
        if os.getpid() != self.owner.pid:
            return
        _HEARTBEATS.remove(self)
        if self.still_mine():
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def lock_file(target: Path) -> Path:
    """Return the path of the lock of `target`."""
    return target.with_name(f".{target.name}.lock")


def lock_target(lock: Path) -> Path:
    """Return the path that a lock file protects."""
    return lock.with_name(lock.name[1:].removesuffix(".lock"))


def claim(
    target: Path, *, heartbeat: float = HEARTBEAT, stale_after: float = STALE_AFTER
) -> Lock | None:
    """Lock `target`; return None if a living process holds its lock.

    Half-written versions of `target` that a dead owner left are removed.

    Args:
        target: The file to be written. Its folder is created.
        heartbeat: Seconds between two touches of the lock.
        stale_after: Seconds without a touch after which an owner on another machine counts as
            dead.

    Raises:
        OSError: The folder cannot be written to, or the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path, owner = lock_file(target), _myself()
    how = _acquire(path, owner, stale_after)
    if how is None:
        return None
    lock = Lock(path=path, owner=owner, heartbeat=heartbeat, taken_over=how == "taken over")
    _HEARTBEATS.add(lock)
    # Remove half-written files, and stale guard files: their owners are gone.
    for stale in (*temporary_files(target), *path.parent.glob(f"{_escape(path.name)}.*")):
        if stale.is_dir():  # `target` is a folder, written as a whole
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.unlink(missing_ok=True)
    return lock


def dead_locks(folder: Path, *, stale_after: float = STALE_AFTER) -> list[Path]:
    """List the lock files below a folder whose owners are dead."""
    return sorted(p for p in folder.rglob(".*.lock") if _dead_owner(p, stale_after) is not None)


def _acquire(path: Path, me: Owner, stale_after: float) -> Literal["new", "taken over"] | None:
    """Make the lock file `path` ours unless a living process holds it.

    Two processes may see at the same time that the owner is dead. The right to replace that owner
    is therefore itself a lock (the guard), named after the owner's token. The process that gets
    the guard checks that the lock file still names the dead owner, and renames the guard over it.
    A process that comes later may get the guard too, but finds another owner. If a process dies
    while it holds the guard, the guard is taken over in the same way.
    """
    if _create(path, me):
        return "new"
    owner = _dead_owner(path, stale_after)
    if owner is None:
        return None
    guard = path.with_name(f"{path.name}.{owner.token}")
    if _acquire(guard, me, stale_after) is None:
        return None
    if not owner.token and path.exists():
        log.warning(
            "note: the lock %s is damaged, and nobody touched it for %g s: it is taken over from "
            "an unknown owner",
            path,
            stale_after,
        )
    current = _dead_owner(path, stale_after)
    if current is None or current.token != owner.token:
        guard.unlink(missing_ok=True)
        return None
    try:
        guard.replace(path)
    except FileNotFoundError:
        # The owner was only suspended and released the lock; the next owner removed the guards.
        return None
    return "taken over"


def _create(path: Path, owner: Owner) -> bool:
    """Write a new lock file; return False if it exists."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(asdict(owner), f)
    except OSError as e:  # the disk is full; the system's error does not name the file
        path.unlink(missing_ok=True)
        raise OSError(e.errno, e.strerror, str(path)) from e
    return True


def _read(path: Path) -> tuple[Owner, float] | None:
    """Return the owner and the time of the last touch, or None if there is no lock."""
    try:
        # open() asks the file server for the current state; stat() alone may use a cache
        with open(path, "rb", opener=_without_waiting) as f:
            touched, text = os.fstat(f.fileno()).st_mtime, f.read(LARGEST)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno == errno.ESTALE:  # removed on the server while we opened it
            return None
        raise
    try:
        # LARGEST bytes cannot be nested deeply enough to be a problem after parsing
        owner = as_record(Owner, json.loads(text), where=path.name)
    except (ValueError, RecursionError):  # still being written, damaged, or its owner died
        return Owner(), touched
    if not TOKEN.fullmatch(owner.token) or not 0 < owner.pid < 2**31:
        return Owner(), touched
    return owner, touched


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would be waited for


def _dead_owner(path: Path, stale_after: float) -> Owner | None:
    """Return the owner of a lock if it is dead."""
    content = _read(path)
    if content is None:
        return None
    owner, touched = content
    if owner.place == _place():
        started = _start_time(owner.pid)
        if started == "" or (started and owner.started):
            return owner if started != owner.started or not started else None
    return owner if _server_time(path.parent) - touched > stale_after else None


def _server_time(folder: Path) -> float:
    """Return the time by the clock of the file server, which may differ from ours."""
    with tempfile.TemporaryFile(dir=folder) as f:
        return os.fstat(f.fileno()).st_mtime


def _myself() -> Owner:
    pid = os.getpid()
    return Owner(
        token=secrets.token_hex(6),
        host=socket.gethostname(),
        place=_place(),
        pid=pid,
        started=_start_time(pid) or "",
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@cache
def _place() -> str:
    # Two containers may share a host name and yet have process numbers of their own.
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _start_time(pid: int) -> str | None:
    """Return when a process of this machine started: "" if it is gone, None if unknown."""
    if os.name != "posix":
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _start_time_from_ps(pid)
    # The name, in brackets, may contain anything; field 3 is the state, field 22 the start time.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _start_time_from_ps(pid: int) -> str | None:
    """Do the same where there is no /proc, or where it hides the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return None
    if Path("/proc/self/stat").exists():  # the process started or ended in between, or is hidden
        return None
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip()


def _escape(name: str) -> str:
    """Return a glob pattern that matches only `name`."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


@dataclass(slots=True)
class _Heartbeats:
    """The thread that touches all locks of this process."""

    locks: set[Lock] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)
    thread: threading.Thread | None = None

    def add(self, lock: Lock) -> None:
        with self.changed:
            self.locks.add(lock)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self.run, name="locks", daemon=True)
                self.thread.start()
            self.changed.notify()

    def remove(self, lock: Lock) -> None:
        with self.changed:
            self.locks.discard(lock)

    def run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait(min((lock.heartbeat for lock in self.locks), default=None))
                locks = list(self.locks)
            for lock in locks:
                lock.touch()


_HEARTBEATS = _Heartbeats()
if hasattr(os, "register_at_fork"):  # a forked process holds no locks
    os.register_at_fork(after_in_child=_HEARTBEATS.__init__)
