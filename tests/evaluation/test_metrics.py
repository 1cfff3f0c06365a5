"""Bag metrics: by hand, against scikit-learn, and undefined cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probsa.evaluation.metrics import (
    best_threshold,
    choose_threshold,
)
from scipy.stats import norm
from sklearn import metrics as sk

from probsa.errors import InputError
from probsa.statistics import Draws

HAND_Y, HAND_P = [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]


def _sample(n: int = 60, *, shift: float = 1.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    y = (np.arange(n) % 2).astype(int)
    return y, 1 / (1 + np.exp(-rng.normal(shift * (2 * y - 1), 2)))


def _three(n: int = 45, seed: int = 0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    p = rng.dirichlet(np.ones(3), size=n) + np.eye(3)[y] * 0.4
    return y, p / p.sum(1, keepdims=True)


def test_values_by_hand():
    got = bag_metrics(HAND_Y, HAND_P, threshold=0.38, bootstrap=0)
    expected = {
        "auroc": 3 / 4,
        "average_precision": (1 + 2 / 3) / 2,
        "f1": 2 * 1 / (2 * 1 + 1 + 1),
        "f1_at_0.5": 2 * 1 / (2 * 1 + 0 + 1),
        "balanced_accuracy": (1 / 2 + 1 / 2) / 2,
        "accuracy": 1 / 2,
        "brier": (0.01 + 0.16 + 0.65**2 + 0.04) / 4,
        "ece": (0.1 + 0.4 + 0.65 + 0.2) / 4,  # four bags in four bins: 1, 6, 5 and 12
        "nll": -np.log(0.9 * 0.6 * 0.35 * 0.8) / 4,
    }
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].value == pytest.approx(value, abs=1e-12), name
        assert got[name].low is None and got[name].reason is None


def test_values_are_sklearns():
    y, p = _sample()
    got = bag_metrics(y, p, threshold=0.6, bootstrap=0)
    called = p >= 0.6
    expected = {
        "auroc": sk.roc_auc_score(y, p),
        "average_precision": sk.average_precision_score(y, p),
        "f1": sk.f1_score(y, called),
        "f1_at_0.5": sk.f1_score(y, p >= 0.5),
        "balanced_accuracy": sk.balanced_accuracy_score(y, called),
        "accuracy": sk.accuracy_score(y, called),
        "brier": sk.brier_score_loss(y, p),
        "nll": sk.log_loss(y, p),
    }
    for name, value in expected.items():
        assert got[name].value == pytest.approx(value, abs=1e-12), name


def test_every_interval_is_that_of_sklearns_metric_on_the_resampled_bags():
    y, p = _sample(24)
    got = bag_metrics(y, p, threshold=0.6, bootstrap=64, seed=3)
    draws = Draws.stratified(y, groups=None, resamples=64, seed=3)
    rows = [np.repeat(np.arange(24), counts) for counts in draws.counts[1:]]
    by_hand = {
        "auroc": lambda y, p: sk.roc_auc_score(y, p),
        "average_precision": lambda y, p: sk.average_precision_score(y, p),
        "f1": lambda y, p: sk.f1_score(y, p >= 0.6),
        "f1_at_0.5": lambda y, p: sk.f1_score(y, p >= 0.5),
        "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p >= 0.6),
        "accuracy": lambda y, p: sk.accuracy_score(y, p >= 0.6),
        "brier": lambda y, p: sk.brier_score_loss(y, p),
        "ece": lambda y, p: bag_metrics(y, p, threshold=None, bootstrap=0)["ece"].value,
        "nll": lambda y, p: sk.log_loss(y, p),
    }
    assert set(by_hand) == set(got)
    for name, metric in by_hand.items():
        low, high = np.quantile([metric(y[i], p[i]) for i in rows], [0.025, 0.975])
        assert got[name].low == pytest.approx(low, abs=1e-9), name
        assert got[name].high == pytest.approx(high, abs=1e-9), name


def test_ece_has_fifteen_bins_and_one_falls_into_the_last():
    got = bag_metrics([1, 1, 0, 0], [1.0, 0.95, 0.01, 0.06], threshold=None, bootstrap=0)
    # Bin 14: |1 - 1 + .95 - 1|; bin 0: .01 + .06.
    assert got["ece"].value == pytest.approx((0.05 + 0.07) / 4)
    within = bag_metrics([1, 0], [0.61, 0.65], threshold=None, bootstrap=0)  # both in bin 9
    assert within["ece"].value == pytest.approx(abs(0.61 + 0.65 - 1) / 2)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_is_undefined_with_the_reason(label):
    got = bag_metrics([label] * 16, np.linspace(0.1, 0.9, 16), threshold=0.5, bootstrap=50)
    for name, words in (
        ("auroc", "AUROC"),
        ("average_precision", "average precision"),
        ("balanced_accuracy", "balanced accuracy"),
    ):
        assert got[name].value is None and got[name].low is None
        assert got[name].reason == f"only one class among 16 bags: {words} is undefined"
    if label == 0:
        assert got["f1"].reason == "no positive bag among 16: F1 is undefined"
        assert got["f1_at_0.5"].value is None
    else:
        assert got["f1"].value == pytest.approx(2 * 8 / (2 * 8 + 8))
    for name in ("accuracy", "brier", "ece", "nll"):
        assert got[name].value is not None and np.isfinite(got[name].value)
        assert got[name].reason is None


def test_no_bags_and_no_threshold():
    assert {m.value for m in bag_metrics([], [], threshold=0.5).values()} == {None}
    got = bag_metrics(HAND_Y, HAND_P, threshold=None, bootstrap=0)
    for name in ("f1", "accuracy", "balanced_accuracy"):
        assert "no threshold was given" in got[name].reason
    assert got["f1_at_0.5"].value == pytest.approx(2 / 3)


def test_perfect_inverted_and_constant_scores():
    y = [0] * 5 + [1] * 5
    p = np.linspace(0, 1, 10)
    assert bag_metrics(y, p, threshold=0.5)["auroc"].value == 1.0
    assert bag_metrics(y, p, threshold=0.5)["f1"].value == 1.0
    assert bag_metrics(y, 1 - p, threshold=0.5)["auroc"].value == 0.0
    assert bag_metrics(y, 1 - p, threshold=0.5)["f1"].value == 0.0


def test_nll_of_a_certain_mistake_is_finite():
    got = bag_metrics([1, 0], [0.0, 0.0], threshold=0.5, bootstrap=0)["nll"]
    assert got.value == pytest.approx(-np.log(2.0**-23) / 2)


# Thresholds


def test_threshold_is_the_midpoint_with_the_best_f1():
    assert best_threshold([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]) == pytest.approx(0.4)
    # F1 is .8 if .35 is called (one false alarm): half-way between .1 and .35.
    assert best_threshold(HAND_Y, HAND_P) == pytest.approx((0.1 + 0.35) / 2)


def test_of_tied_thresholds_the_one_nearest_a_half_is_chosen():
    # Both .15 (tp 2, fp 2) and .75 (tp 1, fp 0) give F1 = 2/3, and .75 is nearer to 0.5.
    y, p = [1, 0, 0, 1], [0.2, 0.3, 0.6, 0.9]
    assert best_threshold(y, p) == pytest.approx(0.75)
    # .125 and .875 tie and are equally near, so the lower one is chosen.
    assert best_threshold([1, 0, 0, 1], [0.25, 0.5, 0.8125, 0.9375]) == 0.125


def test_threshold_without_positives_or_negatives():
    no_positive = choose_threshold([0, 0, 0], [0.1, 0.9, 0.2])
    assert no_positive.value == 0.5
    assert no_positive.reason == "no positive bag among 3: F1 is undefined"
    assert choose_threshold([0, 1], [0.2, 0.8]).reason is None
    assert best_threshold([1, 1], [0.4, 0.6]) == pytest.approx(0.2)
    assert best_threshold([], []) == 0.5


def test_a_threshold_separates_adjacent_floats():
    low = 0.5
    high = float(np.nextafter(low, 1))
    t = best_threshold([0, 1], [low, high])
    assert low < t <= high


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=1, max_size=25))
def test_no_other_threshold_has_a_better_f1(bags):
    y = np.array([b for b, _ in bags])
    p = np.array([s / 20 for _, s in bags])
    if not y.any():
        return
    t = best_threshold(y, p)
    others = np.append(np.linspace(0, 1, 41), t)
    true = np.array([(y & (p >= o)).sum() for o in others])
    called = np.array([(p >= o).sum() for o in others])
    f1 = 2 * true / (called + y.sum())
    assert f1[-1] == f1.max()


# Intervals


def test_intervals_follow_the_seed_and_hold_the_value():
    y, p = _sample()
    first = bag_metrics(y, p, threshold=0.6, seed=1)
    again = bag_metrics(y, p, threshold=0.6, seed=1)
    other = bag_metrics(y, p, threshold=0.6, seed=2)
    assert first == again
    assert first["auroc"] != other["auroc"]
    assert first["auroc"].low == pytest.approx(other["auroc"].low, abs=0.02)
    for name, m in first.items():
        if name != "ece":  # resampling increases it, so its interval may lie above its value
            assert m.low < m.value < m.high, name
        assert m.left_out == 0


def test_copies_of_bags_in_a_group_do_not_change_the_interval():
    y, p = _sample(30)
    groups = [f"g{i}" for i in range(30)] * 4
    alone = bag_metrics(y, p, threshold=0.6)
    copies = bag_metrics(np.tile(y, 4), np.tile(p, 4), threshold=0.6, groups=groups)
    naive = bag_metrics(np.tile(y, 4), np.tile(p, 4), threshold=0.6)
    for name, m in alone.items():
        assert copies[name].value == pytest.approx(m.value, abs=1e-12), name
        assert copies[name].low == pytest.approx(m.low, abs=1e-12), name
        assert copies[name].high == pytest.approx(m.high, abs=1e-12), name
    width = alone["auroc"].high - alone["auroc"].low
    assert naive["auroc"].high - naive["auroc"].low < 0.6 * width


def test_undefined_resamples_are_left_out_and_counted():
    # The only positive bag is in a patient with a negative one.
    y = [0, 0, 0, 1, 0, 0]
    groups = ["a", "b", "m", "m", "n", "n"]
    p = [0.1, 0.4, 0.3, 0.35, 0.2, 0.5]
    got = bag_metrics(y, p, threshold=0.3, groups=groups, bootstrap=400)
    assert got["auroc"].left_out == 0  # `m` is the only group of its stratum, so it is always drawn
    found = errors([0] * 4 + [1] * 4, [0.1, 0.2, 0.3, 0.9] * 2, std=[0.1] * 8, threshold=0.5)
    margin = found["error_auroc_margin"]
    assert 0 < margin.left_out < 1000
    assert margin.value is not None and margin.low <= margin.value <= margin.high


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    truth = norm.cdf(1 / np.sqrt(2))  # AUROC of two unit normals one apart
    covered = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        y = np.arange(80) % 2
        p = norm.cdf(rng.normal(y, 1))
        m = bag_metrics(y, p, threshold=None, bootstrap=200)["auroc"]
        covered += m.low <= truth <= m.high
    # 95 % of 300 are 285 ± 3.8; percentile intervals are slightly too narrow with 80 bags.
    assert 267 <= covered <= 297


# Classes


def test_two_columns_are_equivalent_to_one_logit():
    y, p = _sample()
    two = np.stack([1 - p, p], axis=1)
    assert bag_metrics(y, two, threshold=0.6) == bag_metrics(y, p, threshold=0.6)
    assert bag_metrics(y, p[:, None], threshold=0.6) == bag_metrics(y, p, threshold=0.6)


def test_three_classes_are_sklearns_means_over_classes():
    y, p = _three()
    got = bag_metrics(y, p, threshold=None, bootstrap=0)
    called = p.argmax(1)
    one_hot = np.eye(3)[y]
    expected = {
        "auroc": sk.roc_auc_score(y, p, multi_class="ovr", average="macro"),
        "average_precision": sk.average_precision_score(one_hot, p, average="macro"),
        "f1": sk.f1_score(y, called, average="macro"),
        "balanced_accuracy": sk.balanced_accuracy_score(y, called),
        "accuracy": sk.accuracy_score(y, called),
        "brier": ((p - one_hot) ** 2).sum(1).mean(),
        "nll": sk.log_loss(y, p),
    }
    assert set(got) > {*expected, "ece"}
    for name, value in expected.items():
        assert got[name].value == pytest.approx(value, abs=1e-12), name
    assert sk.accuracy_score(y, called) < 1


def test_ece_of_classes_uses_the_highest_probability():
    p = [[0.7, 0.2, 0.1], [0.2, 0.68, 0.12], [0.05, 0.05, 0.9]]
    got = bag_metrics([0, 2, 1], p, threshold=None, bootstrap=0)["ece"]
    # .7 (right) and .68 (wrong) share bin 10; .9 (wrong) is in bin 13.
    assert got.value == pytest.approx((abs(0.7 + 0.68 - 1) + 0.9) / 3)


def test_intervals_of_three_classes_are_sklearns_on_the_resamples():
    y, p = _three(24)
    got = bag_metrics(y, p, threshold=None, bootstrap=40, seed=1)
    draws = Draws.stratified(y, groups=None, resamples=40, seed=1)
    rows = [np.repeat(np.arange(24), counts) for counts in draws.counts[1:]]
    by_hand = {
        "auroc": lambda y, p: sk.roc_auc_score(y, p, multi_class="ovr"),
        "f1": lambda y, p: sk.f1_score(y, p.argmax(1), average="macro"),
        "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p.argmax(1)),
    }
    for name, metric in by_hand.items():
        low, high = np.quantile([metric(y[i], p[i]) for i in rows], [0.025, 0.975])
        assert (got[name].low, got[name].high) == (
            pytest.approx(low, abs=1e-9),
            pytest.approx(high, abs=1e-9),
        ), name


def test_a_class_without_bags_makes_means_over_classes_undefined():
    y, p = _three()
    rows = y != 1
    got = bag_metrics(y[rows], p[rows], threshold=None, bootstrap=10)
    for name in ("auroc", "average_precision", "f1", "balanced_accuracy"):
        assert got[name].reason.startswith("no bag of class 1 among 30")
        assert got[name].reason.endswith(": the mean over classes is undefined")
    assert got["accuracy"].value == pytest.approx((p[rows].argmax(1) == y[rows]).mean())


# Detection of errors


def test_wrong_bags_found_by_std_and_by_margin():
    y = [0, 0, 0, 1, 1, 1]
    p = [0.1, 0.55, 0.2, 0.9, 0.3, 0.8]  # wrong: 1 and 4
    sd = [0.01, 0.09, 0.02, 0.05, 0.03, 0.04]
    got = errors(y, p, std=sd, threshold=0.5, bootstrap=0)
    # .09 is above all four correct bags, .03 above two of them.
    assert got["error_auroc_spread"].value == pytest.approx((4 + 2) / 8)
    # The margins of the wrong bags are .05 and .2, the others' are .4, .3, .4, .3.
    assert got["error_auroc_margin"].value == pytest.approx(1.0)
    moved = errors(y, p, std=sd, threshold=0.125, bootstrap=0)
    # Bags 1 and 2 are wrong, with margins .425 and .075; the others' are .025, .775, .175, .675.
    assert moved["error_auroc_margin"].value == pytest.approx((2 + 3) / 8)


def test_constant_std_and_all_equal_calls_are_undefined():
    y, p = [0, 0, 1, 1], [0.1, 0.6, 0.4, 0.9]
    constant = errors(y, p, std=np.zeros(4), threshold=0.5)
    assert constant["error_auroc_spread"].reason == "this posterior has no variance"
    assert constant["error_auroc_margin"].value == 1.0
    right = errors([0, 1], [0.1, 0.9], std=[0.1, 0.2], threshold=0.5)
    assert right["error_auroc_margin"].reason == (
        "no wrong call among 2 bags: errors cannot be ranked"
    )
    wrong = errors([1, 0], [0.1, 0.9], std=[0.1, 0.2], threshold=0.5)
    assert "no right call among 2 bags" in wrong["error_auroc_spread"].reason
    assert errors([], [], std=[], threshold=None)["error_auroc_margin"].reason == ("no bags")


def test_errors_of_three_classes_use_the_called_class():
    p = [[0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.9, 0.05, 0.05]]
    sd = [[0.2, 0.0, 0.0], [0.9, 0.1, 0.9], [0.0, 0.0, 0.15], [0.3, 0.9, 0.9]]
    y = [1, 1, 0, 0]  # wrong: 0 and 2
    got = errors(y, p, std=sd, task="multiclass", threshold=None, bootstrap=0)
    # The s.d. of the called class is .2 and .15 for wrong bags, .1 and .3 for correct ones; the
    # margins are .1 and .1 against .7 and .85.
    assert got["error_auroc_spread"].value == pytest.approx(2 / 4)
    assert got["error_auroc_margin"].value == pytest.approx(1.0)


# Invalid input


@pytest.mark.parametrize(
    ("y", "p", "message"),
    [
        (
            [0, 2],
            [0.5, 0.5],
            "labels go from 0 to 2, but these probabilities are for classes 0 to 1",
        ),
        ([0, -1], [0.5, 0.5], "labels go from -1 to 0"),
        ([0, 1], [0.5, 1.5], r"must lie in \[0, 1\]"),
        ([0, 1], [0.5, np.nan], r"must lie in \[0, 1\]"),
    ],
)
def test_bad_input(y, p, message):
    with pytest.raises(InputError, match=message):
        bag_metrics(y, p, threshold=0.5)


def test_threshold_of_labels_that_do_not_match():
    with pytest.raises(InputError, match="2 labels for 3 probabilities"):
        best_threshold([0, 1], [0.1, 0.2, 0.3])


def test_of_grades_the_median_is_called_and_the_margin_is_that_of_the_nearest_cut():
    p = np.array([[0.4, 0.0, 0.35, 0.25], [0.1, 0.2, 0.6, 0.1]])
    task = TASKS["ordinal"]
    called, margin = task.calls(p), task.margins(p)
    assert called.tolist() == [2, 2] and p.argmax(1).tolist() == [0, 2]
    np.testing.assert_allclose(margin, [0.1, 0.2])
    sd = np.tile([[0.0], [0.1]], 4)
    found = errors([0, 2], p, std=sd, task="ordinal", threshold=None, bootstrap=0)
    assert found["error_auroc_margin"].value == 1.0
