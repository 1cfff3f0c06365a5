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

    def add(self, parser: Any, given: Mapping[str, str]) -> None:
        """Add the keys to a parser; of a model among the keys given, the arguments, too."""
        titles, keys = TITLES, section_keys()
        recipe = default_recipe() if self.with_recipe else {}
        model = given.get("model.name")
        if model is not None:
            from ...training import run_keys

            titles, recipe = TITLES | {"model": f"{OF_MODEL} {model}"}, {}
            keys = run_keys(model, given.get("model.preset", "paper"))
        for section, title in titles.items():
            group = parser.add_argument_group(title)
            for key in keys.values():
                if key.section != section or key.short in self.without or key.name == "model.name":
                    continue
                default = "" if key.default is None else f"; default {plain(key.default)}"
                if recipe.get(key.name) is not None:
                    default = f"; default {recipe[key.name]}, with --model {plain(key.default)}"
                words = f"{key.help} [{described(key.annotation)}{default}]"
                schema = json_schema(key.annotation)
                choices = [c for s in schema.get("anyOf", [schema]) for c in s.get("enum", ())]
                group.add_argument(
                    f"--{key.short.replace('_', '-')}", metavar="VALUE", choices=choices or None,
                    help=words.replace("%", "%%"),
                )  # fmt: skip

    def shorten(self, parser: argparse.ArgumentParser) -> None:
        """Leave the flags out of a parser's help that only --help-all lists."""
        shown = {*self.short, "help", "help_all", "json"}
        for group in parser._action_groups:
            for action in group._group_actions:
                if action.dest not in shown and group.title and OF_MODEL not in group.title:
                    action.help = argparse.SUPPRESS
