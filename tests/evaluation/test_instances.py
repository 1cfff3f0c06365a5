"""Measures of labelled instances: by hand, against scikit-learn, over replicates and folds."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, rankdata
from sklearn import metrics as sk
from support.made_predictions import cohort, made
from support.refusals import refused

from probsa.errors import BagError, InputError
from probsa.evaluation import (
    WITHIN_BAGS,
    InstanceTable,
    detector_verdict,
    doubt,
    instance_metrics,
    within_bag,
)
from probsa.evaluation.ensemble import combine
from probsa.evaluation.instances.measures import (
    INSTANCES_OF_POSITIVE_BAGS,
    NO_LABELS,
    NO_MIXED_BAG,
    NO_VALIDATION,
    dice_threshold,
    precision_of_top,
)
from probsa.evaluation.instances.table import (
    NO_CALLS,
    NO_EVIDENCE,
    NO_INSTANCE_LABELS,
    ONE_MODEL,
)
from probsa.evaluation.scores import NO_VARIANCE, NOT_STORED, evidence, flip
from probsa.statistics import MEAN_SHARE, Draws, replicate_weights
from probsa.statistics.intervals import interval


def table(bags, positive=None, **options):
    """Return the table of some bags; all are positive unless `positive` says otherwise."""
    flags = dict.fromkeys((p.name for p in bags), True) if positive is None else positive
    return InstanceTable.of(bags, positive=lambda p: flags.get(p.name, False), **options)


def measured(bags, positive=None, *, validation=None, **options):
    """Return the metrics of one replicate."""
    flags = dict.fromkeys((p.name for p in bags), True) if positive is None else positive
    if validation is not None:
        inside = [p for p in validation if flags.get(p.name, True)]
        options["validation"] = [InstanceTable.of(inside, positive=lambda _: True)]
    return instance_metrics([table(bags, flags)], **{"bootstrap": 0, **options})


def mixed(count=12, *, seed=0, kind="logit"):
    """Bags of different sizes; odd ones are positive, and some instances are unlabelled."""
    rng = np.random.default_rng(seed)
    bags = []
    positive = {}
    for b in range(count):
        n = 20 + b
        y = ((rng.random(n) < 0.4) & bool(b % 2)).astype(int)
        mu = rng.normal(size=n) + y
        score = mu if kind == "logit" else 1 / (1 + np.exp(-mu))
        labels = np.where(rng.random(n) < 0.1, -1, y)
        bags.append(made(f"b{b}", score, labels, attention_variance=rng.random(n), score_kind=kind))
        positive[f"b{b}"] = bool(b % 2)
    return bags, positive


def pooled(bags, name):
    return np.concatenate([getattr(p, name)[p.instance_labels >= 0] for p in bags])


def test_evidence_is_the_log_ratio_to_uniform_attention():
    # The weights are 5/8, 1/8, 1/8, 1/8; uniform weights are 1/4.
    s = evidence(np.log([5.0, 1.0, 1.0, 1.0]) + 7, kind="logit")
    np.testing.assert_allclose(s, np.log([2.5, 0.5, 0.5, 0.5]), atol=1e-12)
    np.testing.assert_allclose(evidence(np.array([5, 1, 1, 1]) / 8, kind="weight"), s, atol=1e-12)
    np.testing.assert_allclose(evidence(np.array([0.7, 0.5]), kind="probability"), [0.2, 0.0])
    assert np.isnan(evidence(np.zeros(2), kind="relevance")).all()


def test_pooled_ranks_are_sklearns_over_all_and_over_positive_bags():
    bags, positive = mixed()
    got = measured(bags, positive)
    inside = [p for p in bags if positive[p.name]]
    for suffix, subset in (("", bags), ("_positive_bags", inside)):
        y = pooled(subset, "instance_labels")
        mu = pooled(subset, "attention_mean")
        assert got[f"auroc{suffix}"].value == pytest.approx(sk.roc_auc_score(y, mu), abs=1e-12)
        expected = sk.average_precision_score(y, mu)
        assert got[f"average_precision{suffix}"].value == pytest.approx(expected, abs=1e-12)
    assert got["auroc"].value != pytest.approx(got["auroc_positive_bags"].value, abs=1e-3)


def test_wrong_calls_by_hand_with_an_unlabelled_instance():
    # Weights (8, 4, 1, 1, 1, 1)/16, N = 6: e > 0 where the weight exceeds 1/6: the first two.
    mu = np.log([8.0, 4.0, 1.0, 1.0, 1.0, 1.0])
    labels = [1, 0, 1, 0, 0, -1]  # wrong calls: 1 (called) and 2 (missed); 5 is unlabelled
    bag = made("a", mu, labels, attention_variance=[0.1, 0.9, 0.4, 0.5, 0.2, 5.0])
    negative = made("n", [0.0, 9.0], [0, 0], attention_variance=[9, 9])
    got = measured([bag, negative], {"a": True})
    assert got["error_rate"].value == pytest.approx(2 / 5)
    # σ²: .9 is above three correct calls (.1, .5, .2), and .4 above two of them.
    area = (3 + 2) / 6
    assert got["error_auroc_variance"].value == pytest.approx(area)
    # |e|: log 3, log 1.5 (wrong), and three times log(6/16), of which the first is wrong.
    assert got["error_auroc_margin"].value == pytest.approx((3 + 1 + 0.5 + 0.5) / 6)
    # −w log w needs the weights, which are all 0 here: no order at all
    assert got["error_auroc_entropy"].value == 0.5
    assert got["error_auroc_gain"].value == pytest.approx(area - 5 / 6)


def test_scores_without_calls_and_without_variance_have_reasons():
    bag = made("a", [0.9, 0.1, 0.2], [1, 0, 0], score_kind="relevance")
    got = measured([bag], bootstrap=10)
    assert got["auroc"].value == 1.0
    errors = [m for name, m in got.items() if name.startswith("error_")]
    assert {m.reason for m in errors} == {NO_CALLS}
    assert "cannot be evaluated" in detector_verdict(got, "variance")
    assert "no threshold" in detector_verdict(got, "doubt")
    flat = measured([made("a", [2.0, 0.0, 0.0], [1, 1, 0])], bootstrap=10)
    for name in ("variance", "doubt"):
        assert flat[f"error_auroc_{name}"].reason == NO_VARIANCE
    assert flat["error_auroc_flip"].reason == NO_EVIDENCE
    assert flat["error_auroc_flip_between"].reason == ONE_MODEL
    # |e| is log 3.1 for the wrong call, and log 2.4 and log 3.1 for the correct ones.
    assert flat["error_auroc_margin"].value == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["logit", "probability", "evidence"])
def test_doubt_is_what_the_prediction_gives_the_other_call(kind):
    bags, positive = mixed(seed=1, kind="logit" if kind == "evidence" else kind)
    rng = np.random.default_rng(2)
    stored = {"logit": "weight_above_uniform", "evidence": "instance_probability"}.get(kind)
    wrong = []
    doubts = []
    for k, p in enumerate(bags):
        p = replace(p, score_kind=kind)
        share = p.attention_mean.astype(np.float64)
        if stored is not None:
            share = rng.random(len(share)).astype(np.float32)
            p = replace(p, **{stored: share})
        bags[k] = p
        e = evidence(p.attention_mean, kind=kind)
        expected = np.where(e > 0, 1 - share, share)
        np.testing.assert_allclose(doubt(p), expected, atol=1e-12)
        if positive[p.name]:
            known = p.instance_labels >= 0
            doubts.extend(expected[known])
            wrong.extend(((e > 0) != (p.instance_labels > 0))[known])
    got = measured(bags, positive)
    area = sk.roc_auc_score(wrong, doubts)
    assert got["error_auroc_doubt"].value == pytest.approx(area, abs=1e-12)
    margin = got["error_auroc_margin"].value
    assert (margin == pytest.approx(area)) == (kind == "probability")


def test_predictions_without_what_doubt_needs_say_so():
    for kind in ("evidence", "logit"):
        bag = made("a", [1.0, -1.0], [1, 0], attention_variance=[1, 1], score_kind=kind)
        assert doubt(bag) is None
        assert table([bag]).missing["doubt"] == NOT_STORED
    point = made("a", [1.0, -1.0], [1, 0])
    assert table([point]).missing["doubt"] == NO_VARIANCE
    # a weight has neither samples nor a probability
    weight = made("a", [0.75, 0.25], [1, 0], attention_variance=[1, 1], score_kind="weight")
    assert doubt(weight) is None


def test_a_call_may_flip_with_the_sign_of_the_evidence():
    p = made("a", [0.0, 2.0, 0.0], attention_variance=[0, 0, 1], score_kind="evidence")
    np.testing.assert_array_equal(flip(p), [0.5, 0, 0.5])
    assert flip(replace(p, score_kind="logit")) is None
    # members with different scales, which disagree on the second and on the third instance; the
    # mean of the third is positive, and two of its members are sure of the contrary
    means = np.array([[2, -3.0, 9.0], [0.2, 1.0, -1.0], [0.4, 0.5, -1.0]])
    deviations = np.array([[0.5, 1.0, 1.0], [1.0, 2.0, 0.3], [1.0, 2.0, 0.3]])
    members = [
        made(
            "a",
            m,
            attention_variance=s**2,
            score_kind="evidence",
            probability_positive=norm.cdf(m / s).astype(np.float32),
        )
        for m, s in zip(means, deviations, strict=True)
    ]
    positive = norm.cdf(means / deviations).mean(0)
    both = combine(members, align=False)
    np.testing.assert_allclose(
        flip(both), np.where(means.mean(0) > 0, 1 - positive, positive), atol=1e-6
    )
    assert flip(both)[2] > 0.6
    samples = np.random.default_rng(0).normal(means, deviations, (20_000, *means.shape))
    is_other_sign = np.sign(samples) != np.sign(means.mean(0))
    np.testing.assert_allclose(flip(both), is_other_sign.mean((0, 1)), atol=0.01)
    within = norm.cdf(-np.abs(means.mean(0)) / np.sqrt((deviations**2).mean(0)))
    np.testing.assert_allclose(flip(both, part="within"), within, atol=1e-6)


def test_an_ensemble_is_the_mixture_of_its_members():
    shares = np.array([[0.1, 0.9], [0.4, 0.2]], np.float32)
    members = [
        made("a", [1.0, 0.0], instance_probability=s, weight_above_uniform=s) for s in shares
    ]
    both = combine(members, align=False)
    np.testing.assert_allclose(both.instance_probability, shares.mean(0))
    np.testing.assert_allclose(both.weight_above_uniform, shares.mean(0))


def test_one_class_and_no_labels_are_undefined():
    ones = made("a", [1.0, 0.0], [1, 1], attention_variance=[1, 2])
    got = measured([ones], validation=[ones])
    for part in ("one class", "2 instances", "AUROC"):
        assert part in got["auroc"].reason
    for part in ("one class", "2 instances", "positive validation bags"):
        assert part in got["dice"].reason
    assert got["auroc_within_bags"].reason == NO_MIXED_BAG
    negative = made("n", [1.0, 0.0], [0, 1], attention_variance=[1, 2])
    got = measured([negative], {})
    assert got["auroc"].value == 0.0
    assert got["error_rate"].reason == f"no {INSTANCES_OF_POSITIVE_BAGS.many}"
    got = measured([made("u", [1.0, 0.0])])
    assert {m.reason for m in got.values()} == {NO_INSTANCE_LABELS}
    got = measured([made("d", [1.0, 0.0], [-1, -1])], bootstrap=5)
    assert got["auroc"].reason == "no instances: AUROC is undefined"


def test_thresholds_by_hand():
    y = np.array([False, False, True, False, True, True])
    score = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    # Dice is 2·2/(2+3) at .5 and 2·3/(4+3) at .3
    assert dice_threshold(y, score) == 0.3


def test_calls_at_the_thresholds_of_validation_bags():
    bags, positive = mixed()
    validation, _ = mixed(6, seed=1)
    got = measured(bags, positive, validation=validation)
    inside = [p for p in bags if positive[p.name]]
    chosen_on = [p for p in validation if positive[p.name]]
    y = pooled(inside, "instance_labels")
    y_val = pooled(chosen_on, "instance_labels")
    e_val = np.concatenate([evidence(p.attention_mean, kind="logit") for p in chosen_on])
    e_val = e_val[np.concatenate([p.instance_labels >= 0 for p in chosen_on])]
    best = max(sk.f1_score(y_val, e_val >= t) for t in e_val)
    limit = max(t for t in e_val if sk.f1_score(y_val, e_val >= t) == best)
    each = []
    called = []
    for p in inside:
        known = p.instance_labels >= 0
        called.append((evidence(p.attention_mean, kind="logit") >= limit)[known])
        each.append(sk.f1_score(p.instance_labels[known], called[-1]))
    assert got["dice"].value == pytest.approx(np.mean(each))
    assert got["dice_pooled"].value == pytest.approx(sk.f1_score(y, np.concatenate(called)))
    assert got["dice_of_map"] == got["dice"]  # logits of attention have no level
    level = [replace(p, score_kind="evidence") for p in inside]
    expected = [
        sk.f1_score(p.instance_labels[k], p.attention_mean[k] > 0)
        for p in inside
        for k in [p.instance_labels >= 0]
    ]
    assert measured(level)["dice_of_map"].value == pytest.approx(np.mean(expected))
    none = measured(bags, positive)
    assert none["dice"].reason == NO_VALIDATION
    none = measured(bags, positive, validation=bags[:1])
    assert none["dice_pooled"].reason == NO_LABELS


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_top_breaks_ties_at_random(count):
    y = np.array([1, 0, 0, 1, 0, 1], dtype=bool)
    score = np.array([2.0, 2.0, 2.0, 1.0, 3.0, 1.0])
    g = np.random.default_rng(0)
    hits = 0.0
    for _ in range(20_000):
        shuffled = g.permutation(len(y))
        hits += y[shuffled[np.argsort(-score[shuffled], kind="stable")[:count]]].mean()
    assert precision_of_top(y, score, count=count) == pytest.approx(hits / 20_000, abs=0.015)


def test_the_measures_of_one_bag():
    g = np.random.default_rng(1)
    y = g.random(250) < 0.3
    score = g.normal(size=250).round(1)
    area, precision, top, share = within_bag(y, score)
    u = rankdata(score)[y].sum() - y.sum() * (y.sum() + 1) / 2
    assert area == pytest.approx(u / (y.sum() * (~y).sum()), abs=1e-12)
    assert precision == pytest.approx(sk.average_precision_score(y, score), abs=1e-12)
    assert top == precision_of_top(y, score, count=1)
    assert share == precision_of_top(y, score, count=2)  # 1 % of 250, rounded to even
    # a constant map finds what chance finds
    assert within_bag(y, np.zeros(250)) == pytest.approx([0.5, *[y.mean()] * 3])


def test_within_bags_is_the_mean_over_mixed_positive_bags_whatever_their_level():
    bags, positive = cohort(8)
    got = measured(bags, positive)
    each = [sk.roc_auc_score(p.instance_labels, p.attention_mean) for p in bags if positive[p.name]]
    assert got["auroc_within_bags"].value == pytest.approx(np.mean(each))
    shifted = [replace(p, attention_mean=p.attention_mean + i) for i, p in enumerate(bags)]
    moved = measured(shifted, positive)
    assert moved["auroc_within_bags"].value == pytest.approx(np.mean(each))
    assert abs(moved["auroc"].value - got["auroc"].value) > 0.02


def replicates(count=3, *, bags=8, first=0):
    """Replicates with the same bags and labels, but different scores."""
    base, positive = cohort(bags, seed=first)
    found = [base]
    for r in range(1, count):
        pairs = zip(base, cohort(bags, seed=first + r)[0], strict=True)
        found.append([replace(q, instance_labels=p.instance_labels) for p, q in pairs])
    return found, positive


def test_intervals_resample_bags_and_replicates_together():
    runs, positive = replicates()
    tables = [table(r, positive) for r in runs]
    got = instance_metrics(tables, bootstrap=50, seed=6)["auroc"]
    flags = np.array([positive[p.name] for p in runs[0]])
    draws = Draws.patients(flags, groups=None, resamples=50, seed=6)
    weights = replicate_weights(3, resamples=50, seed=6)
    values = []
    for counts, weight in zip(draws.counts, weights, strict=True):
        areas = []
        for r in runs:
            y = np.concatenate([p.instance_labels for p in r])
            mu = np.concatenate([p.attention_mean for p in r])
            of_instances = np.repeat(counts, [len(p.instance_labels) for p in r])
            areas.append(sk.roc_auc_score(y, mu, sample_weight=of_instances))
        values.append(np.average(areas, weights=weight))
    assert got.rows == pytest.approx(values)
    assert got.support.patients == sum(p.instance_labels.any() for p in runs[0])
    expected = interval(np.array(values), support=got.support, scale=MEAN_SHARE)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))


def test_values_are_means_over_replicates_and_gains_are_of_the_means():
    runs, positive = replicates()
    validation = replicates(bags=6, first=50)[0]
    inside = [[p for p in v if positive[p.name]] for v in validation]
    chosen_on = [InstanceTable.of(v, positive=lambda _: True) for v in inside]
    got = instance_metrics([table(r, positive) for r in runs], validation=chosen_on, bootstrap=0)
    each = [measured(r, positive, validation=v) for r, v in zip(runs, validation, strict=True)]
    for name in ("auroc", "average_precision_positive_bags", "dice", "error_auroc_variance"):
        assert got[name].value == pytest.approx(np.mean([e[name].value for e in each])), name
    best = max(got[f"error_auroc_{k}"].value for k in ("margin", "entropy"))
    variance = got["error_auroc_variance"].value
    assert got["error_auroc_gain"].value == pytest.approx(variance - best)
    words = detector_verdict(got, "variance")
    assert f"AUROC {variance:.3f} against {best:.3f}" in words and "No interval" in words


def test_a_bag_without_a_patient_is_not_the_patient_of_that_name():
    bags, positive = mixed(8)
    shares = np.random.default_rng(0).random(40).astype(np.float32)
    bags = [replace(p, weight_above_uniform=shares[: len(p.attention_mean)]) for p in bags]
    named = measured(bags, positive, bootstrap=50, groups={"b1": "b3"})
    assert named == measured(bags, positive, bootstrap=50, groups={"b1": "someone"})
    assert named["error_auroc_doubt_gain"].low is not None


def folded():
    """Bags whose μ and σ² have a different scale in fold 1 than in fold 0."""
    bags, positive = cohort(12, seed=1)
    fold = {p.name: i // 6 for i, p in enumerate(bags)}
    scaled = [
        replace(
            p,
            attention_mean=p.attention_mean + np.float32(9 * fold[p.name]),
            attention_variance=p.attention_variance * np.float32(1 + 50 * fold[p.name]),
        )
        for p in bags
    ]
    return scaled, positive, fold


def test_folds_are_ranked_separately():
    bags, positive, fold = folded()
    got = measured(bags, positive, folds=fold)
    whole = measured(bags, positive)
    parts = [measured([p for p in bags if fold[p.name] == f], positive) for f in (0, 1)]
    for name in ("auroc", "average_precision", "error_auroc_variance"):
        assert got[name].value == pytest.approx(np.mean([m[name].value for m in parts])), name
        assert whole[name].value != pytest.approx(got[name].value, abs=0.005)
    assert whole["auroc_within_bags"].value == got["auroc_within_bags"].value
    full = measured(bags, positive, folds=fold, bootstrap=20)
    same = table(bags, positive, more=lambda p: {"null": p.attention_mean})
    ranks = instance_metrics([same], null_map="null", folds=fold, bootstrap=20)
    assert set(ranks) == {*WITHIN_BAGS, *(k for k in full if k.startswith(("auroc", "average")))}
    for name, metric in ranks.items():
        assert metric.rows == pytest.approx(full[name].rows), name


def test_the_run_of_each_fold_has_its_own_threshold():
    bags, positive, fold = folded()
    of_fold = dict(enumerate(replicates(2, bags=6, first=50)[0]))
    # In the second run, fewer validation instances are positive, so fewer are called.
    of_fold[1] = [
        replace(p, instance_labels=np.int8(p.instance_labels * (p.attention_mean > 3)))
        for p in of_fold[1]
    ]
    chosen_on = {f: table([p for p in v if positive[p.name]]) for f, v in of_fold.items()}
    test = table(bags, positive)
    got = instance_metrics([test], validation=[chosen_on], folds=fold, bootstrap=0)
    limits = {f: dice_threshold(v.y, v["evidence"]) for f, v in chosen_on.items()}
    assert limits[0] < limits[1] - 0.2
    each = [
        sk.f1_score(p.instance_labels, table([p])["evidence"] >= limits[fold[p.name]])
        for p in bags
        if positive[p.name]
    ]
    assert got["dice"].value == pytest.approx(np.mean(each))
    lacking = instance_metrics([test], validation=[{0: chosen_on[0]}], folds=fold, bootstrap=0)
    assert lacking["dice"].reason == f"fold 1: {NO_VALIDATION}"
    with pytest.raises(InputError, match="'b11'"):
        instance_metrics([test], folds={k: v for k, v in fold.items() if k != "b11"})


def test_columns_of_several_classes():
    mu = np.array([[9.0, 1.0, 0.0], [8.0, 0.0, 1.0], [7.0, 0.5, 2.0]])
    first = made(
        "a",
        mu,
        [1, 0, 0],
        attention_variance=np.ones((3, 3)),
        degree=[1, 2, 3],
        weight_mean=np.zeros((3, 3)),
        probability=(0.5, 0.4, 0.1),
        task="multiclass",
    )
    assert measured([first])["auroc"].value == 1.0  # class 1 is the most probable above 0
    second = replace(first, probability=np.float32([0.5, 0.1, 0.4]))
    assert measured([second])["auroc"].value == 0.0


def test_a_further_column_that_a_bag_lacks_is_left_out_with_its_reason():
    bags, _ = mixed(4)

    def more(p):
        values = np.arange(len(p.attention_mean), dtype=np.float64)
        reason = {"b1": "no grid", "b2": "no pixels", "b3": "no pixels"}.get(p.name, values)
        return {"null:a": values, "null:b": reason}

    got = table(bags, more=more)
    assert "null:a" in got.columns and got.missing["null:b"] == "no pixels (2 of 4 bags)"
    assert len(got["null:a"]) == len(got.y) == sum((p.instance_labels >= 0).sum() for p in bags)


def test_bad_input():
    bags, positive = mixed(4)
    with pytest.raises(InputError, match="logit, weight"):
        table([*bags, replace(bags[1], score_kind="weight")])
    other, _ = mixed(4, kind="probability")
    with pytest.raises(InputError, match=r"'logit'.* 'prob"):
        measured(bags, positive, validation=other)
    one = table(bags)
    less = table(bags[:-1])
    with pytest.raises(InputError, match=r"0 and 1 .*'b3'"):
        instance_metrics([one, less])
    with pytest.raises(InputError, match=r"^1 .* 2:"):
        instance_metrics([one], validation=[one, one])
    bags[2].attention_mean[3] = np.nan
    refused(BagError, "'b2'", table, bags)


def test_only_bags_with_positive_instances_count_and_evidence_of_zero_is_negative():
    bags = [
        made("a", [1.0, 0.0], [1, 0], score_kind="evidence"),
        made("b", [1.0, -1.0], [0, 0], score_kind="evidence"),
    ]
    got = measured(bags)
    assert got["auroc_within_bags"].value == got["dice_of_map"].value == 1.0
    assert got["error_rate"].value == 1 / 4
