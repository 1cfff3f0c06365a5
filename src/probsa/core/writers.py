"""Which process writes a temporary file: its name says so, and whether that process has ended."""

import hashlib
import os
import re
import secrets
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

TEMPORARY_NAME = re.compile(
    r".*\.[0-9a-f]{8}_([0-9a-f]{8})_([0-9a-f]+)_([0-9a-f]+)\.(?:tmp|old)", re.DOTALL
)
"""The name of a temporary file; its groups are the machine, the process and the process's start."""


def writer_token() -> str:
    """Return a part of a file's name that is unique, and names this process as its writer."""
    pid = os.getpid()
    started = start_time(pid) or ""
    return f"{secrets.token_hex(4)}_{_short(machine_name())}_{pid:x}_{_short(started)}"


def is_abandoned(temporary: Path) -> bool:
    """Return whether the process that wrote a temporary file ran on this machine and has ended.

    Of a process on another machine nothing is known, nor of a file whose name states no process.
    """
    match = TEMPORARY_NAME.fullmatch(temporary.name)
    if match is None:
        return False
    machine, pid, writer_start = match.groups()
    if machine != _short(machine_name()):
        return False
    start = start_time(int(pid, 16))
    if start is None:
        return False
    has_ended = start == ""
    # a later process may have the same number
    is_another_process = _short(start) != writer_start
    return has_ended or is_another_process


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def machine_name() -> str:
    """Return a text that no other machine has, and no other container or boot of this machine."""
    # two containers may share a host name and yet have process numbers of their own
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def start_time(pid: int) -> str | None:
    """Return when a process of this machine started: "" if it has ended, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended, or is hidden from us, or this system has no /proc
        return "" if _is_missing(pid) else None
    # the second field, a name in brackets, may contain anything; the rest begins with field 3
    fields = stat.rpartition(")")[2].split()
    state = fields[0]
    if state in ("Z", "X"):  # zombie, dead
        return ""
    return fields[22 - 3]


def _is_missing(pid: int) -> bool:
    """Return whether there is certainly no process with this number; only POSIX systems tell."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
