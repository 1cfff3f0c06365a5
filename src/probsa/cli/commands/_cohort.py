"""What `probsa patch` and `probsa extract` share: how the work is distributed."""

from jsonargparse import ArgumentParser

from ...errors import InputError
from ._shared import add_json_flag


def add_work_flags(parser: ArgumentParser, *, workers: str) -> None:
    """Add the flags for how the work is distributed.

    Args:
        parser: the command's parser.
        workers: the help text of `--workers`.
    """
    add = parser.add_argument_group("work").add_argument
    add(
        "--engine", choices=("local", "ray"), default="local",
        help="Run on this machine, or on a Ray cluster. Default: local.",
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


def parse_shard(text: str) -> tuple[int, int]:
    """Return `1/4` as (1, 4).

    Raises:
        InputError: the text is not such a pair.
    """
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise InputError(f"--shard is {text!r}: expected I/N, as in 0/4, 1/4, 2/4, 3/4")
    return int(part), int(parts)


def worker_count(workers: int | None, *, default: int) -> int:
    """Return the value of `--workers`, or the default if it was not given.

    Raises:
        InputError: it is less than 1.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers is {workers}: expected 1 or more")
    return default if workers is None else workers
