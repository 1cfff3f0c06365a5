"""probsa models: list the models, or the arguments of one model."""

from collections.abc import Sequence
from inspect import Parameter
from typing import Any

from jsonargparse import ArgumentParser

from ._shared import add_json_flag, command_parser, parse_arguments, write_json

DESCRIPTION = """\
List the models, or the arguments of one model."""


def parser() -> ArgumentParser:
    """Return the parser of `probsa models`."""
    parser = command_parser("models", DESCRIPTION)
    parser.add_argument("name", nargs="?", help="Model whose arguments are listed.")
    parser.add_argument(
        "--markdown", action="store_true", help="Print the page docs/models.md of the manual."
    )
    add_json_flag(parser)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run `probsa models`."""
    args = parse_arguments(parser(), arguments)
    from ...core import described
    from ...models import arguments as model_arguments
    from ...models import catalogue_lines, catalogue_page, catalogue_rows, summary
    from ..terminal import OUT

    if args.markdown:
        OUT.print(catalogue_page(), markup=False, soft_wrap=True, highlight=False, end="")
        return 0
    if args.name is None:
        rows = catalogue_rows()
        lines = catalogue_lines()
    else:
        parameters = model_arguments(args.name)
        rows = {
            k: {"type": described(p.annotation), "default": _default(p)}
            for k, p in parameters.items()
        }
        lines = [f"{k:<22} {row['type']} = {row['default']}" for k, row in rows.items()]
        lines = [f"{args.name}: {summary(args.name)}", *lines]
    if args.json:
        write_json(rows)
    else:
        OUT.print("\n".join(lines), markup=False, soft_wrap=True)
    return 0


def _default(parameter: Parameter) -> Any:
    return "(required)" if parameter.default is parameter.empty else parameter.default
