"""Simulated cohorts with correlated instances, whose Bayes-optimal scores have a closed form.

The instances of a bag are a chain. Their labels are a stationary two-state Markov chain,

    P(y_n = 1 | y_{n-1}) = ρ y_{n-1} + (1 − ρ) π,    features x_n | y_n ~ N(y_n · signal · u, I),

with the lag-one correlation ρ, and a bag is positive if any instance is. See `optimal_scores`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import brentq
from scipy.special import logsumexp

from ..core import seed_of, write_bag, write_csv
from ..errors import InputError
from .synthetic import STRIDE

FOLDS = 5
OPTIMAL = "optimal"
"""Folder of the optimal scores, which training does not read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimalScores:
    """What the best possible prediction of a bag is, given its features and the true model."""

    probability: float
    """P(Y = 1 | X) = 1 − P(y_1 = … = y_N = 0 | X)."""
    log_odds: float
    """log P(Y = 1 | X) − log P(Y = 0 | X), which does not saturate."""
    instances: Float[np.ndarray, " n"]
    """P(y_n = 1 | X)."""

    @property
    def instances_if_positive(self) -> Float[np.ndarray, " n"]:
        """P(y_n = 1 | X, Y = 1): y_n = 1 implies Y = 1, so it is the ratio of the two."""
        return self.instances / self.probability


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrelatedBag:
    """A chain of instances, with its true labels and its optimal scores."""

    name: str
    features: Float[np.ndarray, "n features"]
    """float32."""
    label: int
    instance_labels: Int[np.ndarray, " n"]
    fold: int
    optimal: OptimalScores


def correlated_cohort(
    *,
    bags: int,
    correlation: float,
    seed: int,
    instances: int = 40,
    features: int = 16,
    signal: float = 1.5,
    positive: float = 0.5,
) -> Sequence[CorrelatedBag]:
    """Simulate bags of equal size; equal arguments give equal bags.

    Args:
        bags: Number of bags, at least 10.
        correlation: ρ, from 0 (independent instances) to below 1; lesions of long chains have a
            mean length of about 1 / (1 − ρ).
        seed: Random seed.
        instances: Number of instances of a bag.
        features: Number of features.
        signal: Distance of the means of positive and negative instances, in std of the noise.
        positive: P(Y = 1) of a bag, from which π follows; the number of positive bags is random.

    Raises:
        InputError: A number lies outside its range.
    """
    _check(bags, instances=instances, features=features, correlation=correlation, signal=signal,
           positive=positive)  # fmt: skip
    rate = instance_rate(instances, correlation=correlation, positive=positive)
    rng = np.random.default_rng(seed_of(seed, "direction"))
    direction = rng.normal(size=features)
    direction *= signal / np.linalg.norm(direction)
    made, ratios = [], []
    for k in range(bags):
        rng = np.random.default_rng(seed_of(seed, "bag", k))
        y = _chain(rng, instances, rate=rate, correlation=correlation)
        x = (rng.normal(size=(instances, features)) + y[:, None] * direction).astype(np.float32)
        made.append((x, y))
        ratios.append(x.astype(np.float64) @ direction - signal**2 / 2)
    optimal = _optimal(np.stack(ratios), rate=rate, correlation=correlation)
    return [
        CorrelatedBag(
            name=f"chain_{k:04d}",
            features=x,
            label=int(y.any()),
            instance_labels=y,
            fold=k % FOLDS,
            optimal=scores,
        )
        for k, ((x, y), scores) in enumerate(zip(made, optimal, strict=True))
    ]


def optimal_scores(
    log_ratio: Float[np.ndarray, " n"], *, rate: float, correlation: float
) -> OptimalScores:
    """Return the exact posterior by the forward-backward algorithm, in O(N).

    Args:
        log_ratio: log p(x_n | y_n = 1) − log p(x_n | y_n = 0).
        rate: π = P(y_n = 1), between 0 and 1.
        correlation: ρ.

    Raises:
        InputError: There is no instance, or a number lies outside its range.
    """
    if len(log_ratio) == 0 or not (0 < rate < 1 and 0 <= correlation < 1):
        raise InputError(
            f"{len(log_ratio)} instances, rate {rate:g}, correlation {correlation:g}: expected an "
            "instance or more, a rate between 0 and 1, and a correlation from 0 to below 1"
        )
    return _optimal(log_ratio[None], rate=rate, correlation=correlation)[0]


