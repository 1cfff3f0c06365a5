"""Read stored JSON into typed values: every error names the file, the key and what is expected.

Files of a run folder may be damaged, or written by someone else. Nothing in them is used before its
type is checked.
"""

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from ..errors import InputError, ProbSAError
from .files import not_a_file
from .options import check_value, described

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
        raise error(f"{path} is damaged: byte {e.start} is not UTF-8 text. {_so(advice)}") from e


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
        raise error(f"{where} is damaged: it is nested too deeply. {_so(advice)}") from e
    except ValueError as e:
        raise error(f"{where} is damaged: it is not JSON ({e}). {_so(advice)}") from e
    problem = unusual(value)
    if problem is not None:
        raise error(f"{where} is damaged: {problem}. {_so(advice)}")
    return value


def read_record(
    cls: type[R],
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
    return as_record(cls, value, where=str(path), advice=advice, error=error, complete=complete)


def as_record(
    cls: type[R],
    value: Any,
    *,
    where: str,
    advice: str = COPY,
    error: type[ProbSAError] = InputError,
    complete: bool = False,
) -> R:
    """Convert a mapping that was read from a file to a dataclass.

    Lists become tuples where the annotation says so. Keys that are no fields are passed over: a
    later version may have written them.

    Args:
        cls: the dataclass.
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
            for f in fields(cls):  # pyright: ignore[reportArgumentType]
                if f.name not in value:
                    raise _WrongType(f"{f.name} is missing")
        return _typed(value, cls, "")
    except ProbSAError as e:  # a dataclass checks its own fields too
        raise error(f"{where} is damaged: {e}. {_so(advice)}") from e


def as_typed(
    value: Any,
    annotation: Any,
    *,
    where: str,
    advice: str = COPY,
    error: type[ProbSAError] = InputError,
) -> Any:
    """Convert a value as `as_record` does, to any annotation, such as `dict[str, str]`."""
    try:
        return _typed(value, annotation, "")
    except _WrongType as e:
        raise error(f"{where} is damaged: {e}. {_so(advice)}") from e


def convert_value(value: Any, annotation: Any, *, key: str) -> Any:
    """Check a value as `check_value` does, and convert it as `as_record` does.

    Raises:
        InputError: names the key, the value and what is expected.
    """
    if not is_dataclass(annotation):
        check_value(key, value, annotation)
    return _typed(value, annotation, key)


def unusual(value: Any, *, most: int = MOST) -> str | None:
    """Say what makes a nested value unfit for use: its depth, its size or a text; else None."""
    stack, count = [(value, 1)], 0
    while stack:
        item, depth = stack.pop()
        count += 1
        if depth > DEEPEST:
            return f"more than {DEEPEST} lists or mappings are within each other"
        if count > most:
            return f"it has more than {most:,} values"
        if isinstance(item, dict):
            stack += [(v, depth + 1) for pair in item.items() for v in pair]
        elif isinstance(item, list):
            stack += [(v, depth + 1) for v in item]
        elif isinstance(item, int) and item.bit_length() > LONGEST:
            return f"it has a number of {item.bit_length()} bits"
        elif isinstance(item, str) and not _is_text(item):
            return f"it has the text {_shown(item)}, which has characters that no text can have"
    return None


class _WrongType(InputError):
    """A value has another type than its annotation."""


def _typed(value: Any, annotation: Any, key: str) -> Any:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation(**dict(_fields(value, annotation, key)))
    if origin in (Union, types.UnionType):
        return _one_of(value, annotation, parts, key)
    if origin in (tuple, list):
        return _sequence(value, annotation, key)
    if origin in (dict, Mapping) or annotation is dict:
        if not isinstance(value, dict):
            raise _wrong(value, "keys and values", key)
        of_keys, of_values = parts or (Any, Any)
        return {
            _typed(k, of_keys, f"a key of {key or 'it'}"): _typed(v, of_values, _below(key, k))
            for k, v in value.items()
        }
    try:
        check_value("value", value, annotation)
    except InputError as e:
        raise _wrong(value, described(annotation), key) from e
    if origin is Annotated:
        return _typed(value, parts[0], key)
    return annotation(value) if annotation in (float, Path) else value


def _fields(value: Any, cls: Any, key: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _wrong(value, "keys and values", key)
    for f in fields(cls):
        if f.name in value:
            yield f.name, _typed(value[f.name], f.type, _below(key, f.name))
        elif f.default is MISSING and f.default_factory is MISSING:
            raise _WrongType(f"{_below(key, f.name)} is missing")


def _one_of(value: Any, annotation: Any, parts: tuple[Any, ...], key: str) -> Any:
    problems = []
    for part in parts:
        try:
            return _typed(value, part, key)
        except _WrongType as e:
            problems.append(e)
    structured = (list, dict)
    if isinstance(value, structured):  # the part that is a structure says what is wrong inside
        for part, problem in zip(parts, problems, strict=True):
            origin = get_origin(part)
            if origin in (tuple, list, dict, Mapping) or is_dataclass(part):
                raise problem
    raise _wrong(value, described(annotation), key)


def _sequence(value: Any, annotation: Any, key: str) -> Any:
    origin, parts = get_origin(annotation), get_args(annotation)
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list", key)
    if origin is list or parts[-1] is Ellipsis:
        each = [parts[0]] * len(value)
    elif len(value) == len(parts):
        each = list(parts)
    else:
        raise _wrong(value, f"a list of {len(parts)}", key)
    items = [
        _typed(v, part, f"{key}[{k}]") for k, (v, part) in enumerate(zip(value, each, strict=True))
    ]
    return items if origin is list else tuple(items)


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _wrong(value: Any, expected: str, key: str) -> _WrongType:
    return _WrongType(f"{key or 'its content'} is {_shown(value)}; expected {expected}")


def _shown(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return f"{'keys and values' if isinstance(value, dict) else 'a list'} ({len(value)})"
    text = ascii(value) if isinstance(value, str) and not _is_text(value) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _is_text(value: str) -> bool:
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _so(advice: str) -> str:
    return advice[:1].upper() + advice[1:]
