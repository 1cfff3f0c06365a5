"""What the commands over many slides share."""

from argparse import ArgumentParser

from ...errors import InputError


def add_run_flags(parser: ArgumentParser, *, workers: str) -> None:
    """How the work is shared out."""
    r = parser.add_argument_group("run")
    r.add_argument("--engine", choices=("local", "ray"), default="local")
    r.add_argument("--workers", type=int, help=workers)
    r.add_argument("--shard", default="0/1", metavar="I/N", help="the I-th of N parts, from 0")
    r.add_argument("--overwrite", action="store_true", help="make everything anew")
    r.add_argument("--dry-run", action="store_true", help="estimate patches, bytes, time; stop")
    r.add_argument("--json", action="store_true", help="one JSON document")


def shard_of(text: str) -> tuple[int, int]:
    """`0/4` as (0, 4).

    Raises:
        InputError: it is no such pair.
    """
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise InputError(f"--shard is {text!r}: expected I/N, as in 0/4, 1/4, 2/4, 3/4")
    return int(i), int(n)


def workers_of(given: int | None, *, default: int) -> int:
    """How many processes.

    Raises:
        InputError: fewer than one.
    """
    if given is not None and given < 1:
        raise InputError(f"--workers is {given}: give 1 or more")
    return default if given is None else given
