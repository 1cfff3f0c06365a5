"""Simulate bags whose best possible scores are known in closed form.

    python benchmarks/correlated.py DIR [--bags 300] [--correlation 0.9] [--seed 0]

The instances of a bag are a chain, whose labels are a stationary two-state Markov chain,

    P(y_n = 1 | y_{n-1}) = ρ y_{n-1} + (1 − ρ) π,    features x_n | y_n ~ N(y_n · signal · u, I),

and a bag is positive if any instance is. DIR/features and DIR/labels.csv are a data set with five
folds; DIR/optimal, which training does not read, has P(Y = 1 | X) and P(y_n = 1 | X).
"""

import argparse
import math
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from probsa.core import seed_of, write_bag, write_csv

FOLDS = 5
STRIDE = 256
INSTANCES = 40
FEATURES = 16
SIGNAL = 1.5
POSITIVE = 0.5
"""Sizes of bags and features; distance of the two means; P(Y = 1), from which π follows."""


def main() -> None:
    """Write the data set and the optimal scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--bags", type=int, default=300)
    parser.add_argument("--correlation", type=float, default=0.9, help="ρ, from 0 to below 1")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if not 0 <= given.correlation < 1:
        parser.error(f"--correlation is {given.correlation:g}: expected 0 or more, less than 1")
    rate = instance_rate(INSTANCES, correlation=given.correlation, positive=POSITIVE)
    direction = np.random.default_rng(seed_of(given.seed, "direction")).normal(size=FEATURES)
    direction *= SIGNAL / np.linalg.norm(direction)
    (given.folder / "optimal").mkdir(parents=True, exist_ok=True)
    labels = []
    optimal = []
    for k in range(given.bags):
        name = f"chain_{k:04d}"
        rng = np.random.default_rng(seed_of(given.seed, "bag", k))
        y = draw_chain(rng, INSTANCES, rate=rate, correlation=given.correlation)
        x = rng.normal(size=(INSTANCES, FEATURES)) + y[:, None] * direction
        x = x.astype(np.float32)
        write_bag(
            given.folder / "features" / f"{name}.h5",
            features=x,
            coords=np.stack([np.arange(INSTANCES), np.zeros(INSTANCES, int)], axis=1) * STRIDE,
            kind="slide",
            instance_labels=y,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
        ratio = x.astype(np.float64) @ direction - SIGNAL**2 / 2
        p, odds, instances = optimal_scores(ratio, rate=rate, correlation=given.correlation)
        np.save(given.folder / "optimal" / f"{name}.npy", instances)
        labels.append({"bag": name, "label": int(y.any()), "fold": k % FOLDS})
        optimal.append({"bag": name, "probability": p, "log_odds": odds})
    write_csv(given.folder / "labels.csv", ("bag", "label", "fold"), labels)
    columns = ("bag", "probability", "log_odds")
    write_csv(given.folder / "optimal" / "bags.csv", columns, optimal)


def optimal_scores(
    log_ratio: np.ndarray, *, rate: float, correlation: float
) -> tuple[float, float, np.ndarray]:
    """Return P(Y = 1 | X), its log-odds and P(y_n = 1 | X) by the forward-backward algorithm.

    a and b are the forward and backward sums of label 1, a0 and b0 those of label 0.

    Args:
        log_ratio: log p(x_n | y_n = 1) − log p(x_n | y_n = 0), one per instance.
        rate: π = P(y_n = 1), between 0 and 1.
        correlation: ρ, from 0 to below 1.
    """
    n = len(log_ratio)
    up = (1 - correlation) * rate
    stay = correlation + (1 - correlation) * rate
    to_1 = np.log([up, stay])
    to_0 = np.log1p([-up, -stay])  # from label 0, from label 1
    a0, a, b0, b = (np.zeros(n) for _ in range(4))
    a0[0], a[0] = np.log1p(-rate), np.log(rate) + log_ratio[0]
    for k in range(1, n):
        a0[k] = np.logaddexp(a0[k - 1] + to_0[0], a[k - 1] + to_0[1])
        a[k] = np.logaddexp(a0[k - 1] + to_1[0], a[k - 1] + to_1[1]) + log_ratio[k]
    for k in range(n - 2, -1, -1):
        after = log_ratio[k + 1] + b[k + 1]
        b0[k] = np.logaddexp(b0[k + 1] + to_0[0], after + to_1[0])
        b[k] = np.logaddexp(b0[k + 1] + to_0[1], after + to_1[1])
    total = np.logaddexp(a0[-1], a[-1])
    none = np.log1p(-rate) + (n - 1) * np.log1p(-up)
    # The weight of all sequences with a positive instance, without a difference of near numbers:
    # before the first positive instance, all are negative.
    first = np.log1p(-rate) + (np.arange(n) - 1) * np.log1p(-up) + np.log(up)
    first[0] = np.log(rate)
    some = logsumexp(first + log_ratio + b)
    instances = np.exp(np.minimum(a + b - total, 0.0))
    return float(np.exp(min(some - total, 0.0))), float(some - none), instances


def instance_rate(instances: int, *, correlation: float, positive: float) -> float:
    """Return the π with which a bag is positive with a given probability."""

    def excess(rate: float) -> float:
        stays = math.log1p(-rate) + (instances - 1) * math.log1p(-(1 - correlation) * rate)
        return -math.expm1(stays) - positive

    return float(brentq(excess, 0.0, 1 - 1e-12, xtol=1e-15))  # pyright: ignore


def draw_chain(rng: np.random.Generator, n: int, *, rate: float, correlation: float) -> np.ndarray:
    """Draw the labels of a chain."""
    y = np.zeros(n, dtype=np.int64)
    drawn = rng.random(n)
    for k in range(n):
        chance = rate if k == 0 else correlation * y[k - 1] + (1 - correlation) * rate
        y[k] = drawn[k] < chance
    return y


if __name__ == "__main__":
    main()
