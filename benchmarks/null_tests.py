"""How often each test of maps, doubt and leaderboards finds something that is not there.

    python benchmarks/null_tests.py [--tables 1000] [--only ranks,gain]

A table is a cohort in which nothing is to be found. Each row gives the share of the tables in which
the test finds something, beside its nominal level. `null_tables.py` does the same for the sentence
on null maps, tests/statistics/test_comparing_means.py for winners, benchmarks/real/guarantees.py
for conformal sets, bounds and the alarm.

ranks           29 equally good methods on four data sets, whose three columns depend on each other:
                Friedman's test and Nemenyi's critical difference
gain            a map that is as good as the best of six null maps: its gain lies above 0
faithfulness    the shown order is random as well: its gain over the random order lies above 0
calibration     calibrated probabilities: their adaptive ECE is above what the report calls chance
distance        new bags like those of training: the share of them beyond 95 % of validation bags
doubt           P(wrong) is the margin with noise of the same kind: one is called better

Criterion: nominal up to the error of 1,000 tables (± 0.010 at 2.5 %, ± 0.014 at 5 %), or below.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np

from probsa.evaluation.deletion import DeletionCurves
from probsa.evaluation.faithfulness_section import mean_curves_metrics
from probsa.evaluation.training_distance import Gaussian
from probsa.statistics import average_ranks, mean_interval
from probsa.statistics.calibration import bin_count, equal_mass_bins, reliability
from probsa.statistics.ranks import friedman, nemenyi

Found = dict[str, float]
"""Share of the tables (or whether in this one) by test."""


def ranks(seed: int, dependence: float) -> Found:
    """Return which tests of the ranks find a difference among equally good methods."""
    methods, sets = 29, 4
    rng = np.random.default_rng((seed, int(100 * dependence)))
    shared = rng.normal(size=(methods, sets, 1)) * np.sqrt(dependence)
    values = shared + rng.normal(size=(methods, sets, 3)) * np.sqrt(1 - dependence)
    table = average_ranks({f"m{i}": v for i, v in enumerate(values.reshape(methods, -1))})
    gap = float(np.ptp(list(table.mean.values())))
    p = friedman(table).p
    assert p is not None
    return {
        "Friedman's test (5 %)": p <= 0.05,
        "Nemenyi's difference, any pair (5 %)": gap > nemenyi(methods, 3 * sets),
    }


def gain(seed: int, groups: int) -> Found:
    """Return whether the gain over the best null map lies above 0, or below it."""
    rng = np.random.default_rng((seed, groups))
    ease = rng.normal(scale=0.1, size=groups)
    values = 0.6 + ease + rng.normal(scale=0.1, size=(7, groups))
    values[2:] -= 0.1  # one null map is as good as the map
    null = values[1:][values[1:].mean(1).argmax()]
    d = mean_interval((values[0] - null)[None], groups=range(groups), resamples=500)
    return {
        "gain above 0 (2.5 %)": d.low is not None and d.low > 0,
        "gain below 0": d.high is not None and d.high < 0,
    }


def faithfulness(seed: int, groups: int) -> Found:
    """Return whether a random order is called more faithful than another one."""
    rng = np.random.default_rng((seed, groups))
    curves = [_curves(f"b{i}", rng) for i in range(groups)]
    metrics = mean_curves_metrics(curves, groups=range(groups), resamples=500, seed=seed)
    m = metrics["gain_over_random"]
    return {"gain over the random order above 0 (2.5 %)": m.low is not None and m.low > 0}


def _curves(name: str, rng: np.random.Generator) -> DeletionCurves:
    def curve() -> dict[str, np.ndarray]:
        steps = {k: rng.normal(scale=0.05, size=9).cumsum() for k in ("shown", "random")}
        return {k: 0.8 + v for k, v in steps.items()}

    return DeletionCurves(
        name=name,
        shown="logit",
        removal="pooling",
        counts=np.arange(9),
        instances=10,
        most_first=curve(),
        least_first=curve(),
    )


def calibration(seed: int, bags: int) -> Found:
    """Return whether calibrated probabilities are called miscalibrated."""
    rng = np.random.default_rng((seed, bags))
    p = rng.beta(0.8, 1.2, size=bags)
    y = rng.random(bags) < p
    bins = equal_mass_bins(p, bins=bin_count(bags))
    shown, chance = reliability(p, y, bins=bins, seed=seed)
    gaps = np.abs(np.array(shown.frequency) - np.array(shown.probability))
    ece = float((gaps * np.array(shown.count)).sum() / bags)
    return {"ECE above chance (5 %)": ece > chance.upper}


def distance(seed: int, bags: int) -> Found:
    """Return the share of new bags that are further than 95 % of the validation bags."""
    rng = np.random.default_rng((seed, bags))
    train, val, new = (rng.normal(size=(n, 10)) for n in (3 * bags, bags, 100))
    percentile = Gaussian.fit(train, validation=val)(new).percentile
    return {"beyond 95 % of validation bags (5 %)": float((percentile > 0.95).mean())}


def doubt(seed: int, groups: int) -> Found:
    """Return whether one of two equally good detectors of wrong calls is called better."""
    rng = np.random.default_rng((seed, groups))
    wrong = rng.random((groups, 20)) < 0.3
    wrong[:, :2] = [False, True]
    aurocs = []
    for _ in range(2):
        score = rng.normal(size=wrong.shape) + 0.5 * wrong
        higher = score[:, :, None] > score[:, None, :]
        pairs = wrong[:, :, None] & ~wrong[:, None, :]
        aurocs.append((higher & pairs).sum((1, 2)) / pairs.sum((1, 2)))
    d = mean_interval((aurocs[0] - aurocs[1])[None], groups=range(groups), resamples=500)
    low, high = d.low or 0.0, d.high or 0.0
    return {"first called better (2.5 %)": low > 0, "second called better (2.5 %)": high < 0}


CASES: dict[str, tuple[Callable[..., Found], tuple[float, ...], str]] = {
    "ranks": (ranks, (0.0, 0.5, 0.8), "dependence"),
    "gain": (gain, (10, 40, 100), "groups"),
    "faithfulness": (faithfulness, (10, 20, 50), "groups"),
    "calibration": (calibration, (20, 100, 500), "bags"),
    "distance": (distance, (17, 100), "validation bags"),
    "doubt": (doubt, (10, 40, 100), "groups"),
}


def rows(case: str, *, tables: int) -> Iterator[str]:
    """Yield the rows of one case."""
    test, sizes, what = CASES[case]
    for size in sizes:
        found = [test(seed, size) for seed in range(tables)]
        for name in found[0]:
            share = float(np.mean([f[name] for f in found]))
            yield f"| {case} | {what} {size:g} | {name} | {share:.1%} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--only", default=",".join(CASES))
    a = parser.parse_args()
    print("| case | size | test (nominal) | found |\n|---|---|---|---|")
    for case in a.only.split(","):
        for row in rows(case, tables=a.tables):
            print(row, flush=True)


if __name__ == "__main__":
    main()
