"""Selective prediction: p-values, and how often a certified error rate is exceeded."""

import numpy as np
import pytest
from probsa.statistics.selective import error_p_value
from scipy.stats import binom

from probsa.statistics import certified_threshold, least_accepted

THRESHOLDS = np.array([0.5, 0.4, 0.3, 0.2, 0.1, -np.inf])


def draw(rng, k, *, grouped):
    """Return confidences, errors and groups; P(wrong) falls with the confidence."""
    sizes = rng.integers(1, 8, size=k) if grouped else np.ones(k, dtype=int)
    member = np.repeat(np.arange(k), sizes)
    level = np.clip(rng.random(k)[member] * 0.7 + rng.random(len(member)) * 0.3, 0, 1)
    wrong = rng.random(k)[member] * 0.5 + rng.random(len(member)) * 0.5 < 0.45 * (1 - level)
    return level, wrong, member.tolist()


def true_error(threshold, *, grouped):
    level, wrong, groups = draw(np.random.default_rng(99), 200_000, grouped=grouped)
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
        confidence, wrong, groups = draw(rng, 200, grouped=grouped)
        rules.append(
            certified_threshold(
                THRESHOLDS,
                confidence=confidence,
                wrong=wrong,
                groups=groups,
                max_error=max_error,
                delta=0.1,
            )
        )
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
            accepted, wrong = accepted * scale, wrong * scale
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


def test_the_least_number_of_accepted_groups():
    for r, delta, expected in ((0.05, 0.1, 45), (0.1, 0.1, 22), (0.5, 0.25, 2)):
        k = least_accepted(max_error=r, delta=delta)
        assert k == expected
        assert (1 - r) ** k <= delta < (1 - r) ** (k - 1)


def test_testing_stops_at_the_first_failure():
    """The lowest threshold would pass by itself, but the one before it fails."""
    confidence = np.concatenate([np.full(60, 0.9), np.full(20, 0.5), np.full(400, 0.1)])
    wrong = np.zeros(480, dtype=bool)
    wrong[60:80] = True
    rule = certified_threshold(
        np.array([0.9, 0.5, 0.1]),
        confidence=confidence,
        wrong=wrong,
        groups=range(480),
        max_error=0.1,
        delta=0.1,
    )
    assert (rule.threshold, rule.error) == (0.9, 0.0)
    assert rule.accepted == pytest.approx(60 / 480)
    assert error_p_value(wrong.astype(float), np.ones(480), max_error=0.1, one_each=True) < 0.1


def test_nothing_is_certified_where_too_few_are_accepted():
    rule = certified_threshold(
        np.array([0.5]),
        confidence=np.linspace(0, 1, 40),
        wrong=np.zeros(40, dtype=bool),
        groups=range(40),
        max_error=0.05,
        delta=0.1,
    )
    assert rule.threshold is None and rule.p_value == pytest.approx(0.95**20)
