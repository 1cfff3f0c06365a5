"""A grid as an array of Slurm jobs: each runs it over the shared folder; locks part the work."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError, MissingExtra
from ..grid.methods_and_cells import Cell
from .cells import is_done
from .units import Watch

SHARED = (
    "timeout_min",
    "mem_gb",
    "cpus_per_task",
    "gpus_per_node",
    "tasks_per_node",
    "nodes",
    "name",
    "stderr_to_stdout",
)
"""Options that submitit has for every cluster; all others are Slurm's own."""
POLL = 5.0
"""Seconds between two looks at the jobs."""


def run_jobs(
    out: Path, cells: Sequence[Cell], *, jobs: int, options: Mapping[str, Any], watch: Watch
) -> None:
    """Submits the jobs and waits for their end; what they do not finish stays as it is.

    Args:
        out: the experiment's folder, with its grid, on a disk that every machine sees.
        cells: of the grid.
        jobs: how many.
        options: of a job: Slurm's own names (partition, account, …), or submitit's.
        watch: told of the cells that are done, and of jobs that failed.

    Raises:
        MissingExtra: submitit is not installed.
        InputError: no Slurm here, or an option that it does not have.
    """
    executor = _executor(out, options)
    with executor.batch():
        submitted = [executor.submit(work, out) for _ in range(jobs)]
    watch.note(f"{jobs} jobs are submitted: {', '.join(j.job_id for j in submitted)}")
    known = {c.name for c in cells if is_done(c, out)}
    waiting = list(submitted)
    while waiting:
        over = [j for j in waiting if j.done()]
        waiting = [j for j in waiting if j not in over]
        for job in over:
            if job.exception() is not None:
                watch.note(f"job {job.job_id} failed: see {job.paths.stderr}")
        fresh = [c for c in cells if c.name not in known and is_done(c, out)]
        if fresh:
            known |= {c.name for c in fresh}
            watch.settled(len(known))
        if waiting:
            time.sleep(POLL)


def _executor(out: Path, options: Mapping[str, Any]) -> Any:
    try:
        import submitit  # pyright: ignore[reportMissingImports]
    except ImportError as e:
        raise MissingExtra("submitit", "slurm") from e
    given = dict(options)
    cluster = given.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(folder=out / "slurm" / "%j", cluster=cluster)
        of_job = {k if k in SHARED else f"{cluster}_{k}": v for k, v in given.items()}
        executor.update_parameters(**{"name": "probsa", **of_job})
    except (NameError, TypeError, ValueError, RuntimeError) as e:
        raise InputError(f"no jobs can be submitted: {' '.join(str(e).split())}") from e
    return executor


def work(out: Path) -> dict[str, int]:
    """What a job does: its share of the grid in `out`; gives how many cells are in which state."""
    from ..grid.grid import read_grid
    from .running import counts, run_cells

    grid = read_grid(out / "grid.yaml")
    return dict(counts(run_cells(grid, out, engine="local", workers=1, watch=Watch())))
