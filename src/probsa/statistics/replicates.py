"""A metric of every replicate (seed, split) in every resample of the patients, many at once.

All methods see the same resamples, so that differences are paired. Of k patients of a stratum k - 1
are drawn and weigh k / (k - 1) each: the variance over resamples is then that of the data, where k
of k falls short by 1 / k (Rao and Wu, JASA 1988). The first row is the data as it is.
"""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Real, Shaped

from .bootstrap import Draws

MetricName = Literal["auroc", "average_precision", "f1", "accuracy"]

GROUPS = 4000
"""With more of them, AUROC is resampled by ranks and not by pairs of groups."""


def draw(
    strata: Sequence[Hashable], *, groups: Sequence[Hashable], resamples: int, seed: int
) -> tuple[Draws, int]:
    """Weights of the groups (row 0: all one), and the degrees of freedom that they have.

    A group belongs to the stratum of all `strata` (labels, folds) of its items. A stratum of one
    group would never vary: it joins the largest of the others.
    """
    number = {g: i for i, g in enumerate(dict.fromkeys(groups))}
    member = np.array([number[g] for g in groups], dtype=np.int64)
    kinds: list[set[Hashable]] = [set() for _ in number]
    for g, s in zip(member, strata, strict=True):
        kinds[g].add(s)
    same: dict[frozenset[Hashable], list[int]] = {}
    for g, kind in enumerate(kinds):
        same.setdefault(frozenset(kind), []).append(g)
    parts = sorted(same.values(), key=len)
    lone = [g for part in parts[:-1] if len(part) == 1 for g in part]
    parts = [part for part in parts[:-1] if len(part) > 1] + [parts[-1] + lone]
    rng = np.random.default_rng(seed)
    weight = np.ones((resamples + 1, len(number)))
    for part in parts:
        k = len(part)
        if k > 1:
            drawn = rng.multinomial(k - 1, np.full(k, 1 / k), size=resamples)
            weight[1:, part] = drawn * (k / (k - 1))
    return Draws(counts=weight, member=member), len(number) - len(parts)


def resampled(
    y: Bool[np.ndarray, " items"],
    score: Real[np.ndarray, "replicates items"] | Bool[np.ndarray, "replicates items"],
    *,
    draws: Draws,
    metric: MetricName,
    folds: Shaped[np.ndarray, "replicates items"] | None = None,
) -> Float[np.ndarray, "replicates rows"]:
    """The metric of each replicate in each row of the draws; nan where it is undefined there.

    With folds: of each fold alone, then their mean (nan as soon as one fold has one class).
    """
    rows = []
    for r, one in enumerate(score):
        if folds is None:
            rows.append(_metric(y, one, draws=draws, metric=metric))
            continue
        of = [folds[r] == f for f in np.unique(folds[r])]
        parts = [
            _metric(
                y[i],
                one[i],
                draws=Draws(counts=draws.counts, member=draws.member[i]),
                metric=metric,
            )
            for i in of
        ]
        rows.append(np.mean(parts, axis=0))
    return np.stack(rows)


def _metric(
    y: Bool[np.ndarray, " items"],
    score: Real[np.ndarray, " items"] | Bool[np.ndarray, " items"],
    *,
    draws: Draws,
    metric: MetricName,
) -> Float[np.ndarray, " rows"]:
    if metric in ("f1", "accuracy"):
        return _of_calls(y, score.astype(bool), draws=draws, metric=metric)
    value = score.astype(np.float64)
    if metric == "auroc" and draws.counts.shape[1] <= GROUPS:
        return _auroc_of_pairs(y, value, draws=draws)
    return draws.ranks(y, value)[0 if metric == "auroc" else 1]


def _of_calls(
    y: Bool[np.ndarray, " items"],
    called: Bool[np.ndarray, " items"],
    *,
    draws: Draws,
    metric: MetricName,
) -> Float[np.ndarray, " rows"]:
    columns = np.stack([y & called, y, called, y == called, np.ones_like(y)], axis=1)
    both, true, claimed, right, n = draws.totals(columns).T
    with np.errstate(invalid="ignore", divide="ignore"):
        if metric == "accuracy":
            return right / n
        return np.where(true > 0, 2 * both / (true + claimed), np.nan)


def _auroc_of_pairs(
    y: Bool[np.ndarray, " items"], score: Float[np.ndarray, " items"], *, draws: Draws
) -> Float[np.ndarray, " rows"]:
    """wᵀ U w / (wᵀ p · wᵀ n): U counts, of each two groups, their pairs that are in order.

    Its cost hardly grows with the items: a bag's instances, say.
    """
    order = np.argsort(score[y], kind="stable")
    high = score[y][order]
    with_positives, of = np.unique(draws.member[y][order], return_inverse=True)
    lows = _by_group(score[~y], draws.member[~y])
    pairs = np.empty((len(with_positives), len(lows)))
    for i, low in enumerate(lows.values()):
        before = np.searchsorted(low, high, side="left") + np.searchsorted(low, high, side="right")
        pairs[:, i] = np.bincount(of, weights=before / 2, minlength=len(with_positives))
    up, down = draws.counts[:, with_positives], draws.counts[:, list(lows)]
    sizes = np.array([len(low) for low in lows.values()])
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((up @ pairs) * down).sum(1) / ((up @ np.bincount(of)) * (down @ sizes))


def _by_group(
    value: Float[np.ndarray, " items"], member: Int[np.ndarray, " items"]
) -> dict[int, Float[np.ndarray, " _"]]:
    """The sorted values of each group."""
    order = np.lexsort((value, member))
    there, first = np.unique(member[order], return_index=True)
    parts = np.split(value[order], first[1:])
    return {int(g): part for g, part in zip(there, parts, strict=True)}
