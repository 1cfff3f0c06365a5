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
    ("annotation", "value", "message"),
    [
        (PositiveInt, 0, "key is 0; expected at least 1"),
        (PositiveInt | None, -3, "key is -3; expected at least 1"),
        (PositiveInt | None, "x", "key is 'x'; expected a whole number (at least 1) or null"),
        (PositiveInt, 2.0, "key is 2.0; expected a whole number (at least 1)"),
        (PositiveInt, True, "key is True; expected a whole number (at least 1)"),
        (PositiveFloat, 0.0, "key is 0.0; expected more than 0"),
        (NonNegativeFloat, math.inf, "key is inf; expected at least 0"),
        (NonNegativeFloat, math.nan, "key is nan; expected at least 0"),
        (UnitInterval, 1.5, "key is 1.5; expected at least 0 and at most 1"),
        (Scheme, -1.0, "key is -1.0; expected at least 0"),
        (
            Scheme,
            "linea",
            "key is 'linea'; expected a number (at least 0), 'linear' or 'cyclical'."
            " Did you mean 'linear'?",
        ),
        (Literal["a", "b", "c"], "d", "key is 'd'; expected 'a', 'b' or 'c'"),
        (Literal[1, 2], True, "key is True; expected 1 or 2"),
        (bool, 1, "key is 1; expected true or false"),
        (str, None, "key is None; expected text"),
        (tuple[PositiveInt, ...], (1, 0), "key[1] is 0; expected at least 1"),
        (tuple[int, ...] | None, 3, "key is 3; expected a list (a whole number each) or null"),
        (tuple[int, int], (1,), "key is a list (1); expected a list of 2"),
        (dict[str, PositiveInt], {"a": 0}, "key.a is 0; expected at least 1"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_what_is_expected(annotation, value, message):
    with pytest.raises(InputError) as error:
        check_value("key", value, annotation)
    assert str(error.value).startswith(message)


def test_a_dataclass_checks_its_fields():
    @dataclass(frozen=True, kw_only=True)
    class Options:
        epochs: PositiveInt = 5
        rate: PositiveFloat | None = None

        def __post_init__(self) -> None:
            check_options(self)

    assert Options(rate=0.5).epochs == 5
    refused(InputError, r"^epochs is 0; expected at least 1$", Options, epochs=0)
    refused(InputError, r"^rate is -1\.0; expected more than 0$", Options, rate=-1.0)


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
