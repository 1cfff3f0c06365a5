"""Run files and flags: read into a configuration, and written as a file or a schema."""

import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from ..core import json_schema
from ..errors import InputError
from ..models import PRESET, Model, arguments, build, look_up, plain_model
from .config import SECTIONS, RunConfig, RunKey, flatten, plain, section_keys
from .given import FROM_DATA, Given, check_keys, given_run, registered_model
from .recipes import default_recipe
from .validation import check_selection


@cache
def run_keys(model: str, preset: str = "paper") -> dict[str, RunKey]:
    """Return every key of a run with a model by name; the preset gives its arguments' defaults."""
    registration = look_up(model)
    preset_values = dict(registration.original) if preset == "original" else {}
    preset_values[PRESET] = preset
    preset_values["n_classes"] = None  # determined from the labels unless it is given
    keys = {name: key for name, key in section_keys().items() if key.section}
    keys["model.name"] = RunKey(
        name="model.name", annotation=str, required=True, help="Registered name."
    )
    for argument, parameter in registration.arguments.items():
        default = preset_values.get(argument, parameter.default)
        if argument not in FROM_DATA:
            keys[f"model.{argument}"] = RunKey(
                name=f"model.{argument}",
                annotation=parameter.annotation,
                default=None if default is inspect.Parameter.empty else default,
                help=registration.help.get(argument, ""),
            )
    return keys | section_keys()


def read_run(file: Path | str | None, flags: Mapping[str, Any]) -> RunConfig:
    """Return the run that a run file and flags describe; flags take precedence.

    If neither names a model, both override the default recipe, key by key. A regression has one
    member then unless they say otherwise, as the quantiles of several models cannot be averaged.

    Args:
        file: the run file, if there is one.
        flags: values by key; keys may be written with or without their section.

    Raises:
        UnknownName: a key or a model does not exist; suggests the nearest.
        InputError: a value has the wrong type; names the key, and the file that contains it.
    """
    run = given_run(file, flags)
    return _run(run.model, run.values)


def checked_run(values: Mapping[str, Any], *, where: str = "") -> RunConfig:
    """Return the run that values by the full names of their keys describe, as `read_run` does.

    They must name a model. `where` is their source in error messages, such as ` in run.yaml`.
    """
    settings = {key: (value, where) for key, value in values.items()}
    model = registered_model(settings)
    settings = flatten(settings, arguments(model).keys() - FROM_DATA)
    check_keys(model, settings)
    return _run(model, settings)


def without_prior(config: RunConfig) -> RunConfig:
    """Return the run of the plain baseline if λ is 0, and the given run otherwise.

    λ = 0 means the plain model in the paper's ablation. Without the prior, the data alone would
    determine the variance of a Gaussian posterior. Arguments that the run sets and the baseline has
    are kept; the others have the baseline's defaults.
    """
    if config.training.kl_weight != 0:
        return config
    keys = run_keys(config.model)
    chosen_arguments: dict[str, Any] = {}
    for argument, value in config.model_arguments.items():
        if value != keys[f"model.{argument}"].default:
            chosen_arguments[argument] = value
    baseline = plain_model(config.model, chosen_arguments)
    if baseline is None:
        return config
    model, model_arguments = baseline
    return checked_run(flatten({**config.to_dict(), "model": {"name": model, **model_arguments}}))


def _run(model: str, settings: Given) -> RunConfig:
    """Return the run of a model, with the keys of its arguments in full."""
    preset = settings.get("model.preset", ("paper", ""))[0]
    keys = run_keys(model, "original" if preset == "original" else "paper")
    values = {name: key.default for name, key in keys.items() if key.section == "model"}
    for name, (value, where) in settings.items():
        values[name] = keys[name].read(value, where=where)
    values["model.name"] = model
    if values.get("model.n_classes", 0) is None:
        del values["model.n_classes"]
    config = RunConfig.of_keys(values)
    # Only a constructor knows which values fit one another, such as heads and width. A small model
    # is built for that before a file is read.
    try:
        small_model = _small_model(model, config.model_arguments)
    except (ValueError, AssertionError, RuntimeError) as e:
        raise InputError(f"model {model}: {e}") from e
    check_selection(config.training, small_model, validation=True)
    return config


def _small_model(model: str, model_arguments: Mapping[str, Any]) -> Model:
    """Return a model of bags with few features, whose parameters may have no values.

    Values are drawn only for a constructor that reads them, since those of a large model take most
    of the time that a grid of many runs needs to be read.
    """
    try:
        with torch.device("meta"):
            return build(model, in_dim=8, **model_arguments)
    except (ValueError, AssertionError, RuntimeError, TypeError):
        # the arguments are wrong, or the constructor reads values: without "meta", this shows
        return build(model, in_dim=8, **model_arguments)


def commented(config: RunConfig) -> str:
    """Return the complete run file as YAML, with a comment that explains each key."""
    keys = run_keys(config.model)
    lines = ["# probsa train --config THIS_FILE --out RUN_FOLDER"]

    def add_key(name: str, value: Any, indent: str = "") -> None:
        comment = f"{indent}# "
        lines.extend(
            textwrap.wrap(keys[name].help, 98, initial_indent=comment, subsequent_indent=comment)
        )
        text = yaml.safe_dump(value, default_flow_style=True)
        text = text.removesuffix("\n...\n").strip()  # YAML's end of a document
        lines.append(f"{indent}{keys[name].short}: {text}")

    for section, values in config.to_dict().items():
        lines.append("")
        if not isinstance(values, dict):
            add_key(section, values)
            continue
        lines.append(f"{section}:")
        for key, value in values.items():
            add_key(f"{section}.{key}", value, "  ")
    return "\n".join(lines) + "\n"


def run_schema(model: str | None) -> dict[str, Any]:
    """Return the JSON schema of a run file, written with its sections.

    Without a model, it is that of files that name none and have the default recipe's defaults.
    """
    recipe = default_recipe() if model is None else {}
    name = str(recipe["model.name"]) if model is None else model
    defaults = flatten(recipe, arguments(name).keys() - FROM_DATA)
    parts: dict[str, dict[str, Any]] = {
        part: {"type": "object", "additionalProperties": False, "properties": {}}
        for part in ("", *SECTIONS, "model")
    }
    for key in run_keys(name).values():
        schema = {**json_schema(key.annotation), "description": key.help}
        default = defaults.get(key.name, key.default)
        if default is not None:
            schema["default"] = plain(default)
        parts[key.section]["properties"][key.short] = schema
        if key.required:
            parts[key.section].setdefault("required", []).append(key.short)
    whole = parts.pop("")
    whole["properties"] |= parts
    whole["required"] = ["data"] if recipe else ["data", "model"]
    if recipe:
        del parts["model"]["required"]
        parts["model"]["properties"]["name"]["const"] = name
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}
