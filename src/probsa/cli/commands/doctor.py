"""probsa doctor: check what is installed and what works."""

from collections.abc import Sequence

from jsonargparse import ArgumentParser

from ._shared import add_json_flag, command_parser, parse_arguments, write_json

DESCRIPTION = """\
Check what is installed, and try every reader, device and encoder.

The exit status is 1 if something that is installed does not work."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa doctor`."""
    parser = command_parser("doctor", DESCRIPTION)
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa doctor`."""
    args = parse_arguments(parser(), arguments)
    from rich.table import Table

    from ..doctor import examine, to_dict
    from ..terminal import OUT

    checks = list(examine())
    if args.json:
        write_json(to_dict(checks))
    else:
        table = Table("", "", "status", "detail", box=None, pad_edge=False)
        for check in checks:
            table.add_row(check.area, check.name, check.status, check.detail)
        OUT.print(table, markup=False)
    return 1 if any(check.status == "broken" for check in checks) else 0
