"""Resampled metrics equal scikit-learn's on the resampled bags; groups are drawn fairly."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from probsa.statistics import Draws, Metric, replicate_weights, resample
from probsa.statistics.metric import interval


def _data(n: int, *, levels: int, seed: int = 0):
    """Labels and scores; with few levels there are many ties, also between the classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3 == 0
    return y, np.round((rng.random(n) + 0.4 * y) * levels) / levels


@pytest.mark.parametrize("levels", [3, 1_000_000])
def test_ranks_of_each_resample_are_sklearns_with_the_counts_as_weights(levels):
    y, score = _data(40, levels=levels)
    groups = (np.arange(40) // 3).tolist()
    draws = Draws.stratified(y, groups=groups, resamples=25, seed=1)
    got = draws.ranks(y, score)
    for r, counts in enumerate(draws.counts):
        weight = counts[draws.member]
        assert got[0, r] == pytest.approx(roc_auc_score(y, score, sample_weight=weight), abs=1e-12)
        expected = average_precision_score(y, score, sample_weight=weight)
        assert got[1, r] == pytest.approx(expected, abs=1e-12)


def test_little_memory_gives_the_same_resamples(monkeypatch):
    y, score = _data(30, levels=5)
    draws = Draws.stratified(y, groups=None, resamples=50, seed=0)
    whole = draws.ranks(y, score)
    monkeypatch.setattr(resample, "CELLS", 70)
    np.testing.assert_array_equal(draws.ranks(y, score), whole)


def test_a_resample_with_one_class_is_nan():
    y, score = np.array([True, False]), np.array([0.2, 0.8])
    counts = np.array([[2, 0], [0, 2], [1, 1]])
    ranks = Draws(counts=counts, member=np.array([0, 1])).ranks(y, score)
    assert np.isnan(ranks[:, :2]).all()
    np.testing.assert_allclose(ranks[:, 2], [0.0, 0.5])


def test_weights_that_are_no_whole_numbers_leave_no_rest_of_a_class():
    y = np.array([True] * 7 + [False] * 2)
    counts = np.array([[7 / 6] * 6 + [0.0, 0.0, 0.0], [7 / 6] * 6 + [0.0, 7 / 6, 0.0]])
    draws = Draws(counts=counts, member=np.arange(9))
    auroc, precision = draws.ranks(y, np.linspace(0.1, 0.9, 9))
    assert np.isnan([auroc[0], precision[0]]).all() and auroc[1] == pytest.approx(0)


def test_nothing_to_rank_is_nan():
    draws = Draws.stratified(np.zeros(3), groups=None, resamples=4, seed=0)
    for y in (np.zeros(3, dtype=bool), np.ones(3, dtype=bool)):
        assert np.isnan(draws.ranks(y, np.arange(3.0))).all()
    none = Draws(counts=np.ones((4, 2), dtype=np.int64), member=np.empty(0, dtype=np.int64))
    assert np.isnan(none.ranks(np.empty(0, dtype=bool), np.empty(0))).all()


def test_groups_are_drawn_whole_and_within_their_stratum():
    labels = np.array([0, 0, 1, 1, 0, 1, 0, 1, 1])
    groups = ["a", "a", "b", "b", "m", "m", "c", "d", "d"]  # a, c: 0; b, d: 1; m: both
    draws = Draws.stratified(labels, groups=groups, resamples=200, seed=0)
    assert draws.counts.shape == (201, 5)
    a, b, m, c, d = draws.counts.T
    assert (m == 1).all()
    assert (a + c == 2).all() and (b + d == 2).all()
    assert (draws.counts[0] == 1).all()
    assert set(a.tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(draws.member, [0, 0, 1, 1, 2, 2, 3, 4, 4])


def test_the_std_of_a_resampled_mean_is_its_standard_error():
    value = np.repeat([0.0, 1.0], [20, 80])
    draws = Draws.stratified(np.zeros(100), groups=None, resamples=20_000, seed=0)
    means = draws.totals(value[:, None])[:, 0] / 100
    assert means.mean() == pytest.approx(0.8, abs=0.002)
    assert means.std() == pytest.approx(0.04, rel=0.03)  # sqrt(.8 · .2 / 100)


def test_items_follow_their_bags():
    draws = Draws.stratified(np.array([0, 1, 1]), groups=["p", "q", "q"], resamples=3, seed=0)
    assert draws.for_items(np.array([2, 0, 0, 1])).member.tolist() == [1, 0, 0, 1]


def test_replicates_of_a_block_share_its_weight():
    weights = replicate_weights(5, resamples=2000, seed=0, blocks=["b", "a", "a", "a", "c"])
    assert weights[0] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 1])
    assert (weights[:, 1] == weights[:, 3]).all()
    assert weights.sum(1) == pytest.approx(3)
    assert weights[1:, 0].var() == pytest.approx(1, abs=0.1)


def test_one_group_gives_no_interval():
    draws = Draws.stratified(np.array([0, 1, 0]), groups=["p", "p", "p"], resamples=100, seed=0)
    assert interval(draws.totals(np.ones((3, 1)))[1:, 0]) == (None, None, 0)


def test_interval_is_percentiles_of_the_defined_resamples():
    values = np.append(np.arange(101.0), [np.nan] * 5)
    assert interval(values) == (pytest.approx(2.5), pytest.approx(97.5), 5)
    assert interval(np.array([1.0, np.nan, np.nan])) == (None, None, 2)


def test_of_a_mean_over_groups_it_is_the_interval_of_the_t_test():
    values = np.random.default_rng(0).normal(size=7)
    draws = Draws.stratified(np.ones(7), groups=None, resamples=200_000, seed=1)
    sample = Metric.of(draws.ratio(values, np.ones(7)))
    got = sample.student(groups=7)
    want = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert got.value == pytest.approx(values.mean(), abs=1e-12)
    # the standard deviation of 200,000 resamples is known to 0.2 %
    half = (want.high - want.low) / 2
    assert (got.low, got.high) == pytest.approx(want, abs=0.01 * half)


def test_without_two_groups_or_resamples_there_is_no_interval():
    sample = Metric.of(np.array([0.5, 0.4, 0.6, 0.5]))
    assert sample.student(groups=2).low is not None
    assert sample.student(groups=1).low is None
    assert Metric.of(np.array([0.5])).student(groups=9).low is None
    mostly_undefined = Metric.of(np.array([0.5, 0.4, *[np.nan] * 5, 0.3]))
    assert mostly_undefined.student(groups=9).low is None
    assert Metric.undefined("why").student(groups=9).reason == "why"
