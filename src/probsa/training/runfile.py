"""Run files and flags, parsed by jsonargparse and checked against the model's signature."""

import inspect
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser, Namespace

from ..core import choices, described, limits_of
from ..errors import InputError, UnknownName, hint
from ..models import PRESET, arguments, build, fixed, names, option_groups, original, plain_model
from ..tasks import TASKS
from .config import SECTIONS, RunConfig
from .keys import RunKey, attribute_help, flatten, load_yaml, section_keys
from .recipes import default_recipe, names_model
from .selection import check_selection

FROM_DATA = {"in_dim", "class_weights", "seed"}
"""Arguments of a model that are not keys of a run: the data or the run's seed determine them."""
BY_RECIPE = " in the default recipe"
"""The origin of values that no one gave, in messages."""


@cache
def run_keys(model: str, preset: str = "paper") -> dict[str, RunKey]:
    """Return every key of a run with this model, by its name.

    Args:
        model: registered name of the model.
        preset: which defaults the model's arguments have, `paper` or `original`.
    """
    known = arguments(model)
    defaults = original(model) if preset == "original" else {}
    help_texts = _argument_help(model)
    name = RunKey(
        name="model.name", annotation=str, default=None, required=True, help="Registered name."
    )
    keys = [name]
    for argument, parameter in known.items():
        if argument in FROM_DATA:
            continue
        default = defaults.get(argument, parameter.default)
        if argument == "n_classes":  # determined from the labels unless it is given
            default = None
        elif argument == PRESET.name:
            default = preset
        keys.append(
            RunKey(
                name=f"model.{argument}",
                annotation=parameter.annotation,
                default=None if default is inspect.Parameter.empty else default,
                required=False,
                help=help_texts.get(argument, ""),
            )
        )
    in_sections = section_keys()
    first = {k: v for k, v in in_sections.items() if "." in k}
    seeds = {k: v for k, v in in_sections.items() if "." not in k}
    return {**first, **{key.name: key for key in keys}, **seeds}


def _argument_help(model: str) -> dict[str, str]:
    help_texts: dict[str, str] = {}
    for ancestor in reversed(fixed(model)[0].__mro__):
        documented = parse_docstring(inspect.cleandoc(ancestor.__doc__ or "")).params
        help_texts |= {p.arg_name: " ".join((p.description or "").split()) for p in documented}
    for options in option_groups(model).values():
        help_texts |= attribute_help(options)
    preset = "Which defaults to use: those of the ProbSA paper, or those of the method's authors."
    return {**help_texts, PRESET.name: preset}


@cache
def run_parser(model: str, preset: str = "paper") -> ArgumentParser:
    """Return the parser of a run with this model; see `run_keys` for the arguments."""
    parser = ArgumentParser(prog="probsa train", exit_on_error=False, default_env=False)
    for key in run_keys(model, preset).values():
        parser.add_argument(
            f"--{key.name}",
            type=key.annotation,
            default=key.default,
            required=key.required,
            help=key.help.replace("%", "%%"),
        )
    return parser


def read_run(file: Path | None, flags: Mapping[str, Any]) -> RunConfig:
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
    layers = [] if file is None else [(flatten(load_yaml(file)), f" in {file}")]
    layers.append((flatten(flags), ""))
    if not names_model(file, flags):
        given = [({k: v for k, v in keys.items() if k != "model.name"}, w) for keys, w in layers]
        layers = [(dict(default_recipe()), BY_RECIPE), *given]
    name = _checked_model(layers)
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for keys, where in layers:
        # in full, so that a key overrides another spelling of itself
        keys = _model_keys(name, keys)
        values |= keys
        origin |= dict.fromkeys(keys, where)
    of_recipe = origin.get("training.members") == BY_RECIPE
    task = TASKS.get(values.get("data.task", ""))  # None also for `auto` and for unknown names
    if of_recipe and task is not None and task.averages is None:
        values["training.members"] = 1
    return _checked(name, values, origin=origin)


def checked_run(values: Mapping[str, Any], *, origin: Mapping[str, str]) -> RunConfig:
    """Return the run that values by key describe; they must name a model.

    Args:
        values: values by key.
        origin: source of each key, as text for error messages: ` in run.yaml`; empty for a flag.

    Raises:
        UnknownName, InputError: as `read_run`.
    """
    name = _checked_model([(values, origin.get("model.name", ""))])
    return _checked(name, _model_keys(name, values), origin=_model_keys(name, origin))


def without_prior(config: RunConfig) -> RunConfig:
    """Return the run of the plain baseline if λ is 0, and the given run otherwise.

    λ = 0 means the plain model in the paper's ablation. Without the prior, the data alone would
    determine the variance of a Gaussian posterior. Arguments that the run sets and the baseline has
    are kept; the others have the baseline's defaults.
    """
    if config.training.kl_weight != 0:
        return config
    keys = run_keys(config.model)
    given = {k: v for k, v in config.model_arguments.items() if v != keys[f"model.{k}"].default}
    plain = plain_model(config.model, given)
    if plain is None:
        return config
    model, kept = plain
    values = {**config.to_dict(), "model": {"name": model, **kept}}
    return checked_run(flatten(values), origin={})


def _checked_model(layers: Sequence[tuple[Mapping[str, Any], str]]) -> str:
    """Return the name of the model in the last layer (values by key, their source) that has one."""
    named = [(v["model.name"], w) for v, w in layers if v.get("model.name") is not None]
    if not named:
        raise InputError(f"no model is given: add --model NAME, one of {', '.join(names())}")
    name, where = named[-1]
    if name not in names():
        raise UnknownName(f"model{where}", str(name), names())
    return name


