"""A number that no model can have is refused, from flags, run files and checkpoints alike.

Each argument that is a number has limits in the signature of its model, which every one of these
reads. What nobody can wait for, or no memory holds, is refused by the name of the argument.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
import torch
from safetensors.torch import save_file

from probsa.core import Limits, described
from probsa.core.options import _alternatives
from probsa.errors import CheckpointError, InputError
from probsa.models import arguments, build, names
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


def numbers_of(annotation: Any) -> Iterator[tuple[type, tuple[Limits, ...], bool]]:
    """Yield the kinds of numbers of an annotation with their limits, and whether in a list."""
    for kind, limits in _alternatives(annotation):
        if kind in (int, float):
            yield kind, limits, False
        elif get_origin(kind) in (tuple, list):
            for item_kind, item_limits, _ in numbers_of(get_args(kind)[0]):
                yield item_kind, item_limits, True


CASES = [
    (name, argument, kind, limits, listed)
    for name in names()
    for argument, about in arguments(name).items()
    for kind, limits, listed in numbers_of(about.annotation)
]
IDS = [
    f"{name}-{argument}-{'list' if listed else kind.__name__}"
    for name, argument, kind, _, listed in CASES
]


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


@pytest.mark.parametrize(("name", "argument", "kind", "limits", "listed"), CASES, ids=IDS)
def test_a_number_beyond_its_limits_is_refused_by_name(
    tmp_path, name, argument, kind, limits, listed
):
    path = tmp_path / "a.safetensors"
    for number in wrong_values(argument, kind):
        value = [number] * 2 if listed else number
        stated = {"model": name, "arguments": {"in_dim": 4, argument: value}}
        header = json.dumps({"format": 1, "version": "0", **stated})
        save_file({"model.w": torch.zeros(1)}, path, metadata={"probsa": header})
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=rf"a\.safetensors.*{argument}"):
            restore_model(load_checkpoint(path))
        with pytest.raises(InputError, match=argument):
            build(name, **{"in_dim": 4, argument: tuple(value) if listed else value})
        assert time.monotonic() - began < 1
    with pytest.raises(InputError, match=argument):
        build(name, **{"in_dim": 4, argument: (HUGE,) * 2 if listed else HUGE})


@pytest.mark.parametrize(("name", "argument", "kind", "limits", "listed"), CASES, ids=IDS)
def test_the_limits_stand_in_the_signature(name, argument, kind, limits, listed):
    """Flags, their help, run files and checkpoints read them there."""
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
        if any(listed for _, _, listed in numbers_of(about.annotation)):
            with pytest.raises(InputError, match=argument):
                build(name, **{"in_dim": 4, argument: (1,) * (LONGEST + 1)})


@pytest.mark.parametrize("name", names())
def test_what_is_not_given_and_has_no_default_is_named(name):
    with pytest.raises(InputError, match=rf"{name}.*in_dim"):
        build(name)
