"""Which process writes a temporary file: its name says so, and whether that process is alive."""

import hashlib
import os
import re
import secrets
import socket
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

TOKEN = re.compile(r".*\.[0-9a-f]{8}_([0-9a-f]{8})_([0-9a-f]+)_([0-9a-f]+)\.tmp", re.DOTALL)
"""The name of a temporary file: random digits, machine, process, and when that was started."""
STALE_AFTER = 120.0
"""Seconds without a touch after which a writer on another machine, or an unknown one, counts as
dead."""


def writer_token() -> str:
    """Return a part of a file's name that is unique, and names this process as its writer."""
    pid = os.getpid()
    started = start_time(pid) or ""
    return f"{secrets.token_hex(4)}_{_short(place())}_{pid:x}_{_short(started)}"


def is_in_use(temporary: Path) -> bool:
    """Return whether the process that writes a temporary file may still be alive.

    Names without a writer, as earlier versions gave them, are those of dead processes.
    """
    match = TOKEN.fullmatch(temporary.name)
    if match is None:
        return False
    where, pid, started = match.groups()
    if where == _short(place()):
        now = start_time(int(pid, 16))
        if now is not None:  # a later process may have the same number
            return bool(now) and _short(now) == started
    with suppress(OSError):
        return age(temporary.parent, temporary.stat().st_mtime) <= STALE_AFTER
    return False


def age(folder: Path, touched: float) -> float:
    """Return the seconds since a file in a folder was touched, by the clock of its file server."""
    with tempfile.TemporaryFile(dir=folder) as f:
        return os.fstat(f.fileno()).st_mtime - touched


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def place() -> str:
    """Return what tells this machine, and this container, from others."""
    # Two containers may share a host name and yet have process numbers of their own.
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def start_time(pid: int) -> str | None:
    """Return when a process of this machine started: "" if it is gone, None if unknown."""
    try:
        # The name, in brackets, may contain anything; field 3 is the state, field 22 the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except OSError:  # it is gone, or hidden from us, or this system has no /proc
        with suppress(PermissionError):
            try:
                if os.name == "posix":
                    os.kill(pid, 0)
            except ProcessLookupError:
                return ""
    return None
