"""The units of work of a grid: one cell, or several cells that are trained jointly."""

import hashlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...core import is_disk_full
from ...errors import ProbSAError
from ...jobs import Stage, Task, TaskOutcome, claim, remove_dead_locks
from ...models import build
from ...training import (
    JointTrainingFailed,
    Reporter,
    RunConfig,
    joint_key,
    train,
    train_jointly,
    why_not_jointly,
)
from ..grid.methods_and_cells import Cell
from .cells import Keep, complete, failure_reason, finish, is_done, is_trained, record_failure

STATES = "passes"
"""Name of the folder with the states from which joint trainings are resumed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Cells that are run together by one process."""

    name: str
    cells: tuple[Cell, ...]
    together: bool = False
    """Whether the cells are trained jointly; otherwise there is only one."""

    def task(self, out: Path) -> Task:
        """Return the task that runs the unit; it locks the run folder or the joint state."""
        return Task(
            name=self.name,
            target=self.state(out) if self.together else self.cells[0].folder(out),
            noun=f"group of {len(self.cells)} jointly trained runs" if self.together else "run",
            payload=self,
        )

    def state(self, out: Path) -> Path:
        """Return the folder with the state from which joint training is resumed."""
        return out / STATES / self.name


def remove_unit_leftovers(out: Path, *, finished: bool) -> None:
    """Remove locks of dead processes, and states of joint trainings that will not be resumed.

    Args:
        out: Folder of the experiment.
        finished: Whether no cell is waiting, so that no joint training will be resumed.
    """
    states = out / STATES
    remove_dead_locks([*states.glob(".*.lock"), *out.glob("cells/*/*/.*.lock")])
    if not finished or not states.is_dir():
        return
    for state in [p for p in states.iterdir() if p.is_dir()]:
        lock = claim(state)
        if lock is not None:
            with lock:
                shutil.rmtree(state)
    with suppress(OSError):  # another process still needs the folder
        states.rmdir()


MAX_JOINT_CELLS, MAX_JOINT_WEIGHTS = 48, 48_000_000
"""Limits of one joint training, unless the grid sets the number of cells: seven T-ABMIL models,
for example. A weight takes about 80 bytes with its gradient, Adam's moments, the copy of the best
epoch and the intermediate values of a step."""
FEATURE_WIDTH = 1024
"""Width of the features that is assumed for counting weights before any features are read."""


@cache
def _count_weights(model: str, arguments: tuple[tuple[str, Any], ...]) -> int:
    network = build(model, in_dim=FEATURE_WIDTH, **dict(arguments))
    return sum(p.numel() for p in network.parameters())


def _count_trainings(cells: Sequence[Cell], max_joint: int | None) -> int:
    """Return the number of joint trainings that these cells are divided into."""
    if max_joint is not None or len(cells) == 1:
        return math.ceil(len(cells) / (max_joint or 1))
    models = [(c.config.model, tuple(sorted(c.config.model_arguments.items()))) for c in cells]
    weights = sum(_count_weights(*m) for m in models)
    return max(math.ceil(len(cells) / MAX_JOINT_CELLS), math.ceil(weights / MAX_JOINT_WEIGHTS))


