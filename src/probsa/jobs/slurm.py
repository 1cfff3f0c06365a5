"""Arrays of Slurm jobs that work in a shared folder, submitted by submitit."""

import getpass
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, imports_from

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
UNLISTED = 12
"""Number of checks for which a submitted job may be missing from Slurm's list."""


@dataclass(frozen=True, kw_only=True)
class SlurmJobs:
    """Where and how jobs are run."""

    folder: Path
    """Folder for the logs of the jobs, on a disk that every machine can reach."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a job, by Slurm's names (partition, account, …) or submitit's."""
    note: Callable[[str], None] = lambda text: None
    """Called with a line of text when the jobs are submitted and for each that fails."""


def run_jobs(
    jobs: Sequence[Callable[[], object]],
    *,
    settings: SlurmJobs,
    on_poll: Callable[[], object],
) -> None:
    """Submit an array of jobs and wait until all have ended, whether or not they succeeded.

    Args:
        jobs: The picklable function that each job calls.
        settings: Where and how they are run.
        on_poll: Called at every check of the jobs, and once more after the last has ended.

    Raises:
        MissingExtra: submitit is not installed.
        InputError: There is no Slurm on this machine, or it does not have one of the options.
    """
    with imports_from("slurm", "submitit"):
        import submitit  # pyright: ignore[reportMissingImports]
    options = {"name": "probsa", **settings.options}
    cluster = options.pop("cluster", "slurm")
    parameters = {}
    for name, value in options.items():
        # submitit takes the options of a cluster with the name of the cluster in front
        key = name if name in SUBMITIT_OPTIONS else f"{cluster}_{name}"
        parameters[key] = value
    try:
        executor = submitit.AutoExecutor(folder=settings.folder / "%j", cluster=cluster)
        executor.update_parameters(**parameters)
        with executor.batch():
            running = [executor.submit(job) for job in jobs]
    except (NameError, TypeError, ValueError, RuntimeError) as e:
        raise InputError(f"no jobs can be submitted: {' '.join(str(e).split())}") from e
    settings.note(f"{len(jobs)} jobs are submitted: {', '.join(job.job_id for job in running)}")
    listed: set[str] = set()  # the jobs that Slurm has listed at some check
    checks = 0
    while running:
        queue = _list_queue() if cluster == "slurm" else None
        checks += 1
        gone: set[str] = set()
        if queue is not None:
            listed |= queue
            # a job that Slurm has not listed yet was only just submitted, unless that is long ago
            expected = {j.job_id for j in running if j.job_id in listed or checks > UNLISTED}
            gone = expected - queue
        ended = [j for j in running if j.done() or j.job_id in gone]
        running = [j for j in running if j not in ended]
        for job in ended:
            if not job.done() or job.exception() is not None:
                settings.note(f"job {job.job_id} failed: see {job.paths.stderr}")
        on_poll()
        if running:
            time.sleep(POLL)


def _list_queue() -> set[str] | None:
    """Return the jobs of this user that wait or run; None if Slurm does not answer.

    To find jobs that were killed, submitit asks the accounting of the cluster, but many clusters
    have none.
    """
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return None
    return set(result.stdout.split())
