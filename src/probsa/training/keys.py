"""The keys of a run file and of the flags of a run: their names, types, defaults and help texts.

A key is written with its section (`training.epochs`) or without (`epochs`). Nested options are
flat: `graph: {kind: knn, neighbours: 4}` means the same as `graph: knn` and `neighbours: 4`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from docstring_parser import parse_from_object

from ..core import read_text, unusual
from ..errors import InputError
from .config import SECTIONS, RunConfig, flat_name

MOST = 100_000
"""Largest number of values in a run file, where an alias counts each time it is used."""
LARGEST = 2**20
"""Largest size of a run file in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKey:
    """One key of a run."""

    name: str
    """With its section: `training.epochs`."""
    annotation: Any
    default: Any
    """None if there is no default; see `required`."""
    required: bool
    help: str

    @property
    def short(self) -> str:
        """The name without its section."""
        return self.name.rpartition(".")[2]


@cache
def section_keys() -> dict[str, RunKey]:
    """Return every key of a run that does not depend on the model, by its name."""
    seeds = [k for k in _options_keys(RunConfig, "") if k.short in ("seed", "data_seed")]
    sections = [k for name, options in SECTIONS.items() for k in _options_keys(options, f"{name}.")]
    return {key.name: key for key in (*sections, *seeds)}


def attribute_help(options: type[Any]) -> dict[str, str]:
    """Return the attribute docstrings of a dataclass, each as one line."""
    documented = parse_from_object(options).params
    return {p.arg_name: " ".join((p.description or "").split()) for p in documented}


def _options_keys(options: type[Any], prefix: str) -> Iterator[RunKey]:
    help_texts = attribute_help(options)
    for f in fields(options):
        if isinstance(f.type, type) and is_dataclass(f.type):
            for key in _options_keys(f.type, ""):
                yield _renamed(key, prefix + flat_name(f.name, key.name))
            continue
        required = f.default is MISSING and f.default_factory is MISSING
        yield RunKey(
            name=prefix + f.name,
            annotation=f.type,
            default=None if required else f.default,
            required=required,
            help=help_texts.get(f.name, ""),
        )


def _renamed(key: RunKey, name: str) -> RunKey:
    return RunKey(
        name=name,
        annotation=key.annotation,
        default=key.default,
        required=key.required,
        help=key.help,
    )


@cache
def nested_names() -> dict[str, str]:
    """Return the flat name of each nested key: `data.graph.neighbours` is `data.neighbours`."""
    return {
        f"{section}.{f.name}.{g.name}": f"{section}.{flat_name(f.name, g.name)}"
        for section, options in SECTIONS.items()
        for f in fields(options)
        if isinstance(f.type, type) and is_dataclass(f.type)
        for g in fields(f.type)
    }


def section_of(key: str) -> str | None:
    """Return the section of a key that is written without one, or None if no section has it."""
    return next((n for n in SECTIONS if f"{n}.{key}" in section_keys()), None)


def full_name(key: str) -> str:
    """Return a key with its section and its flat name; unknown keys are returned as they are.

    >>> full_name("epochs"), full_name("graph.neighbours"), full_name("model")
    ('training.epochs', 'data.neighbours', 'model.name')
    """
    if key == "model":
        return "model.name"
    if key in nested_names():
        return nested_names()[key]
    section = section_of(key.partition(".")[0])
    if section is None or key.partition(".")[0] in SECTIONS:
        return key
    return nested_names().get(f"{section}.{key}", f"{section}.{key}")


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run file by the full names of their keys.

    >>> flatten({"epochs": 5, "model": "abmil", "data": {"graph": {"neighbours": 4}}})
    {'training.epochs': 5, 'model.name': 'abmil', 'data.neighbours': 4}

    Raises:
        InputError: a key is given twice, for example nested and flat.
    """
    flat: dict[str, Any] = {}
    for key, value in _leaves(values):
        name = full_name(key)
        if name in flat:
            raise InputError(f"the key {name} is given twice: remove one of the two")
        flat[name] = value
    return flat


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class _StrictLoader(yaml.SafeLoader):
    """Load YAML, but reject keys that are not text or are repeated (YAML would drop a value)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the signature of PyYAML
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            problem = None
            if not isinstance(key, str):
                problem = f"the key {key!r} is not text: write it in quotes if it is intended"
            elif key in seen:
                problem = f"the key {key!r} is given twice"
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(
    path: Path, *, what: str = "run file", least: str = "data and model"
) -> dict[str, Any]:
    """Read a run file, or another YAML file with the keys of runs, as nested plain values.

    Args:
        path: the file.
        what: what error messages call the file.
        least: the keys that an error message about an empty file asks for.

    Raises:
        InputError: the file is missing, is not YAML, or is not a mapping; names the file.
    """
    if not path.is_file():
        raise InputError(f"cannot read the {what} {path}: there is no such file")
    try:
        text = read_text(path, advice=f"give a {what} in UTF-8", largest=LARGEST)
        values = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(e, "problem", None) or "it cannot be parsed"
        raise InputError(f"the {what} {path}{where} cannot be read as YAML: {problem}") from e
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        if isinstance(e, InputError):
            raise
        problem = "it is nested too deeply" if isinstance(e, RecursionError) else e
        raise InputError(f"the {what} {path} cannot be read as YAML: {problem}") from e
    problem = unusual(values, most=MOST)
    if problem is not None:
        raise InputError(f"the {what} {path} cannot be used: {problem}")
    if values is None:
        raise InputError(f"the {what} {path} is empty: it needs at least {least}")
    if not isinstance(values, dict):
        raise InputError(f"the {what} {path} contains {type(values).__name__}, not keys and values")
    return values
