"""Percentile intervals by resampling whole groups (patients, slides), many resamples at once.

A resample is stored as the number of times each group was drawn, so every statistic is computed in
its weighted form: ranks are sorted once, and sums are one matrix product. Groups are drawn within
strata (groups with the same set of labels), so that each resample has as many groups per label as
the data.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Real, Shaped

CELLS = 250_000
"""Number of weights per block while ranks are resampled, so that an array (2 MB) fits the cache."""

NO_WEIGHT = 1e-12
"""A smaller share of the total weight is none: a rounding error of its sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """The number of times each group counts in the data (row 0) and in each resample."""

    counts: Real[np.ndarray, "resamples groups"]
    """Whole numbers, or weights with the same meaning."""
    member: Int[np.ndarray, " items"]
    """The index of each item's group."""

    @classmethod
    def stratified(
        cls,
        strata: Shaped[np.ndarray, " units"],
        *,
        groups: Sequence[Hashable] | None,
        resamples: int,
        seed: int,
    ) -> "Draws":
        """Draw groups with replacement, stratified by the set of `strata` in each group.

        `groups` names the group of each unit; without it, each unit is its own group. Fewer than
        two groups carry no information on the variation between groups: no resamples are drawn.
        """
        names = list(range(len(strata))) if groups is None else groups
        member, parts = group_strata(names, strata.tolist())
        group_count = sum(map(len, parts))
        if group_count < 2:
            resamples = 0
        rng = np.random.default_rng(seed)
        counts = np.ones((resamples + 1, group_count), dtype=np.int64)
        for part in parts:
            k = len(part)
            counts[1:, part] = rng.multinomial(k, np.full(k, 1 / k), size=resamples)
        return cls(counts=counts, member=member)

    @classmethod
    def of_data(cls, items: int) -> "Draws":
        """Return a single row, the data, in which each item is its own group and counts once."""
        return cls(counts=np.ones((1, items)), member=np.arange(items))

    def weights(self) -> Float[np.ndarray, "resamples items"]:
        """Return the weight of each item in each resample."""
        return self.counts[:, self.member].astype(np.float64)

    def for_items(self, unit: Int[np.ndarray, " items"]) -> "Draws":
        """Return the same draws for items that each belong to a unit, as instances to bags."""
        return Draws(counts=self.counts, member=self.member[unit])

    def totals(self, columns: Shaped[np.ndarray, "items k"]) -> Float[np.ndarray, "resamples k"]:
        """Sum each column over the items of each resample."""
        by_group = np.zeros((self.counts.shape[1], columns.shape[1]))
        np.add.at(by_group, self.member, columns.astype(np.float64))
        return self.counts.astype(np.float64) @ by_group

    def ranks(
        self, y: Bool[np.ndarray, " items"], score: Float[np.ndarray, " items"]
    ) -> Float[np.ndarray, "2 resamples"]:
        """Return AUROC (row 0) and average precision (row 1); nan in a resample with one class."""
        ranking = Ranking(y, score, member=self.member)
        rows = max(1, CELLS // max(len(y), 1))
        parts = [ranking(self.counts[i : i + rows]) for i in range(0, len(self.counts), rows)]
        return np.concatenate([np.empty((2, 0)), *parts], axis=1)


def group_strata(
    groups: Sequence[Hashable], strata: Sequence[Hashable]
) -> tuple[Int[np.ndarray, " items"], list[list[int]]]:
    """Return the group index of each item, and the groups of each stratum.

    The stratum of a group is the set of the `strata` (labels, folds) of its items.
    """
    index = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    member = np.array([index[name] for name in groups], dtype=np.int64)
    kinds: list[set[Hashable]] = [set() for _ in index]
    for group, stratum in zip(member, strata, strict=True):
        kinds[group].add(stratum)
    by_kind: dict[frozenset[Hashable], list[int]] = {}
    for group, kind in enumerate(kinds):
        by_kind.setdefault(frozenset(kind), []).append(group)
    return member, list(by_kind.values())


class Ranking:
    """Labels sorted by a score, ready for any weights of the items' groups."""

    def __init__(
        self,
        y: Bool[np.ndarray, " items"],
        score: Float[np.ndarray, " items"],
        *,
        member: Int[np.ndarray, " items"],
    ) -> None:
        order = np.argsort(score, kind="stable")
        ascending = score[order]
        # Items with equal scores form one step of the curve.
        opens = np.append([True], ascending[1:] != ascending[:-1])[: len(order)]
        first, step = np.flatnonzero(opens), np.cumsum(opens) - 1
        last = np.append(first[1:], len(order)) - 1
        # Only steps with a positive item contribute to either area.
        positive_rows = np.flatnonzero(y[order])
        steps, self.starts = np.unique(step[positive_rows], return_index=True)
        self.member, self.positive = member[order], member[order][positive_rows]
        self.first, self.last = first[steps], last[steps]

    def __call__(
        self, counts: Real[np.ndarray, "resamples groups"]
    ) -> Float[np.ndarray, "2 resamples"]:
        """Return AUROC and average precision, equal to scikit-learn's with sample weights."""
        if len(self.positive) == 0:
            return np.full((2, len(counts)), np.nan)
        weight = counts.astype(np.float64)
        # Column k holds the total weight of the k lowest items.
        below = np.zeros((len(counts), len(self.member) + 1))
        np.cumsum(weight[:, self.member], axis=1, out=below[:, 1:])
        before, until = below[:, self.first], below[:, self.last + 1]
        positives = np.add.reduceat(weight[:, self.positive], self.starts, axis=1)
        lower = np.cumsum(positives, axis=1) - positives
        p, n = positives.sum(1), below[:, -1] - positives.sum(1)
        n[n < NO_WEIGHT * below[:, -1]] = 0  # what remains of weights that are no whole numbers
        # Half of the negatives with the same score count as below.
        negatives_below = before - lower + (until - before - positives) / 2
        true, called = p[:, None] - lower, below[:, -1:] - before
        precision = np.divide(true, called, out=np.zeros_like(called), where=called > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            auroc = (positives * negatives_below).sum(1) / (p * n)
            average_precision = (positives * precision).sum(1) / p
        auroc[n == 0] = average_precision[n == 0] = np.nan
        return np.stack([auroc, average_precision])
