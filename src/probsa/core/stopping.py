"""Signals that end this process, after what it leaves unfinished was removed.

An exception raised by a signal handler may arrive anywhere: in a callback of HDF5, which turns it
into an error of the file, or between two lines of a cleanup. The process is therefore ended by the
handler itself.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .watchdog import announce, descendants, kill, start_watchdog, withdraw

QUIET = "ignore:resource_tracker"
"""A filter of warnings for the processes that are started."""
PATIENCE = 2.0
"""Seconds that child processes have to remove what they leave."""
STATUS = 128
"""What a process that was ended by a signal returns, together with the signal's number."""


class Stopped(KeyboardInterrupt):
    """A signal came during `orderly_stop`.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


_temporary: set[Path] = set()
_busy: list[None] = []
_pending: list[int] = []
_orderly: list[None] = []
_active: set[int] = set()
"""The number of this process while it is `stoppable`; processes that it forks are not."""


def remove_at_stop(path: Path) -> Path:
    """Have a temporary file or folder, which need not exist yet, removed; see `keep`."""
    _temporary.add(path)
    announce(path)
    return path


def keep(path: Path) -> None:
    """Withdraw `remove_at_stop`: the path was removed or renamed."""
    _temporary.discard(path)
    withdraw(path)


@contextmanager
def unstoppable() -> Iterator[None]:
    """Put off the end of the process while something short is done that must not be torn."""
    _busy.append(None)
    try:
        yield
    finally:
        _busy.pop()
        if _pending and not _busy:
            signal.raise_signal(_pending.pop())


@contextmanager
def orderly_stop() -> Iterator[None]:
    """Raise a KeyboardInterrupt at a signal instead, for work that needs its own cleanup."""
    _orderly.append(None)
    try:
        yield
    finally:
        _orderly.pop()


@contextmanager
def stoppable(
    *numbers: int,
    message: str = "",
    restore: bool = True,
    watched: bool = False,
) -> Iterator[None]:
    """End this process, its children and what they left unfinished, when a signal comes.

    Outside of the main thread, which alone receives signals, and inside another `stoppable`,
    nothing is changed. The exit status is 128 and the number of the signal, as shells and
    schedulers expect it: 130 for SIGINT, 143 for SIGTERM.

    Args:
        numbers: the signals; none for SIGTERM.
        message: what is written to standard error.
        restore: whether the earlier handlers are put back at the end.
        watched: whether a `watchdog` ends the process a few seconds after SIGTERM or a second
            ctrl-C, even if a library's call does not return.
    """
    process = os.getpid()
    if process in _active or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Semaphores that this process leaves are removed by a process that Python starts for that.
    filters = os.environ.get("PYTHONWARNINGS", "")
    if QUIET not in filters:
        os.environ["PYTHONWARNINGS"] = f"{filters},{QUIET}".lstrip(",")

    def stop(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked reader has nothing to clean up
            os._exit(STATUS + number)
        if _busy:
            _pending[:] = [number]
            return
        if _orderly:
            raise Stopped(number)
        for other in (signal.SIGINT, signal.SIGTERM):  # not ignored: the watchdog counts them
            signal.signal(other, lambda *_: None)
        end_process(STATUS + number, message)

    if watched:
        start_watchdog(message)
        for path in tuple(_temporary):
            announce(path)
    before = {n: signal.signal(n, stop) for n in numbers or (signal.SIGTERM,)}
    _active.add(process)
    try:
        yield
    finally:
        if restore:
            _active.discard(process)
            for number, handler in before.items():
                signal.signal(number, handler)


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit status of a process that a KeyboardInterrupt ends."""
    number = interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT
    return STATUS + number


def end_process(status: int, message: str = "") -> None:
    """End this process at once, without its children and what they left unfinished."""
    children = multiprocessing.active_children()
    for child in children:
        with suppress(OSError):
            child.terminate()
    server = sys.modules.get("multiprocessing.forkserver")
    pid = getattr(getattr(server, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:  # it may be importing modules for workers yet
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    for child in children:
        child.join(max(0.0, until - time.monotonic()))
        if child.exitcode is None:
            # the readers of a worker that could not end them itself
            readers = [] if child.pid is None else descendants(child.pid)
            child.kill()
            kill(readers)
    remove_unfinished()
    # the signal may have come while the stream was written to; nothing may keep the process alive
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, message.encode())
    os._exit(status)


def remove_unfinished() -> None:
    """Remove the temporary files and folders of this process."""
    for path in tuple(_temporary):
        with suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
