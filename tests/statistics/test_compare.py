"""Paired differences, their standard errors, the error rate of the winner rule, and power."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from support.delong import delong
from support.equal_methods import cohort

from probsa.errors import InputError
from probsa.statistics import (
    Draws,
    compare,
    detectable_from_intervals,
    detectable_sentence,
    holm,
    mean_interval,
    minimum_detectable,
    resample,
    resampled_metric,
)
from probsa.statistics.comparison import StandardError

SKLEARN = {
    "auroc": roc_auc_score,
    "average_precision": average_precision_score,
    "f1": f1_score,
    "accuracy": accuracy_score,
    "mean": lambda y, s, *, sample_weight=None: np.average(s, weights=sample_weight),
}


def calls(scores, *, threshold=0.75):
    return {name: s > threshold for name, s in scores.items()}


def difference(y, a, b, **options):
    """The difference a - b, as `compare` gives it for two methods."""
    return compare(y, {"a": a, "b": b}, baseline="b", **options).differences["a"]


@pytest.mark.parametrize("metric", SKLEARN)
def test_values_are_sklearns_averaged_over_replicates(metric):
    y, patient, scores = cohort(np.random.default_rng(0), n=60, bags=2, k=3)
    scores = calls(scores) if metric in ("f1", "accuracy") else scores
    got = compare(y, scores, groups=patient, metric=metric, resamples=50)
    for name, s in scores.items():
        expected = np.mean([SKLEARN[metric](y, row) for row in s])
        assert got.values[name] == pytest.approx(expected, abs=1e-12)
    best = max(got.values, key=got.values.get)
    assert (got.best, got.reference) == (best, best)
    for name, d in got.differences.items():
        assert d.difference == pytest.approx(got.values[name] - got.values[best], abs=1e-12)


@pytest.mark.parametrize("metric", SKLEARN)
@pytest.mark.parametrize("max_groups", [0, 4000])
def test_each_resample_is_sklearns_with_the_weights(monkeypatch, metric, max_groups):
    monkeypatch.setattr(resample, "MOST_GROUPS", max_groups)  # by ranks, and by pairs of groups
    rng = np.random.default_rng(1)
    y, patient, scores = cohort(rng, n=45, bags=3, seeds=2)
    s = np.round(scores["m0"], 1)  # ties
    s = s > 0.75 if metric in ("f1", "accuracy") else s
    draws = Draws.patients(y.tolist(), groups=patient.tolist(), resamples=20, seed=0)
    got = resampled_metric(y == 1, s, draws=draws, metric=metric)
    for r, row in enumerate(s):
        for b, counts in enumerate(draws.counts):
            expected = SKLEARN[metric](y, row, sample_weight=counts[draws.member])
            assert got[r, b] == pytest.approx(expected, abs=1e-12)


def test_draws_are_of_k_minus_1_patients_of_each_stratum():
    labels = [1, 1, 1, 0, 0, 0, 0, 1, 0]
    groups = ["a", "b", "c", "d", "e", "f", "g", "h", "h"]  # only h has both labels
    draws = Draws.patients(labels, groups=groups, resamples=4000, seed=0)
    weight = draws.counts
    assert (weight[0] == 1).all()
    # a, b and c form one stratum; h, a stratum of one, joins the largest: d, e, f and g.
    assert draws.freedom == 8 - 2
    np.testing.assert_allclose(weight[:, :3].sum(1), 3)
    np.testing.assert_allclose(weight[:, 3:].sum(1), 5)
    assert set(np.unique(weight[1:, :3])) <= {0, 1.5, 3}
    np.testing.assert_allclose(weight[1:].mean(0), 1, atol=0.07)
    # With var(w) = 1, the variance of a mean over k groups is s² / k.
    np.testing.assert_allclose(weight[1:].var(0), [1.0] * 8, atol=0.12)


def test_the_standard_error_of_an_accuracy_is_the_textbooks():
    rng = np.random.default_rng(2)
    n = 60
    y = (np.arange(n) < 24).astype(int)
    a, b = rng.random((2, n)) < 0.8
    a, b = np.where(a, y, 1 - y), np.where(b, y, 1 - y)
    got = difference(y, a, b, groups=None, metric="accuracy", resamples=20_000)
    d = (a == y).astype(float) - (b == y)
    strata = [d[y == 1], d[y == 0]]
    expected = np.sqrt(sum(len(s) * s.var(ddof=1) for s in strata)) / n
    assert got.spread.se == pytest.approx(expected, rel=0.02)


def test_the_standard_error_of_an_auroc_difference_is_delongs():
    y, _, scores = cohort(np.random.default_rng(3), n=200, seeds=1)
    got = difference(y, scores["m0"], scores["m1"], groups=None, metric="auroc", resamples=10_000)
    areas, covariance = delong(y, [scores["m0"][0], scores["m1"][0]])
    assert got.difference == pytest.approx(areas[0] - areas[1], abs=1e-12)
    contrast = np.array([1, -1])
    assert got.spread.se == pytest.approx(np.sqrt(contrast @ covariance @ contrast), rel=0.04)
    t = abs(got.difference) / got.spread.se
    assert got.p == pytest.approx(2 * stats.t.sf(t, 198), rel=1e-9)


def test_bags_written_three_times_are_no_more_evidence():
    y, _, scores = cohort(np.random.default_rng(5), n=60)
    a, b = scores["m0"], scores["m1"]
    once = difference(y, a, b, groups=None, metric="auroc", resamples=300)
    y3, a3, b3 = (np.repeat(v, 3, axis=-1) for v in (y, a, b))
    patients = np.repeat(np.arange(60), 3)
    thrice = difference(y3, a3, b3, groups=patients, metric="auroc", resamples=300)
    assert (thrice.difference, thrice.spread.se, thrice.p) == pytest.approx(
        (once.difference, once.spread.se, once.p), rel=1e-9
    )
    apart = difference(y3, a3, b3, groups=None, metric="auroc", resamples=300)
    assert apart.spread.patients < 0.7 * once.spread.patients


def test_seeds_of_a_split_are_averaged():
    y, _, scores = cohort(np.random.default_rng(7), n=60, seeds=6, seed_sd=0.5)
    a, b = scores["m0"], scores["m1"]
    blocks = ["s0", "s0", "s1", "s1", "s2", "s2"]
    kw = {"groups": None, "metric": "auroc", "resamples": 200}
    by_split = difference(y, a, b, blocks=blocks, **kw)
    by_seed = difference(y, a, b, **kw)
    assert by_split.difference == pytest.approx(by_seed.difference, abs=1e-12)
    assert (by_split.spread.count, by_seed.spread.count) == (3, 6)
    d = [roc_auc_score(y, p) - roc_auc_score(y, q) for p, q in zip(a, b, strict=True)]
    means = np.reshape(d, (3, 2)).mean(1)
    assert by_split.spread.replicates < means.std(ddof=1) / np.sqrt(3)
    assert difference(y, a, b, blocks=["s"] * 6, **kw) == by_seed


def test_folds_shifted_against_each_other_cost_the_pooled_auroc_alone():
    rng = np.random.default_rng(8)
    y, _, scores = cohort(rng, n=100, seeds=2)
    folds = rng.permutation(100) % 5
    plain = {"plain": scores["m0"], "shifted": scores["m0"] + 2.0 * folds}
    kw = {"groups": None, "metric": "auroc", "resamples": 100}
    pooled = compare(y, plain, **kw)
    assert pooled.values["shifted"] < pooled.values["plain"] - 0.1
    within = compare(y, plain, folds=folds, **kw)
    expected = np.mean(
        [roc_auc_score(y[folds == f], s[folds == f]) for s in scores["m0"] for f in range(5)]
    )
    assert within.values == pytest.approx({"plain": expected, "shifted": expected}, abs=1e-12)
    assert within.differences["shifted"].p == 1
    assert within.winner is None


def test_the_two_parts_of_a_difference_by_hand():
    drawn = np.array([[0.0, 2.0, 4.0], [1.0, 1.0, 1.0], [2.0, 0.0, -2.0]])
    observed = np.array([1.0, 4.0, 7.0])
    got = StandardError.estimated(np.column_stack([observed, drawn]), freedom=9)
    # The mean is 1 in all resamples; the replicates' variances around it are 4, 0 and 4.
    assert got.patients == 0
    assert got.replicates == pytest.approx(np.sqrt(9 / 3 - 8 / 6))
    assert (got.count, got.freedom) == (3, 9)
    two = StandardError.estimated(np.column_stack([observed, drawn])[:2], freedom=9)
    # The means 0.5, 1.5, 2.5 have variance 1; the interaction is (1 + 1) / (2 · 1).
    assert two.patients == pytest.approx(0.0)
    assert two.replicates == pytest.approx(np.sqrt(4.5 / 2))
    one = StandardError.estimated(np.column_stack([observed, drawn])[:1], freedom=9)
    assert (one.patients, one.replicates) == (2.0, 0.0)


def test_a_metric_that_is_undefined_in_most_resamples_has_no_p():
    """Two folds have one positive patient each, who is missing from a third of the resamples."""
    y = np.zeros(60, dtype=int)
    folds = np.arange(60) // 20
    y[[0, 20, 40, 41, 42]] = 1
    rng = np.random.default_rng(0)
    scores = {n: y * k + rng.normal(size=60) for n, k in (("a", 4.0), ("b", 0.0))}
    got = compare(y, scores, groups=None, metric="auroc", folds=folds)
    assert got.differences["b"].p is None
    special = got.differences["b"].special
    assert (special.case, special.patients, special.resamples) == ("undefined", 60, 2000)
    assert 1000 <= special.left_out < 2000


def test_intervals_end_at_plus_and_minus_one():
    y = np.arange(40) % 2
    rng = np.random.default_rng(0)
    one, two = (y * k + rng.normal(size=(2, 40)) for k in ([[3.0], [0.2]], [[0.2], [3.0]]))
    got = difference(y, one, two, groups=list(range(40)), metric="auroc")
    assert got.spread is not None and got.spread.half_width() > 1
    assert (got.low, got.high) == (-1.0, 1.0)


@pytest.mark.parametrize("other", [0.0, 1e-12])
@pytest.mark.parametrize(("part", "freedom"), [("patients", 70), ("replicates", 4)])
def test_p_of_patients_alone_or_replicates_alone_is_students(part, freedom, other):
    """Also where the other part almost vanishes: p does not jump."""
    parts = {"patients": other, "replicates": other, part: 0.02}
    alone = StandardError(**parts, freedom=70, count=5)
    assert alone.p(0.05) == pytest.approx(2 * stats.t.sf(2.5, freedom), rel=1e-8)
    assert alone.half_width(0.2) == pytest.approx(0.02 * stats.t.ppf(0.9, freedom), rel=1e-6)


@pytest.mark.parametrize("count", [2, 5])
def test_p_of_both_is_that_of_the_sum_of_two_students(count):
    rng = np.random.default_rng(9)
    both = StandardError(patients=0.02, freedom=30, replicates=0.03, count=count)
    error = 0.02 * rng.standard_t(30, 400_000) + 0.03 * rng.standard_t(count - 1, 400_000)
    for d in (0.01, 0.05, 0.1):
        share = np.mean(np.abs(error) >= d)
        assert both.p(d) == pytest.approx(share, abs=4 * np.sqrt(share / 400_000) + 5e-4)
    assert both.p(both.half_width()) == pytest.approx(0.05, abs=1e-6)
    assert both.se == pytest.approx(np.hypot(0.02, 0.03))


def test_equal_methods_have_p_one():
    y = np.array([0] * 8 + [1] * 6)
    s = np.arange(14) / 100
    got = difference(y, s, s, groups=None, metric="auroc", resamples=50)
    assert (got.difference, got.low, got.high, got.p, got.spread) == (0, 0, 0, 1, None)
    assert got.special.case == "equal scores"
    got = difference(y, y + s, y - s, groups=None, metric="auroc", resamples=50)
    assert (got.difference, got.p, got.low) == (0, 1, None)
    assert got.special.case == "equal metrics"


@pytest.mark.parametrize(
    ("metric", "freedom"), [("auroc", 58), ("accuracy", 58), ("average_precision", 23), ("f1", 23)]
)
def test_degrees_of_freedom_count_the_patients_that_a_metric_depends_on(metric, freedom):
    y, _, scores = cohort(np.random.default_rng(18), n=60)
    scores = calls(scores) if metric in ("f1", "accuracy") else scores
    got = difference(y, *scores.values(), groups=None, metric=metric, resamples=50)
    assert got.spread.freedom == freedom


@pytest.mark.parametrize(("n", "p", "error"), [(60, 0.005, 0), (4, 0.125, 0.08)])
def test_where_no_resample_varies_p_is_of_exchanging_the_methods(monkeypatch, n, p, error):
    """Perfect against constant scores: 2 of 16 exchanges of 4 bags are as extreme, 0 of 60 bags."""
    monkeypatch.setattr("probsa.statistics.comparison.EXCHANGES", 199)
    y = np.arange(n) % 2
    got = difference(y, y * 1.0, np.zeros(n), groups=None, metric="auroc", resamples=50)
    assert (got.difference, got.low, got.spread) == (0.5, None, None)
    assert got.p == pytest.approx(p, abs=error)
    assert got.special.case == "exchanged"


def test_too_few_patients_have_no_p_and_no_winner():
    y = np.array([0, 0, 1, 1])
    scores = {"a": [0.1, 0.2, 0.8, 0.9], "b": [0.9, 0.2, 0.8, 0.1]}
    got = compare(y, scores, groups=[0, 0, 1, 1], metric="auroc", resamples=50)
    assert got.differences["b"].p is None
    assert got.adjusted["b"] == 1
    assert got.winner is None
    assert got.undecided.difference.special.case == "few patients"
    assert got.undecided.difference.special.patients == 2


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_winner_is_one_that_differs_from_every_other():
    rng = np.random.default_rng(11)
    y, _, scores = cohort(rng, n=150, k=4, signal=0.5)
    scores["best"] = scores["m0"] + 2.0 * y
    got = compare(y, scores, groups=None, metric="auroc", resamples=300)
    assert (got.winner, got.best, got.undecided) == ("best", "best", None)
    assert all(d.high < 0 for d in got.differences.values())
    scores["twin"] = scores["best"] + 0.1 * rng.standard_normal(150)
    got = compare(y, scores, groups=None, metric="auroc", resamples=300)
    assert got.winner is None
    (other,) = {"best", "twin"} - {got.best}
    assert (got.undecided.similar, got.undecided.nearest) == ((other,), other)
    assert got.undecided.methods == 5 and got.adjusted[other] > 0.05
    scores["twin"] = scores["best"]
    got = compare(y, scores, groups=None, metric="auroc", resamples=300)
    assert (got.winner, got.best) == (None, "best")
    assert got.undecided.similar == ("twin",) and got.undecided.difference.difference == 0


def test_a_difference_that_survives_alone_may_not_survive_many():
    """A method wins with p = 0.03 against one other, but not with p = 0.03 against two."""
    y, _, scores = cohort(np.random.default_rng(12), n=100, k=2, seeds=1)
    a, b = scores["m0"], scores["m1"]
    for shift in np.arange(0, 2, 0.05):
        two = {"a": a + shift * y, "b": b}
        got = compare(y, two, groups=None, metric="auroc", resamples=200)
        if got.best == "a" and 0.026 < got.differences["b"].p < 0.048:
            break
    else:
        raise AssertionError("no shift gives such a p")
    assert got.winner == "a"
    three = compare(y, two | {"c": b}, groups=None, metric="auroc", resamples=200)
    assert three.winner is None
    assert three.adjusted["b"] == pytest.approx(2 * three.differences["b"].p)
    assert min(three.adjusted.values()) > 0.05


def test_against_a_baseline_the_winner_rule_is_the_same():
    y, _, scores = cohort(np.random.default_rng(13), n=100, k=4)
    scores["m3"] = scores["m3"] + 2 * y
    kw = {"groups": None, "metric": "auroc", "resamples": 200}
    best = compare(y, scores, **kw)
    base = compare(y, scores, baseline="m1", **kw)
    assert (base.reference, base.best) == ("m1", "m3")
    assert set(base.differences) == {"m0", "m2", "m3"}
    assert (base.winner, base.reason) == (best.winner, best.reason)
    assert base.differences["m3"].difference == -best.differences["m1"].difference
    assert list(base.adjusted.values()) == holm([d.p for d in base.differences.values()])


def test_one_method_wins_nothing_and_one_replicate_is_noted():
    y, _, scores = cohort(np.random.default_rng(14), n=40, k=1, seeds=1)
    got = compare(y, scores, groups=None, metric="auroc", resamples=50)
    assert (got.winner, got.undecided, got.differences) == (None, None, {})
    assert got.notes[0].startswith("one replicate")
    y, _, scores = cohort(np.random.default_rng(14), n=40, k=1, seeds=3)
    assert compare(y, scores, groups=None, metric="auroc", resamples=50).notes == ()


def wins(*, cohorts, seed, resamples=200, **kw):
    """The number of winners declared among equally good methods."""
    rng = np.random.default_rng(seed)
    winners = 0
    metric = kw.pop("metric", "auroc")
    for i in range(cohorts):
        y, patient, scores = cohort(rng, **kw)
        scores = calls(scores) if metric == "f1" else scores
        got = compare(y, scores, groups=patient, metric=metric, resamples=resamples, seed=i)
        winners += got.winner is not None
    return winners


def test_among_equal_methods_there_is_a_winner_in_at_most_one_of_twenty_cohorts():
    winners = (
        wins(cohorts=60, seed=0, n=80, seeds=1, seed_sd=0.0)
        + wins(cohorts=30, seed=1, n=80, seeds=5)
        + wins(cohorts=30, seed=2, n=120, bags=3, seeds=3)
        + wins(cohorts=80, seed=3, n=80, seeds=2, metric="f1")
    )
    # At most 10 of 200 are expected, with a binomial s.d. of 3.1.
    assert winners <= 19


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [1, 1, 1, 1]}, r"labels are \[1\]: auroc needs 0 and 1"),
        ({"y": [0, 1, 2, 1]}, r"labels are \[0, 1, 2\]"),
        ({"scores": {"a": [0.1, 0.2, 0.3, 0.4], "b": [[0.1] * 4] * 2}}, r"b has .* shape \(2, 4\)"),
        ({"scores": {"a": [0.1, 0.2, 0.3, float("nan")]}}, "a has .* nan"),
        ({"metric": "f1"}, "f1 needs calls"),
        ({"folds": [0, 1, 1, 1]}, "fold 0 has one class"),
    ],
)
def test_bad_input(change, message):
    given = {"y": [0, 1, 0, 1], "scores": {"a": [0.1, 0.2, 0.3, 0.4]}, "metric": "auroc"} | change
    with pytest.raises(InputError, match=message):
        compare(given.pop("y"), given.pop("scores"), groups=None, **given)


def test_interval_of_one_replicate_is_that_of_students_t_up_to_resampling():
    x = np.random.default_rng(1).normal(2.0, 1.0, size=(1, 400))
    found = mean_interval(x, groups=list(range(400)), resamples=4000)
    half = 1.966 * x.std(ddof=1) / 20
    assert found.low == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(x.mean() + half, abs=0.1 * half)
    assert found.high > 1  # not cut off as a metric in [0, 1] would be


def test_groups_widen_the_interval():
    rng = np.random.default_rng(2)
    x = np.repeat(rng.normal(size=(1, 20)), 10, axis=1)
    alone = mean_interval(x, groups=list(range(200)), resamples=500)
    grouped = mean_interval(x, groups=list(np.repeat(np.arange(20), 10)), resamples=500)
    assert grouped.spread.se > 2 * alone.spread.se


def test_detectable_is_2_80_standard_errors():
    normal = StandardError(patients=0.02, freedom=1_000_000, replicates=0.0, count=1)
    assert minimum_detectable(normal) == pytest.approx(2.80 * 0.02, rel=1e-3)
    few = StandardError(patients=0.02, freedom=100, replicates=0.02, count=3)
    assert minimum_detectable(few) > 2.9 * few.se


def test_the_sentence_under_a_table():
    y, patient, scores = cohort(np.random.default_rng(16), n=90, bags=3, k=3)
    got = compare(y, scores, groups=patient, metric="auroc", resamples=100)
    expected = np.median([minimum_detectable(d.spread) for d in got.differences.values()])
    sentence = detectable_sentence(got)
    for fact in (f"AUROC: {expected:.3f} ", "30 patients", "5 replicates", "2 pairs"):
        assert fact in sentence
    same = compare(y, {"a": scores["m0"], "b": scores["m0"]}, groups=None, metric="auroc")
    assert "unknown" in detectable_sentence(same)
    name, d = next(iter(got.differences.items()))
    wide = replace(d, spread=StandardError(patients=0.01, freedom=50, replicates=0.2, count=2))
    assert "AUROC: none" in detectable_sentence(replace(got, differences={name: wide}))


def test_the_sentence_of_differences_with_intervals_only():
    intervals = [(-0.02, 0.04), (None, None), (0.1, 0.3), (-0.05, 0.05)]
    least = 0.05 * (1.959964 + 0.841621) / 1.959964
    sentence = detectable_from_intervals(intervals, what="AP")
    assert f"AP: {least:.3f} " in sentence and "3 differences" in sentence
    assert "unknown" in detectable_from_intervals([(None, 1.0)], what="AP")
