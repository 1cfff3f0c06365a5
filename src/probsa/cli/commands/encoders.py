"""probsa encoders: list the encoders, their licences and what they need."""

from collections.abc import Sequence

from jsonargparse import ArgumentParser

from ._shared import add_json_flag, command_parser, parse_arguments, write_json

DESCRIPTION = """\
List the encoders, their licences and what they need, or describe one of them."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa encoders`."""
    parser = command_parser("encoders", DESCRIPTION)
    parser.add_argument("name", nargs="?", help="Encoder to describe.")
    parser.add_argument(
        "--markdown", action="store_true", help="Print the page docs/encoders.md of the manual."
    )
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa encoders`."""
    args = parse_arguments(parser(), arguments)
    from ...features import catalogue_lines, catalogue_page, describe, names, readiness
    from ..terminal import OUT

    if args.markdown:
        OUT.print(catalogue_page(), markup=False, soft_wrap=True, highlight=False, end="")
    elif args.json:
        listed = [args.name] if args.name else names()
        rows = [{**describe(name), "here": readiness(name)} for name in listed]
        write_json(rows if args.name is None else rows[0])
    else:
        lines = [*catalogue_lines(args.name)]
        if args.name is not None:
            lines.append(f"    here: {readiness(args.name)}")
        OUT.print("\n".join(lines), markup=False, soft_wrap=True)
    return 0
