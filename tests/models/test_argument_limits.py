"""A number that no model can have is refused, from flags, run files and checkpoints alike.

Each argument that is a number has limits in the signature of its model, which every one of these
reads. What nobody can wait for, or no memory holds, is refused by the name of the argument.
"""

import functools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

import pytest
import torch
from safetensors.torch import save_file

from probsa.core import Limits, described
from probsa.core.options import _alternatives
from probsa.errors import CheckpointError, InputError
from probsa.models import arguments, build, look_up, names
from probsa.models._registry import LONGEST
from probsa.training import load_checkpoint, restore_model

NO_NUMBERS = (float("nan"), float("inf"), -float("inf"))
BEYOND = (10**12, -(10**12))
HUGE = 10**400
"""A number that no float holds; a file with such a one is refused as a whole."""
SIGNED = ("initial_log_variance", "log_variance_bounds", "level")
"""Arguments that may be below 0."""
SHARES = (
    "dropout",
    "attention_dropout",
    "layer_dropout",
    "bag_weight",
    "gamma",
    "warmup",
    "alpha",
    "kappa_rate",
)
"""Arguments from 0 to 1."""
ENDLESS = 10**8
"""As a number of samples, layers, clusters or units it takes for ever, or all memory."""


class Number(NamedTuple):
    """A kind of number that an argument may be."""

    kind: type
    limits: tuple[Limits, ...]
    is_listed: bool
    """Whether it stands in a list."""

    def value(self, number: Any) -> Any:
        """Return the number as a value of the argument."""
        return (number,) * 2 if self.is_listed else number


class Case(NamedTuple):
    """A number that an argument of a model may be."""

    model: str
    argument: str
    number: Number

    def __str__(self) -> str:
        kind = "list" if self.number.is_listed else self.number.kind.__name__
        return f"{self.model}-{self.argument}-{kind}"


def numbers_of(annotation: Any) -> Iterator[Number]:
    """Yield the kinds of numbers of an annotation."""
    for kind, limits in _alternatives(annotation):
        if kind in (int, float):
            yield Number(kind, limits, is_listed=False)
        elif get_origin(kind) in (tuple, list):
            for item in numbers_of(get_args(kind)[0]):
                yield item._replace(is_listed=True)


def cases() -> Iterator[Case]:
    """Yield every number that an argument of a model may be."""
    for model in names():
        for argument, about in arguments(model).items():
            for number in numbers_of(about.annotation):
                yield Case(model, argument, number)


CASES = list(cases())


def wrong_values(argument: str, kind: type) -> list[Any]:
    wrong = [*NO_NUMBERS]
    if argument not in SIGNED:
        wrong.append(-1)
    if argument in SHARES:
        wrong += [1.5, -0.01]
    if argument == "seed":
        wrong.append(2**64)
    else:
        wrong += BEYOND
        if kind is int:
            wrong.append(ENDLESS)
    return wrong


def forbid_construction(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """Make the construction of a model fail the test: of a wrong size, it would never end."""
    model_class = look_up(model).model

    @functools.wraps(model_class.__init__)
    def construct(*_: Any, **__: Any) -> None:
        pytest.fail(f"{model} is constructed before its arguments are checked")

    monkeypatch.setattr(model_class, "__init__", construct)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_number_beyond_its_limits_is_refused_by_name(tmp_path, monkeypatch, case):
    path = tmp_path / "a.safetensors"
    argument = case.argument
    # the value is refused, not the argument
    refusal = rf"{argument}(\[0\])? is "
    forbid_construction(monkeypatch, case.model)
    for number in wrong_values(argument, case.number.kind):
        value = case.number.value(number)
        stated = {"model": case.model, "arguments": {"in_dim": 4, argument: value}}
        header = json.dumps({"format": 1, "version": "0", **stated})
        save_file({"model.w": torch.zeros(1)}, path, metadata={"probsa": header})
        with pytest.raises(CheckpointError, match=rf"a\.safetensors.*\b{refusal}"):
            restore_model(load_checkpoint(path))
        with pytest.raises(InputError, match=f"^{refusal}"):
            build(case.model, **{"in_dim": 4, argument: value})
    with pytest.raises(InputError, match=f"^{refusal}"):
        build(case.model, **{"in_dim": 4, argument: case.number.value(HUGE)})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_limits_stand_in_the_signature(case):
    """Flags, their help, run files and checkpoints read them there."""
    name = case.model
    argument = case.argument
    kind, limits, _ = case.number
    lower = [n for mark in limits for n in (mark.at_least, mark.above) if n is not None]
    upper = [n for mark in limits for n in (mark.at_most, mark.below) if n is not None]
    if argument not in SIGNED:
        assert lower and min(lower) >= 0, described(arguments(name)[argument].annotation)
    if kind is int:
        assert upper and (argument == "seed" or max(upper) < ENDLESS)
    if argument in SHARES:
        assert upper and max(upper) <= 1


@pytest.mark.parametrize("name", names())
def test_a_list_of_any_length_is_no_argument(name):
    for argument, about in arguments(name).items():
        if any(number.is_listed for number in numbers_of(about.annotation)):
            with pytest.raises(InputError, match=f"^{argument} is a list "):
                build(name, **{"in_dim": 4, argument: (1,) * (LONGEST + 1)})


@pytest.mark.parametrize("name", names())
def test_what_is_not_given_and_has_no_default_is_named(name):
    with pytest.raises(InputError, match=rf"{name}.*in_dim"):
        build(name)
