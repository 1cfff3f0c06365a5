"""The description of a set of LocalMIL: its `set.yaml`, or an entry of `localmil.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from ..errors import InputError, hint

KNOWN = Path(__file__).with_name("localmil.yaml")
DESCRIPTION = "set.yaml"
OPTIONAL = ("splits", "note")
EXAMPLES = {
    "title": "title: Lymph nodes, metastases by patch",
    "source": "source: where the data come from",
    "licence": "licence: CC0",
    "commit": "commit: release 2",
}
LocalGraph = Literal["chain", "grid", "knn", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SetDescription:
    """Where a set comes from, and how its bags are used."""

    title: str
    source: str
    licence: str
    commit: str
    """Version of the source: a commit, a release or a date."""
    graph: LocalGraph
    """`chain` needs coordinates with one axis, `grid` with two, `knn` any; see `GraphOptions`."""
    splits: Literal["fold"] = "fold"
    """The column of labels.csv with the parts; each fold is tested once."""
    note: str = ""


def describe(name: str, folder: Path) -> SetDescription:
    """Return the description of a set, from its `set.yaml` or from the known sets.

    Raises:
        InputError: there is none, or it is invalid.
    """
    own = folder / DESCRIPTION
    if own.is_file():
        return _description(_read_yaml(own), where=str(own))
    known = _read_yaml(KNOWN)
    if name not in known:
        raise InputError(
            f"the set {name!r} has no description: write {own} with the keys "
            f"{', '.join(f.name for f in fields(SetDescription))}"
        )
    return _description(known[name], where=f"{KNOWN.name}, {name}")


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML"
        raise InputError(
            f"{path}{line} cannot be read as YAML: {problem}. Write one `key: text` per line, and "
            "put a text that contains a colon in quotes"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a date that does not exist
        raise InputError(f"{path} cannot be read: {error}") from error


def _description(given: Any, *, where: str) -> SetDescription:
    names = [f.name for f in fields(SetDescription)]
    keys = f"the keys {', '.join(names)}"
    if not isinstance(given, dict):
        raise InputError(f"{where} has {given!r}: expected {keys}")
    for key in given:
        if key not in names:
            raise InputError(
                f"{where} has the unknown key {key!r}.{_advice(key, names)} Expected {keys}"
            )
    for key in names:
        if key not in given and key not in OPTIONAL:
            raise InputError(f"{where} lacks {key!r}: expected {keys}")
    choices = {"graph": get_args(LocalGraph), "splits": ("fold",)}
    for key, values in choices.items():
        if given.get(key, values[0]) not in values:
            raise InputError(f"{key} in {where} is {given[key]!r}: expected {', '.join(values)}")
    texts = {key: _text(key, value, where=where) for key, value in given.items()}
    return SetDescription(**texts)  # pyright: ignore[reportArgumentType]


def _advice(key: object, names: Sequence[str]) -> str:
    if key == "name":
        return " The name of a set is that of its folder; its heading has the key 'title'."
    return hint(str(key), names)


def _text(key: str, value: object, *, where: str) -> str:
    """Return the text of a key, which only `note` may leave empty.

    Raises:
        InputError: there is no text, or it is a list, a mapping or a YAML truth value.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        if key in OPTIONAL:
            return ""
        raise InputError(
            f"{key} in {where} is empty: expected a text, for example `{EXAMPLES[key]}`"
        )
    if isinstance(value, bool) or not isinstance(value, str | int | float | date):
        raise InputError(
            f"{key} in {where} is {value!r}: expected a text; put it in quotes, for example "
            f'`{key}: "{value}"`'
        )
    return str(value).strip()
