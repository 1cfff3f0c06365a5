"""A small process that ends this one where a signal cannot: inside a library's call.

A call of C that never returns delays Python's handlers for ever, and may hold the lock that threads
need. The number of each signal is written into a pipe all the same (`set_wakeup_fd`). SIGTERM, or
SIGINT for the second time, leaves a few seconds; then the watchdog ends the process with its
children, and removes the temporary files that it had announced.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

GRACE = 3.0
"""Seconds from a signal until the process is ended from outside: 5 are promised to users."""
ADD = b"+"
REMOVE = b"-"
END = b"\0"
"""Marks of the messages about temporary files: `+path` and `-path`, each with a zero byte."""

_files: list[int] = []
"""The end of the pipe to which this process writes the names of temporary files, if any."""


def start_watchdog(message: str) -> None:
    """Start the process that watches this one; it ends when this one ends.

    Only a process that is ended by its signals may have one, before it starts threads. On systems
    without `fork` nothing is done.

    Args:
        message: what the watchdog writes to standard error if it had to end the process.
    """
    if _files or not hasattr(os, "fork"):
        return
    signals_out, signals_in = os.pipe()
    files_out, files_in = os.pipe()
    watched = os.getpid()
    if os.fork() == 0:
        os.close(signals_in)
        os.close(files_in)
        _watch(watched, signals_out, files_out, message)
    os.close(signals_out)
    os.close(files_out)
    os.set_blocking(signals_in, False)
    signal.set_wakeup_fd(signals_in, warn_on_full_buffer=False)
    _files.append(files_in)
    # a child that is forked would keep the pipe open: the watchdog would wait for it
    os.register_at_fork(after_in_child=lambda: _leave(signals_in))


def announce(path: Path) -> None:
    """Tell the watchdog that a temporary file or folder is removed if this process is ended."""
    _send(ADD, path)


def withdraw(path: Path) -> None:
    """Tell the watchdog that a temporary file or folder was removed or renamed."""
    _send(REMOVE, path)


def descendants(process: int) -> list[int]:
    """Return the numbers of a process's children and of theirs, as far as the system tells."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    below: list[int] = []
    queue = [process]
    while queue:
        next_children = children.get(queue.pop(), [])
        below += next_children
        queue += next_children
    return below


def kill(processes: list[int]) -> None:
    """End processes at once; those that have ended already are passed over."""
    for process in processes:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _send(mark: bytes, path: Path) -> None:
    for pipe in _files:
        with suppress(OSError):  # the watchdog was ended by the system
            os.write(pipe, mark + os.fsencode(path.absolute()) + END)


def _leave(signals_in: int) -> None:
    """In a forked child: close what belongs to the watched process."""
    if signal.set_wakeup_fd(-1) not in (-1, signals_in):
        return
    for pipe in (signals_in, *_files):
        with suppress(OSError):
            os.close(pipe)
    _files.clear()


def _watch(watched: int, signals_out: int, files_out: int, message: str) -> None:
    """Wait until the watched process ends, or has to be ended; never return."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        for standard in (0, 1):  # who reads the output of a command does not wait for the watchdog
            with suppress(OSError):
                os.close(standard)
        announced = _wait(signals_out, files_out)
        if announced is None:
            return
        others = [p for p in descendants(watched) if p != os.getpid()]
        kill([watched, *others])
        for name in map(os.fsdecode, announced):
            if Path(name).is_dir() and not Path(name).is_symlink():
                shutil.rmtree(name, ignore_errors=True)
            else:
                with suppress(OSError):
                    Path(name).unlink()
        with suppress(OSError):
            os.write(2, message.encode())
    finally:
        os._exit(0)


def _wait(signals_out: int, files_out: int) -> set[bytes] | None:
    """Return the temporary files of the watched process once its time is over; None if it ended."""
    announced: set[bytes] = set()
    rest = b""
    interrupts = 0
    deadline: float | None = None
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([signals_out, files_out], [], [], timeout)
        if not ready:
            return announced
        if files_out in ready:
            part = os.read(files_out, 65536)
            *messages, rest = (rest + part).split(END)
            for message in messages:
                mark = message[:1]
                name = message[1:]
                if mark == ADD:
                    announced.add(name)
                else:
                    announced.discard(name)
        if signals_out in ready:
            numbers = os.read(signals_out, 512)
            if not numbers:  # the watched process has ended
                return None
            interrupts += numbers.count(signal.SIGINT)
            if deadline is None and (signal.SIGTERM in numbers or interrupts > 1):
                deadline = time.monotonic() + GRACE


def _parents() -> list[tuple[int, int]]:
    """Return the number of every process with that of its parent."""
    pairs: list[tuple[int, int]] = []
    proc = Path("/proc")
    if (proc / "self" / "stat").is_file():
        for folder in proc.glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                # the second field, the name in brackets, may hold spaces
                state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                pairs.append((int(folder.name), int(state[1])))
        return pairs
    with suppress(OSError, ValueError):
        listing = subprocess.run(
            ["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False
        )
        for line in listing.stdout.splitlines():
            child, parent = line.split()
            pairs.append((int(child), int(parent)))
    return pairs
