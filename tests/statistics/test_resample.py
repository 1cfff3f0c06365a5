"""Resampled metrics equal scikit-learn's on the resampled bags; groups are drawn fairly."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from probsa.statistics import Draws, replicate_weights, resample


def _data(n: int, *, levels: int, seed: int = 0):
    """Labels and scores; with few levels there are many ties, also between the classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3 == 0
    return y, np.round((rng.random(n) + 0.4 * y) * levels) / levels


@pytest.mark.parametrize("levels", [3, 1_000_000])
def test_ranks_of_each_resample_are_sklearns_with_the_counts_as_weights(levels):
    y, score = _data(40, levels=levels)
    groups = (np.arange(40) // 3).tolist()
    draws = Draws.patients(y, groups=groups, resamples=25, seed=1)
    got = draws.ranks(y, score)
    for r, counts in enumerate(draws.counts):
        weight = counts[draws.member]
        assert got[0, r] == pytest.approx(roc_auc_score(y, score, sample_weight=weight), abs=1e-12)
        expected = average_precision_score(y, score, sample_weight=weight)
        assert got[1, r] == pytest.approx(expected, abs=1e-12)


def test_little_memory_gives_the_same_resamples(monkeypatch):
    y, score = _data(30, levels=5)
    draws = Draws.patients(y, groups=None, resamples=50, seed=0)
    whole = draws.ranks(y, score)
    monkeypatch.setattr(resample, "CELLS", 70)
    np.testing.assert_array_equal(draws.ranks(y, score), whole)


def test_a_resample_with_one_class_is_nan():
    y = np.array([True, False])
    score = np.array([0.2, 0.8])
    counts = np.array([[2.0, 0], [0, 2], [1, 1]])
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
    draws = Draws.patients(np.zeros(3), groups=None, resamples=4, seed=0)
    for y in (np.zeros(3, dtype=bool), np.ones(3, dtype=bool)):
        assert np.isnan(draws.ranks(y, np.arange(3.0))).all()
    none = Draws(counts=np.ones((4, 2)), member=np.empty(0, dtype=np.int64))
    assert np.isnan(none.ranks(np.empty(0, dtype=bool), np.empty(0))).all()


def test_groups_are_drawn_whole_and_within_their_stratum():
    labels = np.array([0, 0, 1, 1, 0, 1, 0, 1, 1, 0])
    groups = ["a", "a", "b", "b", "m", "m", "c", "d", "d", "e"]  # a, c, e: 0; b, d: 1; m: both
    draws = Draws.patients(labels, groups=groups, resamples=200, seed=0)
    assert draws.counts.shape == (201, 6) and draws.freedom == 6 - 2
    a, b, m, c, d, e = draws.counts.T
    # m is alone in its stratum, and is drawn with the largest one
    np.testing.assert_allclose(a + c + e + m, 4)
    np.testing.assert_allclose(b + d, 2)
    assert (draws.counts[0] == 1).all()
    assert set(b.tolist()) == {0, 1, 2}
    np.testing.assert_allclose(np.unique(a[1:]), [0, 4 / 3, 8 / 3, 4])
    np.testing.assert_array_equal(draws.member, [0, 0, 1, 1, 2, 2, 3, 4, 4, 5])


def test_the_std_of_a_resampled_mean_is_its_standard_error():
    value = np.repeat([0.0, 1.0], [20, 80])
    draws = Draws.patients(np.zeros(100), groups=None, resamples=20_000, seed=0)
    means = draws.totals(value[:, None])[:, 0] / 100
    assert means.mean() == pytest.approx(0.8, abs=0.002)
    assert means.std() == pytest.approx(0.0402, rel=0.03)  # sqrt(.8 · .2 / 99)


def test_items_follow_their_bags():
    draws = Draws.patients(np.array([0, 1, 1]), groups=["p", "q", "q"], resamples=3, seed=0)
    assert draws.for_items(np.array([2, 0, 0, 1])).member.tolist() == [1, 0, 0, 1]


def test_replicates_of_a_block_share_its_weight():
    weights = replicate_weights(5, resamples=2000, seed=0, blocks=["b", "a", "a", "a", "c"])
    assert weights[0] == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 1])
    assert (weights[:, 1] == weights[:, 3]).all()
    assert weights.sum(1) == pytest.approx(3)
    assert weights[1:, 0].var() == pytest.approx(1, abs=0.1)
