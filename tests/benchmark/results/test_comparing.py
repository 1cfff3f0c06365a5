"""Methods compared on the same replicates, and intervals of their values."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score
from support.delong import delong

from probsa.benchmark import Method, RunPart, Scores, compare_methods
from probsa.benchmark.results.scores import align
from probsa.core import NO_OUTPUTS
from probsa.statistics import ONE_REPLICATE, compare, holm
from probsa.tasks import TargetData

N = 60
Y = np.arange(N) % 2


def scores(
    name="abmil",
    *,
    seeds=(0,),
    splits=None,
    skill=1.0,
    folds=True,
    y=Y,
    groups=None,
    p=None,
    fold=None,
    thresholds=(0.5,),
) -> Scores:
    """Return a method's replicates; with `splits`, one per split and seed.

    fold: the fold of each bag, with one threshold each; None for a single run.
    """
    rng = np.random.default_rng([len(name), *seeds])
    keys = [(k, s) for k in (splits or (0,)) for s in seeds]
    if p is None:
        p = 1 / (1 + np.exp(-(skill * (2 * y - 1) + rng.normal(size=(len(keys), len(y))))))
    of_fold = np.zeros(len(y), dtype=int) if fold is None else fold

    def part(r, k, split, seed):
        rows = np.flatnonzero(of_fold == k)
        data = TargetData(
            task="binary",
            y=y[rows, None].astype(float),
            predicted=p[r, rows, None],
            outputs=NO_OUTPUTS,
            names=("0", "1"),
            threshold=thresholds[k % len(thresholds)],
        )
        path = Path(f"{name}-{split}-{seed}")
        return RunPart(split=split if fold is None else k, rows=rows, data=data, path=path)

    return Scores(
        data="toy",
        method=Method(label=name, model="abmil"),
        bags=tuple(f"b{i:02d}" for i in range(len(y))),
        groups=np.arange(len(y)).astype(str) if groups is None else groups,
        replicates=tuple(
            tuple(part(r, k, split, seed) for k in np.unique(of_fold))
            for r, (split, seed) in enumerate(keys)
        ),
        seed=np.array([s for _, s in keys]),
        folds=folds,
    )


def compared(methods, metric="auroc", *, baseline=None, resamples=2000):
    """Return the comparison over the bags of all folds; None if there is none."""
    return compare_methods(methods, baseline=baseline, resamples=resamples).of(metric, "pooled")


def interval_of(s, metric, *, resamples=2000):
    return compared([s], metric, resamples=resamples).values[s.method.name]


def test_replicates_are_seeds_with_folds_and_splits_and_seeds_without():
    assert scores(seeds=(0, 4)).keys == [(-1, 0), (-1, 4)]
    fixed = scores(seeds=(0, 1), splits=(0, 2), folds=False)
    assert fixed.keys == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert fixed.blocks == [0, 0, 2, 2]
    assert scores(seeds=(0, 4)).blocks is None
    # with one split, its seeds are the replicates
    assert scores(seeds=(0, 1), splits=(3,), folds=False).blocks is None


def test_methods_are_brought_to_the_replicates_that_all_have():
    a, b = scores("a", seeds=(3, 0, 1)), scores("bb", seeds=(1, 2, 3))
    (x, y), lost = align([a, b])
    assert x.seed.tolist() == y.seed.tolist() == [1, 3]
    np.testing.assert_array_equal(x.p, a.p[[2, 0]])
    np.testing.assert_array_equal(y.calls, b.calls[[0, 2]])
    assert [parts[0].path.name for parts in x.replicates] == ["a-0-1", "a-0-3"]
    assert lost == 2
    many = scores("many", seeds=(7, 30, 2, 11, 90, 4, 5))
    assert align([many, many])[0][0].seed.tolist() == [2, 4, 5, 7, 11, 30, 90]


def test_an_interval_of_one_replicate_is_delongs():
    """Resampling patients and DeLong's placements give the same standard error."""
    s = scores(skill=0.7)
    result = interval_of(s, "auroc", resamples=4000)
    areas, covariance = delong(s.positive.astype(int), s.p)
    value = float(areas[0])
    se = float(np.sqrt(covariance[0, 0]))
    assert result.value == pytest.approx(roc_auc_score(s.positive, s.p[0]))
    assert result.value == pytest.approx(value)
    half = se * student.ppf(0.975, N - 2)
    assert result.low == pytest.approx(value - half, abs=0.1 * half)
    assert result.high == pytest.approx(value + half, abs=0.1 * half)


def test_seeds_that_differ_widen_the_interval_of_their_mean():
    s = scores(skill=0.7, seeds=(0, 1, 2))
    p = s.p
    p[1] = 1 - p[1]
    worse = scores(seeds=(0, 1, 2), p=p)
    a, b = interval_of(s, "auroc"), interval_of(worse, "auroc")
    assert b.high - b.low > 2 * (a.high - a.low)


def test_an_interval_stays_where_the_metric_can_be():
    # the normal interval around 0.99 ends above 1
    s = scores(skill=1.7)
    result = interval_of(s, "auroc")
    assert 0.95 < result.value < 1
    assert result.low < result.value and result.high == 1.0


def test_a_perfect_method_has_no_interval():
    s = scores(p=Y[None].astype(float))
    for metric in ("auroc", "f1"):
        result = interval_of(s, metric)
        assert (result.value, result.low, result.high) == (1.0, None, None)


