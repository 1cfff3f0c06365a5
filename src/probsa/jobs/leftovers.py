"""What killed runs left, half-written files and locks: removed where nobody alive can need them.

Whoever writes a file of a task holds that task's lock; whoever writes a file of the whole folder
holds one of its own (`alone`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..core import unfinished_below
from .locks import claim, dead_locks
from .tasks import Task

POLL, PATIENCE = 0.05, 30.0
"""Seconds between two looks at a file of the folder that another writes, and how many in all."""


def sweep(
    folder: Path,
    tasks: Sequence[Task],
    *,
    outputs: Callable[[Task], Iterable[Path]],
    shared: Iterable[Path] = (),
) -> None:
    """Removes what was left of the files of these tasks, and of files of the whole folder.

    A task that was recorded and whose process died before it let go is done: nobody claims it any
    more, so its lock goes here.

    Args:
        folder: that all of them lie below.
        tasks: those of a run.
        outputs: the files that a task makes.
        shared: the files of the whole folder that the run makes.
    """
    left: dict[Path, list[Path]] = {}
    for temporary in unfinished_below(folder):
        name = temporary.name[1:].removesuffix(".tmp").rpartition(".")[0]
        left.setdefault(temporary.with_name(name), []).append(temporary)
    dead = [p.with_name(p.name[1:].removesuffix(".lock")) for p in dead_locks(folder)]
    if not left and not dead:
        return
    guard = {path: task.target for task in tasks for path in outputs(task)}
    guard |= {path: path for path in shared}
    for target in set(guard.values()).intersection(dead):
        lock = claim(target)
        if lock is not None:
            lock.release()
    for path in left.keys() & guard.keys():
        lock = claim(guard[path])
        if lock is not None:  # else its owner is at work
            with lock:
                for temporary in left[path]:
                    temporary.unlink(missing_ok=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """While it lasts nobody else writes, or sweeps, this file of the folder."""
    until = time.monotonic() + PATIENCE
    lock = claim(path)
    while lock is None and time.monotonic() < until:
        time.sleep(POLL)
        lock = claim(path)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
