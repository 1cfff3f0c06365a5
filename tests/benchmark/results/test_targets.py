"""Methods on tasks beyond two classes are compared with the right direction, pairs and folds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probsa.benchmark import (
    Method,
    Results,
    RunPart,
    Scores,
    ablation_table,
    compare_methods,
    comparison_table,
    to_csv,
    to_latex,
    to_markdown,
)
from probsa.benchmark.results.ranked import ranked
from probsa.core import Outputs
from probsa.statistics import compare
from probsa.tasks import TargetData

BAGS = tuple(f"b{k:02d}" for k in range(24))
GROUPS = np.array([f"p{k // 2:02d}" for k in range(24)])
TRUTH = np.random.default_rng(0).normal(100, 20, size=24)
CLASSES = np.arange(24) // 2 % 3


def scores_of(name, parts_of_seed, *, seeds=2, data="toy", folds=False, kl_weight=None, task=None):
    return Scores(
        data=data,
        method=Method(label=name, model=task or name, kl_weight=kl_weight),
        bags=BAGS,
        groups=GROUPS,
        replicates=tuple(parts_of_seed(seed) for seed in range(seeds)),
        seed=np.arange(seeds),
        folds=folds,
    )


def part(data, rows, *, split=0):
    return RunPart(split=split, rows=rows, data=data, path=Path(f"split{split}"))


def regression(name, error, *, unit=1.0, **options):
    """Return predictions that are off by about `error` s.d. of the noise, in two seeds."""

    def parts(seed):
        noise = np.random.default_rng([ord(c) for c in name] + [seed]).normal(size=24)
        mean = unit * (TRUTH + error * noise)
        rows = np.random.default_rng(seed).permutation(24)
        data = TargetData(
            task="regression",
            y=unit * TRUTH[rows, None],
            predicted=np.stack([mean, np.full(24, unit)], axis=1)[rows],
            outputs=Outputs(("mean", "sd")),
            names=(),
            scores={"crps": np.abs(mean - unit * TRUTH)[rows] / 2},
            training=unit * np.array([[90.0], [100.0], [140.0]]),
        )
        return (part(data, rows),)

    return scores_of(name, parts, **options)


def classes(name, skill, *, folds):
    """Return probabilities of three classes, in folds whose levels differ."""

    def parts(seed):
        g = np.random.default_rng([ord(c) for c in name] + [seed])
        logits = g.normal(size=(24, 3)) + skill * np.eye(3)[CLASSES]
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        of_fold = np.arange(24) // 2 // 3 % folds
        return tuple(
            part(
                TargetData(
                    task="multiclass",
                    y=CLASSES[of_fold == k, None].astype(float),
                    predicted=p[of_fold == k],
                    outputs=Outputs(("0", "1", "2")),
                    names=("0", "1", "2"),
                ),
                np.flatnonzero(of_fold == k),
                split=k,
            )
            for k in range(folds)
        )

    return scores_of(name, parts, folds=True)


def compared(scores, baseline=None, resamples=400):
    return compare_methods(scores, baseline=baseline, resamples=resamples)


def results_of(*scores):
    return Results(scores=scores)


def errors(s):
    """Return the absolute error of each bag in every replicate."""
    rows = np.empty((len(s.seed), 24))
    for r, (run,) in enumerate(s.replicates):
        rows[r, run.rows] = np.abs(run.data.predicted[:, 0] - run.data.y[:, 0])
    return rows


def test_the_lowest_error_wins_and_differences_are_those_of_paired_means():
    good = regression("good", 1.0)
    bad = regression("bad", 8.0)
    pooled = compared([bad, good], baseline="bad", resamples=2000).deciding("mae")
    assert pooled.comparison.winner == pooled.comparison.best == "good"
    means = compare(
        None,
        {"bad": errors(bad), "good": errors(good)},
        groups=GROUPS.tolist(),
        baseline="bad",
        metric="mean",
    )
    ours, theirs = pooled.comparison.differences["good"], means.differences["good"]
    assert ours.difference == pytest.approx(errors(good).mean() - errors(bad).mean(), abs=1e-12)
    assert (ours.low, ours.high, ours.p) == pytest.approx((theirs.low, theirs.high, theirs.p))
    assert ours.high < 0
    # where higher is better, the same method wins
    r_squared = compared([bad, good], baseline="bad").deciding("r_squared").comparison
    assert r_squared.best == "good" and r_squared.differences["good"].difference > 0


def test_the_nearest_method_is_above_where_lower_is_better():
    pair = [regression("one", 1.0), regression("other", 1.05)]
    undecided = compared(pair).deciding("mae").comparison.undecided
    assert undecided.difference.difference > 0


def test_the_unit_of_the_target_decides_nothing():
    for unit in (1e-7, 1e6):
        pair = [regression("good", 1.0, unit=unit), regression("bad", 8.0, unit=unit)]
        pooled = compared(pair).deciding("mae")
        reference = compared([regression("good", 1.0), regression("bad", 8.0)]).deciding("mae")
        assert pooled.comparison.winner == "good"
        own, expected = (p.comparison.differences["bad"] for p in (pooled, reference))
        assert own.p == pytest.approx(expected.p)
        assert own.low == pytest.approx(unit * expected.low)


def test_the_best_mean_is_bold_ranked_first_and_shown_with_enough_digits():
    good = regression("good", 1.0, unit=1e-4)
    bad = regression("bad", 8.0, unit=1e-4)
    table = comparison_table(results_of(bad, good), "local")
    rows = {row[0].text: row for row in table.rows}
    assert rows["good"][1].bold and not rows["bad"][1].bold
    assert rows["good"][1].value == pytest.approx(errors(good).mean())
    assert (rows["good"][2].value, rows["bad"][2].value) == (1, 2)
    assert f"| **{errors(good).mean():.6f}**" in to_markdown(table)
    assert "toy_mae_winner" in to_csv(table) and r"\textbf" in to_latex(table)


def test_null_rivals_are_of_the_training_bags():
    """Below the methods stand the mean of the training bags and their median."""
    table = comparison_table(results_of(regression("any", 1.0)), "local").follow[0]
    column = [c.key for c in table.columns].index("mae")
    _, mean, median = (row[column].value for row in table.rows)
    assert mean == pytest.approx(np.abs(TRUTH - 110).mean())
    assert median == pytest.approx(np.abs(TRUTH - 100).mean())


def test_ranks_put_the_lowest_error_first():
    sets = [f"set{k}" for k in range(8)]
    methods = {"abmil": 1.0, "dsmil": 4.0, "patchgcn": 8.0}
    scores = [regression(m, e, data=d) for d in sets for m, e in methods.items()]
    columns = ranked(scores)
    assert columns.by_primary and columns.columns == tuple((d, "mae") for d in sets)
    assert columns.values["abmil"][0] == pytest.approx(-errors(scores[0]).mean())
    assert columns.ranks.mean == {"abmil": 1.0, "dsmil": 2.0, "patchgcn": 3.0}


def test_areas_are_within_folds_and_calls_of_all_folds_together():
    scores = [classes("good", 4.0, folds=2), classes("bad", 0.2, folds=2)]
    found = compared(scores)
    areas = found.deciding("auroc")
    calls = found.deciding("accuracy")
    assert (areas.pooling, calls.pooling) == ("within", "pooled")
    wanted = [
        roc_auc_score(p.data.y[:, 0], p.data.predicted, multi_class="ovr")
        for parts in scores[0].replicates
        for p in parts
    ]
    assert areas.values["good"].value == pytest.approx(np.mean(wanted))
    right = [
        (p.data.predicted.argmax(1) == p.data.y[:, 0]).mean()
        for parts in scores[0].replicates
        for p in parts
    ]
    assert calls.values["good"].value == pytest.approx(np.mean(right))
    assert areas.comparison.best == "good" and found.means["good"]["auroc"].splits == 2


def test_f1_has_the_freedom_of_the_rarest_class():
    # four patients of each class: three degrees of freedom
    found = compared([classes("good", 1.0, folds=2), classes("bad", 0.2, folds=2)])
    spread = {m: found.deciding(m).comparison.differences["bad"].spread for m in ("f1", "accuracy")}
    assert (spread["f1"].freedom, spread["accuracy"].freedom) == (3, 9)


def test_few_patients_of_a_class_in_a_fold_pool_the_folds():
    found = compared([classes("good", 4.0, folds=4), classes("bad", 0.2, folds=4)])
    assert found.deciding("auroc").pooling == "pooled"


def test_methods_with_fewer_seeds_are_compared_over_those_that_they_share():
    base = regression("base", 8.0, seeds=3)
    few = regression("few", 1.0, seeds=2)
    pooled = compared([base, few], baseline="base").deciding("mae")
    assert pooled.replicates == {"few": 2} and pooled.lacking == 1
    expected = errors(few).mean() - errors(base)[:2].mean()
    assert pooled.comparison.differences["few"].difference == pytest.approx(expected)
    assert pooled.values["base"].value == pytest.approx(errors(base).mean())


def test_lambdas_of_a_posterior_are_compared_with_its_plain_model():
    plain = regression("abmil", 4.0)
    name = "abmil-probsa-diag"
    two = [regression(name, e, kl_weight=kl) for e, kl in ((1.0, 0.1), (6.0, 1.0))]
    table = ablation_table(results_of(plain, *two))
    assert [row[1].text for row in table.rows] == ["0.0", "0.1", "1.0"]
    (differences,) = table.follow
    column = [c.key for c in differences.columns].index("mae_difference")
    shown = {row[1].text: row[column].value for row in differences.rows}
    assert shown["0.0"] is None
    assert shown["0.1"] == pytest.approx((errors(two[0]) - errors(plain)).mean())


def test_an_undefined_metric_is_named_and_the_others_are_compared():
    def constant(name):
        def parts(seed):
            run = regression(name, 1.0).replicates[seed][0]
            # without the stored scores, CRPS has no value
            data = replace(run.data, y=np.full_like(run.data.y, 7.0), scores={}, training=None)
            return (part(data, run.rows),)

        return scores_of(name, parts)

    found = compared([constant("a"), constant("b")])
    for name in ("r_squared", "crps"):
        assert found.deciding(name) is None and found.why_not(name)
    assert found.deciding("mae") is not None
