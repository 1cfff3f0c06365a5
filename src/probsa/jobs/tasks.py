"""What is done to many slides: tasks, their outcomes, and the stage between the two."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["done", "no_tissue", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One slide or series that a stage has to do."""

    name: str
    """The slide's or series' name: no other task of a run bears it."""
    target: Path
    """The file that the task makes; its lock lies beside it."""
    payload: Any = None
    """What the stage needs to know; it can be pickled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a task ended."""

    name: str
    status: Status
    reason: str = ""
    count: int = 0
    """Patches, slices or instances."""
    unreadable: int = 0
    """How many of them could not be decoded."""
    seconds: float = 0.0
    source: str = ""
    """Path of the slide or series."""
    kept: bool = False
    """It was there already, and is what would be made now."""


class Stage(ABC):
    """What is done to each task; can be pickled, and every worker process has one of its own."""

    @abstractmethod
    def known(self, task: Task) -> Outcome | None:
        """The recorded outcome where nothing is left to do; asked in the calling process."""

    @abstractmethod
    def start(self) -> None:
        """Once in the process that works, before the first task: the encoder, the threads."""

    @abstractmethod
    def run(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        """One outcome a task, in any order; what goes wrong with a task is its outcome.

        Takes a task when there is room for it: it may read ahead, and may be told of the end of the
        tasks while others are still to come; it is then called again. What it raises ends the whole
        run: a full disk, a fault of its own.
        """

    @abstractmethod
    def record(self, task: Task, outcome: Outcome) -> None:
        """Keeps the outcome in the work folder, while the task is still locked.

        Called on the instance that ran the task; where its process died, on the caller's.
        """
