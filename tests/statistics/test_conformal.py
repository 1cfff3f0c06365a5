"""Conformal sets: thresholds against brute force and libraries, and coverage over many splits."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import kstest

from probsa.errors import InputError
from probsa.statistics import (
    ConformalSets,
    aps_scores,
    coverage_band,
    coverage_band_in_test,
    group_shares,
    lac_scores,
    least_groups,
    risk_threshold,
)


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


@pytest.mark.parametrize("n", [9, 19, 54, 60])
def test_with_one_bag_per_group_it_is_the_quantile_of_split_conformal(n):
    score = np.random.default_rng(n).random(n)
    share, _ = group_shares(range(n))
    rank = int(np.ceil((n + 1) * Fraction(9, 10)))
    assert risk_threshold(score, share, groups=n, alpha=1 - 0.9) == np.sort(score)[rank - 1]


def test_the_set_holds_the_classes_whose_p_value_is_above_alpha():
    rng = np.random.default_rng(0)
    (p, y), (p_new, _) = draw(rng, 200), draw(rng, 300)
    groups = rng.integers(0, 49, size=200).tolist()
    for per_class in (False, True):
        sets = ConformalSets.calibrated(
            lac_scores(p), y, groups=groups, alpha=0.1, per_class=per_class
        )
        new = lac_scores(p_new)
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
            lac_scores(p), y, groups=range(60), alpha=1 - 0.9, per_class=per_class
        )
        assert sets.sets(lac_scores(p_new)).sum() == sizes
        assert first is None or sets.thresholds[0] == pytest.approx(first, abs=1e-15)
    # MAPIE counts the random part of the last class from its other end.
    u = 1 - np.random.RandomState(0).uniform(size=60)
    aps = ConformalSets.calibrated(aps_scores(p, u=u), y, groups=range(60), alpha=1 - 0.9)
    assert aps.thresholds[0] == pytest.approx(0.8562457644341438, abs=1e-12)


def test_aps_scores_add_up_the_more_probable_classes():
    p = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]])
    assert aps_scores(p) == pytest.approx(np.array([[1.0, 0.5, 0.8], [0.4, 0.8, 1.0]]))
    half = aps_scores(p, u=np.array([0.5, 0.0]))
    assert half == pytest.approx(np.array([[0.9, 0.25, 0.65], [0.0, 0.4, 0.8]]))


@pytest.mark.parametrize("groups", [9, 54, 150])
def test_realised_coverage_is_beta_distributed_over_calibration_sets(groups):
    """For uniform scores the realised coverage of a threshold is the threshold itself."""
    rng = np.random.default_rng(groups)
    share = np.ones(groups)
    realised = np.array(
        [risk_threshold(rng.random(groups), share, groups=groups, alpha=0.1) for _ in range(1000)]
    )
    rank = int(np.ceil((groups + 1) * Fraction(9, 10)))
    assert kstest(realised, "beta", args=(rank, groups + 1 - rank)).pvalue > 0.01
    low, high = coverage_band(groups, alpha=0.1)
    assert np.mean((realised >= low) & (realised <= high)) == pytest.approx(0.9, abs=0.025)


def test_the_bands_of_the_specification():
    expected = {54: (0.838, 0.963), 150: (0.858, 0.937), 1000: (0.884, 0.915)}
    for groups, band in expected.items():
        assert coverage_band(groups, alpha=1 - 0.9) == pytest.approx(band, abs=6e-4)


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("per_class", [False, True])
def test_coverage_over_a_thousand_resplits_lies_in_its_band(score, per_class):
    """Of a pool of 300 bags, 100 calibrate and 200 are covered or not."""
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(1000):
        p, y = draw(rng, 300, classes=2)
        u = rng.random(300)
        s = lac_scores(p) if score == "lac" else aps_scores(p, u=u)
        sets = ConformalSets.calibrated(
            s[:100], y[:100], groups=range(100), alpha=0.1, per_class=per_class
        )
        hit = np.take_along_axis(sets.sets(s[100:]), y[100:, None], axis=1)[:, 0]
        rows = y[100:] == 1 if per_class else np.ones(200, dtype=bool)
        covered.append((hit[rows].mean(), sets.groups[1], rows.sum()))
    inside = [
        low <= share <= high
        for share, groups, rows in covered
        for low, high in [coverage_band_in_test(groups, test_groups=int(rows), alpha=0.1)]
    ]
    # A band of a discrete number holds at least 90 %; its end points have mass of their own.
    assert 0.88 <= np.mean(inside) <= 0.95
    mean, error = np.mean([c[0] for c in covered]), np.std([c[0] for c in covered]) / 1000**0.5
    assert 0.9 - 3 * error <= mean <= 0.9 + 1 / (min(c[1] for c in covered) + 1) + 3 * error


def test_groups_count_once():
    """Bags of a group agree completely: twelve groups are twelve observations, not 120."""
    rng = np.random.default_rng(0)
    grouped, ungrouped = [], []
    groups = np.repeat(np.arange(12), 10).tolist()
    share, _ = group_shares(groups)
    for _ in range(2000):
        score = np.repeat(rng.random(12), 10)
        grouped.append(risk_threshold(score, share, groups=12, alpha=0.1))
        ungrouped.append(risk_threshold(score, np.ones(120), groups=120, alpha=0.1))
    assert np.mean(grouped) == pytest.approx(12 / 13, abs=0.006)
    assert np.mean(ungrouped) == pytest.approx(11 / 13, abs=0.008)  # below 0.9


def test_coverage_holds_for_groups_whose_size_depends_on_their_difficulty():
    """Large groups are easy: the threshold of all bags would cover too few bags of small ones."""
    rng = np.random.default_rng(1)

    def draw_groups(k):
        hard = rng.random(k) < 0.3
        size = np.where(hard, 1, 30)
        member = np.repeat(np.arange(k), size)
        level = rng.normal(size=k) + 2 * hard
        return level[member] + 0.5 * rng.normal(size=len(member)), member.tolist()

    by_group, by_bag = [], []
    for _ in range(1000):
        score, groups = draw_groups(40)
        share, _ = group_shares(groups)
        new, new_groups = draw_groups(40)
        new_share, _ = group_shares(new_groups)
        for share_used, k, out in (
            (share, 40, by_group),
            (np.ones(len(score)), len(score), by_bag),
        ):
            t = risk_threshold(score, share_used, groups=k, alpha=0.1)
            out.append((new_share * (new <= t)).sum() / 40)
    assert 0.897 <= np.mean(by_group) <= 0.925
    assert np.mean(by_bag) < 0.85


def test_too_few_groups_are_refused_with_the_number_needed():
    assert [least_groups(a) for a in (0.1, 1 - 0.9, 0.05, 1 - 0.95, 0.5)] == [9, 9, 19, 19, 1]
    p, y = draw(np.random.default_rng(0), 40, classes=2)
    groups = [i % 8 for i in range(40)]
    with pytest.raises(InputError, match=r"at least 9 groups \(patients\), but there are 8"):
        ConformalSets.calibrated(lac_scores(p), y, groups=groups, alpha=0.1)
    y[:35], y[35:] = 0, 1
    with pytest.raises(InputError, match=r"of class 1 of at least 9 groups .* there are 5"):
        ConformalSets.calibrated(lac_scores(p), y, groups=range(40), alpha=0.1, per_class=True)
    with pytest.raises(InputError, match="there are 0"):
        coverage_band(0, alpha=0.1)


def test_the_expected_loss_of_new_groups_is_controlled():
    """Conformal risk control of missed instances, with bags within groups, over 1,000 splits."""
    rng = np.random.default_rng(5)

    def lost(threshold, score, share, k):
        return (share * (score > threshold)).sum() / k

    realised = []
    for _ in range(1000):
        parts = []
        for k in (30, 200):
            sizes = rng.integers(1, 15, size=k)
            member = np.repeat(np.arange(k), sizes)
            score = rng.normal(size=k)[member] + rng.normal(size=len(member))
            parts.append((score, group_shares(member.tolist())[0], k))
        (score, share, k), new = parts
        realised.append(lost(risk_threshold(score, share, groups=k, alpha=0.2), *new))
    assert np.mean(realised) <= 0.2 + 3 * np.std(realised) / 1000**0.5
    assert np.mean(realised) > 0.2 - 2 / 31
