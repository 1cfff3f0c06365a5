"""Run files and flags, checked against the signatures by jsonargparse: one schema for both."""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from ..errors import InputError, UnknownName, hint
from ..models import PRESET, arguments, build, fixed, names, option_groups, original
from .config import RENAMED, SECTIONS, RunConfig, flatten, load_yaml, section_of

FROM_DATA = {"in_dim", "class_weights", "seed"}
"""What the data, the loss settings and the run's seed say of a model, not its own section."""


@cache
def run_parser(model: str, preset: str = "paper") -> ArgumentParser:
    """The parser of a run with this model: its sections are constructors' signatures.

    `preset` says whose defaults the model's section has.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(prog="probsa train", exit_on_error=False, default_env=False)
    for name, section in SECTIONS.items():
        parser.add_class_arguments(section, name)
    parser.add_argument("--model.name", type=str, required=True, help="Registered name.")
    cls, _ = fixed(model)
    hidden = set(inspect.signature(cls).parameters) - set(arguments(model))
    parser.add_class_arguments(cls, "model", skip={*FROM_DATA, *hidden})
    for group in option_groups(model).values():
        parser.add_class_arguments(group, "model", as_group=False)
    if PRESET.name in arguments(model):
        words = "Whose defaults: the ProbSA paper's, or those of the method's authors."
        parser.add_argument("--model.preset", type=PRESET.annotation, default=preset, help=words)
    if preset == "original":
        parser.set_defaults({f"model.{k}": v for k, v in original(model).items()})
    # one logit or C is read off the labels unless it is given
    parser.set_defaults({"model.n_classes": None} if "model.n_classes" in keys(parser) else {})
    parser.add_argument("--seed", type=int, default=0, help="Of weights, order, noise and split.")
    words = "Of order and split alone, so that runs of several seeds meet the same batches."
    parser.add_argument("--data_seed", type=int | None, default=None, help=words)
    return parser


def keys(parser: ArgumentParser) -> list[str]:
    """Every key of a run file."""
    wanted = r"(data|training|model)\.\w+|(data_)?seed"
    return [a.dest for a in parser._actions if re.fullmatch(wanted, a.dest)]


def read_run(file: Path | None, flags: Mapping[str, Any]) -> RunConfig:
    """A run from a run file and flags (which win), both in dotted or short keys.

    Raises:
        UnknownName: a key or a model that does not exist; suggests the right one.
        InputError: a value of the wrong type; names the key, and the file where it came from there.
    """
    given = flatten(load_yaml(file)) if file is not None else {}
    origin = dict.fromkeys(given, f" in {file}") | dict.fromkeys(flags, "")
    return checked_run({**given, **flags}, origin=origin)


def checked_run(given: Mapping[str, Any], *, origin: Mapping[str, str]) -> RunConfig:
    """A run from dotted or short keys.

    Args:
        given: the keys and their values.
        origin: where each came from, as errors say it: ` in run.yaml`, or nothing for a flag.

    Raises:
        UnknownName, InputError: as `read_run`.
    """
    given, origin = dict(given), dict(origin)
    name = given.get("model.name")
    if name is None:
        raise InputError(f"no model is named: give --model, one of {', '.join(names())}")
    if name not in names():
        raise UnknownName(f"model{origin['model.name']}", str(name), names())
    preset = given.get("model.preset", given.get("preset", PRESET.default))
    known_presets = PRESET.name in arguments(name) and preset in get_args(PRESET.annotation)
    parser = run_parser(name, preset if known_presets else PRESET.default)
    known = keys(parser)
    short = [k for k in given if "." not in k and f"model.{k}" in known]
    given = {f"model.{k}" if k in short else k: v for k, v in given.items()}
    origin = {f"model.{k}" if k in short else k: v for k, v in origin.items()}
    for key in given:
        if key not in known:
            plain = [k.partition(".")[2] or k for k in known] + [*SECTIONS, "model"]
            raise UnknownName(f"key of a run{origin[key]}", key, known if "." in key else plain)
    for key in ("data.features", "data.labels"):
        if given.get(key) is None:
            raise InputError(f"no {key.partition('.')[2]} given: --{key.partition('.')[2]} PATH")
    try:
        parsed = parser.parse_args([f"--{k}={_text(v)}" for k, v in given.items()])
    except Exception as e:  # jsonargparse raises several kinds; all are the user's input
        raise InputError(_said(e, given, name=name, origin=origin)) from e
    return _config(parsed)


def _config(parsed: Namespace) -> RunConfig:
    values = parsed.as_dict()
    model = {k: v for k, v in values["model"].items() if (k, v) != ("n_classes", None)}
    config = RunConfig.from_dict({**values, "model": model})
    _check_model(config)
    return config


def _check_model(config: RunConfig) -> None:
    """A wrong value (heads that do not divide the width) shows before any file is read."""
    try:
        build(config.model, in_dim=8, **config.model_arguments)
    except (ValueError, AssertionError, RuntimeError) as e:
        raise InputError(f"model {config.model}: {e}") from e


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _said(
    error: Exception, given: Mapping[str, Any], *, name: str, origin: Mapping[str, str]
) -> str:
    """What was expected of a key, what came, and from which file."""
    text = " ".join(str(error).split())
    found = re.search(r'[Kk]ey "([\w.]+)"', text)
    if not found or found.group(1) not in given:
        return text
    key = found.group(1)
    short = key.rpartition(".")[2]
    kind = _annotation(key, name)
    value = given[key]
    near = [c for c in get_args(kind) if isinstance(c, str)]
    near += [c for part in get_args(kind) for c in get_args(part) if isinstance(c, str)]
    guess = hint(str(value), near)
    return f"{short or key}{origin.get(key, '')} is {value!r}; expected {expected(kind)}.{guess}"


def _annotation(key: str, model: str) -> Any:
    section, _, short = key.rpartition(".")
    of = SECTIONS.get(section)
    known = arguments(model) if of is None else inspect.signature(of).parameters
    return known[short].annotation if short in known else int


def described(model: str) -> list[str]:
    """Every key with what it expects, its default and its meaning: the help of `probsa train`."""
    parser = run_parser(model)
    known, lines = set(keys(parser)), []
    for action in parser._actions:
        if action.dest not in known:
            continue
        kind = "text" if action.dest == "model.name" else expected(_annotation(action.dest, model))
        default = "" if action.default is None else f"; default {_text(action.default)}"
        lines += [f"  {action.dest}: {kind}{default}", f"      {action.help}"]
    return lines


def expected(kind: Any) -> str:
    """An annotation in words.

    >>> expected(float | Literal["linear", "cyclical"])
    "a number, 'linear' or 'cyclical'"
    """
    words = {int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    origin, parts = get_origin(kind), get_args(kind)
    if kind in words:
        return words[kind]
    if origin is Literal:
        named = [repr(p) for p in parts]
    elif origin is tuple:
        return f"a list ({expected(parts[0])} each)"
    elif parts:
        named = [w for p in parts for w in re.split(r", | or ", expected(p))]
    else:
        return "a path" if kind is Path else "text"
    return " or ".join([", ".join(named[:-1]), named[-1]]) if named[1:] else named[0]


def commented(config: RunConfig) -> str:
    """The resolved run file, every key with what it means."""
    parser = run_parser(config.model)
    help_of = {a.dest: a.help for a in parser._actions}
    lines = ["# probsa train --config THIS_FILE --out RUN_FOLDER"]
    for section, values in config.to_dict().items():
        if not isinstance(values, dict):
            lines += ["", f"# {help_of.get(section)}", f"{section}: {_text(values)}"]
            continue
        lines += ["", f"{section}:"]
        for key, value in values.items():
            lines += [f"  # {help_of.get(f'{section}.{key}')}", f"  {key}: {_text(value)}"]
    return "\n".join(lines) + "\n"


def flags_of(given: Sequence[str], *, own: Mapping[str, bool]) -> tuple[dict[str, Any], dict]:
    """Flags of `probsa train` and `benchmark`: a run's (dotted keys) and the command's own.

    Args:
        given: what stands after the command.
        own: the command's own flags, and whether each takes a value.
    """
    run: dict[str, Any] = {}
    mine: dict[str, Any] = {}
    rest = list(given)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            raise InputError(f"{token!r} is not a flag: what follows is --flag VALUE each")
        key, equals, value = token[2:].partition("=")
        key = key.replace("-", "_")
        section, dot, short = key.rpartition(".")
        key = f"{section}{dot}{RENAMED.get(short, short)}"
        if key in own and not own[key]:
            mine[key] = True
            continue
        if not equals:
            if rest and not rest[0].startswith("--"):
                value = rest.pop(0)
            elif key in own or not _may_be_bare(key):
                raise InputError(f"--{key.replace('_', '-')} needs a value")
            else:
                value = "true"  # a bare --standardize means yes
        if key in own:
            mine[key] = value
        else:
            section = section_of(key)
            run["model.name" if key == "model" else f"{section}.{key}" if section else key] = value
    return run, mine


def _may_be_bare(key: str) -> bool:
    """Whether `--key` alone can mean yes: a true-or-false key, or one that only a model knows."""
    section, _, short = key.rpartition(".")
    owner = SECTIONS.get(section or section_of(short) or "")
    if owner is None:
        return key not in ("model", "seed", "data_seed")
    known = inspect.signature(owner).parameters
    return short not in known or known[short].annotation is bool
