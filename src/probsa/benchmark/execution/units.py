"""What is trained at a time: one cell, or the cells that share one pass over the data."""

import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...core import full_disk
from ...errors import ProbSAError
from ...jobs import Outcome, Stage, Task
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
from .cells import Keep, complete, failure, finish, is_done, is_trained, note_failure
from .leftovers import PASSES


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Cells that are trained by one process at a time."""

    name: str
    cells: tuple[Cell, ...]
    together: bool = False
    """Whether they share a pass; else there is one."""

    def task(self, out: Path) -> Task:
        """As an engine takes it; what is locked is the run folder, or the state of the pass."""
        target = self.state(out) if self.together else self.cells[0].folder(out)
        return Task(name=self.name, target=target, payload=self)

    def state(self, out: Path) -> Path:
        """Where a pass keeps what lets it go on."""
        return out / PASSES / self.name


HEADS, WEIGHTS = 48, 48_000_000
"""Of a pass at most, unless the grid says how many heads: of a T-ABMIL seven. A weight costs about
80 bytes with its gradient, Adam's moments, the best epoch's copy and what a step makes of it."""
WIDTH = 1024
"""Of the features, for counting weights before any are read."""


@cache
def _weights(model: str, given: tuple[tuple[str, Any], ...]) -> int:
    return sum(p.numel() for p in build(model, in_dim=WIDTH, **dict(given)).parameters())


def _passes(cells: Sequence[Cell], heads: int | None) -> int:
    """In how many passes these cells train."""
    if heads is not None or len(cells) == 1:
        return math.ceil(len(cells) / (heads or 1))
    models = [(c.config.model, tuple(sorted(c.config.model_arguments.items()))) for c in cells]
    weights = sum(_weights(*m) for m in models)
    return max(math.ceil(len(cells) / HEADS), math.ceil(weights / WEIGHTS))


def units_of(cells: Sequence[Cell], *, heads: int | None) -> list[Unit]:
    """Cells as units, in the order of their first cells; the same cells make the same units.

    Args:
        cells: of the whole grid, done or not.
        heads: most cells of a pass; 1: each alone; None: as many as `HEADS` and `WEIGHTS` allow.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        alone = heads == 1 or cell.config.training.tensorboard or why_not_jointly(cell.config)
        groups.setdefault(cell.name if alone else joint_key(cell.config), []).append(cell)
    units = []
    for own in groups.values():
        # of equal size, so that none is left with a few
        size = math.ceil(len(own) / _passes(own, heads))
        for k in range(0, len(own), size):
            part = tuple(own[k : k + size])
            if len(part) == 1:
                units.append(Unit(name=part[0].name, cells=part))
                continue
            digest = hashlib.sha256("\n".join(c.name for c in part).encode()).hexdigest()[:8]
            name = f"{part[0].data}-split{part[0].split}-{digest}"
            units.append(Unit(name=name, cells=part, together=True))
    return units


class Watch(Reporter):
    """Who is told how a grid goes: this one says nothing, the command line's shows a bar.

    Of the unit that this process trains, if it is the only one at work, every epoch is told too.
    """

    def grid(self, *, cells: int, done: int) -> None:
        """Before the first unit: how many cells there are, and how many were done already."""

    def settled(self, cells: int) -> None:
        """So many cells are done or failed by now, wherever that was."""

    def begin(self, unit: Unit) -> None:
        """This process begins a unit."""

    def end(self, unit: Unit, outcome: Outcome) -> None:
        """A unit is done, or failed, here or elsewhere."""


@dataclass(kw_only=True)
class Training(Stage):
    """Trains, predicts and evaluates the cells of units."""

    out: Path
    groups: Mapping[str, Mapping[str, str] | None]
    """The patients of each data set."""
    keep: Keep
    threads: int
    """Of a process, where the cells do not say."""
    watch: Watch = field(default_factory=Watch)
    sure: set[str] = field(default_factory=set)
    """Cells that are known to be done."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why cells of the unit in hand failed."""

    def __getstate__(self) -> dict[str, Any]:
        # who watches stays in the process that shows it
        return self.__dict__ | {"watch": Watch(), "sure": set(), "reasons": {}}

    def known(self, task: Task) -> Outcome | None:
        unit: Unit = task.payload
        failed = 0
        for cell in unit.cells:
            if self._done(cell):
                continue
            if failure(cell, self.out) is None:
                return None
            failed += 1
        return _outcome(unit, failed=failed, kept=True)

    def start(self) -> None:
        torch.set_num_threads(self.threads)

    def run(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        for task in tasks:
            unit: Unit = task.payload
            self.watch.begin(unit)
            self.reasons = {}
            todo = [c for c in unit.cells if not self._left(c)]
            self._train(unit, todo)
            for cell in todo:
                if cell.name not in self.reasons:
                    self._finish(cell)
            left = [c for c in unit.cells if not self._done(c)]
            first = next((self.reasons[c.name] for c in left if c.name in self.reasons), "")
            yield _outcome(unit, failed=len(left), reason=first)

    def record(self, task: Task, outcome: Outcome) -> None:
        unit: Unit = task.payload
        for cell in unit.cells:
            if not self._done(cell) and failure(cell, self.out) is None:
                reason = self.reasons.get(cell.name, outcome.reason)
                note_failure(cell, self.out, reason.replace("this slide", unit.name))

    def _done(self, cell: Cell) -> bool:
        if cell.name not in self.sure and is_done(cell, self.out):
            self.sure.add(cell.name)
        return cell.name in self.sure

    def _left(self, cell: Cell) -> bool:
        """Whether nothing is to be done with a cell in this run."""
        return self._done(cell) or failure(cell, self.out) is not None

    def _train(self, unit: Unit, todo: Sequence[Cell]) -> None:
        # A pass that ended is not begun again for the cells that were not yet predicted; one that
        # did not is begun with the very runs it had, so that it finds its state.
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
            except Exception as e:  # noqa: BLE001 - the other units go on, whatever it is
                self.reasons |= dict.fromkeys((c.name for c in todo), _reason(e))
        else:  # killed right after its last run was filled
            shutil.rmtree(unit.state(self.out), ignore_errors=True)

    def _train_alone(self, cell: Cell) -> None:
        train(self._config(cell), cell.folder(self.out), resume=True, reporter=self.watch)

    def _finish(self, cell: Cell) -> None:
        def both() -> None:
            finish(cell, self.out)
            complete(cell, self.out, groups=self.groups[cell.data], keep=self.keep)

        self._try(cell, both)

    def _try(self, cell: Cell, do: Any) -> None:
        try:
            do()
        except Exception as e:  # noqa: BLE001 - the other cells go on, whatever it is
            self.reasons[cell.name] = _reason(e)

    def _config(self, cell: Cell) -> RunConfig:
        """With the threads of this process, which change nothing of what a run is."""
        training = cell.config.training
        threads = training.threads or self.threads
        return replace(cell.config, training=replace(training, threads=threads))


def _outcome(unit: Unit, *, failed: int, reason: str = "", kept: bool = False) -> Outcome:
    return Outcome(
        name=unit.name,
        status="failed" if failed else "done",
        reason=reason,
        count=len(unit.cells) - failed,
        kept=kept,
    )


def _reason(error: Exception) -> str:
    """In one line; a full disk ends the whole run.

    Raises:
        OSError: the disk is full.
    """
    if full_disk(error):
        raise error
    said = " ".join(str(error).split())
    return said if isinstance(error, ProbSAError) else f"{type(error).__name__}: {said}"
