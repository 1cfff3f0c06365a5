"""A grid run to its end: what is done is kept, what was interrupted goes on, what failed is listed.

Any number of such calls with one grid may share its folder, on any number of machines.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ...cohorts import cores
from ...errors import InputError, OutputExists
from ...jobs import Outcome, each
from ..grid.checks import check_grid, store_checked
from ..grid.grid import Grid
from ..grid.methods_and_cells import Cell
from .cells import State, complete, forget_failures, is_done, state_of, write_states
from .leftovers import tidy, writing
from .units import Training, Unit, Watch, units_of

Engine = Literal["local", "ray", "slurm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a call would do."""

    states: tuple[State, ...]
    units: tuple[Unit, ...]
    """What is trained at a time, done or not."""
    notes: tuple[str, ...]


def plan(grid: Grid, out: Path) -> Plan:
    """Where every cell is, and what would be trained in one pass; nothing is run or written.

    Copies among the bags are not looked for, which would read them all.

    Raises:
        InputError, TableError, OutputExists: as `run_grid`.
    """
    out = _usable(out)
    checked = check_grid(grid, out, read_all=False)
    cells = grid.cells(out)
    return Plan(
        states=tuple(state_of(c, out) for c in cells),
        units=tuple(units_of(cells, heads=grid.joint_runs)),
        notes=checked.notes,
    )


def run_grid(
    grid: Grid,
    out: Path,
    *,
    engine: Engine = "local",
    workers: int = 1,
    retry: bool = True,
    watch: Watch | None = None,
) -> list[State]:
    """Trains, predicts and evaluates every cell that is not done.

    One cell that fails does not stop the others; it is tried again by the next call.

    Args:
        grid: from `read_grid`.
        out: the experiment's folder.
        engine: processes of this machine, a Ray cluster, or jobs of Slurm.
        workers: processes, actors or jobs at work at the same time.
        retry: whether what failed before is tried again.
        watch: told how it goes.

    Returns: every cell's state, in the order of the grid.

    Raises:
        InputError: the grid does not fit the data, or the folder holds other runs or cannot be
            written to.
        OutputExists: the folder is something else.
        OSError: the disk is full.
    """
    out = _usable(out)
    checked = check_grid(grid, out)
    cells = grid.cells(out)
    finished = {c.name for c in cells if is_done(c, out)}
    with writing(out / "grid.yaml", out / "notes.json", out / "copies", out / "splits"):
        store_checked(checked, out)
        grid.write(out)
    if retry:
        forget_failures(cells, out)
    watch = watch or Watch()
    for note in checked.notes:
        watch.note(f"note: {note}")
    if engine == "slurm":
        from .slurm import run_jobs

        watch.grid(cells=len(cells), done=len(finished))
        run_jobs(out, cells, jobs=workers, options=grid.slurm, watch=watch)
        return settle(grid, out, cells)
    return run_cells(grid, out, engine=engine, workers=workers, watch=watch, finished=finished)


def run_cells(
    grid: Grid,
    out: Path,
    *,
    engine: Literal["local", "ray"],
    workers: int,
    watch: Watch,
    finished: set[str] | None = None,
) -> list[State]:
    """`run_grid` without its checks, for those who know that they were made."""
    cells = grid.cells(out)
    finished = {c.name for c in cells if is_done(c, out)} if finished is None else finished
    watch.grid(cells=len(cells), done=len(finished))
    groups = {d.name: d.groups for d in grid.data}
    for cell in cells:
        if cell.name in finished:  # by hand perhaps, or by a run that was killed right then
            complete(cell, out, groups=groups[cell.data], keep=grid.keep)
    stage = Training(
        out=out,
        groups=groups,
        keep=grid.keep,
        threads=max(1, cores() // workers),
        watch=watch,
        sure=set(finished),
    )
    units = {u.name: u for u in units_of(cells, heads=grid.joint_runs)}
    states = {c.name: state_of(c, out, done=c.name in finished) for c in cells}
    write_states(out, list(states.values()))

    def told(outcome: Outcome) -> None:
        unit = units[outcome.name]
        states.update({c.name: state_of(c, out) for c in unit.cells if c.name not in finished})
        write_states(out, list(states.values()))
        watch.settled(sum(s.status != "waiting" for s in states.values()))
        watch.end(unit, outcome)

    each(
        stage,
        [u.task(out) for u in units.values()],
        engine=engine,
        workers=min(workers, len(units)),
        gpus=workers > 1 and _on_gpus(cells),
        on_outcome=told,
    )
    return settle(grid, out, cells)


def settle(grid: Grid, out: Path, cells: Sequence[Cell]) -> list[State]:
    """The state of every cell, written to cells.csv."""
    states = [state_of(c, out) for c in cells]
    write_states(out, states)
    tidy(out, over=all(s.status != "waiting" for s in states))
    return states


def counts(states: Sequence[State]) -> Mapping[str, int]:
    """How many cells are done, failed and waiting."""
    found: dict[str, Any] = {"done": 0, "failed": 0, "waiting": 0}
    for state in states:
        found[state.status] += 1
    return found


def _usable(out: Path) -> Path:
    """An experiment's folder that can be written to: before hours of work, not after."""
    out = out.resolve()
    if out.exists() and not out.is_dir():
        raise OutputExists(f"{out} is a file, not an experiment's folder: give another --out")
    known = any((out / n).exists() for n in ("grid.yaml", "cells", "data"))
    if not known and out.exists() and any(out.iterdir()):
        raise OutputExists(f"{out} is no experiment's folder, and not empty: give another --out")
    there = next(p for p in (out, *out.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{there} cannot be written to: give another --out")
    return out


def _on_gpus(cells: Sequence[Cell]) -> bool:
    asked = any(c.config.training.device in ("auto", "cuda") for c in cells)
    return asked and torch.cuda.is_available()
