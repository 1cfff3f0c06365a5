"""Values and their annotations: checks, conversion of what was read from a file, and words.

An annotation states everything that is known about a value: its type, the `Literal` choices, and,
as `Annotated[int, Limits(at_least=1)]`, its numeric limits.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from ..errors import InputError, hint
from ..removed import instead_of


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
            (isinstance(number, Integral) or math.isfinite(number))
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        limits = {
            "at least": self.at_least,
            "more than": self.above,
            "at most": self.at_most,
            "less than": self.below,
        }
        texts: list[str] = []
        for words, limit in limits.items():
            if limit is not None:
                number = str(limit) if isinstance(limit, int) else f"{limit:g}"
                texts.append(f"{words} {number}")
        return " and ".join(texts) or "a finite number"


PositiveInt = Annotated[int, Limits(at_least=1)]
SampleCount = Annotated[int, Limits(at_least=1, at_most=100_000)]
"""How often something is drawn: more would never end."""
StepCount = Annotated[int, Limits(at_least=1, at_most=1_000)]
"""How often something is repeated within one prediction."""
StepOrNoneCount = Annotated[int, Limits(at_least=0, at_most=1_000)]
"""As `StepCount`, where there may be none."""
EpochCount = Annotated[int, Limits(at_least=0, at_most=1_000_000)]
FeatureCount = Annotated[int, Limits(at_least=1, at_most=1_000_000)]
"""How many features an instance has."""
InstanceCount = Annotated[int, Limits(at_least=1, at_most=1_000_000)]
"""How many instances are chosen from a bag."""
Width = Annotated[int, Limits(at_least=1, at_most=65_536)]
"""How many numbers a layer gives for each of its inputs."""
ClusterCount = Annotated[int, Limits(at_least=1, at_most=10_000)]
"""How many vectors, compared pair by pair, stand for the instances of a bag."""
HeadCount = Annotated[int, Limits(at_least=1, at_most=1_024)]
ClassCount = Annotated[int, Limits(at_least=1, at_most=10_000)]
"""How many logits there are: one for two classes, or one a class."""
Seed = Annotated[int, Limits(at_least=0, below=2**64)]
NonNegativeInt = Annotated[int, Limits(at_least=0)]
PositiveFloat = Annotated[float, Limits(above=0)]
NonNegativeFloat = Annotated[float, Limits(at_least=0)]
FiniteFloat = Annotated[float, Limits()]
UnitInterval = Annotated[float, Limits(at_least=0, at_most=1)]
Rate = Annotated[float, Limits(at_least=0, below=1)]
LogVariance = Annotated[float, Limits(at_least=-80, at_most=80)]
"""A logarithm whose exponential is a normal number in single precision."""
TaskName = Literal["binary", "multiclass", "ordinal", "multilabel", "regression", "survival"]
"""What the label of a bag is; `probsa.tasks` holds what follows from it."""


class _Kind(NamedTuple):
    """A type without parts: the values that it has, in words, and in a JSON schema."""

    values: type | tuple[type, ...]
    words: str
    schema: str


KINDS = {
    int: _Kind(Integral, "a whole number", "integer"),
    float: _Kind(Real, "a number", "number"),
    bool: _Kind(bool, "true or false", "boolean"),
    str: _Kind(str, "text", "string"),
    Path: _Kind((str, Path), "a path", "string"),
    NoneType: _Kind(NoneType, "null", "null"),
}


class WrongValue(InputError):
    """A value does not fit its annotation; `inside` if its kind does, but not all of it."""

    def __init__(self, key: str, value: object, expected: str, *, inside: bool = False) -> None:
        super().__init__(f"{key or 'its content'} is {shown(value)}; expected {expected}")
        self.inside = inside


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
    _convert(value, annotation, key, build=False, inside=True)


def convert_value(value: Any, annotation: Any, *, key: str) -> Any:
    """Check a value from a file, and convert it: lists to tuples, mappings to dataclasses.

    Keys that are no fields of a dataclass are passed over: a later version may have written them.

    Raises:
        InputError: names the key, the value and what is expected.
    """
    return _convert(value, annotation, key, build=True)


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of the values that an annotation describes."""
    schemas = []
    for kind, limits in _alternatives(annotation):
        parts = get_args(kind)
        if get_origin(kind) is Literal:
            schema = {"enum": list(parts)}
        elif get_origin(kind) is tuple and parts[-1] is Ellipsis:
            schema = {"type": "array", "items": json_schema(parts[0])}
        elif get_origin(kind) is tuple:
            items = [json_schema(part) for part in parts]
            schema = {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        else:
            schema = {"type": KINDS[kind].schema if kind in KINDS else "string"}
        for limit in limits:
            bounds = {
                "minimum": limit.at_least,
                "exclusiveMinimum": limit.above,
                "maximum": limit.at_most,
                "exclusiveMaximum": limit.below,
            }
            schema |= {name: bound for name, bound in bounds.items() if bound is not None}
        schemas.append(schema)
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def described(annotation: Any) -> str:
    """Return an annotation in words.

    >>> described(float | Literal["linear", "cyclical"])
    "a number, 'linear' or 'cyclical'"
    >>> described(PositiveInt | None)
    'a whole number (at least 1) or null'
    """
    words: list[str] = []
    for kind, limits in _alternatives(annotation):
        origin = get_origin(kind)
        parts = get_args(kind)
        if origin is Literal:
            words += [repr(part) for part in parts]
        elif origin in (tuple, list):
            words.append(f"a list ({described(parts[0])} each)")
        elif isinstance(kind, type) and is_dataclass(kind):
            words.append(kind.__name__)
        else:
            if kind in KINDS:
                name = KINDS[kind].words
            else:
                name = "keys and values" if origin in (dict, Mapping) else "text"
            words.append(f"{name} ({' and '.join(map(str, limits))})" if limits else name)
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def takes_list(annotation: Any) -> bool:
    """Return whether a value of this type may be a list."""
    return any(get_origin(kind) in (tuple, list) for kind, _ in _alternatives(annotation))


def shown(value: object) -> str:
    """Return a value for a message, in at most 60 characters."""
    if isinstance(value, dict):
        return f"keys and values ({len(value)})"
    if isinstance(value, list | tuple):
        return f"a list ({len(value)})"
    text = str(value)
    if isinstance(value, str):
        text = repr(value) if is_text(value) else ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_text(value: str) -> bool:
    """Return whether a text can be stored: it has no zero bytes and no halves of characters."""
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _alternatives(annotation: Any) -> list[tuple[Any, tuple[Limits, ...]]]:
    """Return the types of a union, with the limits of each; other types are one alternative."""
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if origin in (Union, UnionType):
        return [alternative for part in parts for alternative in _alternatives(part)]
    if origin is not Annotated:
        return [(NoneType if annotation is None else annotation, ())]
    limits = tuple(mark for mark in parts[1:] if isinstance(mark, Limits))
    alternatives: list[tuple[Any, tuple[Limits, ...]]] = []
    for kind, inner_limits in _alternatives(parts[0]):
        # limits of a union apply to its numbers
        is_number = kind in (int, float)
        alternatives.append((kind, inner_limits + limits if is_number else inner_limits))
    return alternatives


def _convert(value: Any, annotation: Any, key: str, *, build: bool, inside: bool = False) -> Any:
    """Return a value in the first type of a union that fits; `build` makes dataclasses."""
    problems: list[WrongValue] = []
    choices: list[str] = []
    for kind, limits in _alternatives(annotation):
        choices += [c for c in get_args(kind) if isinstance(c, str)]
        try:
            return _as_kind(value, kind, limits, key, build=build)
        except WrongValue as problem:
            problems.append(problem)
    for problem in problems:  # "at least 1" says more than "a whole number (at least 1) or null"
        if problem.inside:
            raise problem
    expected = described(annotation)
    suggestion = ""
    if isinstance(value, str):
        suggestion = instead_of(value) or hint(value, choices)
    if suggestion:
        expected = f"{expected}.{suggestion}"
    raise WrongValue(key, value, expected, inside=inside)


def _as_kind(value: Any, kind: Any, limits: tuple[Limits, ...], key: str, *, build: bool) -> Any:
    """Return a value in one type of a union.

    Raises:
        WrongValue: it does not fit; `inside` if its kind does.
    """
    origin = get_origin(kind)
    if origin is Literal:
        # True == 1, so that types are compared as well
        if not any(type(value) is type(part) and value == part for part in get_args(kind)):
            raise WrongValue(key, value, "")
        return value
    if origin in (tuple, list):
        return _as_list(value, kind, key, build=build)
    if origin in (dict, Mapping) or kind is dict:
        return _as_mapping(value, kind, key, build=build)
    if isinstance(kind, type) and is_dataclass(kind):
        return _as_dataclass(value, kind, key, build=build)
    if kind not in KINDS:
        return value
    if not isinstance(value, KINDS[kind].values) or (kind is not bool and isinstance(value, bool)):
        raise WrongValue(key, value, "")
    if kind is Path:
        return Path(value)
    number = value
    if kind is float:
        try:
            number = float(value)
        except OverflowError:  # a whole number that is larger than any float
            raise WrongValue(key, value, "a finite number", inside=True) from None
    violated = [str(limit) for limit in limits if not limit.contain(number)]
    if violated:
        raise WrongValue(key, value, " and ".join(violated), inside=True)
    return number


def _as_list(value: Any, kind: Any, key: str, *, build: bool) -> Any:
    """Return a tuple or a list whose items are converted."""
    origin = get_origin(kind)
    assert origin is not None
    if not isinstance(value, tuple | list):
        raise WrongValue(key, value, "")
    annotations = get_args(kind)
    if annotations[-1] is Ellipsis or origin is list:
        annotations = (annotations[0],) * len(value)
    elif len(value) != len(annotations):
        raise WrongValue(key, value, f"a list of {len(annotations)}", inside=True)
    items: list[Any] = []
    for k, (item, annotation) in enumerate(zip(value, annotations, strict=True)):
        items.append(_convert(item, annotation, f"{key}[{k}]", build=build, inside=True))
    return origin(items)


def _as_mapping(value: Any, kind: Any, key: str, *, build: bool) -> dict[Any, Any]:
    """Return a mapping whose keys and values are converted."""
    if not isinstance(value, dict):
        raise WrongValue(key, value, "keys and values", inside=True)
    key_annotation, value_annotation = get_args(kind) or (Any, Any)
    mapping: dict[Any, Any] = {}
    for name, item in value.items():
        where = f"a key of {key or 'it'}"
        converted = _convert(name, key_annotation, where, build=build, inside=True)
        mapping[converted] = _convert(
            item, value_annotation, _below(key, name), build=build, inside=True
        )
    return mapping


def _as_dataclass(value: Any, kind: Any, key: str, *, build: bool) -> Any:
    """Return a value that is of a dataclass or, with `build`, one that is made from a mapping."""
    if isinstance(value, kind):
        return value
    if not build or not isinstance(value, dict):
        raise WrongValue(key, value, "keys and values", inside=build)
    for f in fields(kind):
        if f.name not in value and f.default is MISSING and f.default_factory is MISSING:
            raise InputError(f"{_below(key, f.name)} is missing")
    values: dict[str, Any] = {}
    for f in fields(kind):
        if f.name in value:
            where = _below(key, f.name)
            values[f.name] = _convert(value[f.name], f.type, where, build=build, inside=True)
    return kind(**values)


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
