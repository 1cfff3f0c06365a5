"""Checks of option values against their annotations."""

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from support.refusals import refused

from probsa.core import (
    Limits,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    UnitInterval,
    check_options,
    check_value,
    described,
    json_schema,
)
from probsa.errors import InputError

Scheme = Annotated[float | Literal["linear", "cyclical"], Limits(at_least=0)]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (PositiveInt, 1),
        (PositiveInt | None, None),
        (PositiveFloat, 1e-300),
        (PositiveFloat, 3),
        (UnitInterval, 1.0),
        (Scheme, 0),
        (Scheme, "linear"),
        (bool, True),
        (Path, "folder"),
        (tuple[PositiveInt, ...], (1, 2)),
        (tuple[str, ...] | None, ["a"]),
        (tuple[int, float], (1, 0.5)),
        (set[int], "what is not understood is not checked"),
        ("Undefined", 1),
        (Any, None),
    ],
)
def test_a_value_that_fits_passes(annotation, value):
    check_value("key", value, annotation)


@pytest.mark.parametrize(
    ("annotation", "value", "key"),
    [
        (PositiveInt, 0, "key"),
        (PositiveInt | None, -3, "key"),
        (PositiveInt | None, "x", "key"),
        (PositiveInt, 2.0, "key"),
        (PositiveInt, True, "key"),
        (PositiveFloat, 0.0, "key"),
        (NonNegativeFloat, math.inf, "key"),
        (NonNegativeFloat, math.nan, "key"),
        (UnitInterval, 1.5, "key"),
        (Scheme, -1.0, "key"),
        (Scheme, "linea", "key"),
        (Literal["a", "b", "c"], "d", "key"),
        (Literal[1, 2], True, "key"),
        (bool, 1, "key"),
        (str, None, "key"),
        (tuple[PositiveInt, ...], (1, 0), "key[1]"),
        (tuple[int, ...] | None, 3, "key"),
        (tuple[int, int], (1,), "key"),
        (dict[str, PositiveInt], {"a": 0}, "key.a"),
    ],
)
def test_a_value_that_does_not_fit_is_named(annotation, value, key):
    with pytest.raises(InputError) as error:
        check_value("key", value, annotation)
    assert str(error.value).startswith(f"{key} ")


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (PositiveInt | None, -3, "at least 1"),
        (PositiveInt | None, "x", described(PositiveInt | None)),
        (Scheme, "linea", f"{described(Scheme)}. Did you mean 'linear'?"),
        (tuple[int, int], (1,), "a list of 2"),
    ],
)
def test_the_reason_is_the_limit_or_else_the_whole_annotation(annotation, value, expected):
    with pytest.raises(InputError) as error:
        check_value("key", value, annotation)
    assert str(error.value).endswith(expected)


def test_a_dataclass_checks_its_fields():
    @dataclass(frozen=True, kw_only=True)
    class Options:
        epochs: PositiveInt = 5
        rate: PositiveFloat | None = None

        def __post_init__(self) -> None:
            check_options(self)

    assert Options(rate=0.5).epochs == 5
    refused(InputError, "epochs", Options, epochs=0)
    refused(InputError, "rate", Options, rate=-1.0)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "a whole number"),
        (Path | None, "a path or null"),
        (float | Literal["linear", "cyclical"], "a number, 'linear' or 'cyclical'"),
        (PositiveInt | None, "a whole number (at least 1) or null"),
        (int | tuple[int, ...] | None, "a whole number, a list (a whole number each) or null"),
        (Annotated[float, Limits(above=0, at_most=1)], "a number (more than 0 and at most 1)"),
        (Annotated[int, "no limits"], "a whole number"),
        (Annotated[int | None, Limits(at_least=1)], "a whole number (at least 1) or null"),
    ],
)
def test_an_annotation_in_words(annotation, words):
    assert described(annotation) == words


def test_the_checks_need_no_heavy_import():
    code = "import sys; from probsa.core import check_options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("annotation", "right", "wrong"),
    [
        (PositiveInt | None, [1, None], [0, 1.5, "x"]),
        (Scheme, [0, 0.5, "linear"], [-1, "x", None]),
        (int | tuple[PositiveInt, ...], [0, [], [1, 2]], [[0], ["x"]]),
        (tuple[float, float], [[1, 2.5]], [[1], [1, 2, 3]]),
        (Literal["a", "b"], ["a"], ["c", 1]),
        (Path | None, ["x", None], [1]),
        (bool, [True], ["x", 1]),
    ],
)
def test_the_json_schema_of_an_annotation(annotation, right, wrong):
    validator = Draft202012Validator(json_schema(annotation))
    assert all(map(validator.is_valid, right)) and not any(map(validator.is_valid, wrong))
