"""Measures within bags equal their definitions, also for equal scores."""

import numpy as np
import pytest
from scipy.stats import rankdata

from probsa.evaluation.pools import bag_draws
from probsa.evaluation.within_bags import (
    WITHIN,
    WITHIN_BAGS,
    is_mixed,
    precision_of_top,
    within_bag,
    within_samples,
)


def by_random_orders(y, score, *, count, orders=20_000):
    """Break ties at random, many times."""
    g = np.random.default_rng(0)
    hits = 0.0
    for _ in range(orders):
        shuffled = g.permutation(len(y))
        top = shuffled[np.argsort(-score[shuffled], kind="stable")[:count]]
        hits += y[top].mean()
    return hits / orders


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_top_breaks_ties_at_random(count):
    y = np.array([1, 0, 0, 1, 0, 1], dtype=bool)
    score = np.array([2.0, 2.0, 2.0, 1.0, 3.0, 1.0])
    got = precision_of_top(y, score, count=count)
    assert got == pytest.approx(by_random_orders(y, score, count=count), abs=0.015)


def test_the_measures_of_one_bag():
    g = np.random.default_rng(1)
    y, score = g.random(250) < 0.3, g.normal(size=250).round(1)
    auroc, precision, top, share = within_bag(y, score)
    u = rankdata(score)[y].sum() - y.sum() * (y.sum() + 1) / 2
    assert auroc == pytest.approx(u / (y.sum() * (~y).sum()), abs=1e-12)
    levels = np.unique(score)[::-1]
    called = [(score >= v) for v in levels]
    recall = np.array([0, *((c & y).sum() / y.sum() for c in called)])
    each = np.array([(c & y).sum() / c.sum() for c in called])
    assert precision == pytest.approx(np.sum(np.diff(recall) * each), abs=1e-12)
    assert top == precision_of_top(y, score, count=1)
    assert share == precision_of_top(y, score, count=2)  # 1 % of 250, rounded to even
    # a constant map finds what chance finds
    assert within_bag(y, np.zeros(250)) == pytest.approx([0.5, *[y.mean()] * 3])


def test_means_are_over_mixed_positive_bags_and_intervals_over_groups():
    values = np.arange(12.0).reshape(3, 4)
    mixed = np.array([True, False, True])
    draws = bag_draws(["a", "b", "c"], np.ones(3, bool), groups=None, resamples=50, seed=0)
    got = within_samples(values, mixed, draws=draws)
    assert [got[k].value for k in WITHIN_BAGS] == pytest.approx(list(values[[0, 2]].mean(0)))
    assert set(np.unique(got[WITHIN].rows[np.isfinite(got[WITHIN].rows)])) > {0.0, 4.0, 8.0}
    assert "both labels" in within_samples(values, ~mixed & mixed, draws=draws)[WITHIN].reason
    assert not is_mixed(np.ones(3, bool)) and not is_mixed(np.zeros(3, bool))
