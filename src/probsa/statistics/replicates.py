"""Compute a metric for every replicate (seed, split) in every resample of the patients.

All methods share the same resamples, so that differences are paired. From a stratum of k patients,
k - 1 are drawn with weight k / (k - 1) each, which makes the variance over resamples unbiased;
drawing k would underestimate it by the factor 1 - 1 / k (Rao and Wu, JASA 1988). Row 0 is the data.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int, Real, Shaped

from .bootstrap import Draws, group_strata

MetricName = Literal["auroc", "average_precision", "f1", "accuracy", "mean"]
"""`mean` averages values of the items, which are metrics themselves, such as the AP of each bag."""

GROUPS = 4000
"""With more groups than this, AUROC is resampled by ranks instead of by pairs of groups."""


def draw_patients(
    strata: Sequence[Hashable], *, groups: Sequence[Hashable], resamples: int, seed: int
) -> tuple[Draws, int]:
    """Return weights of the groups (row 0: all one), and their degrees of freedom.

    The stratum of a group is the set of the `strata` (labels, folds) of its items. A stratum with
    a single group would never vary, so it is merged into the largest stratum.
    """
    member, parts = group_strata(groups, strata)
    parts.sort(key=len)
    singles = [group for part in parts[:-1] if len(part) == 1 for group in part]
    parts = [part for part in parts[:-1] if len(part) > 1] + [parts[-1] + singles]
    group_count = sum(map(len, parts))
    rng = np.random.default_rng(seed)
    weight = np.ones((resamples + 1, group_count))
    for part in parts:
        k = len(part)
        if k > 1:
            counts = rng.multinomial(k - 1, np.full(k, 1 / k), size=resamples)
            weight[1:, part] = counts * (k / (k - 1))
    return Draws(counts=weight, member=member), group_count - len(parts)


def resampled_metric(
    y: Bool[np.ndarray, " items"],
    score: Real[np.ndarray, "replicates items"] | Bool[np.ndarray, "replicates items"],
    *,
    draws: Draws,
    metric: MetricName,
    folds: Shaped[np.ndarray, "replicates items"] | None = None,
) -> Float[np.ndarray, "replicates rows"]:
    """Return the metric of each replicate in each row of the draws; nan where it is undefined.

    With `folds`, the metric is computed in each fold and averaged over the folds (nan as soon as
    one fold has a single class).
    """
    rows = []
    for r, scores in enumerate(score):
        if folds is None:
            rows.append(_metric(y, scores, draws=draws, metric=metric))
            continue
        in_fold = [folds[r] == fold for fold in np.unique(folds[r])]
        values = [
            _metric(
                y[rows_of_fold],
                scores[rows_of_fold],
                draws=Draws(counts=draws.counts, member=draws.member[rows_of_fold]),
                metric=metric,
            )
            for rows_of_fold in in_fold
        ]
        rows.append(np.mean(values, axis=0))
    return np.stack(rows)


@no_type_check  # called for every resample: the tests' checks of shapes cost more than it does
def _metric(
    y: Bool[np.ndarray, " items"],
    score: Real[np.ndarray, " items"] | Bool[np.ndarray, " items"],
    *,
    draws: Draws,
    metric: MetricName,
) -> Float[np.ndarray, " rows"]:
    if metric in ("f1", "accuracy"):
        return f1_and_accuracy(y, score.astype(bool), draws=draws)[0 if metric == "f1" else 1]
    value = score.astype(np.float64)
    if metric == "mean":
        total, n = draws.totals(np.stack([value, np.ones_like(value)], axis=1)).T
        with np.errstate(invalid="ignore", divide="ignore"):
            return total / n
    if metric == "auroc" and draws.counts.shape[1] <= GROUPS:
        return _auroc_by_pairs(y, value, draws=draws)
    return draws.ranks(y, value)[0 if metric == "auroc" else 1]


def f1_and_accuracy(
    y: Bool[np.ndarray, " items"], called: Bool[np.ndarray, " items"], *, draws: Draws
) -> Float[np.ndarray, "2 rows"]:
    """Return F1 (row 0; nan without a positive item) and accuracy (row 1) of positive calls."""
    columns = np.stack([y & called, y, called, y == called, np.ones_like(y)], axis=1)
    true_positives, positives, calls, correct, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.where(positives > 0, 2 * true_positives / (positives + calls), np.nan)
        return np.stack([f1, correct / n])


@no_type_check  # called for every resample: the tests' checks of shapes cost more than it does
def _auroc_by_pairs(
    y: Bool[np.ndarray, " items"], score: Float[np.ndarray, " items"], *, draws: Draws
) -> Float[np.ndarray, " rows"]:
    """Return wᵀ U w / (wᵀ p · wᵀ n), where U counts the ordered pairs between any two groups.

    The cost hardly grows with the number of items per group, for example instances per bag.
    """
    order = np.argsort(score[y], kind="stable")
    positive_scores = score[y][order]
    positive_groups, group = np.unique(draws.member[y][order], return_inverse=True)
    negatives = _sorted_by_group(score[~y], draws.member[~y])
    pairs = np.empty((len(positive_groups), len(negatives)))
    for i, low in enumerate(negatives.values()):
        before = np.searchsorted(low, positive_scores, side="left")
        before = before + np.searchsorted(low, positive_scores, side="right")
        pairs[:, i] = np.bincount(group, weights=before / 2, minlength=len(positive_groups))
    up, down = draws.counts[:, positive_groups], draws.counts[:, list(negatives)]
    sizes = np.array([len(low) for low in negatives.values()])
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((up @ pairs) * down).sum(1) / ((up @ np.bincount(group)) * (down @ sizes))


@no_type_check  # called for every resample: the tests' checks of shapes cost more than it does
def _sorted_by_group(
    value: Float[np.ndarray, " items"], member: Int[np.ndarray, " items"]
) -> dict[int, Float[np.ndarray, " _"]]:
    order = np.lexsort((value, member))
    groups, first = np.unique(member[order], return_index=True)
    parts = np.split(value[order], first[1:])
    return {int(group): part for group, part in zip(groups, parts, strict=True)}
