"""Instance metrics over replicates and folds: means, paired resamples, undefined cases."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from support.instance_metrics import detector_metrics
from support.made_predictions import cohort

from probsa.errors import InputError
from probsa.evaluation.dice import dice_threshold
from probsa.evaluation.instance_summaries import instance_samples, ranking_samples
from probsa.evaluation.instances import instance_metrics
from probsa.evaluation.pools import Pool
from probsa.evaluation.within_bags import WITHIN_BAGS
from probsa.statistics import Draws, Metric, mean_over_replicates, replicate_weights


def _replicates(count=3, *, bags=8, first=0):
    """Replicates with the same bags and labels, but different scores."""
    base, positive = cohort(bags, seed=first)
    replicates = [base]
    for r in range(1, count):
        other, _ = cohort(bags, seed=first + r)
        pairs = zip(base, other, strict=True)
        replicates.append([replace(q, instance_labels=p.instance_labels) for p, q in pairs])
    return replicates, positive


def _validation(count=3):
    return _replicates(count, bags=6, first=50)[0]


def _summary(replicates, positive, **options):
    given = {"validation": None, "groups": None, "bootstrap": 0, **options}
    return instance_samples(replicates, positive=positive, **given)


def test_the_metrics_of_one_replicate_are_those_of_one_run():
    (bags,), positive = _replicates(1)
    validation = _validation(1)
    got = _summary([bags], positive, validation=validation, bootstrap=40, seed=3)
    single = instance_metrics(
        bags, positive=positive, validation=validation[0], bootstrap=40, seed=3
    ) | detector_metrics(bags, positive, bootstrap=40, seed=3)
    shared = set(got) & set(single)
    assert set(got) - shared == {*WITHIN_BAGS, "dice_of_map"}
    for name in shared:
        assert got[name].reason == single[name].reason, name
        # alone, the gain of P(wrong) has Student's interval
        ends = ("value",) if "doubt_gain" in name else ("value", "low", "high")
        for end in ends:
            expected = getattr(single[name], end)
            assert getattr(got[name], end) == pytest.approx(expected, abs=1e-9), name
    assert got["dice"].value > 0


def test_values_are_means_over_replicates():
    replicates, positive = _replicates(3)
    validation = _validation(3)
    got = _summary(replicates, positive, validation=validation)
    each = [
        instance_metrics(r, positive=positive, validation=v, bootstrap=0)
        for r, v in zip(replicates, validation, strict=True)
    ]
    for name in ("auroc", "average_precision_positive_bags", "dice", "dice_pooled"):
        assert got[name].value == pytest.approx(np.mean([e[name].value for e in each])), name
    errors = [detector_metrics(replicate, positive) for replicate in replicates]
    for name in ("error_auroc_variance_positive_bags", "augrc_margin_all"):
        assert got[name].value == pytest.approx(np.mean([e[name].value for e in errors])), name
    # The gain is against the rival that is best on average.
    means = {k: got[f"error_auroc_{k}_all"].value for k in ("margin", "entropy")}
    variance = got["error_auroc_variance_all"].value
    assert got["error_auroc_gain_all"].value == pytest.approx(variance - max(means.values()))


def test_within_bags_is_the_mean_of_each_bags_auroc():
    replicates, positive = _replicates(2)
    got = _summary(replicates, positive)["auroc_within_bags"].value
    each = [
        np.mean([roc_auc_score(p.instance_labels, p.attention_mean) for p in r if positive[p.name]])
        for r in replicates
    ]
    assert got == pytest.approx(np.mean(each))
    # A different level of μ in each bag changes pooled metrics, but not this one.
    shifted = [
        [replace(p, attention_mean=p.attention_mean + i) for i, p in enumerate(r)]
        for r in replicates
    ]
    moved = _summary(shifted, positive)
    assert moved["auroc_within_bags"].value == pytest.approx(got)
    assert abs(moved["auroc"].value - _summary(replicates, positive)["auroc"].value) > 0.02


def test_intervals_resample_bags_and_replicates_together():
    replicates, positive = _replicates(3)
    got = _summary(replicates, positive, bootstrap=50, seed=6)["auroc"]
    flags = np.array([positive[p.name] for p in replicates[0]])
    draws = Draws.stratified(flags, groups=None, resamples=50, seed=6)
    weights = replicate_weights(3, resamples=50, seed=6)[1:]
    values = []
    for counts, weight in zip(draws.counts[1:], weights, strict=True):
        aurocs = []
        for r in replicates:
            resample = [p for p, c in zip(r, counts, strict=True) for _ in range(c)]
            y = np.concatenate([p.instance_labels for p in resample])
            mu = np.concatenate([p.attention_mean for p in resample])
            aurocs.append(roc_auc_score(y, mu))
        values.append(np.average(aurocs, weights=weight))
    low, high = np.quantile(values, [0.025, 0.975])
    assert (got.low, got.high) == (pytest.approx(low), pytest.approx(high))


def test_replicate_weights_have_the_variance_of_a_mean():
    weights = replicate_weights(4, resamples=20000, seed=0)
    assert weights.shape == (20001, 4)
    assert (weights[0] == 1).all() and (weights[1:].sum(1) == 3).all()
    value = np.array([0.0, 1.0, 5.0, 2.0])
    means = weights[1:] @ value / 3
    assert means.var() == pytest.approx(value.var(ddof=1) / 4, rel=0.05)
    assert (replicate_weights(1, resamples=3, seed=0) == 1).all()


def test_replicates_of_a_block_are_drawn_together():
    value = np.array([0.0, 0.1, 1.0, 1.1, 5.0, 5.1])  # three splits, two seeds each
    weights = replicate_weights(6, resamples=20000, seed=0, blocks=[0, 0, 1, 1, 2, 2])
    means = (weights @ value) / weights.sum(1)
    assert means[0] == pytest.approx(value.mean())
    splits = value.reshape(3, 2).mean(1)
    assert means[1:].var() == pytest.approx(splits.var(ddof=1) / 3, rel=0.05)
    uneven = replicate_weights(3, resamples=5, seed=0, blocks=["a", "a", "b"])
    assert uneven[0].tolist() == [0.5, 0.5, 1.0]
    replicates, positive = _replicates(4)
    got = [
        _summary(replicates, positive, bootstrap=200, seed=1, blocks=b)["auroc"]
        for b in (None, [0, 0, 1, 1])
    ]
    assert got[0].value == pytest.approx(got[1].value) and got[0].low != got[1].low


def test_two_methods_are_paired():
    replicates, positive = _replicates(2)
    better = [
        [replace(p, attention_mean=p.attention_mean + p.instance_labels) for p in r]
        for r in replicates
    ]
    given = {"positive": positive, "validation": None, "groups": None, "bootstrap": 60}
    a, b = (
        instance_samples(better, **given)["auroc"],
        instance_samples(replicates, **given)["auroc"],
    )
    gain = a - b
    assert gain.value == pytest.approx(a.value - b.value)
    assert gain.low > 0
    width = gain.high - gain.low
    assert width < a.high - b.low
    # All replicates are put into the order of the first one's bags.
    mixed = [replicates[0], replicates[1][::-1]]
    assert _summary(mixed, positive) == _summary(replicates, positive)


# Folds


def _folded():
    """Bags whose μ and σ² have a different scale in fold 1 than in fold 0."""
    (bags,), positive = _replicates(1, bags=12)
    fold = {p.name: i // 6 for i, p in enumerate(bags)}
    bags = [
        replace(
            p,
            attention_mean=p.attention_mean + np.float32(9 * fold[p.name]),
            attention_variance=p.attention_variance * np.float32(1 + 50 * fold[p.name]),
        )
        for p in bags
    ]
    return bags, positive, fold


def test_folds_are_ranked_separately():
    bags, positive, fold = _folded()
    got = _summary([bags], positive, folds=fold)
    parts = [[p for p in bags if fold[p.name] == f] for f in (0, 1)]
    for name, score in (("auroc", roc_auc_score), ("average_precision", average_precision_score)):
        each = []
        for part in parts:
            y = np.concatenate([p.instance_labels for p in part])
            each.append(score(y, np.concatenate([p.attention_mean for p in part])))
        assert got[name].value == pytest.approx(np.mean(each))
    errors = [detector_metrics(part, positive) for part in parts]
    expected = np.mean([e["error_auroc_variance_all"].value for e in errors])
    assert got["error_auroc_variance_all"].value == pytest.approx(expected)
    pooled = _summary([bags], positive)
    for name in ("auroc", "error_auroc_variance_all"):
        assert pooled[name].value != pytest.approx(got[name].value, abs=0.005)
    assert pooled["auroc_within_bags"].value == got["auroc_within_bags"].value


def test_every_folds_run_has_its_own_threshold():
    bags, positive, fold = _folded()
    validation = dict(enumerate(_validation(2)))
    # In the second run, fewer validation instances are positive, so fewer are called.
    validation[1] = [
        replace(p, instance_labels=np.int8(p.instance_labels * (p.attention_mean > 3)))
        for p in validation[1]
    ]
    got = _summary([bags], positive, folds=fold, validation=[validation])
    each, thresholds = [], []
    for f, bags_of_fold in validation.items():
        pool = Pool.of([p for p in bags_of_fold if positive.get(p.name)])
        thresholds.append(dice_threshold(pool.y, pool.evidence))
        for p in bags:
            if fold[p.name] == f and positive[p.name]:
                called = Pool.of([p]).evidence >= thresholds[-1]
                each.append(f1_score(p.instance_labels, called))
    assert thresholds[0] < thresholds[1] - 0.2
    assert got["dice"].value == pytest.approx(np.mean(each))
    lacking = _summary([bags], positive, folds=fold, validation=[{0: validation[0]}])
    assert lacking["dice"].reason == (
        "fold 1: no positive validation bag has instance labels to choose a threshold on"
    )
    with pytest.raises(InputError, match="bag 'b11' has no fold"):
        _summary([bags], positive, folds={k: v for k, v in fold.items() if k != "b11"})


def test_dice_of_a_map_is_at_evidence_zero_or_at_the_threshold():
    (bags,), positive = _replicates(1)
    validation = _validation(1)
    got = _summary([bags], positive, validation=validation)
    assert got["dice_of_map"] == got["dice"]  # logits of attention have no level
    of_evidence = [replace(p, score_kind="evidence") for p in bags]
    for given in (None, [[replace(p, score_kind="evidence") for p in validation[0]]]):
        found = _summary([of_evidence], positive, validation=given)["dice_of_map"].value
        each = [f1_score(p.instance_labels, p.attention_mean > 0) for p in bags if positive[p.name]]
        assert found == pytest.approx(np.mean(each))


def test_ranks_without_other_metrics_are_those_of_the_summary():
    bags, positive, fold = _folded()
    given = {"positive": positive, "groups": None, "folds": fold, "bootstrap": 20}
    whole = instance_samples([bags], validation=None, **given)
    found = ranking_samples([bags], **given)
    assert set(found) == {*WITHIN_BAGS, *(k for k in whole if k.startswith(("auroc", "average")))}
    for name, sample in found.items():
        assert sample.rows == pytest.approx(whole[name].rows), name


# Undefined metrics


def test_undefined_with_its_reason():
    replicates, positive = _replicates(2)
    got = _summary(replicates, positive)
    assert got["dice"].reason == "no validation predictions to choose a threshold on"
    bare = [[replace(p, instance_labels=None) for p in r] for r in replicates]
    got = _summary(bare, positive, validation=bare, bootstrap=5)
    for name in ("auroc", "auroc_within_bags", "dice", "error_auroc_variance_all"):
        assert got[name].reason == "no bag has instance labels", name
    negative = [[p for p in r if not positive[p.name]] for r in replicates]
    got = _summary(negative, positive)
    assert got["auroc_within_bags"].reason == "no positive bag has instances of both labels"
    assert got["auroc"].reason == "only one class among 256 instances: AUROC is undefined"


def test_bags_without_instance_labels_are_left_out():
    replicates, positive = _replicates(2)
    some = [[replace(r[0], instance_labels=None), *r[1:]] for r in replicates]
    got, without = (
        _summary(some, positive),
        _summary([r[1:] for r in replicates], positive),
    )
    assert got["auroc"].value == without["auroc"].value


def test_a_replicate_without_a_value_is_left_out_of_the_mean():
    rows = Metric.of(np.array([1.0, 2.0, np.nan]))
    other = Metric.of(np.array([3.0, 4.0, 7.0]))
    weights = np.array([[1, 1, 1], [2, 0, 1], [1, 1, 1]], dtype=float)
    got = mean_over_replicates([rows, Metric.undefined("why"), other], weights=weights)
    np.testing.assert_allclose(got.rows, [2, (2 * 2 + 4) / 3, 7])
    lost = mean_over_replicates([rows, other], weights=np.array([[1.0, 1], [0, 1], [1, 0]]))
    assert np.isnan(lost.rows[2]) and lost.rows[1] == 4
    assert (
        mean_over_replicates(
            [Metric.undefined("why"), Metric.undefined("also")],
            weights=np.ones((3, 2)),
        ).reason
        == "why"
    )
    assert (rows - Metric.undefined("why")).reason == "why"


def test_bad_input():
    replicates, positive = _replicates(2)
    with pytest.raises(InputError, match="no predictions to summarise"):
        _summary([], positive)
    with pytest.raises(InputError, match=r"replicates 0 and 1 have different bags \('b7'\)"):
        _summary([replicates[0], replicates[1][:-1]], positive)
    with pytest.raises(InputError, match=r"different bags \('a bag occurs twice'\)"):
        _summary([[*replicates[0], replicates[0][0]]], positive)
    with pytest.raises(InputError, match="2 replicates, but validation predictions of 1"):
        _summary(replicates, positive, validation=_validation(1))
    mixed = [replicates[0], [replace(p, score_kind="weight") for p in replicates[1]]]
    with pytest.raises(InputError, match=r"several kinds \(logit, weight\)"):
        _summary(mixed, positive)