def test_f1_is_of_the_calls():
    fold = np.arange(N) // 2 % 2
    s = scores(p=(0.1 + 0.2 * Y + 0.6 * fold)[None], fold=fold, thresholds=(0.2, 0.8))
    assert interval_of(s, "f1").value == 1.0
    assert interval_of(s, "auroc").value < 1.0


def test_nothing_is_compared_without_two_classes_or_common_replicates():
    found = compare_methods([scores(y=np.zeros(N, dtype=np.int64))], baseline=None)
    for metric in ("auroc", "f1"):
        assert found.deciding(metric) is None and found.why_not(metric)
    apart = [scores("a", seeds=(0,)), scores("bb", seeds=(1,))]
    assert compared(apart, baseline="a") is None


def test_patients_are_what_is_resampled():
    """Identical pairs of bags halve the number of patients, so the interval is wider."""
    y = np.repeat(np.arange(N // 2) % 2, 2)
    p = np.repeat(scores(y=y, skill=0.7).p[:, ::2], 2, axis=1)
    twins = scores(y=y, p=p, groups=np.repeat(np.arange(N // 2), 2).astype(str))
    alone = scores(y=y, p=p)
    a, b = interval_of(alone, "auroc"), interval_of(twins, "auroc")
    assert a.value == b.value
    ratio = (b.high - b.low) / (a.high - a.low)
    assert ratio == pytest.approx(np.sqrt(2), rel=0.1)
    assert compared([twins, twins], resamples=10).comparison.groups == N // 2


def test_differences_are_to_the_baseline_on_the_same_bags():
    a, b = scores("a", skill=0.3, seeds=(0, 1)), scores("bb", skill=1.2, seeds=(0, 1))
    result = compared([a, b], baseline="a")
    mean = {s.method.name: np.mean([roc_auc_score(Y, p) for p in s.p]) for s in (a, b)}
    d = result.comparison.differences["bb"]
    assert d.difference == pytest.approx(mean["bb"] - mean["a"])
    assert {k: v.value for k, v in result.values.items()} == pytest.approx(mean)


def test_a_fold_with_one_positive_patient_leaves_it_to_the_pooled_differences():
    y = np.zeros(60, dtype=int)
    fold = np.arange(60) // 20
    y[[0, *range(20, 26), *range(40, 46)]] = 1

    def within(y, **options):
        methods = (("a", 0.2), ("bb", 3.0))
        pair = [scores(n, skill=k, y=y, seeds=(0, 1), fold=fold, **options) for n, k in methods]
        found = compare_methods(pair, baseline="a")
        of_folds = found.of("auroc", "within")
        assert found.deciding("auroc") is (of_folds or found.of("auroc", "pooled"))
        return of_folds

    assert within(y) is None
    y[1] = 1
    assert within(y).comparison.differences["bb"].p is not None
    # two bags of one patient count once
    assert within(y, groups=np.array(["p0", "p0", *np.arange(58).astype(str)])) is None


def test_a_pair_has_the_replicates_of_both_and_holms_p_is_of_what_stands_there():
    a = scores("a", skill=0.3, seeds=(0, 1, 2))
    bb = scores("bb", skill=1.0, seeds=(0, 1, 2))
    fewer = scores("ccc", skill=0.5, seeds=(0, 1))
    result = compared([a, bb, fewer], baseline="a", resamples=50)
    assert result.replicates == {"bb": 3, "ccc": 2} and result.lacking == 1
    for other, rows in ((bb, [0, 1, 2]), (fewer, [0, 1])):
        alone = compare(
            Y,
            {"a": a.p[rows], other.method.name: other.p[rows]},
            groups=a.groups,
            metric="auroc",
            baseline="a",
            resamples=50,
        )
        of = other.method.name
        ours, theirs = result.comparison.differences[of], alone.differences[of]
        numbers = [(d.difference, d.low, d.high, d.p) for d in (ours, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-12)
        assert result.values[of] == interval_of(other, "auroc", resamples=50)
    p = [d.p for d in result.comparison.differences.values()]
    assert len(set(p)) == 2 and None not in p
    assert list(result.comparison.adjusted.values()) == holm(p) != p


def test_pairs_are_compared_where_all_together_share_no_replicate():
    three = [scores("a", seeds=(0, 1)), scores("bb", seeds=(0,)), scores("ccc", seeds=(1,))]
    result = compared(three, baseline="a")
    assert result.replicates == {"bb": 1, "ccc": 1}
    assert result.comparison.winner is None and result.comparison.notes == (ONE_REPLICATE,)


def test_one_replicate_is_said():
    for seeds in ((0,), (0, 1)):
        pair = [scores(n, seeds=seeds) for n in ("a", "bb")]
        notes = compared(pair, baseline="a").comparison.notes
        assert notes == ((ONE_REPLICATE,) if len(seeds) == 1 else ())


def test_f1_has_the_freedom_of_the_patients_with_a_positive_bag():
    y = (np.arange(N) % 6 == 0).astype(int)
    pair = [scores(n, skill=k, y=y) for n, k in (("a", 0.3), ("bb", 1.0))]
    freedom = {
        m: compared(pair, m, baseline="a").comparison.differences["bb"].spread.freedom
        for m in ("auroc", "f1")
    }
    assert freedom == {"auroc": N - 2, "f1": y.sum() - 1}


def test_methods_with_the_same_calls_have_the_same_f1():
    a = scores("a")
    b = scores("bb", p=0.5 + 0.9 * (a.p - 0.5) ** 3)
    found = compare_methods([a, b], baseline="a")
    d = found.deciding("f1").comparison.differences["bb"]
    assert (d.difference, d.p, d.special.case) == (0.0, 1.0, "equal scores")
