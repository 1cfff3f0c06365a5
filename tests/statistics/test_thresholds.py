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
    y = np.ones(20, dtype=bool)
    p = np.arange(20, 0, -1) / 20
    for share, expected in ((".95", 2 / 20), (".7", 7 / 20), ("1", 1 / 20)):  # .7 · 20 is above 14
        assert choose_threshold(y, p, rule=f"sensitivity={share}").value == expected


@pytest.mark.parametrize(
    ("rule", "y", "p", "expected"),
    [
        ("f1", [0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9], 0.4),  # the midpoint
        # F1 is .8 if .35 is called (one false alarm): half-way between .1 and .35.
        ("f1", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], (0.1 + 0.35) / 2),
        # Both .15 (tp 2, fp 2) and .75 (tp 1, fp 0) give F1 = 2/3, and .75 is nearer to 0.5.
        ("f1", [1, 0, 0, 1], [0.2, 0.3, 0.6, 0.9], 0.75),
        # .125 and .875 tie and are equally near, so the lower one is chosen.
        ("f1", [1, 0, 0, 1], [0.25, 0.5, 0.8125, 0.9375], 0.125),
        ("f1", [1, 1], [0.4, 0.6], 0.2),  # all are positive
        ("youden", [0, 1, 0, 1], [0.1, 0.2, 0.7, 0.8], 0.75),
        ("youden", [0, 1, 0, 1], [0.2, 0.3, 0.4, 0.9], 0.65),
        ("cost=10:1", [], [], 1 / 11),
        ("cost=1:1", [], [], 0.5),
    ],
)
def test_thresholds_by_hand(rule, y, p, expected):
    assert best(y, p, rule=rule) == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["f1", "youden", "sensitivity=0.95"])
def test_without_positives_the_default_has_a_reason(rule):
    t = choose_threshold(np.zeros(3, dtype=bool), np.array([0.1, 0.2, 0.9]), rule=rule)
    assert t.value == 0.5 and "undefined" in (t.reason or "")


def test_rules_that_do_not_exist_are_refused():
    shares = (f"sensitivity={share}" for share in ("high", "0", "1.1", "nan"))
    costs = (f"cost={numbers}" for numbers in ("1", "0:1", "1:inf", "1:2:3"))
    for rule in ("f2", "youden=1", "sensitivity", *shares, *costs):
        with pytest.raises(InputError):
            best([1, 0], [0.7, 0.1], rule=rule)


def test_a_threshold_separates_adjacent_floats():
    low, high = 0.5, float(np.nextafter(0.5, 1))
    assert low < best([0, 1], [low, high]) <= high


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=1, max_size=25))
def test_no_other_threshold_has_a_better_f1(bags):
    y = np.array([b for b, _ in bags])
    p = np.array([s / 20 for _, s in bags])
    if not y.any():
        return
    others = np.append(np.linspace(0, 1, 41), best(y, p))
    true = np.array([(y & (p >= o)).sum() for o in others])
    f1 = 2 * true / (np.array([(p >= o).sum() for o in others]) + y.sum())
    assert f1[-1] == f1.max()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("ties", [2, 50])
def test_a_specificity_is_reached_by_the_smallest_threshold(share, ties):
    rng = np.random.default_rng(int(100 * share) + ties)
    y = rng.random(60) < 0.4
    p = np.round(rng.random(60), 1 if ties == 2 else 6)
    chosen = choose_threshold(y, p, rule=f"specificity={share}")
    reached = (p[~y] < chosen.value).mean()
    assert reached >= share and chosen.reached == reached and chosen.asked == "specificity"
    lower = max(v for v in (0.0, *p) if v < chosen.value)
    assert (p[~y] < lower).mean() < share
    same = choose_threshold(y, p, rule=f"sensitivity={share}")
    assert same.reached == (p[y] >= same.value).mean() >= share and same.asked == "sensitivity"
    none = choose_threshold(np.ones(3, bool), p[:3], rule="specificity=.9")
    assert none.origin == "default" and "no negative bag among 3" in none.reason


def test_adjacent_probabilities_are_told_apart_by_a_specificity():
    low = 0.3
    p = np.array([low, np.nextafter(low, 1)])
    chosen = choose_threshold(np.array([False, True]), p, rule="specificity=1")
    assert (p >= chosen.value).tolist() == [False, True]
