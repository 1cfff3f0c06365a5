"""probsa models: the models, or one model's arguments."""

from typing import Annotated, Any, get_args, get_origin

from ._shared import Parser, write_json


def run(arguments: list[str]) -> int:
    """probsa models."""
    parser = Parser(prog="probsa models", description="The models, or one model's arguments.")
    parser.add_argument("name", nargs="?", help="a model, to see its arguments")
    parser.add_argument("--markdown", action="store_true", help="the page docs/models.md")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    a = parser.parse_args(arguments)
    from ...models import arguments as arguments_of
    from ...models import (
        catalogue_lines,
        catalogue_page,
        catalogue_rows,
        summary,
    )
    from ..terminal import OUT

    if a.markdown:
        OUT.print(catalogue_page(), markup=False, soft_wrap=True, highlight=False, end="")
        return 0
    if a.name is None:
        rows = catalogue_rows()
        shown = catalogue_lines()
    else:
        found = arguments_of(a.name)
        rows = {k: {"type": _type(p), "default": _default(p)} for k, p in found.items()}
        shown = [f"{k:<22} {v['type']} = {v['default']}" for k, v in rows.items()]
        shown = [f"{a.name}: {summary(a.name)}", *shown]
    if a.json:
        write_json(rows)
    else:
        OUT.print("\n".join(shown), markup=False, soft_wrap=True)
    return 0


def _type(parameter: Any) -> str:
    kind = _without_limits(parameter.annotation)
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _without_limits(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return get_args(kind)[0]
    if get_origin(kind) is tuple:
        return tuple[tuple(_without_limits(part) for part in get_args(kind))]
    return kind


def _default(parameter: Any) -> Any:
    return "(required)" if parameter.default is parameter.empty else parameter.default
