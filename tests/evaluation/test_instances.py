"""Instance metrics: evidence, null rivals, the authors' protocol, and undefined cases."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import metrics as sk

from probsa.errors import BagError, InputError
from probsa.evaluation.ensemble import combine
from probsa.evaluation.instances import NAMES, balanced_threshold, instance_metrics
from probsa.evaluation.prediction import Prediction
from probsa.evaluation.scores import doubt, evidence
from probsa.statistics import Draws


def _bag(name, mu, labels, *, variance=None, kind="logit", probability=(0.5,)):
    mu = np.asarray(mu, dtype=np.float32)
    zero = np.zeros_like(mu)
    return Prediction(
        name=name,
        probability=np.asarray(probability, dtype=np.float32),
        std=np.zeros(len(probability), dtype=np.float32),
        coords=None,
        attention_mean=mu,
        attention_variance=zero if variance is None else np.asarray(variance, dtype=np.float32),
        weight_mean=zero,
        weight_variance=zero,
        degree=np.full(len(mu), 2.0, np.float32),
        score_kind=kind,
        instance_labels=None if labels is None else np.asarray(labels, dtype=np.int8),
    )


def _bags(count: int = 12, *, seed: int = 0, kind: str = "logit"):
    """Bags of different sizes; odd ones are positive, and some instances are unlabelled."""
    rng = np.random.default_rng(seed)
    bags, positive = [], {}
    for b in range(count):
        n = 20 + b
        y = ((rng.random(n) < 0.4) & bool(b % 2)).astype(int)
        mu = rng.normal(size=n) + y
        bags.append(
            _bag(
                f"b{b}",
                mu if kind == "logit" else 1 / (1 + np.exp(-mu)),
                np.where(rng.random(n) < 0.1, -1, y),
                variance=rng.random(n),
                kind=kind,
            )
        )
        positive[f"b{b}"] = bool(b % 2)
    return bags, positive


def _pooled(bags, field):
    return np.concatenate([getattr(p, field)[p.instance_labels >= 0] for p in bags])


def test_evidence_is_the_log_ratio_to_uniform_attention():
    # The weights are 5/8, 1/8, 1/8, 1/8; uniform weights are 1/4.
    s = evidence(np.log([5.0, 1.0, 1.0, 1.0]) + 7, kind="logit")
    np.testing.assert_allclose(s, np.log([2.5, 0.5, 0.5, 0.5]), atol=1e-12)
    w = evidence(np.array([5, 1, 1, 1]) / 8, kind="weight")
    np.testing.assert_allclose(w, s, atol=1e-12)
    np.testing.assert_allclose(evidence(np.array([0.7, 0.5]), kind="probability"), [0.2, 0.0])
    assert np.isnan(evidence(np.zeros(2), kind="relevance")).all()
    assert evidence(np.array([3.0]), kind="logit")[0] == pytest.approx(0.0)


def test_ranks_are_sklearns_over_all_and_within_positive_bags():
    bags, positive = _bags()
    got = instance_metrics(bags, positive=positive, bootstrap=0)
    assert tuple(got) == NAMES
    inside = [p for p in bags if positive[p.name]]
    for suffix, subset in (("", bags), ("_positive_bags", inside)):
        y, mu = _pooled(subset, "instance_labels"), _pooled(subset, "attention_mean")
        assert got[f"auroc{suffix}"].value == pytest.approx(sk.roc_auc_score(y, mu), abs=1e-12)
        expected = sk.average_precision_score(y, mu)
        assert got[f"average_precision{suffix}"].value == pytest.approx(expected, abs=1e-12)
    assert got["auroc"].value != pytest.approx(got["auroc_positive_bags"].value, abs=1e-3)


def test_errors_by_hand_with_an_unlabelled_instance():
    # Weights (8, 4, 1, 1, 1, 1)/16, N = 6: s > 0 where the weight exceeds 1/6: the first two.
    mu = np.log([8.0, 4.0, 1.0, 1.0, 1.0, 1.0])
    labels = [1, 0, 1, 0, 0, -1]  # wrong calls: 1 (called) and 2 (missed); 5 is unlabelled
    variance = [0.1, 0.9, 0.4, 0.5, 0.2, 5.0]
    bag = _bag("a", mu, labels, variance=variance)
    negative = _bag("n", [0.0, 9.0], [0, 0], variance=[9, 9])
    got = instance_metrics([bag, negative], positive={"a": True, "n": False}, bootstrap=0)
    assert got["error_rate"].value == pytest.approx(2 / 5)
    # σ²: .9 is above three correct calls (.1, .5, .2), and .4 above two of them.
    assert got["error_auroc_variance"].value == pytest.approx((3 + 2) / 6)
    # |s|: log 3, log 1.5 (wrong), and three times log(6/16), of which the first is wrong.
    s = np.log(6 * np.exp(mu) / 16)
    wrong = [0, 1, 1, 0, 0]
    assert got["error_auroc_margin"].value == pytest.approx((3 + 1 + 0.5 + 0.5) / 6)
    expected = sk.roc_auc_score(wrong, -np.abs(np.round(s[:5], 6)))
    assert got["error_auroc_margin"].value == pytest.approx(expected)


def test_unlabelled_instances_move_the_uniform_weight():
    labels = [1, 0, -1, -1, -1, -1]
    mu = np.log([3.0, 2.0, 5.0, 5.0, 5.0, 5.0])
    # Among the labelled two, the first would be above uniform; among all six, neither is.
    bag = _bag("a", mu, labels, variance=[0.1, 0.2, 0, 0, 0, 0])
    got = instance_metrics([bag], positive={"a": True}, bootstrap=0)
    assert got["error_rate"].value == pytest.approx(1 / 2)


@pytest.mark.parametrize("kind", ["probability", "weight"])
def test_calls_of_other_scores(kind):
    score = [0.7, 0.2, 0.1, 0.0] if kind == "weight" else [0.9, 0.45, 0.3, 0.6]
    bag = _bag("a", score, [1, 1, 0, 0], variance=[0, 1, 0, 0], kind=kind)
    got = instance_metrics([bag], positive={"a": True}, bootstrap=0)
    expected = {"weight": 1 / 4, "probability": 2 / 4}[kind]  # .45 and .6 are wrong
    assert got["error_rate"].value == pytest.approx(expected)
    assert got["error_auroc_margin"].value == 1.0


def test_relevance_has_ranks_and_no_calls():
    bag = _bag("a", [0.9, 0.1, 0.2], [1, 0, 0], variance=[0, 1, 0], kind="relevance")
    got = instance_metrics([bag], positive={"a": True}, bootstrap=10)
    assert got["auroc"].value == 1.0
    names = [name for name in NAMES if name.startswith("error_")]
    assert len(names) == 4
    for name in names:
        assert got[name].reason == "relevance has no threshold for calls"


def test_a_posterior_without_variance_finds_no_errors():
    bag = _bag("a", [2.0, 0.0, 0.0], [1, 1, 0])
    got = instance_metrics([bag], positive={"a": True}, bootstrap=10)
    assert got["error_auroc_variance"].reason == "this posterior has no variance"
    assert got["error_auroc_doubt"].reason == "this posterior has no variance"
    # |s| is log 3.1 for the wrong call, and log 2.4 and log 3.1 for the correct ones.
    assert got["error_auroc_margin"].value == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["logit", "probability", "evidence"])
def test_doubt_is_the_posterior_probability_of_the_other_side(kind):
    bags, positive = _bags(seed=1, kind="logit" if kind == "evidence" else kind)
    bags = [replace(p, score_kind=kind) for p in bags]
    got = instance_metrics(bags, positive=positive, bootstrap=0)
    wrong, probability = [], []
    for p in (p for p in bags if positive[p.name]):
        e = p.attention_mean.astype(np.float64)
        if kind == "logit":
            e = np.log(np.exp(e) / np.exp(e).sum() * len(e))
        elif kind == "probability":
            e = e - 0.5
        posterior = norm(e, np.sqrt(p.attention_variance.astype(np.float64)))
        other_side = np.where(e > 0, posterior.cdf(0), posterior.sf(0))
        known = p.instance_labels >= 0
        probability.extend(other_side[known])
        wrong.extend(((e > 0) != (p.instance_labels > 0))[known])
        np.testing.assert_allclose(doubt(p), other_side, atol=1e-12)
    expected = sk.roc_auc_score(wrong, probability)
    assert got["error_auroc_doubt"].value == pytest.approx(expected, abs=1e-12)
    for rival in ("error_auroc_margin", "error_auroc_variance"):
        assert got[rival].value != pytest.approx(expected, abs=1e-3)


def test_doubt_of_an_ensemble_has_the_variance_between_its_members():
    members = [
        _bag("a", mu, [1, 0, 1, 0], variance=variance, kind="evidence")
        for mu, variance in (
            ([2.0, 1, -1, -3], [1.0, 1, 4, 1]),
            ([4.0, -0.5, -2, -3], [3, 1, 0, 0]),
        )
    ]
    p = combine(members, align=False)
    mean, within = np.array([3, 0.25, -1.5, -3]), np.array([2, 1, 2, 0.5])
    between = np.array([1, 0.5625, 0.25, 0])
    expected = norm.cdf(-np.abs(mean) / np.sqrt(within + between))
    np.testing.assert_allclose(doubt(p), expected, atol=1e-7)
    got = instance_metrics([p], positive={"a": True}, bootstrap=0)
    assert got["error_auroc_doubt"].value == sk.roc_auc_score([0, 1, 1, 0], expected)
    # members without a variance of their own differ from one another
    dirac = combine([replace(m, attention_variance=np.zeros(4)) for m in members], align=False)
    expected = norm.cdf(-np.abs(mean[:3]) / np.sqrt(between[:3]))
    np.testing.assert_allclose(doubt(dirac)[:3], expected, atol=1e-7)


def test_doubt_where_nothing_is_uncertain():
    p = _bag("a", [0.0, 2.0, 0.0], None, variance=[0, 0, 1], kind="evidence")
    np.testing.assert_array_equal(doubt(p), [0.5, 0, 0.5])
    # a weight's variance is that of the weight: the threshold is 1/N
    w = _bag("a", [0.75, 0.25, 0, 0], None, variance=[0.25, 0.01, 0.25, 0], kind="weight")
    np.testing.assert_allclose(doubt(w), norm.cdf([-1, 0, -0.5, -np.inf]), atol=1e-7)
    assert np.isnan(doubt(replace(p, score_kind="relevance"))).all()


def test_one_class_and_no_labels_are_undefined():
    ones = _bag("a", [1.0, 0.0], [1, 1], variance=[1, 2])
    got = instance_metrics([ones], positive={"a": True}, validation=[ones])
    assert got["auroc"].reason == "only one class among 2 instances: AUROC is undefined"
    assert got["average_precision_positive_bags"].reason == (
        "only one class among 2 instances of positive bags: average precision is undefined"
    )
    assert got["authors_f1"].reason == (
        "only one class among 2 instances of positive validation bags"
    )
    assert got["error_rate"].value == pytest.approx(1 / 2)
    negative = _bag("n", [1.0, 0.0], [0, 1], variance=[1, 2])
    got = instance_metrics([negative], positive={}, validation=[ones])
    assert got["auroc"].value == 0.0
    assert got["auroc_positive_bags"].reason == (
        "no instances of positive bags: AUROC is undefined"
    )
    assert got["error_rate"].reason == "no instances of positive bags"
    unlabelled = _bag("u", [1.0, 0.0], None)
    got = instance_metrics([unlabelled], positive={"u": True})
    assert tuple(got) == NAMES
    assert {m.reason for m in got.values()} == {"no bag has instance labels"}
    dropped = _bag("d", [1.0, 0.0], [-1, -1])
    got = instance_metrics([dropped], positive={"d": True}, bootstrap=5)
    assert got["auroc"].reason == "no instances: AUROC is undefined"


# The authors' protocol


def test_balanced_threshold_maximises_tpr_times_tnr():
    y = np.array([False, False, True, False, True, True])
    score = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    # .5 gives TPR 2/3 and FPR 0, .3 gives TPR 1 and FPR 1/3: both 2/3. The higher one is chosen.
    assert balanced_threshold(y, score) == 0.5
    assert balanced_threshold(y[1:], score[1:]) == 0.5


def test_authors_protocol_uses_positive_bags_and_validations_threshold():
    bags, positive = _bags()
    validation, _ = _bags(6, seed=1)
    got = instance_metrics(bags, positive=positive, validation=validation, bootstrap=0)
    inside = [p for p in bags if positive[p.name]]
    chosen_on = [p for p in validation if positive[p.name]]
    y, mu = _pooled(inside, "instance_labels"), _pooled(inside, "attention_mean")
    y_val, mu_val = _pooled(chosen_on, "instance_labels"), _pooled(chosen_on, "attention_mean")
    products = {
        t: (mu_val[y_val == 1] >= t).mean() * (mu_val[y_val == 0] < t).mean() for t in mu_val
    }
    threshold = max(products, key=lambda t: (products[t], t))
    assert got["authors_auroc"].value == pytest.approx(sk.roc_auc_score(y, mu))
    assert got["authors_average_precision"].value == pytest.approx(
        sk.average_precision_score(y, mu)
    )
    assert got["authors_f1"].value == pytest.approx(sk.f1_score(y, mu >= threshold))
    assert got["authors_accuracy"].value == pytest.approx(sk.accuracy_score(y, mu >= threshold))


def test_authors_protocol_without_validation_has_a_reason():
    bags, positive = _bags(4)
    got = instance_metrics(bags, positive=positive, bootstrap=0)
    assert got["authors_f1"].reason == "no validation predictions to choose a threshold on"
    assert got["authors_auroc"].value is not None
    got = instance_metrics(bags, positive=positive, validation=bags[:1], bootstrap=0)
    assert got["authors_accuracy"].reason == (
        "no positive validation bag has instance labels to choose a threshold on"
    )


# Intervals


def test_intervals_are_sklearns_on_the_resampled_bags():
    bags, positive = _bags(8)
    got = instance_metrics(bags, positive=positive, validation=bags, bootstrap=30, seed=4)
    flags = np.array([positive[p.name] for p in bags])
    draws = Draws.stratified(flags, groups=None, resamples=30, seed=4)
    whole, inside = [], []
    for counts in draws.counts[1:]:
        resample = [p for p, c in zip(bags, counts, strict=True) for _ in range(c)]
        whole.append(
            sk.roc_auc_score(
                _pooled(resample, "instance_labels"), _pooled(resample, "attention_mean")
            )
        )
        resample = [p for p in resample if positive[p.name]]
        inside.append(instance_metrics(resample, positive=positive, validation=bags, bootstrap=0))
    low, high = np.quantile(whole, [0.025, 0.975])
    assert (got["auroc"].low, got["auroc"].high) == (pytest.approx(low), pytest.approx(high))
    for name in NAMES[2:]:
        low, high = np.quantile([m[name].value for m in inside], [0.025, 0.975])
        assert got[name].low == pytest.approx(low, abs=1e-9), name
        assert got[name].high == pytest.approx(high, abs=1e-9), name


def test_bootstrap_off_seeds_and_groups():
    bags, positive = _bags()
    off = instance_metrics(bags, positive=positive, bootstrap=0)
    assert all(m.low is None and m.high is None for m in off.values())
    one = instance_metrics(bags, positive=positive, bootstrap=100, seed=1)
    assert one == instance_metrics(bags, positive=positive, bootstrap=100, seed=1)
    assert one["auroc"] != instance_metrics(bags, positive=positive, bootstrap=100, seed=2)["auroc"]
    assert one["auroc"].value == off["auroc"].value
    pairs = {p.name: f"patient{i // 2}" for i, p in enumerate(bags)}
    grouped = instance_metrics(bags, positive=positive, bootstrap=100, seed=1, groups=pairs)
    assert grouped["auroc"].value == off["auroc"].value
    assert grouped["auroc"].low != one["auroc"].low
    together = dict.fromkeys(pairs, "one patient")
    alone = instance_metrics(bags, positive=positive, bootstrap=100, groups=together)
    assert alone["auroc"].low is None


# One attention per class


def test_columns_of_several_classes():
    mu = np.array([[9.0, 1.0, 0.0], [8.0, 0.0, 1.0], [7.0, 0.5, 2.0]], dtype=np.float32)
    variance = np.array([[0, 1, 2], [0, 3, 4], [0, 5, 6]])
    labels = [1, 0, 0]
    first = _bag("a", mu, labels, variance=variance, probability=(0.5, 0.4, 0.1))
    got = instance_metrics([first], positive={"a": True}, bootstrap=0)
    assert got["auroc"].value == 1.0  # class 1 is the most probable above 0
    second = replace(first, probability=np.float32([0.5, 0.1, 0.4]))
    got = instance_metrics([second], positive={"a": True}, bootstrap=0)
    assert got["auroc"].value == 0.0
    two = replace(
        first,
        attention_mean=mu[:, :2],
        attention_variance=first.attention_variance[:, :2],
        probability=np.float32([0.9, 0.1]),
    )
    assert instance_metrics([two], positive={"a": True}, bootstrap=0)["auroc"].value == 1.0


# Invalid input


def test_bad_input():
    bags, positive = _bags(4)
    mixed = [*bags, replace(bags[1], score_kind="weight")]
    with pytest.raises(InputError, match=r"several kinds \(logit, weight\)"):
        instance_metrics(mixed, positive=positive)
    other, _ = _bags(4, kind="probability")
    with pytest.raises(InputError, match="test scores are of kind 'logit', validation's 'prob"):
        instance_metrics(bags, positive=positive, validation=other)
    bags[2].attention_mean[3] = np.nan
    with pytest.raises(BagError, match="bag 'b2' has attention that is nan"):
        instance_metrics(bags, positive=positive)
