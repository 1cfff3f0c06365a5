"""λ in special cases, and against an independent computation with integers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_bags import types_not_executed

from probsa.errors import InputError
from probsa.variational.schedules import cyclical, kl_weight, linear


def counted(total: int) -> list[float]:
    """Return the specification's λ, with a counter and integers only."""
    length = total // 5
    ramp = 8 * length // 10
    out: list[float] = []
    for _ in range(5):
        for k in range(length):
            out.append(1.0 if k >= ramp else k / ramp)
    return out + [1.0] * (total - len(out))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(total=st.integers(0, 700))
def test_cyclical_is_the_count(total):
    assert [kl_weight("cyclical", t, total) for t in range(total)] == counted(total)


@pytest.mark.parametrize("total", [0, 1, 2, 3, 4])
def test_fewer_steps_than_cycles_have_the_full_weight(total):
    assert [cyclical(t, total) for t in range(5)] == [1.0] * 5


@pytest.mark.parametrize(
    ("total", "cycle"),
    [
        (5, [1.0]),  # K = 1, R = 0
        (9, [1.0]),
        (10, [0.0, 1.0]),  # K = 2, R = 1
        (15, [0.0, 0.5, 1.0]),  # K = 3, R = 2
        (25, [0.0, 0.25, 0.5, 0.75, 1.0]),  # K = 5, R = 4: 0.8 · 5 is 4 exactly
        (50, [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0]),
    ],
)
def test_one_cycle(total, cycle):
    got = [cyclical(t, total) for t in range(total)]
    assert got == cycle * 5 + [1.0] * (total - 5 * len(cycle))


def test_the_steps_left_over_have_the_full_weight():
    assert [cyclical(t, 54) for t in (49, 50, 51, 52, 53)] == [1.0] * 5
    assert cyclical(40, 54) == 0.0


@pytest.mark.parametrize("length", [*range(5, 400, 5), 10**6, 10**7, 10**9, 7 * 10**11])
def test_the_ramp_is_four_fifths_exactly(length):
    ramp = 4 * length // 5
    total = 5 * length
    assert cyclical(ramp, total) == 1.0
    assert cyclical(ramp - 1, total) == (ramp - 1) / ramp
    assert cyclical(length, total) == 0.0
    assert cyclical(length - 1, total) == 1.0


def test_a_share_is_taken_as_written():
    # In floats, 0.57 · 100 and 0.29 · 100 are less than 57 and 29.
    assert cyclical(57, 500, share=0.57) == 1.0
    assert cyclical(56, 500, share=0.57) == 56 / 57
    assert linear(29, 100, share=0.29) == 1.0
    assert linear(28, 100, share=0.29) == 28 / 29


def test_linear_rises_over_the_first_half():
    assert [kl_weight("linear", t, 8) for t in range(8)] == [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert [kl_weight("linear", t, 5) for t in range(5)] == [0, 0.5, 1, 1, 1]
    assert kl_weight("linear", 0, 1) == 1
    assert kl_weight("linear", 0, 0) == 1


@pytest.mark.parametrize("value", [0, 0.0, 0.1, 0.5, 1, 7.5])
def test_a_number_is_constant(value):
    with types_not_executed():  # the type checks would reject an int
        got = [kl_weight(value, t, 100) for t in (0, 50, 99)]
    assert got == [value] * 3
    assert all(type(v) is float for v in got)


@pytest.mark.parametrize("schedule", ["linear", "cyclical"])
@settings(deadline=None, derandomize=True, max_examples=50)
@given(total=st.integers(1, 10**6), share=st.floats(0, 1, exclude_max=True))
def test_it_stays_between_nought_and_one(schedule, total, share):
    assert 0 <= kl_weight(schedule, int(share * total), total) <= 1


@pytest.mark.parametrize(
    "schedule", [-0.1, float("nan"), float("inf"), "cyclic", "0.5", True, None]
)
def test_what_is_no_schedule_is_refused(schedule):
    with types_not_executed(), pytest.raises(InputError, match="kl_weight is"):
        kl_weight(schedule, 0, 10)
