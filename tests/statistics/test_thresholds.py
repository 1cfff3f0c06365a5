"""Thresholds against a search over all of them."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_curve

from probsa.errors import InputError
from probsa.statistics import choose_threshold, threshold_by_rule
from probsa.statistics.thresholds import cost_threshold, sensitivity_threshold, youden_threshold


def _data(n, *, seed):
    rng = np.random.default_rng(seed)
    p = rng.integers(1, 20, n) / 20
    return rng.random(n) < p, p


def _rates(y, p, threshold):
    called = p >= threshold
    return called[y].mean(), (~called[~y]).mean()


@pytest.mark.parametrize("seed", range(10))
def test_rules_are_the_best_of_all_thresholds(seed):
    y, p = _data(40, seed=seed)
    false, true, _ = roc_curve(y, p, drop_intermediate=False)
    t = threshold_by_rule("youden", y, p)
    assert t.reason is None and not np.isin(t.value, p)
    assert sum(_rates(y, p, t.value)) == pytest.approx(1 + np.max(true - false), abs=1e-12)
    t = threshold_by_rule("sensitivity=.8", y, p).value
    assert _rates(y, p, t)[0] >= 0.8 > _rates(y, p, np.nextafter(t, 1))[0]


def test_a_sensitivity_that_is_exactly_reached_is_enough():
    y, p = np.ones(20, dtype=bool), np.arange(20, 0, -1) / 20
    assert sensitivity_threshold(y, p, at_least=0.95).value == 2 / 20
    assert sensitivity_threshold(y, p, at_least=0.7).value == 7 / 20  # .7 · 20 is above 14
    assert sensitivity_threshold(y, p, at_least=1.0).value == 1 / 20


def test_ties_of_youden_are_resolved_towards_one_half():
    y, p = np.array([False, True, False, True]), np.array([0.1, 0.2, 0.7, 0.8])
    assert youden_threshold(y, p).value == pytest.approx(0.75)
    y, p = np.array([False, True, False, True]), np.array([0.2, 0.3, 0.4, 0.9])
    assert youden_threshold(y, p).value == pytest.approx(0.65)


def test_costs_need_no_bags():
    assert cost_threshold(false_negative=10.0, false_positive=1.0) == pytest.approx(1 / 11)
    none = np.zeros(0)
    assert threshold_by_rule("cost=10:1", none > 0, none).value == pytest.approx(1 / 11)
    assert threshold_by_rule("cost=1:1", none > 0, none).value == 0.5


def test_without_positives_the_default_has_a_reason():
    y, p = np.zeros(3, dtype=bool), np.array([0.1, 0.2, 0.9])
    for rule in ("youden", "sensitivity=0.95"):
        t = threshold_by_rule(rule, y, p)
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
        threshold_by_rule(rule, np.array([True, False]), np.array([0.7, 0.1]))


@pytest.mark.parametrize("seed", range(4))
def test_the_default_has_the_best_f1_of_all_thresholds(seed):
    y, p = _data(30, seed=seed)
    found = choose_threshold(y, p)
    every = [f1_score(y, p >= t) for t in np.unique(p)]
    assert f1_score(y, p >= found.value) == pytest.approx(max(every))
    assert not np.isin(found.value, p) and found.reason is None
    none = choose_threshold(np.zeros(3), p[:3])
    assert (none.value, none.reason) == (0.5, "no positive bag among 3: F1 is undefined")
    with pytest.raises(InputError, match="2 labels for 3"):
        choose_threshold([0, 1], p[:3])
