"""Resampling of whole groups (patients, slides): many resamples at once, as weights of the groups.

A resample is stored as the number of times each group was drawn, so every statistic is computed in
its weighted form: ranks are sorted once, and sums are one matrix product. Row 0 is always the data.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Real, Shaped

Values: TypeAlias = Float[np.ndarray, " items"]
Flags: TypeAlias = Bool[np.ndarray, " items"]
Labels: TypeAlias = Int[np.ndarray, " items"]
Rows: TypeAlias = Float[np.ndarray, " rows"]
Groups: TypeAlias = Sequence[Hashable]

CELLS = 250_000
"""Number of weights per block while ranks are resampled, so that an array (2 MB) fits the cache."""

MOST_GROUPS = 2000
"""With more groups than this, AUROC is resampled by ranks instead of by pairs of groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """The number of times each group counts in the data (row 0) and in each resample."""

    counts: Real[np.ndarray, "rows groups"]
    """Whole numbers, or weights with the same meaning."""
    member: Labels
    """The index of each item's group."""

    @classmethod
    def stratified(
        cls,
        strata: Shaped[np.ndarray, " units"],
        *,
        groups: Groups | None,
        resamples: int,
        seed: int,
    ) -> "Draws":
        """Draw groups with replacement, stratified by the set of `strata` in each group.

        `groups` names the group of each unit; without it, each unit is its own group. Fewer than
        two groups carry no information on the variation between groups: no resamples are drawn.
        """
        names = range(len(strata)) if groups is None else groups
        member, parts = group_strata(names, strata.tolist())
        resamples = resamples if sum(map(len, parts)) > 1 else 0
        return cls(counts=_drawn(parts, resamples=resamples, seed=seed), member=member)

    @classmethod
    def of_data(cls, items: int) -> "Draws":
        """Return a single row, the data, in which each item is its own group and counts once."""
        return cls(counts=np.ones((1, items)), member=np.arange(items))

    def weights(self) -> Float[np.ndarray, "rows items"]:
        """Return the weight of each item in each row."""
        return self.counts[:, self.member].astype(np.float64)

    def for_items(self, unit: Labels) -> "Draws":
        """Return the same draws for items that each belong to a unit, as instances to bags."""
        return Draws(counts=self.counts, member=self.member[unit])

    def totals(self, columns: Shaped[np.ndarray, "items k"]) -> Float[np.ndarray, "rows k"]:
        """Sum each column over the items of each row."""
        by_group = np.zeros((self.counts.shape[1], columns.shape[1]))
        np.add.at(by_group, self.member, columns.astype(np.float64))
        return self.counts.astype(np.float64) @ by_group

    def ratio(
        self, numerator: Shaped[np.ndarray, " items"], denominator: Shaped[np.ndarray, " items"]
    ) -> Rows:
        """Return Σ numerator / Σ denominator over the items of each row; nan for 0/0."""
        above, below = self.totals(np.stack([numerator, denominator], axis=1)).T
        with np.errstate(invalid="ignore", divide="ignore"):
            return above / below

    def ranks(self, y: Flags, score: Values) -> Float[np.ndarray, "2 rows"]:
        """Return AUROC (row 0) and average precision (row 1); nan in a row with one class.

        They are scikit-learn's with the counts as sample weights.
        """
        return _areas_by_ranks(self, y.astype(np.float64), 1.0 - y, score)

    def auroc(
        self, case: Flags | Values, score: Values, *, control: Flags | Values | None = None
    ) -> Rows:
        """Return the weighted share of pairs in which the case has the higher score; ties are ½.

        `case` and `control` are flags or weights; by default, all that are no cases are controls.
        """
        up = case.astype(np.float64)
        down = (1.0 - up) if control is None else control.astype(np.float64)
        if self.counts.shape[1] <= MOST_GROUPS:
            return _auroc_by_pairs(self, up, down, score)
        return _areas_by_ranks(self, up, down, score)[0]


