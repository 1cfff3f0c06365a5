"""Thresholds against a search over all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from probsa.errors import InputError
from probsa.statistics import choose_threshold


def _data(n, *, seed):
    rng = np.random.default_rng(seed)
    p = rng.integers(1, 20, n) / 20
    return rng.random(n) < p, p


def best(y, p, *, rule="f1"):
    return choose_threshold(np.array(y, dtype=bool), np.array(p, dtype=float), rule=rule).value


def _rates(y, p, threshold):
    called = p >= threshold
    return called[y].mean(), (~called[~y]).mean()


@pytest.mark.parametrize("seed", range(10))
def test_rules_are_the_best_of_all_thresholds(seed):
    y, p = _data(40, seed=seed)
    false, true, _ = roc_curve(y, p, drop_intermediate=False)
    t = choose_threshold(y, p, rule="youden")
    assert t.reason is None and not np.isin(t.value, p)
    assert sum(_rates(y, p, t.value)) == pytest.approx(1 + np.max(true - false), abs=1e-12)
    t = choose_threshold(y, p, rule="sensitivity=.8").value
    assert _rates(y, p, t)[0] >= 0.8 > _rates(y, p, np.nextafter(t, 1))[0]


def test_a_sensitivity_that_is_exactly_reached_is_enough():
    y, p = np.ones(20, dtype=bool), np.arange(20, 0, -1) / 20
    for share, expected in ((".95", 2 / 20), (".7", 7 / 20), ("1", 1 / 20)):  # .7 · 20 is above 14
        assert choose_threshold(y, p, rule=f"sensitivity={share}").value == expected


def test_ties_of_youden_are_resolved_towards_one_half():
    y = [False, True, False, True]
    assert best(y, [0.1, 0.2, 0.7, 0.8], rule="youden") == pytest.approx(0.75)
    assert best(y, [0.2, 0.3, 0.4, 0.9], rule="youden") == pytest.approx(0.65)


def test_costs_need_no_bags():
    assert best([], [], rule="cost=10:1") == pytest.approx(1 / 11)
    assert best([], [], rule="cost=1:1") == 0.5


@pytest.mark.parametrize("rule", ["f1", "youden", "sensitivity=0.95"])
def test_without_positives_the_default_has_a_reason(rule):
    t = choose_threshold(np.zeros(3, dtype=bool), np.array([0.1, 0.2, 0.9]), rule=rule)
    assert t.value == 0.5 and "undefined" in (t.reason or "")


@pytest.mark.parametrize(
    "rule",
    [
        "f2",
        "youden=1",
        "sensitivity",
        "sensitivity=high",
        "sensitivity=0",
        "sensitivity=1.1",
        "cost=1",
        "cost=0:1",
        "cost=1:inf",
        "cost=1:2:3",
        "sensitivity=nan",
    ],
)
def test_rules_that_do_not_exist_are_refused(rule):
    with pytest.raises(InputError):
        choose_threshold(np.array([True, False]), np.array([0.7, 0.1]), rule=rule)


def test_threshold_is_the_midpoint_with_the_best_f1():
    assert best([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]) == pytest.approx(0.4)
    # F1 is .8 if .35 is called (one false alarm): half-way between .1 and .35.
    assert best([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == pytest.approx((0.1 + 0.35) / 2)


def test_of_tied_thresholds_the_one_nearest_a_half_is_chosen():
    # Both .15 (tp 2, fp 2) and .75 (tp 1, fp 0) give F1 = 2/3, and .75 is nearer to 0.5.
    assert best([1, 0, 0, 1], [0.2, 0.3, 0.6, 0.9]) == pytest.approx(0.75)
    # .125 and .875 tie and are equally near, so the lower one is chosen.
    assert best([1, 0, 0, 1], [0.25, 0.5, 0.8125, 0.9375]) == 0.125


def test_without_negatives_all_are_called_positive():
    assert best([1, 1], [0.4, 0.6]) == pytest.approx(0.2)


def test_a_threshold_separates_adjacent_floats():
    low, high = 0.5, float(np.nextafter(0.5, 1))
    assert low < best([0, 1], [low, high]) <= high


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=1, max_size=25))
def test_no_other_threshold_has_a_better_f1(bags):
    y, p = np.array([b for b, _ in bags]), np.array([s / 20 for _, s in bags])
    if not y.any():
        return
    others = np.append(np.linspace(0, 1, 41), best(y, p))
    true = np.array([(y & (p >= o)).sum() for o in others])
    f1 = 2 * true / (np.array([(p >= o).sum() for o in others]) + y.sum())
    assert f1[-1] == f1.max()
