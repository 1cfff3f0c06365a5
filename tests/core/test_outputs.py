import pytest

from probsa.core import Outputs


def test_the_columns_of_a_number():
    outputs = Outputs.of_number((0.05, 0.5, 0.95))
    assert outputs.names == ("mean", "sd", "q05", "q50", "q95")
    assert outputs.names[outputs.quantile(0.95)] == "q95"
    assert outputs.names[outputs.of_quantiles] == ("q05", "q50", "q95")
    assert outputs.names[outputs.of_times] == ()


def test_the_columns_of_a_time():
    outputs = Outputs.of_time((1 / 3, 12.0))
    assert outputs.names == ("risk", "s_0.333333", "s_12")
    assert outputs.times == (0.333333, 12.0)
    assert outputs.names[outputs.of_times] == ("s_0.333333", "s_12")


def test_a_header_gives_the_same_columns():
    numbers = Outputs.of_number((0.05, 0.25, 0.5, 0.75, 0.95))
    times = Outputs.of_time((0.5, 1e-7, 123456.7))
    assert Outputs.of_number_named(numbers.names) == numbers
    assert Outputs.of_time_named(times.names) == times


def test_other_headers_are_refused():
    with pytest.raises(ValueError):
        Outputs.of_number_named(("mean", "sd", "median"))
    with pytest.raises(ValueError):
        Outputs.of_time_named(("risk", "s_never"))


def test_the_first_columns_keep_their_meaning():
    outputs = Outputs.of_number((0.05, 0.95))
    assert outputs.first(1) == Outputs(("mean",))
    assert outputs.first(3) == Outputs(("mean", "sd", "q05"), quantiles=(0.05,))
    assert outputs.first(9) == outputs
