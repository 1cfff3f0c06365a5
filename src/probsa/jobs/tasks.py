"""The work of a run: tasks, their outcomes, and the stage that carries them out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


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
    """How a task ended."""

    name: str
    status: str
    """`done`, `failed`, or another status that the stage defines."""
    reason: str = ""
    count: int = 0
    """Number of items that the task consisted of."""
    unreadable: int = 0
    """Number of those items that could not be read."""
    seconds: float = 0.0
    source: str = ""
    """Path of what the task was made from."""
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
        """Return the recorded outcome, or None if the task is still to be done.

        It is called in the process that started the run.
        """

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
        """Store the outcome on disk while the task is still locked.

        It is called on the copy that ran the task, or, if the process of that copy died, on the
        copy in the process that started the run.
        """
