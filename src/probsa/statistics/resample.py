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
        member = np.arange(len(strata)) if groups is None else group_index(groups)
        of_groups = _strata_of_groups(member, strata.tolist())
        resamples = resamples if member.any() else 0
        return cls(counts=_draw_groups(of_groups, resamples=resamples, seed=seed), member=member)

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
        return _areas_from_ranks(self, y.astype(np.float64), 1.0 - y, score)

    def auroc(
        self, case: Flags | Values, score: Values, *, control: Flags | Values | None = None
    ) -> Rows:
        """Return the weighted share of pairs in which the case has the higher score; ties are ½.

        `case` and `control` are flags or weights; by default, all that are no cases are controls.
        """
        up = case.astype(np.float64)
        down = (1.0 - up) if control is None else control.astype(np.float64)
        if self.counts.shape[1] <= MOST_GROUPS:
            return _auroc_from_pairs(self, up, down, score)
        return _areas_from_ranks(self, up, down, score)[0]


def _areas_from_ranks(
    draws: Draws, case: Values, control: Values, score: Values
) -> Float[np.ndarray, "2 rows"]:
    """Return AUROC and average precision of items that are cases and controls with these weights.

    All items are sorted by their score once; then each row takes sums along this order.
    """
    order = np.argsort(score, kind="stable")
    cases, controls = order[case[order] > 0], order[control[order] > 0]
    areas = np.full((2, len(draws.counts)), np.nan)
    if len(cases) == 0:
        return areas
    # Cases with equal scores form one step of the curve.
    step, start = np.unique(score[cases], return_index=True)
    # (steps,) number of controls with a lower score, and with a score that is not higher.
    lower, not_higher = (
        np.searchsorted(score[controls], step, side=side) for side in ("left", "right")
    )
    block = max(1, CELLS // len(score))
    for r in range(0, len(draws.counts), block):
        counts = draws.counts[r : r + block].astype(np.float64)
        # (rows, controls + 1); column k is the total weight of the k lowest controls.
        below = np.zeros((len(counts), len(controls) + 1))
        np.cumsum(counts[:, draws.member[controls]] * control[controls], axis=1, out=below[:, 1:])
        # (rows, steps) weight of the cases of each step, of those from it on, and of all calls.
        at_step = np.add.reduceat(counts[:, draws.member[cases]] * case[cases], start, axis=1)
        true = np.cumsum(at_step[:, ::-1], axis=1)[:, ::-1]
        called = true + below[:, -1:] - below[:, lower]
        precision = np.divide(true, called, out=np.zeros_like(called), where=called > 0)
        positives, negatives = at_step.sum(1), below[:, -1]
        with np.errstate(invalid="ignore", divide="ignore"):
            pairs = (at_step * (below[:, lower] + below[:, not_higher])).sum(1) / 2
            areas[0, r : r + block] = pairs / (positives * negatives)
            average = (at_step * precision).sum(1) / positives
        areas[1, r : r + block] = np.where(negatives > 0, average, np.nan)
    return areas


def _auroc_from_pairs(draws: Draws, case: Values, control: Values, score: Values) -> Rows:
    """Return wᵀ U w / (wᵀ p · wᵀ n), with the counts w of the groups in a row.

    U[g, h] is the weight of the pairs of a case of group g and a control of group h in which the
    case has the higher score; p and n are the weights of the cases and controls of each group.
    The cost hardly grows with the number of items per group, for example instances per bag.
    """
    order = np.argsort(score, kind="stable")
    cases, controls = order[case[order] > 0], order[control[order] > 0]
    controls = controls[np.argsort(draws.member[controls], kind="stable")]
    of_control, first = np.unique(draws.member[controls], return_index=True)
    wins = np.zeros((draws.counts.shape[1], len(of_control)))
    for k, group in zip(range(len(of_control)), np.split(controls, first[1:]), strict=False):
        below = np.append(0.0, np.cumsum(control[group]))
        lower, not_higher = (
            below[np.searchsorted(score[group], score[cases], side=side)]
            for side in ("left", "right")
        )
        of_cases = (lower + not_higher) / 2 * case[cases]
        wins[:, k] = np.bincount(draws.member[cases], of_cases, minlength=len(wins))
    total = draws.totals(np.stack([case, control], axis=1)).prod(1)
    counts = draws.counts.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((counts @ wins) * counts[:, of_control]).sum(1) / total


def group_index(groups: Groups) -> Labels:
    """Return the index of each item's group; groups are numbered as they first occur."""
    index = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    return np.array([index[name] for name in groups], dtype=np.int64)


def _strata_of_groups(member: Labels, strata: Sequence[Hashable]) -> list[list[int]]:
    """Return the groups of each stratum, which is the set of the `strata` of a group's items."""
    of_group: dict[int, set[Hashable]] = {}
    for group, stratum in zip(member.tolist(), strata, strict=True):
        of_group.setdefault(group, set()).add(stratum)
    groups: dict[frozenset[Hashable], list[int]] = {}
    for group, of_items in of_group.items():
        groups.setdefault(frozenset(of_items), []).append(group)
    return list(groups.values())


def _draw_groups(
    strata: Sequence[Sequence[int]],
    *,
    resamples: int,
    seed: int | tuple[int, int],
    unbiased: bool = False,
) -> Real[np.ndarray, "rows groups"]:
    """Draw k of the k groups of each stratum with replacement; row 0 is all ones.

    With k draws, the variance is too small by the factor 1 - 1 / k. It is `unbiased` with k - 1
    draws, each of which counts k / (k - 1) times (Rao and Wu, JASA 1988). A stratum with a single
    group does not vary.
    """
    rng = np.random.default_rng(seed)
    shape = resamples + 1, sum(map(len, strata))
    counts = np.ones(shape, dtype=np.float64 if unbiased else np.int64)
    for groups in strata:
        k = len(groups)
        if k > 1:
            drawn = rng.multinomial(k - unbiased, np.full(k, 1 / k), size=resamples)
            counts[1:, groups] = drawn * (k / (k - 1)) if unbiased else drawn
    return counts


def draw_patients(
    strata: Sequence[Hashable], *, groups: Groups, resamples: int, seed: int
) -> tuple[Draws, int]:
    """Return weights of the groups with an unbiased variance, and their degrees of freedom.

    The stratum of a group is the set of the `strata` of its items. A stratum with a single group
    would never vary, so it is merged into the largest stratum.
    """
    member = group_index(groups)
    *smaller, largest = sorted(_strata_of_groups(member, strata), key=len)
    singles = [group for stratum in smaller if len(stratum) == 1 for group in stratum]
    merged = [*(stratum for stratum in smaller if len(stratum) > 1), largest + singles]
    counts = _draw_groups(merged, resamples=resamples, seed=seed, unbiased=True)
    return Draws(counts=counts, member=member), counts.shape[1] - len(merged)


def replicate_weights(
    count: int, *, resamples: int, seed: int, blocks: Groups | None = None
) -> Float[np.ndarray, "rows replicates"]:
    """Return the weight of each replicate in each row, with an unbiased variance.

    With `blocks`, for example the split if replicates are pairs of a split and a seed, whole blocks
    are drawn, and the replicates of a block share its weight.
    """
    block = np.arange(count) if blocks is None else group_index(blocks)
    size = np.bincount(block)
    weights = _draw_groups(
        [range(len(size))], resamples=resamples, seed=(seed, len(size)), unbiased=True
    )
    return weights[:, block] / size[block]