def _checked(name: str, values: Mapping[str, Any], *, origin: Mapping[str, str]) -> RunConfig:
    """Return the run of a model, with the keys of its arguments in full."""
    preset = values.get("model.preset", PRESET.default)
    has_preset = PRESET.name in arguments(name) and preset in get_args(PRESET.annotation)
    preset = preset if has_preset else PRESET.default
    keys = run_keys(name, preset)
    for key in values:
        if key not in keys:
            _refuse_of_other_models(name, key, where=origin[key])
            short = [*(k.short for k in keys.values()), *SECTIONS, "model"]
            raise UnknownName(f"key of a run{origin[key]}", key, keys if "." in key else short)
    for key in ("data.features", "data.labels"):
        if values.get(key) is None:
            short = keys[key].short
            raise InputError(f"no {short} given: add --{short} PATH")
    try:
        parsed = run_parser(name, preset).parse_args(
            [f"--{k}={_text(v)}" for k, v in values.items()]
        )
    except Exception as e:  # jsonargparse raises several kinds; each is due to the user's input
        raise InputError(_explain(e, values, keys=keys, origin=origin)) from e
    return _config(parsed)


def _refuse_of_other_models(model: str, key: str, *, where: str) -> None:
    """Raise an InputError if only other models have this argument."""
    argument = key.removeprefix("model.")
    others = [n for n in names() if argument in arguments(n) and argument not in FROM_DATA]
    if others:
        some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        raise InputError(
            f"the model {model} has no argument {argument}{where}, but {some} "
            f"{'has' if len(others) == 1 else 'have'}: remove it, or give another --model"
        )


def _model_keys(model: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Write the keys of the model's arguments in full: `ridge` and `model.prior.ridge` alike."""
    nested = {
        f"{group}.{f.name}": f.name
        for group, options in option_groups(model).items()
        for f in fields(options)
    }
    known = arguments(model)
    named: dict[str, Any] = {}
    for key, value in values.items():
        short = key.removeprefix("model.")
        argument = nested.get(short, short)
        name = f"model.{argument}" if argument in known and argument not in FROM_DATA else key
        if name in named:
            raise InputError(f"the key {name} is given twice: remove one of the two")
        named[name] = value
    return named


def _config(parsed: Namespace) -> RunConfig:
    values = parsed.as_dict()
    model = {k: v for k, v in values["model"].items() if (k, v) != ("n_classes", None)}
    config = RunConfig.from_dict({**values, "model": model})
    # an impossible combination (heads that do not divide the width) fails before a file is read
    try:
        model = build(config.model, in_dim=8, **config.model_arguments)
    except (ValueError, AssertionError, RuntimeError) as e:
        raise InputError(f"model {config.model}: {e}") from e
    training = config.training
    check_selection(training.select, model, patience=training.patience, validation=True)
    return config


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _explain(
    error: Exception,
    values: Mapping[str, Any],
    *,
    keys: Mapping[str, RunKey],
    origin: Mapping[str, str],
) -> str:
    """Return which key has a wrong value, from which file, and what is expected instead."""
    text = " ".join(str(error).split())
    match = re.search(r'[Kk]ey "([\w.]+)"', text)
    if not match or match.group(1) not in values:
        return text
    key, value = keys[match.group(1)], values[match.group(1)]
    guess = hint(str(value), choices(key.annotation))
    where = origin.get(key.name, "")
    expected = described(key.annotation)
    if isinstance(value, str) and "," in value and "a list (" in expected:
        guess = f" Write a list in brackets: '[{value.replace(' ', '').replace(',', ', ')}]'."
    return f"{key.short}{where} is {value!r}; expected {expected}.{guess}"


def commented(config: RunConfig) -> str:
    """Return the complete run file as YAML, with a comment that explains each key."""
    keys = run_keys(config.model)
    lines = ["# probsa train --config THIS_FILE --out RUN_FOLDER"]
    for section, values in config.to_dict().items():
        if not isinstance(values, dict):
            lines += ["", *_comment(keys[section]), f"{section}: {_text(values)}"]
            continue
        lines += ["", f"{section}:"]
        for key, value in values.items():
            lines += _comment(keys[f"{section}.{key}"], indent="  ")
            lines.append(f"  {key}: {_text(value)}")
    return "\n".join(lines) + "\n"


def _comment(key: RunKey, *, indent: str = "") -> list[str]:
    lead = f"{indent}# "
    return textwrap.wrap(key.help, 98, initial_indent=lead, subsequent_indent=lead)


def run_schema(model: str | None) -> dict[str, Any]:
    """Return the JSON schema of a run file, written with its sections.

    Args:
        model: registered name of the model; None for run files that name no model, whose defaults
            are those of the default recipe.
    """
    recipe: Mapping[str, Any] = {}
    if model is None:
        recipe = default_recipe()
        model = str(recipe["model.name"])
    schema = json.loads(run_parser(model).get_completion_script("jsonschema"))
    for key in run_keys(model).values():
        section, _, short = key.name.rpartition(".")
        of_section = schema["properties"][section] if section else schema
        for limits in limits_of(key.annotation):
            stated = {
                "minimum": limits.at_least,
                "exclusiveMinimum": limits.above,
                "maximum": limits.at_most,
                "exclusiveMaximum": limits.below,
            }
            of_section["properties"][short] |= {k: v for k, v in stated.items() if v is not None}
    for key, value in _model_keys(model, recipe).items():
        section, _, short = key.rpartition(".")
        schema["properties"][section]["properties"][short]["default"] = value
    if recipe:
        schema["required"].remove("model")
        del schema["properties"]["model"]["required"]
        schema["properties"]["model"]["properties"]["name"]["const"] = model
    return schema
