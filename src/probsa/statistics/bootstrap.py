"""Percentile intervals by resampling whole groups (patients, slides), many resamples at once.

A resample is how often each group was drawn, so any statistic is its weighted form: ranks are
sorted once, sums are one matrix product. Groups are drawn within strata (groups with the same set
of labels), so that each resample has as many groups of each label as the data.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Real, Shaped

COVERAGE = 0.95
"""Of every interval: from the 2.5th to the 97.5th percentile of the resamples."""

CELLS = 250_000
"""Weights held at once while ranks are resampled, so that an array (2 MB) stays near the core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """How often each group was drawn in each resample, and the group of each item."""

    counts: Real[np.ndarray, "resamples groups"]
    """Whole numbers, or weights with the same meaning."""
    member: Int[np.ndarray, " items"]

    @classmethod
    def of(
        cls,
        strata: Shaped[np.ndarray, " units"],
        *,
        groups: Sequence[Hashable] | None,
        resamples: int,
        seed: int,
    ) -> "Draws":
        """Draws of groups with replacement, stratified by the set of `strata` in each group.

        `groups` names the group of each unit (none: each unit is its own). Fewer than two groups
        say nothing of the variation between groups: then there are no resamples.
        """
        names = list(range(len(strata))) if groups is None else list(groups)
        number = {g: i for i, g in enumerate(dict.fromkeys(names))}
        member = np.array([number[g] for g in names], dtype=np.int64)
        kinds: list[set[Hashable]] = [set() for _ in number]
        for g, s in zip(member, strata.tolist(), strict=True):
            kinds[g].add(s)
        if len(number) < 2:
            resamples = 0
        by_kind: dict[frozenset[Hashable], list[int]] = {}
        for g, kind in enumerate(kinds):
            by_kind.setdefault(frozenset(kind), []).append(g)
        rng = np.random.default_rng(seed)
        counts = np.zeros((resamples, len(number)), dtype=np.int64)
        for same in by_kind.values():
            k = len(same)
            counts[:, same] = rng.multinomial(k, np.full(k, 1 / k), size=resamples)
        return cls(counts=counts, member=member)

    def items(self, unit: Int[np.ndarray, " items"]) -> "Draws":
        """The same draws for items that each belong to a unit: instances of bags."""
        return Draws(counts=self.counts, member=self.member[unit])

    def totals(self, columns: Shaped[np.ndarray, "items k"]) -> Float[np.ndarray, "resamples k"]:
        """Sums over the items of each resample."""
        by_group = np.zeros((self.counts.shape[1], columns.shape[1]))
        np.add.at(by_group, self.member, columns.astype(np.float64))
        return self.counts.astype(np.float64) @ by_group

    def ranks(
        self, y: Bool[np.ndarray, " items"], score: Float[np.ndarray, " items"]
    ) -> Float[np.ndarray, "2 resamples"]:
        """AUROC (row 0) and average precision (row 1); nan in a resample with one class."""
        ranking = Ranking(y, score, member=self.member)
        rows = max(1, CELLS // max(len(y), 1))
        parts = [ranking(self.counts[i : i + rows]) for i in range(0, len(self.counts), rows)]
        return np.concatenate([np.empty((2, 0)), *parts], axis=1)


class Ranking:
    """Labels in the order of a score, ready for any weights of the items' groups."""

    def __init__(
        self,
        y: Bool[np.ndarray, " items"],
        score: Float[np.ndarray, " items"],
        *,
        member: Int[np.ndarray, " items"],
    ) -> None:
        order = np.argsort(score, kind="stable")
        ascending = score[order]
        # Items with one score are one step of the curve: neither before nor after each other.
        opens = np.append([True], ascending[1:] != ascending[:-1])[: len(order)]
        first, step = np.flatnonzero(opens), np.cumsum(opens) - 1
        last = np.append(first[1:], len(order)) - 1
        # Only steps with a positive count in either area.
        at = np.flatnonzero(y[order])
        steps, self.starts = np.unique(step[at], return_index=True)
        self.member, self.positive = member[order], member[order][at]
        self.first, self.last = first[steps], last[steps]

    def __call__(
        self, counts: Real[np.ndarray, "resamples groups"]
    ) -> Float[np.ndarray, "2 resamples"]:
        """AUROC and average precision, as scikit-learn's with these counts as sample weights."""
        if len(self.positive) == 0:
            return np.full((2, len(counts)), np.nan)
        weight = counts.astype(np.float64)
        # Column k: the weight of the k lowest items.
        below = np.zeros((len(counts), len(self.member) + 1))
        np.cumsum(weight[:, self.member], axis=1, out=below[:, 1:])
        before, until = below[:, self.first], below[:, self.last + 1]
        positives = np.add.reduceat(weight[:, self.positive], self.starts, axis=1)
        lower = np.cumsum(positives, axis=1) - positives
        p, n = positives.sum(1), below[:, -1] - positives.sum(1)
        # Of the negatives with the same score, half count as below.
        negatives_below = before - lower + (until - before - positives) / 2
        true, called = p[:, None] - lower, below[:, -1:] - before
        precision = np.divide(true, called, out=np.zeros_like(called), where=called > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            auroc = (positives * negatives_below).sum(1) / (p * n)
            average_precision = (positives * precision).sum(1) / p
        average_precision[n == 0] = np.nan
        return np.stack([auroc, average_precision])


def interval(resampled: Float[np.ndarray, " resamples"]) -> tuple[float | None, float | None, int]:
    """Lower and upper end, and how many resamples were undefined (nan) and left out.

    No interval where there are no resamples, or more than half of them are undefined.
    """
    good = resampled[np.isfinite(resampled)]
    left_out = len(resampled) - len(good)
    if len(good) == 0 or left_out > len(good):
        return None, None, left_out
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(good, [tail, 1 - tail])
    return float(low), float(high), left_out
