"""Whatever the replicates of a data set are, the winner is the method with the better mean.

The shapes are those that a data set can have: folds or a fixed test part, one split or several, one
seed or several, and runs that are missing. With a fixed test part and several splits, the seeds of
a split are not independent, so that splits are what varies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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

SEEDS = range(5)


@dataclass(frozen=True)
class Shape:
    """The replicates of a data set."""

    replicates: Sequence[tuple[int, int]]
    """(split, seed) of each; the split is 0 if there are folds."""
    folds: bool = False
    """Whether a replicate tests every fold once; else it tests all bags with one split."""

    @property
    def splits(self) -> set[int]:
        return {split for split, _ in self.replicates}

    @property
    def blocks(self) -> list[int]:
        """The block of each replicate: its split, or its seed if there are folds."""
        return [seed if self.folds else split for split, seed in self.replicates]

    def tested_rows(self, split: int) -> dict[int, np.ndarray]:
        """Return the rows that a replicate tests, by the fold, or by the split."""
        if self.folds:
            return {int(fold): np.flatnonzero(fold == FOLD) for fold in np.unique(FOLD)}
        return {split: np.arange(N)}


ONE_SEED = [(split, 0) for split in SPLITS]
THREE_SEEDS = [(split, seed) for split in SPLITS for seed in (0, 1, 2)]
SHAPES = {
    "fixed, one split and seed": Shape([(0, 0)]),
    "fixed, one split, seeds": Shape([(0, seed) for seed in SEEDS]),
    "fixed, splits": Shape(ONE_SEED),
    "fixed, splits and seeds": Shape(THREE_SEEDS),
    "fixed, some runs missing": Shape([*ONE_SEED, (0, 1), (0, 2), (0, 3), (0, 4)]),
    "folds": Shape([(0, 0)], folds=True),
    "folds, seeds": Shape([(0, seed) for seed in SEEDS], folds=True),
}
A_SEED = 1
B_SEED = 2


def method(name: str, shape: Shape, skill, *, seed: int) -> Scores:
    """Return the predictions of a method whose skill is a function of the split (or fold)."""
    noise = np.random.default_rng([seed, N])
    bag_effects = noise.normal(size=N)
    keys = sorted(shape.replicates)
    replicates = []
    for split, _ in keys:
        run_effects = bag_effects + 0.2 * noise.normal(size=N)
        parts = []
        for part, rows in shape.tested_rows(split).items():
            logit = skill(part) * (2 * Y[rows] - 1) + run_effects[rows]
            data = TargetData(
                task="binary",
                y=Y[rows, None].astype(float),
                names=("0", "1"),
                outputs=NO_OUTPUTS,
                predicted=1 / (1 + np.exp(-logit))[:, None],
                threshold=0.5,
            )
            parts.append(RunPart(split=part, rows=rows, data=data, path=Path(name)))
        replicates.append(tuple(parts))
    return Scores(
        data="toy",
        method=Method(label=name, model="abmil"),
        bags=tuple(f"b{i:02d}" for i in range(N)),
        groups=np.arange(N).astype(str),
        replicates=tuple(replicates),
        seed=np.array([run_seed for _, run_seed in keys]),
        folds=shape.folds,
    )


def winners(a: Scores, b: Scores) -> set[str | None]:
    """Return the winners by AUROC and by F1."""
    compared = compare_methods([a, b], baseline=None, resamples=300)
    return {compared.deciding(metric).comparison.winner for metric in ("auroc", "f1")}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_better_method_wins(shape):
    a = method("a", SHAPES[shape], lambda _: 0.0, seed=A_SEED)
    b = method("b", SHAPES[shape], lambda _: 2.5, seed=B_SEED)
    assert winners(a, b) == {"b"}


SEVERAL_PARTS = [name for name, s in SHAPES.items() if s.folds or len(s.splits) > 1]


@pytest.mark.parametrize("shape", SEVERAL_PARTS)
def test_the_first_split_alone_does_not_decide(shape):
    """`a` is better on the first split (fold), and worse on all others."""
    a = method("a", SHAPES[shape], lambda _: 0.2, seed=A_SEED)
    b = method("b", SHAPES[shape], lambda part: -0.4 if part == 0 else 3.0, seed=B_SEED)
    means = {s.method.name: means_of(s)["auroc"].mean for s in (a, b)}
    assert means["b"] > means["a"] + 0.03, means
    assert winners(a, b) <= {"b", None}
    compared = compare_methods([a, b], baseline="a", resamples=300).deciding("auroc")
    assert compared is not None and compared.comparison.best == "b"
    assert compared.comparison.differences["b"].difference > 0


def test_the_value_beside_a_difference_is_a_mean_over_splits():
    """As the means of the table are: missing runs of a split do not change its weight."""
    shape = SHAPES["fixed, some runs missing"]
    a = method("a", shape, lambda _: 0.4, seed=A_SEED)
    b = method("b", shape, lambda split: 3.0 if split == 0 else 0.0, seed=B_SEED)
    compared = compare_methods([a, b], baseline="a", resamples=300).deciding("auroc")
    assert compared is not None
    for s in (a, b):
        value = compared.values[s.method.name].value
        assert value == pytest.approx(means_of(s)["auroc"].mean, abs=1e-12)
        assert compared.comparison.values[s.method.name] == pytest.approx(value, abs=1e-12)
    difference = compared.values["b"].value - compared.values["a"].value
    assert compared.comparison.differences["b"].difference == pytest.approx(difference, abs=1e-12)


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
    blocks = SHAPES[shape].blocks
    mean = 0.5
    wins = 0
    misses = 0
    for _ in range(cohorts):
        bag_effects = 0.1 * rng.normal(size=N)
        values = {}
        for name in ("a", "b"):
            block_effects = {}
            for block in set(blocks):
                block_effects[block] = 0.05 * rng.normal() + 0.02 * rng.normal(size=N)
            rows = []
            for block in blocks:
                noise = 0.005 * rng.normal(size=N)
                rows.append(mean + bag_effects + block_effects[block] + noise)
            values[name] = np.stack(rows)
        options = {"groups": range(N), "blocks": blocks, "resamples": 60}
        if compare(None, values, metric="mean", **options).winner is not None:
            wins += 1
        interval = mean_interval(values["a"], **options)
        if not interval.low <= mean <= interval.high:
            misses += 1
    # at most 7.5 of 150 are expected, with a binomial s.d. of 2.7
    assert wins <= 15 and misses <= 15, (wins, misses)


def test_blocks_of_replicates_decide_as_their_means_do():
    rng = np.random.default_rng(1)
    values = {name: rng.normal(size=(6, N)) for name in ("a", "b")}
    values["b"][0] += 3.0
    blocks = [0, 1, 1, 1, 1, 1]
    got = compare(None, values, groups=None, metric="mean", blocks=blocks, resamples=100)
    means = {}
    for name, replicates in values.items():
        means[name] = (replicates[0].mean() + replicates[1:].mean()) / 2
    assert got.values == pytest.approx(means, abs=1e-12)
    assert got.best == max(means, key=lambda name: means[name])
