"""The stage of a grid: each task trains, predicts and evaluates one cell."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import format_exception
from typing import Any, ClassVar

import torch

from ...core import is_disk_full, is_fault, locked
from ...errors import ProbSAError
from ...jobs import Stage, Task, TaskOutcome, cores
from ...training import Reporter, train
from ..grid.entries import Keep
from ..grid.methods_and_cells import Cell
from .cells import complete, failure_reason, finish, is_done, record_failure

FAULT = (
    "This is a fault of the program or of its installation, not of the data; the record of the "
    "cell in failures/ holds its traceback"
)
"""Added to the message of an error that is a fault of the program; the grid goes on."""


class Watch(Reporter):
    """Callbacks that follow a grid. By default, they do nothing; the CLI's show a progress bar.

    The callbacks of `Reporter` are called as well, for the cell that this process trains, unless
    other worker processes train cells.
    """

    def grid(self, *, cells: int, done: int) -> None:
        """Called before the first cell, with the number of cells and of those already done."""

    def settled(self, cells: int) -> None:
        """Called with the number of cells that are now done or failed, in whichever process."""

    def begin(self, cell: Cell) -> None:
        """Called when this process begins a cell."""

    def end(self, cell: Cell, outcome: TaskOutcome) -> None:
        """Called when a cell is done or has failed, in whichever process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellOutcome(TaskOutcome):
    """How a cell ended."""

    traceback: str = ""
    """Where an error arose that probsa did not raise on purpose."""


@dataclass(kw_only=True)
class Training(Stage):
    """Trains, predicts and evaluates cells."""

    advice_on_death: ClassVar[str] = "Try again with fewer workers or smaller batches"

    out: Path
    groups: Mapping[str, Mapping[str, str] | None]
    """The patient of each bag, for each data set."""
    keep: Keep
    threads: int
    """Threads of a process, for cells that do not set them; 0 for the cores that it may use."""
    watch: Watch = field(default_factory=Watch)
    known_done: set[str] = field(default_factory=set)
    """Names of cells that are known to be done."""

    def __getstate__(self) -> dict[str, Any]:
        # the watch stays in the process that shows the progress
        return self.__dict__ | {"watch": Watch(), "known_done": set()}

    def known(self, task: Task) -> TaskOutcome | None:
        cell: Cell = task.payload
        if self._is_done(cell):
            return TaskOutcome(name=cell.name, status="done", count=1, kept=True)
        if failure_reason(cell, self.out) is not None:
            return TaskOutcome(name=cell.name, status="failed", count=0, kept=True)
        return None

    def start(self) -> None:
        self.threads = self.threads or cores()
        torch.set_num_threads(self.threads)

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        # Two processes that train one cell would overwrite each other's checkpoints.
        elsewhere: list[Task] = []
        for task in tasks:
            with locked(task.target, patience=0) as is_held:
                outcome = self._run_once(task) if is_held else None
            if outcome is None:
                elsewhere.append(task)
            else:
                yield outcome
        for task in elsewhere:
            with locked(task.target, patience=-1):
                outcome = self._run_once(task)
            yield outcome

    def _run_once(self, task: Task) -> TaskOutcome:
        """Train a cell whose lock is held, unless another process has done it in the meantime."""
        return self.known(task) or self._train(task)

    def _train(self, task: Task) -> CellOutcome:
        """Train, predict and evaluate a cell whose lock is held."""
        cell: Cell = task.payload
        self.watch.begin(cell)
        reason = ""
        traceback = ""
        # the number of threads of this process changes no result
        threads = cell.config.training.threads or self.threads
        config = replace(cell.config, training=replace(cell.config.training, threads=threads))
        try:
            train(config, cell.folder(self.out), resume=True, reporter=self.watch)
            finish(cell, self.out)
            complete(cell, self.out, groups=self.groups[cell.data], keep=self.keep)
        except Exception as e:  # noqa: BLE001 - no error may stop the other cells
            reason = _reason(e)
            traceback = "" if isinstance(e, ProbSAError) else "".join(format_exception(e))
        return CellOutcome(
            name=cell.name,
            status="failed" if reason else "done",
            reason=reason,
            count=int(not reason),
            traceback=traceback,
        )

    def record(self, task: Task, outcome: TaskOutcome) -> None:
        if outcome.status == "failed":
            traceback = outcome.traceback if isinstance(outcome, CellOutcome) else ""
            record_failure(task.payload, self.out, outcome.reason, traceback=traceback)

    def _is_done(self, cell: Cell) -> bool:
        if cell.name not in self.known_done and is_done(cell, self.out):
            self.known_done.add(cell.name)
        return cell.name in self.known_done


def _reason(error: Exception) -> str:
    """Return the message of an error in one line; a full disk ends the whole run instead.

    Raises:
        OSError: The disk is full.
    """
    if is_disk_full(error):
        raise error
    message = " ".join(str(error).split())
    if isinstance(error, ProbSAError):
        return message
    reason = type(error).__name__
    if message:
        reason += f": {message}"
    if is_fault(error):
        reason += f". {FAULT}"
    return reason
