"""probsa models."""

from inspect import Parameter
from typing import get_type_hints

from ...errors import UnknownName
from ..command import Answer


def run(name: str | None = None, *, markdown: bool = False) -> Answer:
    """List the models, or the arguments of one model.

    Args:
        name: Model whose arguments are listed.
        markdown: Print the page docs/models.md of the manual.
    """
    from ...models import catalogue_lines, catalogue_rows, known_names

    if name is not None and name not in (known := known_names()):
        raise UnknownName("model", name, known)
    if name is None and not markdown:
        return Answer(catalogue_rows(), "\n".join(catalogue_lines()))
    from ...core import described
    from ...models import catalogue_page, look_up

    if markdown:
        return Answer(catalogue_page(), catalogue_page())
    assert name is not None
    registration = look_up(name)
    rows = {}
    lines = [f"{name}: {registration.summary}"]

    def model() -> None: ...

    model.__annotations__ = {key: p.annotation for key, p in registration.arguments.items()}
    for key, kind in get_type_hints(model).items():  # without limits
        p = registration.arguments[key]
        default = "(required)" if p.default is Parameter.empty else p.default
        as_code = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        rows[key] = {"type": as_code, "default": default}
        lines.append(f"{key:<22} {described(p.annotation)} = {default}")
    return Answer(rows, "\n".join(lines))
