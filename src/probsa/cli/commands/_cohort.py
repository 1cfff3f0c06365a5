"""What `probsa patch` and `probsa extract` share: how the work is distributed."""

from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from ...errors import InputError
from ._shared import add_json_flag, write_json

if TYPE_CHECKING:
    from ...cohorts import Estimate, RunOptions


def add_work_flags(parser: ArgumentParser, *, workers: str) -> None:
    """Add the flags for how the work is distributed; `workers` is the help of `--workers`."""
    add = parser.add_argument_group("work").add_argument
    add(
        "--engine", choices=("local", "ray", "slurm"), default="local",
        help="Run on this machine, on a Ray cluster, or as Slurm jobs. Default: local.",
    )  # fmt: skip
    add(
        "--slurm", default="", metavar="KEY=VALUE,…",
        help="Settings of the Slurm jobs: partition, account, timeout_min, cpus_per_task, …",
    )  # fmt: skip
    add("--workers", type=int, metavar="N", help=workers)
    add(
        "--shard", default="0/1", metavar="I/N",
        help="Do only part I of N, counted from 0, so that N machines can share the work.",
    )  # fmt: skip
    add("--overwrite", action="store_true", help="Redo everything, including finished work.")
    add(
        "--dry-run", action="store_true",
        help="Only estimate the number of patches, the disk space and the time, then exit.",
    )  # fmt: skip
    add_json_flag(parser)


def run_options(
    args: Namespace, *, workers: int, isolated: bool, gpus: bool = False
) -> "RunOptions":
    """Return how the work is distributed, from the flags and the default number of workers.

    Raises:
        InputError: a flag has no such value.
    """
    from ...cohorts import RunOptions
    from ..terminal import ERR

    part, _, parts = args.shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise InputError(f"--shard is {args.shard!r}: expected I/N, as in 0/4, 1/4, 2/4, 3/4")
    pairs = [pair.partition("=") for pair in args.slurm.split(",") if pair]
    if not all(key and value for key, _, value in pairs):
        raise InputError(f"--slurm is {args.slurm!r}: expected KEY=VALUE,…, as in partition=long")
    return RunOptions(
        engine=args.engine,
        workers=worker_count(args.workers, default=workers),
        isolated=isolated,
        gpus=gpus,
        shard=(int(part), int(parts)),
        overwrite=args.overwrite,
        slurm={key: int(value) if value.isdecimal() else value for key, _, value in pairs},
        note=ERR.print,
    )


def worker_count(workers: int | None, *, default: int) -> int:
    """Return the value of `--workers`, or the default if it was not given.

    Raises:
        InputError: it is less than 1.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers is {workers}: expected 1 or more")
    return workers or default


def report_estimate(estimate: "Estimate", *, as_json: bool) -> int:
    """Write an estimate; return the exit status."""
    from ..terminal import OUT

    if as_json:
        write_json(estimate.to_dict())
    else:
        estimate.render(OUT)
    return 1 if estimate.tried and len(estimate.failed) == estimate.tried else 0
