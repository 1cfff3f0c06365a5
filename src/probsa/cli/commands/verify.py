"""probsa verify: read a folder completely and report what is wrong with it."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from ._shared import (
    add_json_flag,
    add_limit_flag,
    command_parser,
    parse_arguments,
    stated_limit,
    write_json,
)

DESCRIPTION = """\
Read every file of a work folder or a folder of features, and report what is wrong.

Reports what to do about each problem and changes nothing. The exit status is 1 if there is
a problem."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa verify`."""
    parser = command_parser("verify", DESCRIPTION)
    parser.add_argument("folder", type=Path, help="Work folder, or folder of features.")
    add_limit_flag(parser)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa verify`."""
    args = parse_arguments(parser(), arguments)
    from ...cohorts import verify
    from ..terminal import OUT

    with stated_limit(args):
        report = verify(args.folder)
    if args.json:
        write_json(report.to_dict())
    else:
        report.render(OUT)
    return 1 if report.findings else 0
