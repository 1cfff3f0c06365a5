"""A fold whose labels were flipped stands out; folds that are alike hardly ever do."""

import numpy as np
import pytest
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from probsa.errors import InputError
from probsa.statistics.outlier_folds import odd_folds


def cohort(rng, *, patients=50, bags=2, folds=5, signal=2.0, methods=3):
    """Labels by patient, patients in folds, scores that err together; each fold has its share."""
    patient = np.repeat(np.arange(patients), bags)
    y = (patient // folds) % 5 < 2
    both = rng.standard_normal(patients)[patient] + rng.standard_normal(len(y))
    own = rng.standard_normal((methods, len(y)))
    return y.astype(int), signal * y + 0.5 * both + 0.6 * own, patient % folds, patient


def test_a_flipped_fold_is_named_and_no_other_is():
    y, scores, folds, patient = cohort(np.random.default_rng(0))
    y[folds == 3] = 1 - y[folds == 3]
    found = odd_folds(y, scores, folds=folds, groups=patient)
    assert [f.fold for f in found] == [0, 1, 2, 3, 4]
    assert [f.fold for f in found if f.odd] == [3]
    assert found[3].flipped
    assert found[3].reason.startswith("labels flipped? AUROC 0.0")
    mean = np.mean([roc_auc_score(y[folds == 3], s[folds == 3]) for s in scores])
    assert found[3].auroc == pytest.approx(mean, abs=1e-12)
    assert found[3].others == pytest.approx(np.mean([f.auroc for f in found if f.fold != 3]))
    # Once it is out, the others are compared among themselves.
    good = [f for f in found if f.fold != 3]
    assert found[0].others == pytest.approx(np.mean([f.auroc for f in good[1:]]))


def test_two_flipped_folds_of_five_are_both_named():
    y, scores, folds, patient = cohort(np.random.default_rng(1), patients=100)
    y[folds < 2] = 1 - y[folds < 2]
    found = odd_folds(y, scores, folds=folds, groups=patient)
    assert [f.fold for f in found if f.flipped] == [0, 1]
    assert [f.fold for f in found if f.odd] == [0, 1]


def test_a_shuffled_fold_is_odd_and_not_flipped():
    rng = np.random.default_rng(2)
    y, scores, folds, patient = cohort(rng, patients=150)
    inside = folds == 1
    scores[:, inside] = rng.standard_normal((3, inside.sum()))
    found = odd_folds(y, scores, folds=folds, groups=patient)
    assert [f.fold for f in found if f.odd] == [1]
    assert not any(f.flipped for f in found)
    assert found[1].reason.startswith("AUROC 0.")


def test_perfect_folds_leave_room_for_one_misplaced_bag():
    y = np.tile([0, 0, 0, 1, 1], 10)
    folds = np.repeat(np.arange(5), 10)
    scores = y + np.linspace(0, 0.1, 50)
    scores[3] = 0.001  # a positive bag of fold 0 falls below most negatives
    found = odd_folds(y, scores, folds=folds)
    assert found[0].auroc < 0.9
    assert [f.auroc for f in found[1:]] == [1, 1, 1, 1]
    assert not any(f.odd for f in found)
    flipped = np.where(folds == 2, 1 - y, y)
    found = odd_folds(flipped, scores, folds=folds)
    assert [f.fold for f in found if f.flipped] == [2]


def test_p_is_that_of_placements_counted_pair_by_pair():
    """Perfect folds but for one bag: only it scatters, so the whole test can be written out."""
    y = np.tile([0, 0, 0, 0, 0, 0, 1, 1, 1, 1], 5)
    folds = np.repeat(np.arange(5), 10)
    scores = np.tile([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 0.5], 5)
    scores[folds > 0] = y[folds > 0]
    found = odd_folds(y, scores, folds=folds)
    above = scores[6:10, None] > scores[:6]  # of each positive bag, over each negative one
    v10, v01 = above.mean(1), above.mean(0)
    auroc = 18 / 24
    assert above.mean() == auroc
    squares = [((v - auroc) ** 2).sum() for v in (v10, v01)]
    # one more bag of each class, placed by chance: the variance of a uniform number is 1 / 12
    up, down = ((q + 1 / 12) / (5 * n - 5 + 1) for q, n in zip(squares, (4, 6), strict=True))
    design = 10 / 8  # each patient has one bag, and two means were taken of the ten
    variance = up / 4 + down / 6  # of either fold
    z = (auroc - 1) / np.sqrt(design * (variance + variance / 4))
    assert found[0].p == pytest.approx(min(1, 5 * 2 * student.sf(-z, 50 - 2 * 5)))
    assert found[0].p < 1


@pytest.mark.parametrize(("positives", "flipped"), [(2, False), (3, True)])
def test_a_fold_is_flipped_where_scores_that_know_nothing_hardly_ever_do_as_badly(
    positives, flipped
):
    """All wrong, of 2 + 2 bags: p = Φ(−0.5 / √(5 / 48)) = 0.061; of 2 + 3, 0.042."""
    small = np.array([1] * positives + [0, 0])
    y = np.concatenate([small, np.tile([0, 1], 40)])
    scores = np.concatenate([1.0 - small, np.tile([0.0, 1.0], 40)])
    folds = np.concatenate([np.zeros(len(small)), np.repeat([1, 2], 40)])
    found = odd_folds(y, scores, folds=folds)
    assert [f.odd for f in found] == [True, False, False]
    assert found[0].flipped == flipped


def test_folds_that_are_alike_are_called_odd_at_the_nominal_rate():
    rng = np.random.default_rng(3)
    alarms = sum(
        any(f.odd for f in odd_folds(y, scores, folds=folds, groups=patient))
        for y, scores, folds, patient in (cohort(rng, signal=1.2) for _ in range(150))
    )
    # At most 7.5 of 150 expected, binomial s.d. 2.7.
    assert alarms <= 15


def test_patients_with_several_bags_are_not_taken_for_many():
    """The same bags three times over are no more evidence."""
    rng = np.random.default_rng(4)
    y, scores, folds, _ = cohort(rng, bags=1, signal=1.0)
    one = odd_folds(y, scores, folds=folds)
    three = [np.repeat(v, 3, axis=-1) for v in (y, scores, folds, np.arange(len(y)))]
    tripled = odd_folds(three[0], three[1], folds=three[2], groups=three[3])
    for a, b in zip(one, tripled, strict=True):
        assert a.auroc == pytest.approx(b.auroc, abs=1e-12)
        assert b.p == pytest.approx(a.p, rel=0.25)
    as_many = odd_folds(three[0], three[1], folds=three[2])
    assert min(f.p for f in as_many) < min(f.p for f in tripled) / 2


def test_a_fold_with_one_class_is_said_and_left_out():
    y, scores, folds, patient = cohort(np.random.default_rng(5))
    y[folds == 0] = 1
    found = odd_folds(y, scores, folds=folds, groups=patient)
    assert (found[0].auroc, found[0].p, found[0].odd) == (None, None, False)
    assert found[0].reason == "only one class among 20 bags"
    assert found[1].others == pytest.approx(np.mean([f.auroc for f in found[2:]]))


def test_one_fold_has_none_to_be_compared_to_and_of_two_either_may_be_odd():
    y, scores, folds, patient = cohort(np.random.default_rng(6), patients=80)
    (alone,) = odd_folds(y, scores, folds=np.zeros_like(folds), groups=patient)
    assert (alone.p, alone.reason) == (None, "no other fold to compare")
    assert alone.auroc > 0.8
    half = folds % 2
    y[half == 0] = 1 - y[half == 0]
    found = odd_folds(y, scores, folds=half, groups=patient)
    assert [f.flipped for f in found] == [True, False]
    assert "of two folds either may be the odd one" in found[0].reason


@pytest.mark.parametrize("wrong", ["scores", "folds", "groups"])
def test_bad_input_is_said(wrong):
    y, scores, folds, patient = cohort(np.random.default_rng(7))
    given = {"scores": scores, "folds": folds, "groups": patient}
    given[wrong] = given[wrong][..., :-1]
    with pytest.raises(InputError, match="100 labels"):
        odd_folds(y, given.pop("scores"), **given)