def _areas_by_ranks(
    draws: Draws, case: Values, control: Values, score: Values
) -> Float[np.ndarray, "2 rows"]:
    """Return AUROC and average precision of weighted cases and controls."""
    order = np.argsort(score, kind="stable")
    cases, controls = order[case[order] > 0], order[control[order] > 0]
    areas = np.full((2, len(draws.counts)), np.nan)
    if len(cases) == 0:
        return areas
    # Cases with equal scores form one step of the curve.
    step, start = np.unique(score[cases], return_index=True)
    first, last = (np.searchsorted(score[controls], step, side=side) for side in ("left", "right"))
    block = max(1, CELLS // len(score))
    for r in range(0, len(draws.counts), block):
        counts = draws.counts[r : r + block].astype(np.float64)
        # Column k holds the total weight of the k lowest controls.
        below = np.zeros((len(counts), len(controls) + 1))
        np.cumsum(counts[:, draws.member[controls]] * control[controls], axis=1, out=below[:, 1:])
        at_step = np.add.reduceat(counts[:, draws.member[cases]] * case[cases], start, axis=1)
        total, n = at_step.sum(1), below[:, -1]
        true = np.cumsum(at_step[:, ::-1], axis=1)[:, ::-1]
        called = true + n[:, None] - below[:, first]
        precision = np.divide(true, called, out=np.zeros_like(called), where=called > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            pairs = (at_step * (below[:, first] + below[:, last])).sum(1) / 2
            areas[0, r : r + block] = pairs / (total * n)
            average = (at_step * precision).sum(1) / total
        areas[1, r : r + block] = np.where(n > 0, average, np.nan)
    return areas


def _auroc_by_pairs(draws: Draws, case: Values, control: Values, score: Values) -> Rows:
    """Return wᵀ U w / (wᵀ p · wᵀ n), where U counts the ordered pairs between any two groups.

    The cost hardly grows with the number of items per group, for example instances per bag.
    """
    order = np.argsort(score, kind="stable")
    cases, controls = order[case[order] > 0], order[control[order] > 0]
    ups, up = np.unique(draws.member[cases], return_inverse=True)
    controls = controls[np.argsort(draws.member[controls], kind="stable")]
    downs, first, down = np.unique(draws.member[controls], return_index=True, return_inverse=True)
    pairs = np.empty((len(ups), len(downs)))
    for k, part in zip(range(len(downs)), np.split(controls, first[1:]), strict=False):
        below = np.append(0.0, np.cumsum(control[part]))
        before = below[np.searchsorted(score[part], score[cases], side="left")]
        before = before + below[np.searchsorted(score[part], score[cases], side="right")]
        pairs[:, k] = np.bincount(up, before / 2 * case[cases], minlength=len(ups))
    of_cases, of_controls = draws.counts[:, ups] * 1.0, draws.counts[:, downs] * 1.0
    total = (of_cases @ np.bincount(up, case[cases])) * (
        of_controls @ np.bincount(down, control[controls])
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((of_cases @ pairs) * of_controls).sum(1) / total


def group_strata(groups: Groups, strata: Sequence[Hashable]) -> tuple[Labels, list[list[int]]]:
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


def _drawn(
    parts: Sequence[list[int]], *, resamples: int, seed: int | tuple[int, int], fewer: int = 0
) -> Real[np.ndarray, "rows groups"]:
    """Draw k - fewer of the k groups of each part, each of which counts k / (k - fewer) times.

    With k draws, the variance is too small by the factor 1 - 1 / k; with k - 1 it is unbiased (Rao
    and Wu, JASA 1988). A part with a single group does not vary. Row 0 is all ones.
    """
    rng = np.random.default_rng(seed)
    counts = np.ones((resamples + 1, sum(map(len, parts))), dtype=float if fewer else np.int64)
    for part in parts:
        k = len(part)
        if k > 1:
            drawn = rng.multinomial(k - fewer, np.full(k, 1 / k), size=resamples)
            counts[1:, part] = drawn * (k / (k - fewer)) if fewer else drawn
    return counts


def draw_patients(
    strata: Sequence[Hashable], *, groups: Groups, resamples: int, seed: int
) -> tuple[Draws, int]:
    """Return weights of the groups with an unbiased variance, and their degrees of freedom.

    The stratum of a group is the set of the `strata` of its items. A stratum with a single group
    would never vary, so it is merged into the largest stratum.
    """
    member, parts = group_strata(groups, strata)
    parts.sort(key=len)
    singles = [group for part in parts[:-1] if len(part) == 1 for group in part]
    parts = [part for part in parts[:-1] if len(part) > 1] + [parts[-1] + singles]
    counts = _drawn(parts, resamples=resamples, seed=seed, fewer=1)
    return Draws(counts=counts, member=member), counts.shape[1] - len(parts)


def replicate_weights(
    count: int, *, resamples: int, seed: int, blocks: Groups | None = None
) -> Float[np.ndarray, "rows replicates"]:
    """Return the weight of each replicate in each row, drawn as in `draw_patients`.

    With `blocks`, for example the split if replicates are pairs of a split and a seed, whole blocks
    are drawn, and the replicates of a block share its weight.
    """
    member, parts = group_strata(range(count) if blocks is None else blocks, [0] * count)
    seeds = seed, len(parts[0])
    weights = _drawn(parts, resamples=resamples, seed=seeds, fewer=1)
    return weights[:, member] / np.bincount(member)[member]