def _optimal(
    log_ratio: Float[np.ndarray, "bags n"], *, rate: float, correlation: float
) -> list[OptimalScores]:
    """Return the optimal scores of bags of equal size.

    a and b are the forward and the backward sums of label 1, a0 and b0 those of label 0.
    """
    n = log_ratio.shape[1]
    up, stay = (1 - correlation) * rate, correlation + (1 - correlation) * rate
    to_1, to_0 = np.log([up, stay]), np.log1p([-up, -stay])  # from label 0, from label 1
    a0, a, b0, b = (np.zeros_like(log_ratio) for _ in range(4))
    a0[:, 0], a[:, 0] = np.log1p(-rate), np.log(rate) + log_ratio[:, 0]
    for k in range(1, n):
        before_0, before_1 = a0[:, k - 1], a[:, k - 1]
        a0[:, k] = np.logaddexp(before_0 + to_0[0], before_1 + to_0[1])
        a[:, k] = np.logaddexp(before_0 + to_1[0], before_1 + to_1[1]) + log_ratio[:, k]
    for k in range(n - 2, -1, -1):
        after_0, after_1 = b0[:, k + 1], log_ratio[:, k + 1] + b[:, k + 1]
        b0[:, k] = np.logaddexp(after_0 + to_0[0], after_1 + to_1[0])
        b[:, k] = np.logaddexp(after_0 + to_0[1], after_1 + to_1[1])
    total = np.logaddexp(a0[:, -1], a[:, -1])
    none = np.log1p(-rate) + (n - 1) * np.log1p(-up)
    # the weight of all sequences with a positive instance, without a difference of near numbers:
    # before the first positive instance k, all are negative
    first = np.log1p(-rate) + (np.arange(n) - 1) * np.log1p(-up) + np.log(up)
    first[0] = np.log(rate)
    some = logsumexp(first + log_ratio + b, axis=1)
    probability = np.exp(np.minimum(some - total, 0.0))
    instances = np.exp(np.minimum(a + b - total[:, None], 0.0))
    return [
        OptimalScores(probability=float(p), log_odds=float(odds), instances=inside)
        for p, odds, inside in zip(probability, some - none, instances, strict=True)
    ]


def instance_rate(instances: int, *, correlation: float, positive: float) -> float:
    """Return the π with which a bag is positive with a given probability."""

    def excess(rate: float) -> float:
        stays = math.log1p(-rate) + (instances - 1) * math.log1p(-(1 - correlation) * rate)
        return -math.expm1(stays) - positive

    root = brentq(excess, 0.0, 1 - 1e-12, xtol=1e-15)
    assert isinstance(root, float)
    return root


def write_correlated(folder: Path, **arguments: Any) -> Sequence[CorrelatedBag]:
    """Write a cohort, and its optimal scores to a folder that training does not read.

    `features/<bag>.h5` and `labels.csv` (with folds) are a data set; `optimal/bags.csv` holds
    P(Y = 1 | X) of each bag, and `optimal/<bag>.npy` P(y_n = 1 | X) of its instances. Arguments and
    errors are those of `correlated_cohort`. Existing files are replaced.
    """
    cohort = correlated_cohort(**arguments)
    (folder / OPTIMAL).mkdir(parents=True, exist_ok=True)
    for bag in cohort:
        n = len(bag.features)
        write_bag(
            folder / "features" / f"{bag.name}.h5",
            features=bag.features,
            coords=np.stack([np.arange(n), np.zeros(n, dtype=np.int64)], axis=1) * STRIDE,
            kind="slide",
            instance_labels=bag.instance_labels,
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
        np.save(folder / OPTIMAL / f"{bag.name}.npy", bag.optimal.instances)
    rows = [{"bag": b.name, "label": b.label, "fold": b.fold} for b in cohort]
    write_csv(folder / "labels.csv", ("bag", "label", "fold"), rows)
    best = [
        {"bag": b.name, "probability": b.optimal.probability, "log_odds": b.optimal.log_odds}
        for b in cohort
    ]
    write_csv(folder / OPTIMAL / "bags.csv", ("bag", "probability", "log_odds"), best)
    return cohort


def _chain(
    rng: np.random.Generator, n: int, *, rate: float, correlation: float
) -> Int[np.ndarray, " n"]:
    y = np.zeros(n, dtype=np.int64)
    drawn = rng.random(n)
    for k in range(n):
        chance = rate if k == 0 else correlation * y[k - 1] + (1 - correlation) * rate
        y[k] = drawn[k] < chance
    return y


def _check(
    bags: int,
    *,
    instances: int,
    features: int,
    correlation: float,
    signal: float,
    positive: float,
) -> None:
    if bags < 2 * FOLDS or instances < 1 or features < 1:
        raise InputError(
            f"{bags} bags of {instances} instances with {features} features: give {2 * FOLDS} bags "
            "or more, and 1 instance and 1 feature or more"
        )
    if not 0 <= correlation < 1:
        raise InputError(f"correlation is {correlation:g}: expected 0 or more, and less than 1")
    if not (signal >= 0 and 0 < positive < 1):
        raise InputError(
            f"signal is {signal:g} and positive {positive:g}: expected a signal of at least 0, and "
            "a probability between 0 and 1"
        )
