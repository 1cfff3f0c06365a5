"""Dice: the threshold and both means by hand and by brute force, and undefined cases."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score
from support.made_predictions import cohort, made

from probsa.errors import InputError
from probsa.evaluation.dice import DICE, dice_samples, dice_threshold
from probsa.evaluation.instances import instance_metrics
from probsa.evaluation.pools import Pool
from probsa.evaluation.scores import evidence
from probsa.statistics import Draws


def test_threshold_by_hand():
    y = np.array([True, False, True, False])
    # From .9: 2/3; from .5 (both): 2·2/(3+2); from .1: 4/6.
    assert dice_threshold(y, np.array([0.9, 0.5, 0.5, 0.1])) == 0.5
    # From .9: 2/3; from .8: 2/4; .7: 4/5; .1: 4/6.
    assert dice_threshold(y, np.array([0.9, 0.8, 0.7, 0.1])) == 0.7
    # 2/3 from .9, and 2/3 from .1: the highest.
    assert dice_threshold(np.array([1, 0, 0, 1], bool), np.array([0.9, 0.8, 0.7, 0.1])) == 0.9


def test_threshold_is_the_best_of_all():
    rng = np.random.default_rng(5)
    for _ in range(20):
        y = rng.random(40) < 0.3
        score = np.round(rng.normal(size=40) + y, 1)
        best = max(np.unique(score), key=lambda t: (f1_score(y, score >= t), t))
        assert dice_threshold(y, score) == best


def test_means_by_hand():
    """Bag 0 has Dice 2/4 (1 of 2 found, 1 false) and bag 1 has 1. Bag 2 has no lesion: it is not
    in the mean, but its false call counts in the pool."""
    a = made("a", [0.9, 0.1, 0.8, 0.2], [1, 1, 0, 0], score_kind="probability")
    b = made("b", [0.9, 0.9, 0.9], [1, 1, 1], score_kind="probability")
    c = made("c", [0.7, 0.3], [0, 0], score_kind="probability")
    pool = Pool.of([a, b, c])
    draws = Draws.stratified(np.ones(3), groups=None, resamples=50, seed=1)
    samples = dice_samples(pool, pool.score >= 0.5, draws=draws)
    got = samples
    assert got["dice"].value == pytest.approx((0.5 + 1) / 2)
    assert got["dice_pooled"].value == pytest.approx(2 * 4 / (6 + 5))
    mean, pooled = [], []
    for n in draws.counts[1:]:
        if n[0] + n[1]:
            mean.append((0.5 * n[0] + n[1]) / (n[0] + n[1]))
            hit, size = 2 * n[0] / 2 + 3 * n[1], 4 * n[0] + 6 * n[1] + n[2]
            pooled.append(2 * hit / size)
    for name, values in (("dice", mean), ("dice_pooled", pooled)):
        low, high = np.quantile(values, [0.025, 0.975])
        assert (got[name].low, got[name].high) == (pytest.approx(low), pytest.approx(high))
        assert got[name].left_out == 50 - len(values)


def test_the_threshold_lies_on_evidence_fixed_on_validation():
    """μ of bag `b` is 5 higher, which a softmax ignores: both bags have the same calls."""
    mu = np.log([4.0, 3.0, 1.0, 1.0])
    a, b = made("a", mu, [1, 1, 0, 0]), made("b", mu + 5, [1, 1, 0, 0])
    validation = made("v", np.log([6.0, 2.0, 1.0, 1.0]) - 3, [1, 0, 0, 0])
    positive = {"a": True, "b": True, "v": True}
    got = instance_metrics([a, b], positive=positive, validation=[validation], bootstrap=0)
    # The threshold is log 2.4 and the highest evidence log(4·4/9), so nothing is called.
    assert got["dice"].value == 0.0
    low = replace(validation, instance_labels=np.int8([1, 1, 0, 0]))
    got = instance_metrics([a, b], positive=positive, validation=[low], bootstrap=0)
    # The threshold is log 0.8: both lesions are called and nothing else (log 4/9).
    assert got["dice"].value == got["dice_pooled"].value == 1.0
    assert evidence(a.attention_mean.astype(float), kind="logit")[1] > np.log(0.8)


def test_relevance_is_called_by_its_own_value():
    p = made("a", [3.0, 2.0, 1.0], [1, 1, 0], score_kind="relevance")
    got = instance_metrics([p], positive={"a": True}, validation=[p], bootstrap=0)
    assert got["dice"].value == 1.0


def test_only_positive_bags_count_in_either_part():
    bags, positive = cohort(8)
    validation, _ = cohort(6, seed=1)
    got = instance_metrics(bags, positive=positive, validation=validation, bootstrap=0)
    inside = [p for p in bags if positive[p.name]]
    validation_pool = Pool.of([p for p in validation if positive[p.name]])
    t = dice_threshold(validation_pool.y, validation_pool.evidence)
    each = [f1_score(p.instance_labels, Pool.of([p]).evidence >= t) for p in inside]
    assert got["dice"].value == pytest.approx(np.mean(each))
    pool = Pool.of(inside)
    assert got["dice_pooled"].value == pytest.approx(f1_score(pool.y, pool.evidence >= t))
    assert got["dice"].value != got["dice_pooled"].value


def test_undefined_with_its_reason():
    bags, positive = cohort(4)

    def reason(bags, validation):
        got = instance_metrics(bags, positive=positive, validation=validation, bootstrap=3)
        assert got["dice"].value is None and got["dice"] == got["dice_pooled"]
        return got["dice"].reason

    assert reason(bags, None) == "no validation predictions to choose a threshold on"
    without = [replace(p, instance_labels=None) for p in bags]
    missing = "no positive validation bag has instance labels to choose a threshold on"
    assert reason(bags, without) == missing
    assert reason(bags, bags[:1]) == missing  # a negative bag
    ones = replace(bags[1], instance_labels=np.ones(64, np.int8))
    assert reason(bags, [ones]) == "only one class among 64 instances of positive validation bags"
    zeros = replace(bags[1], instance_labels=np.zeros(64, np.int8))
    assert reason([zeros], bags) == "no positive instance among 64 of positive bags"
    assert set(DICE) <= set(instance_metrics(without, positive=positive))
    with pytest.raises(InputError, match="test scores are of kind 'logit', validation's 'weight'"):
        instance_metrics(
            bags, positive=positive, validation=[replace(bags[1], score_kind="weight")]
        )
