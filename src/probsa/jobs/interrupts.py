"""SIGTERM as an interrupt of this process that is not lost."""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN = 0.05
"""Seconds after which an interrupt that was lost is raised again."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like ctrl-C, so that nothing half-written and no lock is left.

    Python discards an exception that a signal handler raises while a finalizer or the callback of
    a weak reference runs, and the program would go on. Such an interrupt is raised again. Outside
    of the main thread, which alone receives signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked reader has nothing to clean up
            os._exit(128 + number)
        raise KeyboardInterrupt

    handler, hook = signal.signal(signal.SIGTERM, interrupt), sys.unraisablehook

    def unraisable(lost: "UnraisableHookArgs") -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            # From another thread: a handler that ran here and now would be lost as well.
            threading.Timer(AGAIN, _thread.interrupt_main, [signal.SIGTERM]).start()
        else:
            hook(lost)

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, handler)
