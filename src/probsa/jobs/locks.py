"""Who works on which file: a lock beside it that names its owner, kept fresh while the owner lives.

A dead owner's lock is taken over, by one taker alone. An owner of another machine counts as dead
when its lock was not touched for two minutes; should it only have slept, both make the same file
and rename it into place whole, so what is lost is time.
"""

import errno
import json
import os
import secrets
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

from ..core import unfinished

BEAT = 10.0
"""Seconds between two touches of a lock."""
STALE = 120.0
"""Seconds without a touch after which an owner that cannot be asked counts as dead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """A process that holds a lock."""

    token: str = ""
    """Drawn for each lock: no two are ever alike. Empty where the file could not be read."""
    host: str = ""
    place: str = ""
    """Host, start of its system and process namespace: where `pid` means something."""
    pid: int = 0
    started: str = ""
    """When the process began, in the system's own words: a later one may have the same `pid`."""
    since: str = ""
    """For people: when the lock was taken."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lock:
    """A file that is ours to make; a context manager that releases."""

    path: Path
    owner: Owner
    beat: float
    taken_over: bool
    """Its last owner died while holding it."""

    def still_mine(self) -> bool:
        """False once another took it over, which happens to a process that slept too long."""
        found = _read(self.path)
        return found is not None and found[0].token == self.owner.token

    def touch(self) -> None:
        """Shows that the owner lives."""
        with suppress(OSError):  # a file server that is away for a moment: the next one will do
            if self.still_mine():
                os.utime(self.path)

    def release(self) -> None:
        """Removes the lock, if it is still ours; does nothing in a process that was forked off."""
        if os.getpid() != self.owner.pid:
            return
        _HEART.remove(self)
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
    """Where the lock of `target` lies."""
    return target.with_name(f".{target.name}.lock")


def claim(target: Path, *, beat: float = BEAT, stale: float = STALE) -> Lock | None:
    """The lock of `target`, or None where somebody alive holds it.

    What a dead owner left half written beside `target` is removed.

    Args:
        target: The file to be made; its folder is created.
        beat: Seconds between two touches of the lock.
        stale: Seconds without a touch after which the lock of another machine is dead.

    Raises:
        OSError: the folder cannot be written to, or the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path, owner = lock_file(target), _myself()
    how = _acquire(path, owner, stale)
    if how is None:
        return None
    lock = Lock(path=path, owner=owner, beat=beat, taken_over=how == "taken over")
    _HEART.add(lock)
    # Guards whose taker died: for owners that are gone they decide nothing any more.
    for left in (*unfinished(target), *path.parent.glob(f"{_escaped(path.name)}.*")):
        left.unlink(missing_ok=True)
    return lock


def holder(target: Path) -> Owner | None:
    """Who holds `target`, dead or alive; None where nobody does."""
    found = _read(lock_file(target))
    return found and found[0]


def dead_locks(folder: Path, *, stale: float = STALE) -> list[Path]:
    """The locks below a folder whose owners are gone."""
    return sorted(p for p in folder.rglob(".*.lock") if _dead(p, stale) is not None)


def _acquire(path: Path, me: Owner, stale: float) -> Literal["new", "taken over"] | None:
    """Makes `path` ours if nobody alive holds it.

    Two takers may both see that its owner is dead. So the right to replace that owner is itself a
    lock, named after the owner's token: one of them gets it, sees that the lock is still the dead
    one's, and renames its own over it. A taker that comes late gets that right too, but no longer
    finds the dead owner. A taker that dies in between leaves a dead lock, which is taken over in
    the same way.
    """
    if _create(path, me):
        return "new"
    owner = _dead(path, stale)
    if owner is None:
        return None
    guard = path.with_name(f"{path.name}.{owner.token}")
    if _acquire(guard, me, stale) is None:
        return None
    again = _dead(path, stale)
    if again is None or again.token != owner.token:
        guard.unlink(missing_ok=True)
        return None
    try:
        guard.replace(path)
    except FileNotFoundError:  # the owner woke and released, and the next one cleared the guards
        return None
    return "taken over"


def _create(path: Path, owner: Owner) -> bool:
    """False where the file is there."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as f:
            json.dump(asdict(owner), f)
    except OSError as e:  # a full disk shows here or on closing, and neither names the file
        path.unlink(missing_ok=True)
        raise OSError(e.errno, e.strerror, str(path)) from e
    return True


def _read(path: Path) -> tuple[Owner, float] | None:
    """The owner and the time of the last touch, or None where there is no lock."""
    try:
        with path.open("rb") as f:  # opening asks the file server anew, stat alone may not
            touched, text = os.fstat(f.fileno()).st_mtime, f.read()
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno == errno.ESTALE:  # removed on the server while we opened it
            return None
        raise
    try:
        return Owner(**json.loads(text)), touched
    except (ValueError, TypeError):  # its owner is writing it, or died before it could
        return Owner(), touched


def _dead(path: Path, stale: float) -> Owner | None:
    """The owner of a lock, if it is dead."""
    found = _read(path)
    if found is None:
        return None
    owner, touched = found
    if owner.place == _place():
        started = _started(owner.pid)
        if started == "" or (started and owner.started):
            return owner if started != owner.started or not started else None
    return owner if _server_time(path.parent) - touched > stale else None


def _server_time(folder: Path) -> float:
    """The clock of whoever keeps the folder, which is not always ours."""
    with tempfile.TemporaryFile(dir=folder) as f:
        return os.fstat(f.fileno()).st_mtime


def _myself() -> Owner:
    pid = os.getpid()
    return Owner(
        token=secrets.token_hex(6),
        host=socket.gethostname(),
        place=_place(),
        pid=pid,
        started=_started(pid) or "",
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@cache
def _place() -> str:
    """Two containers may share a host's name but not its process numbers: then they differ here."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process of this machine began; empty if there is none, None if it cannot be told."""
    if os.name != "posix":
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _started_elsewhere(pid)
    # The name, in brackets, may hold anything; the third field is the state, the 22nd the start.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _started_elsewhere(pid: int) -> str | None:
    """The same without /proc, or where it hides the processes of others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return None
    if Path("/proc/self/stat").exists():  # it ended between the two looks, or began
        return None
    asked = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip()


def _escaped(name: str) -> str:
    """A name as a pattern of itself alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


@dataclass(slots=True)
class _Heart:
    """The one thread of a process that touches the locks it holds."""

    held: set[Lock] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)
    thread: threading.Thread | None = None

    def add(self, lock: Lock) -> None:
        with self.changed:
            self.held.add(lock)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self.beat, name="locks", daemon=True)
                self.thread.start()
            self.changed.notify()

    def remove(self, lock: Lock) -> None:
        with self.changed:
            self.held.discard(lock)

    def beat(self) -> None:
        while True:
            with self.changed:
                self.changed.wait(min((lock.beat for lock in self.held), default=None))
                held = list(self.held)
            for lock in held:
                lock.touch()


_HEART = _Heart()
if hasattr(os, "register_at_fork"):  # a process that is forked off holds nothing
    os.register_at_fork(after_in_child=_HEART.__init__)
