"""Stage 8: the recipes of the package, and the default one: the base of a run without a model."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import UnknownName
from .config import RunConfig, flatten, leaves, load_yaml

DEFAULT_RECIPE = Path(__file__).with_name("default.yaml")
FOLDER = "recipes"


def recipe_files() -> dict[str, Path]:
    """Return the recipes that come with the package by name: `paper`, `standins`, …

    A wheel has them in `probsa/recipes`; a checkout in `recipes`, the folder that wheels are
    made from.
    """
    package = Path(__file__).parents[1]
    recipes: dict[str, Path] = {}
    for folder in (package / FOLDER, package.parents[1] / FOLDER):
        if folder.is_dir():
            recipes = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
            break
    return recipes | {"default": DEFAULT_RECIPE}  # in the folder, it is a link


def find_recipe(given: Path) -> Path:
    """Return a file of the user, or the recipe of the package that `standins` or a path names.

    Raises:
        UnknownName: it is a bare name, and there is neither such a file nor such a recipe.
    """
    if given.exists():
        return given
    recipes = recipe_files()
    may_be_recipe = given.parent in (Path(), Path(FOLDER)) and given.suffix in ("", ".yaml")
    if may_be_recipe and given.stem in recipes:
        return recipes[given.stem]
    if given.name == str(given) and not given.suffix:
        raise UnknownName("file or recipe", given.name, recipes)
    return given


@cache
def default_recipe() -> Mapping[str, Any]:
    """Return the values of the default recipe by the full names of their keys."""
    return MappingProxyType(flatten(load_yaml(DEFAULT_RECIPE, what="default recipe")))


def recipe_sentence(config: RunConfig) -> str:
    """Return what a run by the default recipe trains, with its values of the recipe's keys."""
    # a recipe may name an argument of the model without its section
    values = {key.rpartition(".")[2]: value for key, value in leaves(config.to_dict())}
    settings: list[str] = []
    for key in default_recipe():
        short = key.rpartition(".")[2]
        if key != "model.name":
            settings.append(f"{short} {values[short]}")
    return (
        f"no model is given: training {config.model} by the default recipe "
        f"({', '.join(settings)}). "
        "For another model and the paper's recipe, add --model NAME"
    )
