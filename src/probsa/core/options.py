"""Values and their annotations: checks, conversion of what was read from a file, and words.

An annotation states everything that is known about a value: its type, the `Literal` choices, and,
as `Annotated[int, Limits(at_least=1)]`, its numeric limits.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
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
        stated = [
            ("at least", self.at_least),
            ("more than", self.above),
            ("at most", self.at_most),
            ("less than", self.below),
        ]
        given = [(words, v) for words, v in stated if v is not None]
        texts = (f"{words} {v if isinstance(v, int) else f'{v:g}'}" for words, v in given)
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
            each = [json_schema(part) for part in parts]
            schema = {"type": "array", "prefixItems": each, "items": False, "minItems": len(each)}
        else:
            schema = {"type": KINDS[kind].schema if kind in KINDS else "string"}
        names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        for mark in limits:
            bounds = (mark.at_least, mark.above, mark.at_most, mark.below)
            schema |= {k: v for k, v in zip(names, bounds, strict=True) if v is not None}
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
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Literal:
            words += [repr(part) for part in parts]
        elif origin in (tuple, list):
            words.append(f"a list ({described(parts[0])} each)")
        elif isinstance(kind, type) and is_dataclass(kind):
            words.append(kind.__name__)
        else:
            other = "keys and values" if origin in (dict, Mapping) else "text"
            name = KINDS[kind].words if kind in KINDS else other
            words.append(f"{name} ({' and '.join(map(str, limits))})" if limits else name)
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def takes_list(annotation: Any) -> bool:
    """Return whether a value of this type may be a list."""
    return any(get_origin(kind) in (tuple, list) for kind, _ in _alternatives(annotation))


def shown(value: object) -> str:
    """Return a value for a message, in at most 60 characters."""
    if isinstance(value, dict | list | tuple):
        return f"{'keys and values' if isinstance(value, dict) else 'a list'} ({len(value)})"
    text = (repr(value) if is_text(value) else ascii(value)) if isinstance(value, str) else value
    return str(text) if len(str(text)) <= 60 else f"{str(text)[:57]}…"


def is_text(value: str) -> bool:
    """Return whether a text can be stored: it has no zero bytes and no halves of characters."""
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _alternatives(annotation: Any) -> list[tuple[Any, tuple[Limits, ...]]]:
    """Return the types of a union, with the limits of each; other types are one alternative."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = tuple(mark for mark in parts[1:] if isinstance(mark, Limits))
        inner = _alternatives(parts[0])
        return [(kind, own + limits if kind in (int, float) else own) for kind, own in inner]
    if origin in (Union, UnionType):
        return [alternative for part in parts for alternative in _alternatives(part)]
    return [(NoneType if annotation is None else annotation, ())]


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
    guess = (instead_of(value) or hint(value, choices)) if isinstance(value, str) else ""
    expected = described(annotation) + (f".{guess}" if guess else "")
    raise WrongValue(key, value, expected, inside=inside)


def _as_kind(value: Any, kind: Any, limits: tuple[Limits, ...], key: str, *, build: bool) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    wrong, part_of = WrongValue(key, value, ""), partial(_convert, build=build, inside=True)
    if origin is Literal:
        if not any(type(value) is type(part) and value == part for part in parts):
            raise wrong
        return value
    if origin in (tuple, list):
        if not isinstance(value, tuple | list):
            raise wrong
        each = [parts[0]] * len(value) if parts[-1] is Ellipsis or origin is list else list(parts)
        if len(value) != len(each):
            raise WrongValue(key, value, f"a list of {len(parts)}", inside=True)
        pairs = enumerate(zip(value, each, strict=True))
        return origin(part_of(v, part, f"{key}[{k}]") for k, (v, part) in pairs)
    if origin in (dict, Mapping) or kind is dict:
        if not isinstance(value, dict):
            raise WrongValue(key, value, "keys and values", inside=True)
        of_keys, of_values = parts or (Any, Any)
        return {
            part_of(k, of_keys, f"a key of {key or 'it'}"): part_of(v, of_values, _below(key, k))
            for k, v in value.items()
        }
    if isinstance(kind, type) and is_dataclass(kind):
        if isinstance(value, kind):
            return value
        if not build or not isinstance(value, dict):
            raise WrongValue(key, value, "keys and values", inside=build)
        given = [(f, value[f.name]) for f in fields(kind) if f.name in value]
        for f in fields(kind):
            if f.name not in value and f.default is MISSING and f.default_factory is MISSING:
                raise InputError(f"{_below(key, f.name)} is missing")
        return kind(**{f.name: part_of(v, f.type, _below(key, f.name)) for f, v in given})
    if kind not in KINDS:
        return value
    if not isinstance(value, KINDS[kind].values) or (kind is not bool and isinstance(value, bool)):
        raise wrong
    number = value
    if kind is float:
        try:
            number = float(value)
        except OverflowError:  # a whole number that is larger than any float
            raise WrongValue(key, value, "a finite number", inside=True) from None
    violated = [str(limit) for limit in limits if not limit.contain(number)]
    if violated:
        raise WrongValue(key, value, " and ".join(violated), inside=True)
    return Path(value) if kind is Path else number


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
