"""Stage 8: the default recipe, `default.yaml`: the base of a run that names no model."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .config import RunConfig
from .keys import flatten, load_yaml

DEFAULT_RECIPE = Path(__file__).with_name("default.yaml")


@cache
def default_recipe() -> Mapping[str, Any]:
    """Return the values of the default recipe by the full names of their keys."""
    return MappingProxyType(flatten(load_yaml(DEFAULT_RECIPE, what="default recipe")))


def names_model(file: Path | None, flags: Mapping[str, Any]) -> bool:
    """Return whether a run file or flags name a model; otherwise the run has the default recipe.

    Args:
        file: the run file, if there is one.
        flags: values by key.
    """
    given = {} if file is None else flatten(load_yaml(file))
    return any(values.get("model.name") is not None for values in (given, flatten(flags)))


def recipe_sentence(config: RunConfig) -> str:
    """Return a sentence that says what a run by the default recipe trains.

    It names each key of the recipe with the value that the run has for it.
    """
    values = config.to_dict()
    stated = []
    for key in default_recipe():
        section, short = key.partition(".")[0], key.rpartition(".")[2]
        if key != "model.name":
            stated.append(f"{short} {(values[section] if '.' in key else values)[short]}")
    return (
        f"no model is given: training {config.model} by the default recipe ({', '.join(stated)}). "
        "For another model and the paper's recipe, add --model NAME"
    )
