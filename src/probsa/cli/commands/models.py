"""probsa models: list the models, or the arguments of one model."""

from collections.abc import Sequence
from functools import reduce
from inspect import Parameter
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

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
    from ...models import catalogue_lines, catalogue_page, catalogue_rows, look_up
    from ..terminal import OUT

    if args.markdown:
        OUT.print(catalogue_page(), markup=False, soft_wrap=True, highlight=False, end="")
        return 0
    if args.name is None:
        rows = catalogue_rows()
        lines = catalogue_lines()
    else:
        registration = look_up(args.name)
        parameters = registration.arguments
        rows = {
            k: {
                "type": _type_name(p.annotation),
                "default": "(required)" if p.default is Parameter.empty else p.default,
            }
            for k, p in parameters.items()
        }
        lines = [
            f"{k:<22} {described(p.annotation)} = {rows[k]['default']}"
            for k, p in parameters.items()
        ]
        lines = [f"{args.name}: {registration.summary}", *lines]
    if args.json:
        write_json(rows)
    else:
        OUT.print("\n".join(lines), markup=False, soft_wrap=True)
    return 0


def _type_name(annotation: Any) -> str:
    """Return a type as code, without its limits."""
    kind = _without_limits(annotation)
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _without_limits(annotation: Any) -> Any:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _without_limits(parts[0])
    if origin in (Union, UnionType):
        return reduce(or_, (_without_limits(part) for part in parts))
    if origin is tuple:
        return tuple[tuple(_without_limits(part) for part in parts)]
    return annotation
