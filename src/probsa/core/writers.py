"""Which process writes a temporary file: its name says so, and whether that process has ended."""

import hashlib
import os
import re
import secrets
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

TOKEN = re.compile(r".*\.[0-9a-f]{8}_([0-9a-f]{8})_([0-9a-f]+)_([0-9a-f]+)\.(?:tmp|old)", re.DOTALL)
"""The name of a temporary file: random digits, machine, process, and when that was started."""


def writer_token() -> str:
    """Return a part of a file's name that is unique, and names this process as its writer."""
    pid = os.getpid()
    started = start_time(pid) or ""
    return f"{secrets.token_hex(4)}_{_short(place())}_{pid:x}_{_short(started)}"


def is_abandoned(temporary: Path) -> bool:
    """Return whether the process that wrote a temporary file ran on this machine and has ended.

    Of a process on another machine nothing is known, nor of a file whose name states no process.
    """
    match = TOKEN.fullmatch(temporary.name)
    if match is None:
        return False
    where, pid, started = match.groups()
    if where != _short(place()):
        return False
    now = start_time(int(pid, 16))
    if now is None:
        return False
    # a later process may have the same number
    return now == "" or _short(now) != started


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
