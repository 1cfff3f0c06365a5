"""What killed processes left of an experiment: removed where nobody alive can need it.

Files of a cell are swept by whoever goes on with it, under the lock of its unit. The files of the
whole experiment have locks of their own, for as long as they are written.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...core import unfinished, unfinished_below
from ...jobs import claim

PASSES = "passes"
"""Folder of what lets passes go on."""
POLL, PATIENCE = 0.05, 30.0
"""Seconds between two looks at who writes, and how many in all."""


@contextmanager
def writing(target: Path, *others: Path) -> Iterator[None]:
    """While it lasts nobody else writes these files; half-written ones of the dead are gone.

    Who has waited for long writes as well: files are replaced whole, and all write the same.

    Args:
        target: the file or folder whose lock stands for all.
        others: files, or folders with all below them.
    """
    until = time.monotonic() + PATIENCE
    while (lock := claim(target)) is None and time.monotonic() < until:
        time.sleep(POLL)
    try:
        if lock is not None:
            for path in (target, *others):
                for left in unfinished_below(path) if path.is_dir() else unfinished(path):
                    left.unlink(missing_ok=True)
        yield
    finally:
        if lock is not None:
            lock.release()


def tidy(out: Path, *, over: bool) -> None:
    """Removes locks whose owners died once all was done, and passes that nobody goes on with.

    Args:
        out: the experiment's folder.
        over: whether no cell waits, so that no pass will go on.
    """
    passes = out / PASSES
    for left in (*passes.glob(".*.lock"), *out.glob("cells/*/*/.*.lock")):
        lock = claim(left.with_name(left.name[1:].removesuffix(".lock")))
        if lock is not None:  # else its owner is at work
            lock.release()
    if not over or not passes.is_dir():
        return
    for state in [p for p in passes.iterdir() if p.is_dir()]:
        lock = claim(state)
        if lock is not None:
            with lock:
                shutil.rmtree(state)
    with suppress(OSError):  # others are at work there
        passes.rmdir()
