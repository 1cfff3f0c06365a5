"""The tests' own checks of shapes and types: on and off, and prepared when they are first used."""

from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from support.late_checks import late
from torch import Tensor

from probsa.core import segment_sum


@late(typechecker=beartype)
def added(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return x + y


@late(typechecker=beartype)
@dataclass
class Pair:
    x: Float[Tensor, " n"]
    y: Float[Tensor, " n"]


def nested():
    @late(typechecker=beartype)
    def within(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return x + y

    return within


@pytest.fixture
def checked():
    before = jaxtyping.config.jaxtyping_disable
    yield lambda *, on: jaxtyping.config.update("jaxtyping_disable", not on)
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.parametrize("call", [added, Pair, lambda *a: nested()(*a)])
def test_shapes_are_checked_while_the_checks_are_on(checked, call):
    one, two = torch.ones(1), torch.ones(2)
    for on in (False, True, False, True):
        checked(on=on)
        call(two, two)
        if on:
            with pytest.raises(jaxtyping.TypeCheckError):
                call(one, two)
        else:
            call(one, two)


def test_the_package_is_checked(checked):
    checked(on=True)
    whole_numbers = torch.ones(3, dtype=torch.int64)
    with pytest.raises(jaxtyping.TypeCheckError):
        segment_sum(whole_numbers, (1, 2))
