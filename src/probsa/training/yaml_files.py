"""Run files and grids as YAML: plain values, with errors that name the file and the line."""

import re
from pathlib import Path
from typing import Any

import yaml

from ..core import read_text, unusual
from ..errors import InputError

MOST = 100_000
"""Largest number of values in a run file, where an alias counts each time it is used."""
LARGEST = 2**20
"""Largest size of a run file in bytes."""


class _StrictLoader(yaml.SafeLoader):
    """Load YAML, but reject keys that are not text or are repeated (YAML would drop a value)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the signature of PyYAML
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node)
            problem = "is not text: write it in quotes if it is intended"
            if isinstance(key, str):
                problem = "is given twice" if key in seen else None
            if problem is not None:
                problem = f"the key {key!r} {problem}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1, which PyYAML follows, takes 1e-4 for text
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Return the value that a text denotes in a run file; the text itself if it is not YAML."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError):
        return text


def load_yaml(
    path: Path, *, what: str = "run file", least: str = "data and model"
) -> dict[str, Any]:
    """Read a run file, or `what` else has the keys of runs and needs at `least` some of them.

    Raises:
        InputError: the file is missing, is not YAML, or is not a mapping; names the file.
    """
    if not path.is_file():
        raise InputError(f"cannot read the {what} {path}: there is no such file")
    text = read_text(path, advice=f"give a {what} in UTF-8", largest=LARGEST)
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = "it is nested too deeply" if isinstance(e, RecursionError) else str(e)
        problem = getattr(e, "problem", None) or problem
        raise InputError(f"the {what} {path}{where} cannot be read as YAML: {problem}") from e
    if values is None:
        raise InputError(f"the {what} {path} is empty: it needs at least {least}")
    if not isinstance(values, dict):
        raise InputError(f"the {what} {path} contains {type(values).__name__}, not keys and values")
    if problem := unusual(values, most=MOST):
        raise InputError(f"the {what} {path} cannot be used: {problem}")
    return values
