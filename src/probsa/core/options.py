"""Checks of option values against their annotations.

An annotation states everything that is known about an option: its type, the `Literal` choices, and,
as `Annotated[int, Limits(at_least=1)]`, its numeric limits.
"""

import math
import types
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import InputError, hint


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The range of a finite number, for annotations such as `Annotated[float, Limits(above=0)]`.

    Limits of a union, as in `Annotated[float | Literal["linear"], Limits(at_least=0)]`, apply to
    its numbers.
    """

    at_least: int | float | None = None
    above: int | float | None = None
    at_most: int | float | None = None
    below: int | float | None = None

    def contain(self, number: int | float) -> bool:
        """Return whether a finite number lies within the limits; NaN and infinity never do."""
        return (
            math.isfinite(number)
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        stated = [
            ("at least", self.at_least),
            ("more than", self.above),
            ("at most", self.at_most),
            ("less than", self.below),
        ]
        return " and ".join(f"{w} {v:g}" for w, v in stated if v is not None) or "a finite number"


PositiveInt = Annotated[int, Limits(at_least=1)]
NonNegativeInt = Annotated[int, Limits(at_least=0)]
PositiveFloat = Annotated[float, Limits(above=0)]
NonNegativeFloat = Annotated[float, Limits(at_least=0)]
UnitInterval = Annotated[float, Limits(at_least=0, at_most=1)]
Rate = Annotated[float, Limits(at_least=0, below=1)]


def check_options(options: object) -> None:
    """Check every field of a dataclass against its annotation; call it in `__post_init__`.

    Raises:
        InputError: names the field, its value and what is expected.
    """
    for f in fields(options):  # pyright: ignore[reportArgumentType]
        check_value(f.name, getattr(options, f.name), f.type)


def check_value(key: str, value: object, annotation: Any) -> None:
    """Check one value against an annotation; parts of it that are not understood accept anything.

    Raises:
        InputError: names the key, the value and what is expected.
    """
    expectation = _expectation(value, annotation)
    if expectation is not None:
        guess = hint(value, choices(annotation)) if isinstance(value, str) else ""
        shown = repr(value) if isinstance(value, str) else value
        raise InputError(f"{key} is {shown}; expected {expectation}{'.' + guess if guess else ''}")


def choices(annotation: Any) -> list[str]:
    """Return the texts that an annotation offers as choices."""
    if get_origin(annotation) is Literal:
        return [c for c in get_args(annotation) if isinstance(c, str)]
    return [c for part in get_args(annotation) for c in choices(part)]


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of the values that an annotation describes."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if get_origin(parts[0]) in (Union, types.UnionType):  # limits apply to its numbers
            return json_schema(_spread_limits(parts))
        names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        marks = [
            (m.at_least, m.above, m.at_most, m.below) for m in parts[1:] if isinstance(m, Limits)
        ]
        limits = [(k, v) for mark in marks for k, v in zip(names, mark, strict=True)]
        return json_schema(parts[0]) | {k: v for k, v in limits if v is not None}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [json_schema(part) for part in parts]}
    if origin is tuple:
        if parts[-1] is Ellipsis:
            return {"type": "array", "items": json_schema(parts[0])}
        each = [json_schema(part) for part in parts]
        return {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
    kinds = {int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": kinds.get(annotation, "string")}


def described(annotation: Any) -> str:
    """Return an annotation in words.

    >>> described(float | Literal["linear", "cyclical"])
    "a number, 'linear' or 'cyclical'"
    >>> described(PositiveInt | None)
    'a whole number (at least 1) or null'
    """
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in words:
        return words[annotation]
    if annotation in (None, type(None)):
        return "null"
    if origin is Annotated:
        if get_origin(parts[0]) in (Union, types.UnionType):
            return described(_spread_limits(parts))
        words = " and ".join(str(mark) for mark in parts[1:] if isinstance(mark, Limits))
        return f"{described(parts[0])} ({words})" if words else described(parts[0])
    if origin is tuple:
        return f"a list ({described(parts[0])} each)"
    if origin is Literal:
        return _listed([repr(p) for p in parts])
    if origin in (Union, types.UnionType):
        alternatives = []
        for part in parts:
            several = get_origin(part) is Literal
            alternatives += [repr(p) for p in get_args(part)] if several else [described(part)]
        return _listed(alternatives)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation.__name__
    return "a path" if annotation is Path else "text"


def _spread_limits(parts: tuple[Any, ...]) -> Any:
    """Return the union of an `Annotated`, whose limits then stand at its numbers."""
    limits = [mark for mark in parts[1:] if isinstance(mark, Limits)]
    numbers = {p: Annotated[(p, *limits)] for p in (int, float)} if limits else {}
    return Union[tuple(numbers.get(p, p) for p in get_args(parts[0]))]  # noqa: UP007


def _listed(alternatives: list[str]) -> str:
    *first, last = alternatives
    return f"{', '.join(first)} or {last}" if first else last


def _expectation(value: object, annotation: Any) -> str | None:
    """Return what is expected instead of the value, or None if the value fits."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = [mark for mark in parts[1:] if isinstance(mark, Limits)]
        if _expectation(value, parts[0]) is not None:
            return described(annotation)
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        violated = [str(limit) for limit in limits if not limit.contain(float(value))]
        return " and ".join(violated) or None
    if origin in (Union, types.UnionType):
        expectations = [_expectation(value, part) for part in parts]
        if None in expectations:
            return None
        # "at least 1" says more than "a whole number (at least 1) or null" to a wrong number
        violated = [e for e, p in zip(expectations, parts, strict=True) if e != described(p)]
        return violated[0] if violated else described(annotation)
    if _fits(value, annotation):
        return None
    return described(annotation)


def _fits(value: object, annotation: Any) -> bool:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return any(type(value) is type(p) and value == p for p in parts)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        each = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
        pairs = zip(value, each, strict=False)
        return len(value) == len(each) and all(_expectation(v, p) is None for v, p in pairs)
    if annotation in (None, type(None)):
        return value is None
    if annotation in (int, float):
        number = Integral if annotation is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, str | Path)
    if annotation in (bool, str) or (isinstance(annotation, type) and is_dataclass(annotation)):
        return isinstance(value, annotation)
    return True
