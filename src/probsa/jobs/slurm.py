"""Arrays of Slurm jobs that run one function over a shared folder, submitted by submitit.

The function must share the work itself, for example by `run_tasks`, whose locks are files in that
folder: all jobs make the same call.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, MissingExtra

SUBMITIT_OPTIONS = (
    "timeout_min",
    "mem_gb",
    "cpus_per_task",
    "gpus_per_node",
    "tasks_per_node",
    "nodes",
    "name",
    "stderr_to_stdout",
)
"""Options that submitit defines for every cluster; all others are Slurm's own."""
POLL = 5.0
"""Seconds between two checks of the jobs."""


def run_jobs(
    function: Callable[[], object],
    *,
    jobs: int,
    folder: Path,
    options: Mapping[str, Any],
    note: Callable[[str], None],
    on_poll: Callable[[], None],
) -> None:
    """Submit an array of jobs and wait until all have ended, whether or not they succeeded.

    Args:
        function: The picklable function that every job calls.
        jobs: Number of jobs.
        folder: Folder for the logs of the jobs, on a disk that every machine can reach.
        options: Options of a job, by Slurm's names (partition, account, …) or submitit's.
        note: Called with a line of text when the jobs are submitted and for each that fails.
        on_poll: Called at every check of the jobs, and once more after the last has ended.

    Raises:
        MissingExtra: submitit is not installed.
        InputError: There is no Slurm on this machine, or it does not have one of the options.
    """
    executor = _executor(folder, options)
    with executor.batch():
        submitted = [executor.submit(function) for _ in range(jobs)]
    note(f"{jobs} jobs are submitted: {', '.join(j.job_id for j in submitted)}")
    running = list(submitted)
    while running:
        ended = [j for j in running if j.done()]
        running = [j for j in running if j not in ended]
        for job in ended:
            if job.exception() is not None:
                note(f"job {job.job_id} failed: see {job.paths.stderr}")
        on_poll()
        if running:
            time.sleep(POLL)


def _executor(folder: Path, options: Mapping[str, Any]) -> Any:
    try:
        import submitit  # pyright: ignore[reportMissingImports]
    except ImportError as e:
        raise MissingExtra("submitit", "slurm") from e
    job_options = dict(options)
    cluster = job_options.pop("cluster", "slurm")
    try:
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
        parameters = {
            k if k in SUBMITIT_OPTIONS else f"{cluster}_{k}": v for k, v in job_options.items()
        }
        executor.update_parameters(**{"name": "probsa", **parameters})
    except (NameError, TypeError, ValueError, RuntimeError) as e:
        raise InputError(f"no jobs can be submitted: {' '.join(str(e).split())}") from e
    return executor
