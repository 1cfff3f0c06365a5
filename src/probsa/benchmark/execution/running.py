"""Run a grid: finished cells are kept, interrupted cells resumed, and failed cells listed.

Any number of processes and machines may run the same grid in the same folder.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from ...core import (
    check_folder_place,
    check_replaceable,
    is_empty,
    locked,
    remove_leftovers,
    remove_written,
)
from ...errors import InputError, OutputExists
from ...jobs import (
    WHOLE,
    Engine,
    Share,
    SlurmJobs,
    Task,
    TaskOutcome,
    cores,
    run_tasks,
    share_of,
)
from ..grid.checks import check_grid, store_checked
from ..grid.grid import Grid
from .cells import (
    CellState,
    CellStatus,
    complete,
    failure_file,
    is_done,
    open_experiment,
    state_of,
    write_states,
)
from .training import Training, Watch


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What `run_grid` would do."""

    states: tuple[CellState, ...]
    notes: tuple[str, ...]


def plan(grid: Grid, out: Path | str) -> Plan:
    """Return the states of all cells of a grid without running or writing anything.

    Duplicate bags are not looked for, because that requires reading all bags.

    Raises:
        InputError, TableError, OutputExists: See `run_grid`.
    """
    out = _check_folder(Path(out))
    checked = check_grid(grid, out, read_all=False)
    return Plan(states=tuple(state_of(c, out) for c in grid.cells(out)), notes=checked.notes)


def run_grid(
    grid: Grid,
    out: Path | str,
    *,
    engine: Engine = "local",
    workers: int = 1,
    share: Share = WHOLE,
    retry: bool = True,
    watch: Watch | None = None,
) -> list[CellState]:
    """Train, predict and evaluate every cell that is not done.

    A cell that fails does not stop the others; the next call tries it again.

    Args:
        grid: A grid from `read_grid`.
        out: Folder of the experiment.
        engine: Processes of this machine, or Slurm jobs.
        workers: Number of processes or jobs that work at the same time.
        share: The share of the cells that is done, so that several machines divide a grid.
        retry: Whether cells that failed before are tried again.
        watch: Callbacks that follow the progress.

    Returns: The state of every cell of the share, in the order of the grid.

    Raises:
        InputError: The grid does not fit the data, or the folder contains other runs or is not
            writable.
        OutputExists: The folder is not the folder of an experiment.
        OSError: The disk is full.
    """
    out = _check_folder(Path(out))
    checked = check_grid(grid, out)
    all_cells = grid.cells(out)
    bags = {d.name: len(d.table.bags) for d in grid.data}
    cells = share_of(all_cells, share, size=lambda cell: bags[cell.data])
    finished = {c.name for c in all_cells if is_done(c, out)}
    open_experiment(out)
    remove_leftovers(out)
    check_replaceable(out / "grid.yaml")
    grid.write(out)  # first: another run knows the folder by it
    store_checked(checked, out)
    watch = watch or Watch()
    for note in checked.notes:
        watch.note(f"note: {note}")
    watch.grid(cells=len(cells), done=sum(c.name in finished for c in cells))
    groups = {d.name: d.groups for d in grid.data}
    keep = grid.file.keep
    for cell in cells:
        if retry:
            remove_written(failure_file(cell, out))
        # A run made by hand, or by a process that was killed at its end, may lack cell.json.
        if cell.name in finished:
            complete(cell, out, groups=groups[cell.data], keep=keep)
    by_name = {c.name: c for c in cells}
    states = {c.name: state_of(c, out, done=c.name in finished) for c in all_cells}
    write_states(out, list(states.values()))

    def on_outcome(outcome: TaskOutcome) -> None:
        cell = by_name[outcome.name]
        if cell.name not in finished:
            states[cell.name] = state_of(cell, out)
        write_states(out, list(states.values()))
        watch.settled(sum(states[c.name].status != "waiting" for c in cells))
        watch.end(cell, outcome)

    stage = Training(
        out=out,
        groups=groups,
        keep=keep,
        # a job has cores of its own
        threads=0 if engine == "slurm" else max(1, cores() // workers),
        watch=watch,
        known_done=set(finished),
    )
    tasks: list[Task] = []
    for cell in cells:
        target = cell.folder(out)
        size = bags[cell.data]
        tasks.append(Task(name=cell.name, target=target, noun="run", size=size, payload=cell))
    may_use_gpus = any(c.config.training.device in ("auto", "cuda") for c in cells)
    run_tasks(
        stage,
        tasks,
        engine=engine,
        slurm=SlurmJobs(folder=out / "slurm", options=grid.file.slurm or {}, note=watch.note),
        workers=min(workers, len(cells)),
        gpus=workers > 1 and may_use_gpus and torch.cuda.is_available(),
        on_outcome=on_outcome,
    )
    with locked(out / "cells.csv"):  # another run may have done more cells by now
        states = {c.name: state_of(c, out) for c in all_cells}
        write_states(out, list(states.values()))
    return [states[c.name] for c in cells]


def count_states(states: Sequence[CellState]) -> Mapping[str, int]:
    """Count the cells that are done, failed and waiting."""
    counts = dict.fromkeys(get_args(CellStatus), 0)
    for state in states:
        counts[state.status] += 1
    return counts


def _check_folder(out: Path) -> Path:
    """Return the absolute path of an experiment's folder after checking that it can be used."""
    check_folder_place(out)
    out = out.resolve()
    is_experiment = any((out / name).exists() for name in ("grid.yaml", "cells", "data"))
    if not is_experiment and out.exists() and not is_empty(out):
        raise OutputExists(
            f"{out} is not empty, and not an experiment's folder: give another --out"
        )
    # `out` is created below the nearest folder that exists
    parent = next(p for p in (out, *out.parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{parent} cannot be written to: give another --out")
    return out
