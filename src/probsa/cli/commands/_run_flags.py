"""Flags that are keys of a run or a grid, for `probsa train` and `probsa benchmark`.

Which keys there are depends on the model (and on the grid), so these flags are separated from the
command's own, which jsonargparse parses, and are checked where run files are.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from ...core import described
from ...errors import InputError
from ...training import RunKey, full_name, plain, section_keys
from ._shared import parse_arguments

TITLES = {
    "data": "keys of the section data",
    "training": "keys of the section training",
    "": "other keys of a run",
}


def parse_with_run_flags(
    parser: ArgumentParser, arguments: Sequence[str]
) -> tuple[Namespace, dict[str, Any]]:
    """Return a command's own arguments, and the keys of a run with their values as text.

    Both `--batch-size 4` and `--batch_size=4` are understood, with or without the section; a
    true-or-false key alone means true.

    Raises:
        InputError: a flag has no value, or one of the command's own arguments is wrong.
    """
    own = parser.get_defaults().as_dict()
    own_arguments: list[str] = []
    run: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            own_arguments.append(token)
            continue
        key, equals, value = token[2:].partition("=")
        key = key.replace("-", "_")
        is_switch = isinstance(own.get(key), bool)
        if not equals and not is_switch and rest and not rest[0].startswith("--"):
            value, equals = rest.pop(0), "="
        if key in own:
            own_arguments.append(f"--{key.replace('_', '-')}{equals}{value}")
        elif equals or _may_stand_alone(key):
            run[full_name(key)] = value if equals else "true"
        else:
            raise InputError(f"--{key.replace('_', '-')} needs a value")
    return parse_arguments(parser, own_arguments), run


def _may_stand_alone(key: str) -> bool:
    """Return whether `--key` alone can mean true: only the model knows about its own keys."""
    known = section_keys().get(full_name(key))
    return key != "model" if known is None else known.annotation is bool


def add_run_flags(
    parser: ArgumentParser,
    *,
    without: Collection[str] = (),
    recipe: Mapping[str, Any] | None = None,
) -> None:
    """Add the keys of a run that do not depend on the model, for help and shell completion.

    Args:
        parser: the command's parser.
        without: keys, without their section, that are not flags of this command.
        recipe: values by full key of a run that names no model, for the help.
    """
    keys = [k for k in section_keys().values() if k.short not in without]
    for section, title in TITLES.items():
        in_section = [k for k in keys if k.name.rpartition(".")[0] == section]
        if in_section:
            add_keys(parser.add_argument_group(title), in_section, recipe=recipe)


def add_keys(
    group: Any, keys: Iterable[RunKey], *, recipe: Mapping[str, Any] | None = None
) -> None:
    """Add keys of a run to a group of a parser, as flags without their section."""
    for key in keys:
        default = "" if key.default is None else f"; default {plain(key.default)}"
        by_recipe = (recipe or {}).get(key.name)
        if by_recipe is not None:
            default = f"; default {by_recipe}, with --model {plain(key.default)}"
        group.add_argument(
            f"--{key.short.replace('_', '-')}",
            type=key.annotation,
            default=key.default,
            metavar="VALUE",
            help=f"{key.help} [{described(key.annotation)}{default}]".replace("%", "%%"),
        )
