"""probsa models."""

from functools import reduce
from inspect import Parameter
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from ..command import Answer


def run(name: str | None = None, *, markdown: bool = False) -> Answer:
    """List the models, or the arguments of one model.

    Args:
        name: Model whose arguments are listed.
        markdown: Print the page docs/models.md of the manual.
    """
    from ...core import described
    from ...models import catalogue_lines, catalogue_page, catalogue_rows, look_up

    if markdown:
        return Answer(catalogue_page(), catalogue_page())
    if name is None:
        return Answer(catalogue_rows(), "\n".join(catalogue_lines()))
    registration = look_up(name)
    rows, lines = {}, [f"{name}: {registration.summary}"]
    for key, p in registration.arguments.items():
        default = "(required)" if p.default is Parameter.empty else p.default
        rows[key] = {"type": _type_name(p.annotation), "default": default}
        lines.append(f"{key:<22} {described(p.annotation)} = {default}")
    return Answer(rows, "\n".join(lines))


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
