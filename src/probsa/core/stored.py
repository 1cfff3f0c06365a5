"""Read stored JSON into typed values: every error names the file, the key and what is expected.

Files of a run folder may be damaged, or written by someone else. Nothing in them is used before its
type is checked.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError, ProbSAError
from .files import not_a_file
from .options import convert_value, is_text, shown

R = TypeVar("R")

LARGEST = 2**28
"""Largest size in bytes of a file that is read as text."""
DEEPEST = 64
"""Largest number of lists and mappings within each other."""
MOST = 10_000_000
"""Largest number of values in one file, where an alias of YAML counts each time it is used."""
LONGEST = 1000
"""Largest number of bits of a whole number: it fits into a float."""
COPY = "copy the file again, or make it again"


def read_text(
    path: Path, *, advice: str = COPY, error: type[ProbSAError] = InputError, largest: int = LARGEST
) -> str:
    """Read a text file in UTF-8.

    Args:
        path: the file.
        advice: what users can do about a damaged file; it ends the message.
        error: the kind of error to raise.
        largest: size in bytes above which the file is refused.

    Raises:
        ProbSAError: (of the kind `error`) the file is missing, too large or not UTF-8.
    """
    if not path.is_file():  # a pipe would be waited for
        raise error(f"{not_a_file(path)}: {advice}")
    try:
        size = path.stat().st_size
        if size > largest:
            raise error(f"{path} has {size:,} bytes, expected at most {largest:,}: {advice}")
        return path.read_text(encoding="utf-8")
    except OSError as e:
        raise error(f"{path} cannot be read ({e.strerror}): {advice}") from e
    except UnicodeDecodeError as e:
        raise error(
            f"{path} is damaged: byte {e.start} is not UTF-8 text. {_sentence(advice)}"
        ) from e


def read_json(path: Path, *, advice: str = COPY, error: type[ProbSAError] = InputError) -> Any:
    """Read a JSON file, whose types are not checked; see `read_text` and `parse_json`."""
    text = read_text(path, advice=advice, error=error)
    return parse_json(text, where=str(path), advice=advice, error=error)


def parse_json(
    text: str, *, where: str, advice: str = COPY, error: type[ProbSAError] = InputError
) -> Any:
    """Parse a JSON document.

    Args:
        text: the document.
        where: what error messages call it: its file.
        advice: what users can do about it.
        error: the kind of error to raise.

    Raises:
        ProbSAError: (of the kind `error`) it is not JSON, or is nested too deeply.
    """
    try:
        value = json.loads(text)
    except RecursionError as e:
        raise error(f"{where} is damaged: it is nested too deeply. {_sentence(advice)}") from e
    except ValueError as e:
        raise error(f"{where} is damaged: it is not JSON ({e}). {_sentence(advice)}") from e
    problem = unusual(value)
    if problem is not None:
        raise error(f"{where} is damaged: {problem}. {_sentence(advice)}")
    return value


def read_record(
    kind: type[R],
    path: Path,
    *,
    advice: str = COPY,
    error: type[ProbSAError] = InputError,
    complete: bool = False,
) -> R:
    """Read a JSON file into a dataclass; the arguments are those of `read_text` and `as_record`.

    Raises:
        ProbSAError: (of the kind `error`) the file is missing or damaged; names the key.
    """
    value = read_json(path, advice=advice, error=error)
    return as_record(kind, value, where=str(path), advice=advice, error=error, complete=complete)


def as_record(
    kind: type[R] | Any,
    value: Any,
    *,
    where: str,
    advice: str = COPY,
    error: type[ProbSAError] = InputError,
    complete: bool = False,
) -> R:
    """Convert what was read from a file to a dataclass or another type, by `convert_value`.

    Args:
        kind: the dataclass, or an annotation such as `dict[str, str]`.
        value: what was read.
        where: what error messages call it: its file.
        advice: what users can do about it.
        error: the kind of error to raise.
        complete: whether keys must be there whose fields have defaults.

    Raises:
        ProbSAError: (of the kind `error`) a key is missing or has another type.
    """
    try:
        if complete and isinstance(value, dict):
            for f in fields(kind):  # pyright: ignore[reportArgumentType]
                if f.name not in value:
                    raise InputError(f"{f.name} is missing")
        return convert_value(value, kind, key="")
    except ProbSAError as e:  # a dataclass checks its own fields too
        raise error(f"{where} is damaged: {e}. {_sentence(advice)}") from e


def unusual(value: Any, *, most: int = MOST) -> str | None:
    """Say what makes a nested value unfit for use: its depth, its size or a text; else None."""
    # a stack in place of recursion, which deep values would exhaust
    stack: list[tuple[Any, int]] = [(value, 1)]
    count = 0
    while stack:
        item, depth = stack.pop()
        count += 1
        if depth > DEEPEST:
            return f"more than {DEEPEST} lists or mappings are within each other"
        if count > most:
            return f"it has more than {most:,} values"
        if isinstance(item, dict):
            for key, part in item.items():
                stack += [(key, depth + 1), (part, depth + 1)]
        elif isinstance(item, list):
            stack += [(part, depth + 1) for part in item]
        elif isinstance(item, int) and item.bit_length() > LONGEST:
            return f"it has a number of {item.bit_length()} bits"
        elif isinstance(item, str) and not is_text(item):
            return f"it has the text {shown(item)}, which has characters that no text can have"
    return None


def _sentence(advice: str) -> str:
    return advice[:1].upper() + advice[1:]
