"""A fold with flipped labels is an outlier; folds that are alike rarely are."""

import numpy as np
import pytest
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from probsa.errors import InputError
from probsa.statistics.outlier_folds import find_outlier_folds


def cohort(rng, *, patients=50, bags=2, folds=5, signal=2.0, methods=3):
    """Labels by patient, scores with correlated errors, and folds with equal class ratios."""
    patient = np.repeat(np.arange(patients), bags)
    y = (patient // folds) % 5 < 2
    shared = rng.standard_normal(patients)[patient] + rng.standard_normal(len(y))
    by_method = rng.standard_normal((methods, len(y)))
    return y.astype(int), signal * y + 0.5 * shared + 0.6 * by_method, patient % folds, patient


def test_a_flipped_fold_is_named_and_no_other_is():
    y, scores, folds, patient = cohort(np.random.default_rng(0))
    y[folds == 3] = 1 - y[folds == 3]
    result = find_outlier_folds(y, scores, folds=folds, groups=patient)
    assert [f.fold for f in result] == [0, 1, 2, 3, 4]
    assert [f.fold for f in result if f.odd] == [3]
    assert result[3].flipped
    assert result[3].reason.startswith("labels flipped? AUROC 0.0")
    mean = np.mean([roc_auc_score(y[folds == 3], s[folds == 3]) for s in scores])
    assert result[3].auroc == pytest.approx(mean, abs=1e-12)
    assert result[3].others == pytest.approx(np.mean([f.auroc for f in result if f.fold != 3]))
    # Once it is removed, the others are compared among themselves.
    good = [f for f in result if f.fold != 3]
    assert result[0].others == pytest.approx(np.mean([f.auroc for f in good[1:]]))


def test_two_flipped_folds_of_five_are_both_named():
    y, scores, folds, patient = cohort(np.random.default_rng(1), patients=100)
    y[folds < 2] = 1 - y[folds < 2]
    result = find_outlier_folds(y, scores, folds=folds, groups=patient)
    assert [f.fold for f in result if f.flipped] == [0, 1]
    assert [f.fold for f in result if f.odd] == [0, 1]


def test_a_shuffled_fold_is_odd_and_not_flipped():
    rng = np.random.default_rng(2)
    y, scores, folds, patient = cohort(rng, patients=150)
    inside = folds == 1
    scores[:, inside] = rng.standard_normal((3, inside.sum()))
    result = find_outlier_folds(y, scores, folds=folds, groups=patient)
    assert [f.fold for f in result if f.odd] == [1]
    assert not any(f.flipped for f in result)
    assert result[1].reason.startswith("AUROC 0.")


def test_perfect_folds_leave_room_for_one_misplaced_bag():
    y = np.tile([0, 0, 0, 1, 1], 10)
    folds = np.repeat(np.arange(5), 10)
    scores = y + np.linspace(0, 0.1, 50)
    scores[3] = 0.001  # a positive bag of fold 0 falls below most negatives
    result = find_outlier_folds(y, scores, folds=folds)
    assert result[0].auroc < 0.9
    assert [f.auroc for f in result[1:]] == [1, 1, 1, 1]
    assert not any(f.odd for f in result)
    flipped = np.where(folds == 2, 1 - y, y)
    result = find_outlier_folds(flipped, scores, folds=folds)
    assert [f.fold for f in result if f.flipped] == [2]


def test_p_is_that_of_placements_counted_pair_by_pair():
    """All folds but one are perfect, so the whole test can be computed by hand."""
    y = np.tile([0, 0, 0, 0, 0, 0, 1, 1, 1, 1], 5)
    folds = np.repeat(np.arange(5), 10)
    scores = np.tile([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 0.5], 5)
    scores[folds > 0] = y[folds > 0]
    result = find_outlier_folds(y, scores, folds=folds)
    above = scores[6:10, None] > scores[:6]  # each positive bag against each negative one
    v10, v01 = above.mean(1), above.mean(0)
    auroc = 18 / 24
    assert above.mean() == auroc
    squares = [((v - auroc) ** 2).sum() for v in (v10, v01)]
    # One pseudo-observation per class: the variance of a uniform number is 1 / 12.
    up, down = ((q + 1 / 12) / (5 * n - 5 + 1) for q, n in zip(squares, (4, 6), strict=True))
    design = 10 / 8  # ten patients with one bag each, and two estimated means
    variance = up / 4 + down / 6  # the same for both folds
    z = (auroc - 1) / np.sqrt(design * (variance + variance / 4))
    assert result[0].p == pytest.approx(min(1, 5 * 2 * student.sf(-z, 50 - 2 * 5)))
    assert result[0].p < 1


@pytest.mark.parametrize(("positives", "flipped"), [(2, False), (3, True)])
def test_a_fold_is_flipped_if_uninformative_scores_are_rarely_as_bad(positives, flipped):
    """All bags wrong: p = Φ(−0.5 / √(5 / 48)) = 0.061 with 2 + 2 bags, and 0.042 with 2 + 3."""
    small = np.array([1] * positives + [0, 0])
    y = np.concatenate([small, np.tile([0, 1], 40)])
    scores = np.concatenate([1.0 - small, np.tile([0.0, 1.0], 40)])
    folds = np.concatenate([np.zeros(len(small)), np.repeat([1, 2], 40)])
    result = find_outlier_folds(y, scores, folds=folds)
    assert [f.odd for f in result] == [True, False, False]
    assert result[0].flipped == flipped


def test_folds_that_are_alike_are_called_odd_at_the_nominal_rate():
    rng = np.random.default_rng(3)
    alarms = sum(
        any(f.odd for f in find_outlier_folds(y, scores, folds=folds, groups=patient))
        for y, scores, folds, patient in (cohort(rng, signal=1.2) for _ in range(150))
    )
    # At most 7.5 of 150 are expected, with a binomial s.d. of 2.7.
    assert alarms <= 15


def test_several_bags_per_patient_are_not_independent():
    """Three copies of the same bags are not more evidence."""
    rng = np.random.default_rng(4)
    y, scores, folds, _ = cohort(rng, bags=1, signal=1.0)
    one = find_outlier_folds(y, scores, folds=folds)
    three = [np.repeat(v, 3, axis=-1) for v in (y, scores, folds, np.arange(len(y)))]
    tripled = find_outlier_folds(three[0], three[1], folds=three[2], groups=three[3])
    for a, b in zip(one, tripled, strict=True):
        assert a.auroc == pytest.approx(b.auroc, abs=1e-12)
        assert b.p == pytest.approx(a.p, rel=0.25)
    ungrouped = find_outlier_folds(three[0], three[1], folds=three[2])
    assert min(f.p for f in ungrouped) < min(f.p for f in tripled) / 2


def test_a_fold_with_one_class_is_left_out():
    y, scores, folds, patient = cohort(np.random.default_rng(5))
    y[folds == 0] = 1
    result = find_outlier_folds(y, scores, folds=folds, groups=patient)
    assert (result[0].auroc, result[0].p, result[0].odd) == (None, None, False)
    assert result[0].reason == "only one class among 20 bags"
    assert result[1].others == pytest.approx(np.mean([f.auroc for f in result[2:]]))


def test_one_fold_is_not_tested_and_either_of_two_may_be_the_outlier():
    y, scores, folds, patient = cohort(np.random.default_rng(6), patients=80)
    (alone,) = find_outlier_folds(y, scores, folds=np.zeros_like(folds), groups=patient)
    assert (alone.p, alone.reason) == (None, "no other fold to compare")
    assert alone.auroc > 0.8
    half = folds % 2
    y[half == 0] = 1 - y[half == 0]
    result = find_outlier_folds(y, scores, folds=half, groups=patient)
    assert [f.flipped for f in result] == [True, False]
    assert "with two folds, either may be the outlier" in result[0].reason


@pytest.mark.parametrize("wrong", ["scores", "folds", "groups"])
def test_bad_input(wrong):
    y, scores, folds, patient = cohort(np.random.default_rng(7))
    given = {"scores": scores, "folds": folds, "groups": patient}
    given[wrong] = given[wrong][..., :-1]
    with pytest.raises(InputError, match="100 labels"):
        find_outlier_folds(y, given.pop("scores"), **given)
