"""Keys of a run as flags, for the help and the completion of `probsa train` and `benchmark`."""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...core import described, json_schema
from ...training import default_recipe, plain, section_keys

TITLES = {
    "data": "keys of the section data",
    "training": "keys of the section training",
    "": "other keys of a run",
}
OF_MODEL = "arguments of the model"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKeys:
    """The keys of a run that a command takes."""

    usage: str
    without: Collection[str] = ()
    """Keys, without their section, that are not flags of this command."""
    with_recipe: bool = False
    """Whether the default recipe holds if no model is given."""
    short: Collection[str] = ()
    """Flags that --help lists, beside the arguments of a model that is given; all if empty."""

    def add(self, parser: Any, values: Mapping[str, str]) -> None:
        """Add the keys to a parser; if a model is among their `values`, its arguments, too."""
        titles = TITLES
        keys = section_keys()
        recipe = default_recipe() if self.with_recipe else {}
        model = values.get("model.name")
        if model is not None:
            from ...training import run_keys

            titles = TITLES | {"model": f"{OF_MODEL} {model}"}
            recipe = {}
            keys = run_keys(model, values.get("model.preset", "paper"))
        for section, title in titles.items():
            group = parser.add_argument_group(title)
            for key in keys.values():
                is_flag = key.short not in self.without and key.name != "model.name"
                if key.section == section and is_flag:
                    group.add_argument(
                        f"--{key.short.replace('_', '-')}",
                        metavar="VALUE",
                        choices=_choices(key.annotation),
                        help=_help_of(key, recipe).replace("%", "%%"),
                    )

    def shorten(self, parser: argparse.ArgumentParser) -> None:
        """Leave the flags out of a parser's help that only --help-all lists."""
        shown = {*self.short, "help", "help_all", "json"}
        for group in parser._action_groups:
            for action in group._group_actions:
                if action.dest not in shown and group.title and OF_MODEL not in group.title:
                    action.help = argparse.SUPPRESS


def _help_of(key: Any, recipe: Mapping[str, Any]) -> str:
    """Return the help of a key, with its type, its default and that of the default recipe."""
    default = ""
    if recipe.get(key.name) is not None:
        default = f"; default {recipe[key.name]}, with --model {plain(key.default)}"
    elif key.default is not None:
        default = f"; default {plain(key.default)}"
    return f"{key.help} [{described(key.annotation)}{default}]"


def _choices(annotation: Any) -> list[Any] | None:
    """Return the words that a key may have; None if it may have others."""
    schema = json_schema(annotation)
    choices: list[Any] = []
    for alternative in schema.get("anyOf", [schema]):
        choices += alternative.get("enum", ())
    return choices or None
