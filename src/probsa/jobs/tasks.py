"""The work of a run: tasks, their outcomes, the stage that does them, and the loop of a worker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work for a stage."""

    name: str
    """Unique among the tasks of a run."""
    target: Path
    """The file that the task writes."""
    noun: str = "task"
    """What error messages call the task, as in "this task"."""
    size: float = 0.0
    """A number that grows with the time that the task takes, by which shares are made."""
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

        Draw the next task only when there is room for it; reading ahead is allowed.
        """

    @abstractmethod
    def record(self, task: Task, outcome: TaskOutcome) -> None:
        """Store the outcome on disk."""

    def failure(self, task: Task, reason: str) -> TaskOutcome:
        """Return the outcome of a task whose process died."""
        return TaskOutcome(name=task.name, reason=reason)


def work(stage: Stage, tasks: Iterable[Task], *, tell: Callable[[TaskOutcome], None]) -> None:
    """Do tasks until each of them has an outcome; keep what another process has done meanwhile.

    Every worker runs this call: this process, those of a pool, and Slurm jobs.

    Args:
        stage: The stage that does the tasks.
        tasks: The tasks; the next is drawn when the stage has room for it.
        tell: Called with each outcome as soon as it is recorded.
    """
    begun: dict[str, Task] = {}

    def draw_tasks() -> Iterator[Task]:
        """Yield the tasks that nobody has done when their turn comes."""
        for task in tasks:
            outcome = stage.known(task)
            if outcome is None:
                begun[task.name] = task
                yield task
            else:
                tell(outcome)

    stage.start()
    for outcome in stage.run(draw_tasks()):
        tell(record_outcome(stage, begun.pop(outcome.name), outcome))
    if begun:
        raise RuntimeError(f"{type(stage).__name__}.run gave no outcome for {[*begun]}")


def record_outcome(stage: Stage, task: Task, outcome: TaskOutcome) -> TaskOutcome:
    """Record the outcome of a task and return it.

    If the task failed here but another process has finished it meanwhile, return the outcome of
    that process, and keep its record.
    """
    if outcome.status == "failed":
        stored_outcome = stage.known(task)
        if stored_outcome is not None:
            return stored_outcome
    stage.record(task, outcome)
    return outcome