def units_of(cells: Sequence[Cell], *, max_joint: int | None) -> list[Unit]:
    """Divide cells into units, in the order of their first cells.

    The same cells always give the same units, whether or not some of them are done.

    Args:
        cells: All cells of the grid.
        max_joint: Largest number of cells that are trained jointly; 1 trains each by itself,
            None applies `MAX_JOINT_CELLS` and `MAX_JOINT_WEIGHTS`.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        training = cell.config.training
        followed = training.tensorboard or training.tracker
        alone = max_joint == 1 or followed or why_not_jointly(cell.config)
        groups.setdefault(cell.name if alone else joint_key(cell.config), []).append(cell)
    units = []
    for group in groups.values():
        # parts of equal size, so that none is left with only a few cells
        size = math.ceil(len(group) / _count_trainings(group, max_joint))
        for k in range(0, len(group), size):
            part = tuple(group[k : k + size])
            if len(part) == 1:
                units.append(Unit(name=part[0].name, cells=part))
                continue
            digest = hashlib.sha256("\n".join(c.name for c in part).encode()).hexdigest()[:8]
            name = f"{part[0].data}-split{part[0].split}-{digest}"
            units.append(Unit(name=name, cells=part, together=True))
    return units


class Watch(Reporter):
    """Callbacks that follow a grid. By default, they do nothing; the CLI's show a progress bar.

    The callbacks of `Reporter` are called as well, for the unit that this process trains, unless
    other worker processes train units.
    """

    def grid(self, *, cells: int, done: int) -> None:
        """Called before the first unit, with the number of cells and of those already done."""

    def settled(self, cells: int) -> None:
        """Called with the number of cells that are now done or failed, in whichever process."""

    def begin(self, unit: Unit) -> None:
        """Called when this process begins a unit."""

    def end(self, unit: Unit, outcome: TaskOutcome) -> None:
        """Called when a unit is done or has failed, in whichever process."""


@dataclass(kw_only=True)
class Training(Stage):
    """Trains, predicts and evaluates the cells of units."""

    advice_on_death: ClassVar[str] = "Try again with fewer workers or smaller batches"

    out: Path
    groups: Mapping[str, Mapping[str, str] | None]
    """The patient of each bag, for each data set."""
    keep: Keep
    threads: int
    """Threads of a process, for cells that do not set them."""
    watch: Watch = field(default_factory=Watch)
    known_done: set[str] = field(default_factory=set)
    """Names of cells that are known to be done."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why cells of the current unit failed, by name."""

    def __getstate__(self) -> dict[str, Any]:
        # the watch stays in the process that shows the progress
        return self.__dict__ | {"watch": Watch(), "known_done": set(), "reasons": {}}

    def known(self, task: Task) -> TaskOutcome | None:
        unit: Unit = task.payload
        failed = 0
        for cell in unit.cells:
            if self._is_done(cell):
                continue
            if failure_reason(cell, self.out) is None:
                return None
            failed += 1
        return _outcome(unit, failed=failed, kept=True)

    def start(self) -> None:
        torch.set_num_threads(self.threads)

    def run(self, tasks: Iterator[Task]) -> Iterator[TaskOutcome]:
        for task in tasks:
            unit: Unit = task.payload
            self.watch.begin(unit)
            self.reasons = {}
            todo = [c for c in unit.cells if not self._is_settled(c)]
            self._train(unit, todo)
            for cell in todo:
                if cell.name not in self.reasons:
                    self._finish(cell)
            not_done = [c for c in unit.cells if not self._is_done(c)]
            reason = next((self.reasons[c.name] for c in not_done if c.name in self.reasons), "")
            yield _outcome(unit, failed=len(not_done), reason=reason)

    def record(self, task: Task, outcome: TaskOutcome) -> None:
        unit: Unit = task.payload
        for cell in unit.cells:
            if not self._is_settled(cell):
                record_failure(cell, self.out, self.reasons.get(cell.name, outcome.reason))

    def _is_done(self, cell: Cell) -> bool:
        if cell.name not in self.known_done and is_done(cell, self.out):
            self.known_done.add(cell.name)
        return cell.name in self.known_done

    def _is_settled(self, cell: Cell) -> bool:
        """Return True if this run has nothing more to do for a cell: it is done or has failed."""
        return self._is_done(cell) or failure_reason(cell, self.out) is not None

    def _train(self, unit: Unit, todo: Sequence[Cell]) -> None:
        # If joint training has ended, it is not repeated for cells that lack predictions. If it
        # was interrupted, it is started with the same runs as before, so that it can be resumed.
        if not unit.together:
            for cell in todo:
                self._try(cell, lambda c=cell: self._train_alone(c))
        elif not all(is_trained(c, self.out) for c in todo):
            outs = [c.folder(self.out) for c in todo]
            configs = [self._config(c) for c in todo]
            state = unit.state(self.out)
            try:
                train_jointly(configs, outs, state=state, reporter=self.watch)
            except JointTrainingFailed as e:
                for cell, folder in zip(todo, outs, strict=True):
                    if folder in e.failures:
                        self.reasons[cell.name] = e.failures[folder]
            except Exception as e:  # noqa: BLE001 - no error may stop the other units
                self.reasons |= dict.fromkeys((c.name for c in todo), _reason(e))
        else:  # the process was killed right after it had written the last run folder
            shutil.rmtree(unit.state(self.out), ignore_errors=True)

    def _train_alone(self, cell: Cell) -> None:
        train(self._config(cell), cell.folder(self.out), resume=True, reporter=self.watch)

    def _finish(self, cell: Cell) -> None:
        def finish_and_complete() -> None:
            finish(cell, self.out)
            complete(cell, self.out, groups=self.groups[cell.data], keep=self.keep)

        self._try(cell, finish_and_complete)

    def _try(self, cell: Cell, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as e:  # noqa: BLE001 - no error may stop the other cells
            self.reasons[cell.name] = _reason(e)

    def _config(self, cell: Cell) -> RunConfig:
        """Return the config of a cell with the threads of this process, which change no result."""
        training = cell.config.training
        threads = training.threads or self.threads
        return replace(cell.config, training=replace(training, threads=threads))


def _outcome(unit: Unit, *, failed: int, reason: str = "", kept: bool = False) -> TaskOutcome:
    return TaskOutcome(
        name=unit.name,
        status="failed" if failed else "done",
        reason=reason,
        count=len(unit.cells) - failed,
        kept=kept,
    )


def _reason(error: Exception) -> str:
    """Return the message of an error in one line; a full disk ends the whole run instead.

    Raises:
        OSError: The disk is full.
    """
    if is_disk_full(error):
        raise error
    message = " ".join(str(error).split())
    return message if isinstance(error, ProbSAError) else f"{type(error).__name__}: {message}"
