"""The work of a run: tasks, their outcomes, the stage that does them, and the loop of a worker."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .locks import Lock, claim

POLL = 1.0
"""Seconds between two attempts to claim tasks that other runs hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work for a stage."""

    name: str
    """Unique among the tasks of a run."""
    target: Path
    """The file that the task writes; its lock lies beside it."""
    noun: str = "task"
    """What error messages call the task, as in "this task"."""
    payload: Any = None
    """Whatever else the stage needs to know; it must be picklable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOutcome:
    """How a task ended. A stage may have a subclass with more fields."""

    name: str
    status: str = "failed"
    """`done`, `failed`, or another status that the stage defines."""
    reason: str = ""
    count: int = 0
    """Number of items that the task consisted of."""
    kept: bool = False
    """Whether the result of an earlier run was kept because it is up to date."""


class Stage(ABC):
    """What is done with each task.

    A stage is pickled: each worker process has its own copy.
    """

    advice_on_death: ClassVar[str] = "Try again with fewer workers"
    """What users can do about a task that killed its process; it ends the error message."""

    @abstractmethod
    def known(self, task: Task) -> TaskOutcome | None:
        """Return the recorded outcome, or None if the task is still to be done."""

    @abstractmethod
    def start(self) -> None:
        """Prepare a worker process before its first task."""

    @abstractmethod
    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        """Do tasks and yield one outcome per task, in any order.

        If a task goes wrong, report that as its outcome. An exception raised here (a full disk, a
        bug in the stage) ends the whole run.

        Draw the next task only when there is room for it; reading ahead is allowed. `tasks` may
        end while other processes still hold tasks: `run` is then called again for those that they
        give back.
        """

    @abstractmethod
    def record(self, task: Task, outcome: TaskOutcome) -> None:
        """Store the outcome on disk while the task is still locked."""

    def failure(self, task: Task, reason: str) -> TaskOutcome:
        """Return the outcome of a task whose process died."""
        return TaskOutcome(name=task.name, reason=reason)


def work(stage: Stage, tasks: Iterable[Task], *, tell: Callable[[TaskOutcome], None]) -> None:
    """Do tasks under their locks until each of them has an outcome.

    Every worker runs this call: this process, several processes, Ray actors and Slurm jobs. To
    avoid deadlock, a worker that holds tasks never waits for a lock of another run. A task whose
    previous owner died is done last and by itself, so that no other task is lost with it.

    Args:
        stage: The stage that does the tasks.
        tasks: The tasks; the next is drawn when the stage has room for it.
        tell: Called with each outcome as soon as it is recorded.
    """
    held: dict[str, tuple[Task, Lock]] = {}
    elsewhere: list[Task] = []
    suspects: list[Task] = []

    def take(task: Task) -> bool:
        """Claim a task; return True if it can begin now."""
        lock = claim(task.target)
        outcome = stage.known(task)  # another run may have done it
        if lock is None or outcome is not None:
            if lock is not None:
                lock.release()
            if outcome is None:
                elsewhere.append(task)
            else:
                tell(outcome)
            return False
        held[task.name] = task, lock
        if lock.taken_over:
            suspects.append(task)
        return not lock.taken_over

    def do(tasks: Iterator[Task]) -> None:
        for outcome in stage.run(tasks):
            task, lock = held.pop(outcome.name)
            with lock:
                mine = lock.still_mine()
                if mine:
                    stage.record(task, outcome)
            if mine:
                tell(outcome)
            else:  # another run took it over, and will record it
                elsewhere.append(task)
        if len(held) > len(suspects):
            raise RuntimeError(f"{type(stage).__name__}.run gave no outcome for {[*held]}")

    stage.start()
    try:
        do(filter(take, tasks))
        while elsewhere or suspects:
            if suspects:
                do(iter([suspects.pop(0)]))
            waiting, elsewhere[:] = elsewhere[:], []
            do(filter(take, waiting))
            if elsewhere and not suspects:
                time.sleep(POLL)
    finally:
        for _, lock in held.values():
            lock.release()
