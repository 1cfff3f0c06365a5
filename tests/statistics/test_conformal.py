"""Guarantees: thresholds against brute force and libraries, and how often they hold."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from probsa.statistics import (
    ConformalSets,
    aps_scores,
    certified_threshold,
    conformal_half_width,
    coverage_band,
    group_shares,
    least_accepted,
    least_groups,
)
from probsa.statistics.conformal import error_p_value, risk_threshold


def draw(rng, n, classes=3):
    """Return probabilities, and labels drawn from them."""
    p = rng.dirichlet(np.full(classes, 0.6), size=n)
    return p, (p.cumsum(1) > rng.random((n, 1))).argmax(1)


def brute_threshold(score, groups, alpha):
    """The definition of λ̂ in exact fractions, over every score as a candidate."""
    members = [np.flatnonzero(np.asarray(groups) == g) for g in dict.fromkeys(groups)]
    for candidate in sorted(score):
        loss = sum(Fraction(int((score[m] > candidate).sum()), len(m)) for m in members)
        if (loss + 1) / (len(members) + 1) <= alpha:
            return candidate
    return np.inf


@pytest.mark.parametrize("alpha", [Fraction(1, 20), Fraction(1, 10), Fraction(1, 4)])
@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_that_of_the_definition(seed, alpha):
    rng = np.random.default_rng(seed)
    k = int(rng.integers(9, 40))
    groups = rng.integers(0, k, size=rng.integers(1, 5 * k)).tolist()
    score = rng.integers(0, 30, size=len(groups)) / 8  # with ties
    share, member = group_shares(groups)
    found = risk_threshold(score, share, groups=len(set(member)), alpha=float(alpha))
    assert found == brute_threshold(score, groups, alpha)


def test_the_set_holds_the_classes_whose_p_value_is_above_alpha():
    rng = np.random.default_rng(0)
    (p, y), (p_new, _) = draw(rng, 200), draw(rng, 300)
    groups = rng.integers(0, 49, size=200).tolist()
    for per_class in (False, True):
        sets = ConformalSets.calibrated(1 - p, y, groups=groups, alpha=0.1, per_class=per_class)
        new = 1 - p_new
        new[:50, 0] = sets.thresholds[0]  # at the threshold itself
        assert np.array_equal(sets.sets(new), sets.p_values(new) > 0.1 + 1e-9)


def library_data():
    """The random bags that the libraries below were given: 60 for calibration, 200 new ones."""
    rng = np.random.default_rng(0)
    drawn = []
    for n in (60, 200):
        logit = rng.normal(size=(n, 3)) * 2
        p = np.exp(logit) / np.exp(logit).sum(1, keepdims=True)
        drawn.append((p, np.array([rng.choice(3, p=q) for q in p])))
    return drawn


def test_ungrouped_sets_are_those_of_libraries():
    """Values of crepes 0.9.1 (hinge, unsmoothed), MAPIE 1.6.0 and puncc 0.9.3 (LAC)."""
    (p, y), (p_new, _) = library_data()
    for per_class, sizes, first in ((False, 304, 0.7973308985300093), (True, 309, None)):
        sets = ConformalSets.calibrated(
            1 - p, y, groups=range(60), alpha=1 - 0.9, per_class=per_class
        )
        assert sets.sets(1 - p_new).sum() == sizes
        assert first is None or sets.thresholds[0] == pytest.approx(first, abs=1e-15)
    # MAPIE counts the random part of the last class from its other end.
    u = 1 - np.random.RandomState(0).uniform(size=60)
    aps = ConformalSets.calibrated(aps_scores(p, u=u), y, groups=range(60), alpha=1 - 0.9)
    assert aps.thresholds[0] == pytest.approx(0.8562457644341438, abs=1e-12)


def test_aps_scores_add_up_the_more_probable_classes():
    p = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]])
    whole = aps_scores(p, u=np.ones(2))
    assert whole == pytest.approx(np.array([[1.0, 0.5, 0.8], [0.4, 0.8, 1.0]]))
    half = aps_scores(p, u=np.array([0.5, 0.0]))
    assert half == pytest.approx(np.array([[0.9, 0.25, 0.65], [0.0, 0.4, 0.8]]))


def test_the_bands_of_the_specification():
    expected = {54: (0.838, 0.963), 150: (0.858, 0.937), 1000: (0.884, 0.915)}
    for groups, band in expected.items():
        assert coverage_band(groups, alpha=1 - 0.9) == pytest.approx(band, abs=6e-4)


@pytest.mark.parametrize(("score", "per_class"), [("lac", True), ("aps", False)])
def test_coverage_over_a_thousand_resplits_lies_in_its_band(score, per_class):
    """Of a pool of 300 bags, 100 calibrate and 200 are covered or not."""
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(1000):
        p, y = draw(rng, 300, classes=2)
        u = rng.random(300)
        s = 1 - p if score == "lac" else aps_scores(p, u=u)
        sets = ConformalSets.calibrated(
            s[:100], y[:100], groups=range(100), alpha=0.1, per_class=per_class
        )
        hit = np.take_along_axis(sets.sets(s[100:]), y[100:, None], axis=1)[:, 0]
        rows = y[100:] == 1 if per_class else np.ones(200, dtype=bool)
        covered.append((hit[rows].mean(), sets.groups[1], rows.sum()))
    inside = [
        low <= share <= high
        for share, groups, rows in covered
        for low, high in [coverage_band(groups, test_groups=int(rows), alpha=0.1)]
    ]
    # A band of a discrete number holds at least 90 %; its end points have mass of their own.
    assert 0.88 <= np.mean(inside) <= 0.95
    mean = np.mean([c[0] for c in covered])
    error = np.std([c[0] for c in covered]) / 1000**0.5
    assert 0.9 - 3 * error <= mean <= 0.9 + 1 / (min(c[1] for c in covered) + 1) + 3 * error


def test_with_too_few_groups_everything_is_in_the_set():
    levels = (0.1, 1 - 0.9, 0.05, 1 - 0.95, 0.5, 1 - 0.999, 1 - 0.9999)
    assert [least_groups(a) for a in levels] == [9, 9, 19, 19, 1, 999, 9999]
    p, y = draw(np.random.default_rng(0), 40, classes=2)
    for groups, inside in ((8, True), (9, False)):
        of = [i % groups for i in range(40)]
        sets = ConformalSets.calibrated(1 - p, y, groups=of, alpha=0.1)
        assert np.isinf(sets.thresholds).all() == inside == sets.sets(1 - p).all()
        half = conformal_half_width(p[:, 0], p[:, 1], spread=np.ones(40), groups=of, alpha=0.1)
        assert np.isinf(half) == inside


def test_the_half_width_is_the_finite_sample_quantile():
    y = np.arange(1.0, 20)
    one = np.ones(19)
    for alpha, rank in ((0.1, 18), (0.2, 16), (0.05, 19)):  # ⌈20 (1 - α)⌉
        got = conformal_half_width(y, 0 * y, spread=one, groups=range(19), alpha=alpha)
        assert got == rank
    assert conformal_half_width(y, 0 * y, spread=2 * one, groups=range(19), alpha=0.1) == 9


def test_a_group_counts_once_however_many_items_it_has():
    y = np.arange(1.0, 10)
    groups = np.repeat(np.arange(9), [1, 1, 1, 1, 1, 1, 1, 50, 1])
    for of in (np.arange(9), groups):
        options = {"spread": np.ones(len(of)), "groups": of.tolist(), "alpha": 0.2}
        assert conformal_half_width(y[of], np.zeros(len(of)), **options) == 8


THRESHOLDS = np.array([0.5, 0.4, 0.3, 0.2, 0.1, -np.inf])


def certified(thresholds, confidence, wrong, *, groups=None, max_error):
    groups = range(len(wrong)) if groups is None else groups
    given = {"confidence": confidence, "wrong": wrong, "groups": groups, "max_error": max_error}
    return certified_threshold(np.array(thresholds), **given, delta=0.1)


def draw_calls(rng, k, *, grouped):
    """Return confidences, errors and groups; P(wrong) falls with the confidence."""
    sizes = rng.integers(1, 8, size=k) if grouped else np.ones(k, dtype=int)
    member = np.repeat(np.arange(k), sizes)
    level = np.clip(rng.random(k)[member] * 0.7 + rng.random(len(member)) * 0.3, 0, 1)
    wrong = rng.random(k)[member] * 0.5 + rng.random(len(member)) * 0.5 < 0.45 * (1 - level)
    return level, wrong, member.tolist()


def true_error(threshold, *, grouped):
    level, wrong, groups = draw_calls(np.random.default_rng(99), 200_000, grouped=grouped)
    weight = 1 / np.bincount(groups)[groups]
    return (weight * wrong)[level >= threshold].sum() / weight[level >= threshold].sum()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("max_error", [0.05, 0.1])
def test_the_certified_error_rate_is_exceeded_at_most_with_probability_delta(grouped, max_error):
    rng = np.random.default_rng(7)
    error = {t: true_error(t, grouped=grouped) for t in THRESHOLDS}
    assert min(error.values()) < max_error < max(error.values())  # both can happen
    rules = []
    for _ in range(1000):
        confidence, wrong, groups = draw_calls(rng, 200, grouped=grouped)
        rules.append(certified(THRESHOLDS, confidence, wrong, groups=groups, max_error=max_error))
    exceeded = [r.threshold is not None and error[r.threshold] > max_error for r in rules]
    assert np.mean(exceeded) <= 0.1
    if max_error == 0.1:
        assert np.mean([r.threshold is not None for r in rules]) > 0.5


@pytest.mark.parametrize("one_each", [True, False])
def test_the_p_value_is_valid_at_the_boundary(one_each):
    """The true error rate is exactly r; a p-value of at most δ then has probability ≤ δ."""
    rng = np.random.default_rng(2)
    below = []
    for _ in range(4000):
        accepted = (rng.random(60) < 0.8).astype(float)
        wrong = accepted * (rng.random(60) < 0.2)
        if not one_each:
            scale = rng.choice([0.5, 1.0], size=60)
            accepted = accepted * scale
            wrong = wrong * scale
        p = error_p_value(wrong, accepted, max_error=0.2, one_each=one_each)
        below.append(p <= 0.1)
    assert np.mean(below) <= 0.1 + 3 * (0.09 / 4000) ** 0.5
    assert np.mean(below) > (0.03 if one_each else 0.0)


def test_the_bet_is_nearly_as_sharp_as_the_exact_test():
    accepted = np.ones(100)
    wrong = np.zeros(100)
    wrong[:3] = 1
    exact = error_p_value(wrong, accepted, max_error=0.15, one_each=True)
    bet = error_p_value(wrong, accepted, max_error=0.15, one_each=False)
    assert exact == pytest.approx(binom.cdf(3, 100, 0.15))
    assert exact < bet < 0.01


@pytest.mark.parametrize(
    ("r", "delta", "one_each", "expected"),
    [
        (0.05, 0.1, True, 45),
        (0.1, 0.1, True, 22),
        (0.5, 0.25, True, 2),
        (0.05, 0.1, False, 61),
        (0.1, 0.1, False, 30),
        (0.9, 0.2, False, 1),
    ],
)
def test_the_least_number_of_accepted_groups(r, delta, one_each, expected):
    k = least_accepted(max_error=r, delta=delta, one_each=one_each)
    p, fewer = (
        error_p_value(np.zeros(n), np.ones(n), max_error=r, one_each=one_each) for n in (k, k - 1)
    )
    assert k == expected and p <= delta + 1e-12 and fewer > delta


def test_testing_stops_at_the_first_failure():
    """The lowest threshold would pass by itself, but the one before it fails."""
    confidence = np.concatenate([np.full(60, 0.9), np.full(20, 0.5), np.full(400, 0.1)])
    wrong = np.zeros(480, dtype=bool)
    wrong[60:80] = True
    rule = certified([0.9, 0.5, 0.1], confidence, wrong, max_error=0.1)
    assert (rule.threshold, rule.error) == (0.9, 0.0)
    assert rule.accepted == pytest.approx(60 / 480)
    assert error_p_value(wrong.astype(float), np.ones(480), max_error=0.1, one_each=True) < 0.1


def test_nothing_is_certified_where_too_few_are_accepted():
    rule = certified([0.5], np.linspace(0, 1, 40), np.zeros(40, dtype=bool), max_error=0.05)
    assert rule.threshold is None and rule.p_value == pytest.approx(0.95**20)
