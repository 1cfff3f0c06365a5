"""Whatever the replicates of a data set are, the winner is the method with the better mean.

The shapes are those that a data set can have: folds or a fixed test part, one split or several, one
seed or several, and runs that are missing. With a fixed test part and several splits, the seeds of
a split are not independent, so that splits are what varies.
"""

from pathlib import Path

import numpy as np
import pytest

from probsa.benchmark import Method, RunPart, Scores, compare_methods, means_of
from probsa.core import NO_OUTPUTS
from probsa.statistics import compare, comparison, mean_interval
from probsa.tasks import TargetData

N = 60
Y = np.arange(N) % 2
FOLD = np.arange(N) // 2 % 3
SPLITS = range(5)

FIXED_SPLITS = [(split, 0) for split in SPLITS]
FIXED_BOTH = [(split, seed) for split in SPLITS for seed in (0, 1, 2)]
SHAPES = {
    "fixed, one split and seed": (False, [(0, 0)]),
    "fixed, one split, seeds": (False, [(0, seed) for seed in SPLITS]),
    "fixed, splits": (False, FIXED_SPLITS),
    "fixed, splits and seeds": (False, FIXED_BOTH),
    "fixed, some runs missing": (False, [*FIXED_SPLITS, (0, 1), (0, 2), (0, 3), (0, 4)]),
    "folds": (True, [(-1, 0)]),
    "folds, seeds": (True, [(-1, seed) for seed in SPLITS]),
}
"""Whether there are folds, and (split, seed) of each replicate."""


def method(name: str, shape: str, skill) -> Scores:
    """Return the predictions of a method whose skill is a function of the split (or fold)."""
    folds, keys = SHAPES[shape]
    noise = np.random.default_rng([len(name), N])
    of_bags = noise.normal(size=N)
    replicates = []
    for split, _ in sorted(keys):
        of_run = of_bags + 0.2 * noise.normal(size=N)
        parts = []
        for fold in np.unique(FOLD) if folds else [split]:
            rows = np.flatnonzero(fold == FOLD) if folds else np.arange(N)
            logit = skill(int(fold)) * (2 * Y[rows] - 1) + of_run[rows]
            data = TargetData(
                task="binary",
                y=Y[rows, None].astype(float),
                names=("0", "1"),
                outputs=NO_OUTPUTS,
                predicted=1 / (1 + np.exp(-logit))[:, None],
                threshold=0.5,
            )
            parts.append(RunPart(split=int(fold), rows=rows, data=data, path=Path(name)))
        replicates.append(tuple(parts))
    return Scores(
        data="toy",
        method=Method(label=name, model="abmil"),
        bags=tuple(f"b{i:02d}" for i in range(N)),
        groups=np.arange(N).astype(str),
        replicates=tuple(replicates),
        seed=np.array([seed for _, seed in sorted(keys)]),
        folds=folds,
    )


def winners(a: Scores, b: Scores) -> set[str | None]:
    """Return the winners by AUROC and by F1."""
    compared = compare_methods([a, b], baseline=None, resamples=300)
    return {compared.deciding(metric).comparison.winner for metric in ("auroc", "f1")}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_better_method_wins(shape):
    a, b = method("a", shape, lambda _: 0.0), method("bb", shape, lambda _: 2.5)
    assert winners(a, b) == {"bb"}


@pytest.mark.parametrize("shape", [s for s in SHAPES if "one split" not in s])
def test_the_first_split_alone_does_not_decide(shape):
    """`a` is better on the first split (fold), and worse on all others."""
    a = method("a", shape, lambda _: 0.2)
    b = method("bb", shape, lambda split: -0.4 if split == 0 else 3.0)
    means = {s.method.name: means_of(s)["auroc"].mean for s in (a, b)}
    assert means["bb"] > means["a"] + 0.03, means
    assert winners(a, b) <= {"bb", None}
    compared = compare_methods([a, b], baseline="a", resamples=300).deciding("auroc")
    assert compared is not None and compared.comparison.best == "bb"
    assert compared.comparison.differences["bb"].difference > 0


def test_the_value_beside_a_difference_is_a_mean_over_splits():
    """As the means of the table are: missing runs of a split do not change its weight."""
    shape = "fixed, some runs missing"
    a, b = method("a", shape, lambda _: 0.4), method("bb", shape, lambda k: 3.0 if k == 0 else 0.0)
    compared = compare_methods([a, b], baseline="a", resamples=300).deciding("auroc")
    assert compared is not None
    for s in (a, b):
        value = compared.values[s.method.name].value
        assert value == pytest.approx(means_of(s)["auroc"].mean, abs=1e-12)
        assert compared.comparison.values[s.method.name] == pytest.approx(value, abs=1e-12)
    difference = compared.values["bb"].value - compared.values["a"].value
    assert compared.comparison.differences["bb"].difference == pytest.approx(difference, abs=1e-12)


@pytest.fixture
def coarse_quantiles(monkeypatch):
    """Evaluate Student's distribution at fewer points, which is enough for rates of errors."""
    comparison._student_quantiles.cache_clear()
    monkeypatch.setattr(comparison, "QUANTILES", 200)
    yield
    comparison._student_quantiles.cache_clear()


@pytest.mark.usefixtures("coarse_quantiles")
@pytest.mark.parametrize("shape", ["fixed, splits", "fixed, splits and seeds", "folds, seeds"])
def test_equal_methods_have_a_winner_in_at_most_one_of_twenty_cohorts(shape):
    """Splits differ much more than the seeds of a split; so do the seeds of folds."""
    rng = np.random.default_rng(0)
    cohorts = 150
    keys = SHAPES[shape][1]
    blocks = [seed if split == -1 else split for split, seed in keys]
    winners = missed = 0
    for _ in range(cohorts):
        of_bags = 0.5 + 0.1 * rng.normal(size=N)
        values = {}
        for name in ("a", "b"):
            of_block = {k: 0.05 * rng.normal() + 0.02 * rng.normal(size=N) for k in set(blocks)}
            rows = [of_bags + of_block[k] + 0.005 * rng.normal(size=N) for k in blocks]
            values[name] = np.stack(rows)
        given = {"groups": range(N), "blocks": blocks, "resamples": 60}
        winners += compare(None, values, metric="mean", **given).winner is not None
        interval = mean_interval(values["a"], **given)
        missed += not interval.low <= 0.5 <= interval.high
    # at most 7.5 of 150 are expected, with a binomial s.d. of 2.7
    assert winners <= 15 and missed <= 15, (winners, missed)


def test_blocks_of_replicates_decide_as_their_means_do():
    rng = np.random.default_rng(1)
    values = {name: rng.normal(size=(6, N)) for name in ("a", "b")}
    values["b"][0] += 3.0
    blocks = [0, 1, 1, 1, 1, 1]
    got = compare(None, values, groups=None, metric="mean", blocks=blocks, resamples=100)
    means = {n: (v[0].mean() + v[1:].mean()) / 2 for n, v in values.items()}
    assert got.values == pytest.approx(means, abs=1e-12)
    assert got.best == max(means, key=lambda n: means[n])
