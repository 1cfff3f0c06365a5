"""Resampling of whole groups (patients, slides): many resamples at once, as weights of the groups.

A resample is stored as the weight of each group, so every statistic is computed in its weighted
form: ranks are sorted once, and sums are one matrix product. Row 0 is always the data.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

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
class Support:
    """On how many patients a metric rests."""

    patients: int
    """Patients of the part (class) that has the fewest of them; of all, without parts."""
    part: str | None
    """The name of this part; None without parts."""
    trials: float
    """The largest number of independent trials that the metric is worth as a share of patients."""

    @classmethod
    def of(cls, counts: Mapping[str | None, int]) -> "Support":
        """Return the support of a mean over parts, given the number of patients of each part.

        A share of k patients has the variance p (1 - p) / (k - 1), estimated without bias. The mean
        over parts has the variance of as many trials as are returned.
        """
        part = min(counts, key=lambda name: counts[name])
        inverse = sum(1 / max(count - 1, 0.5) for count in counts.values())
        return cls(patients=counts[part], part=part, trials=len(counts) ** 2 / inverse)

    @classmethod
    def of_mean(cls, parts: Sequence["Support"]) -> "Support":
        """Return the support of the mean over metrics of the same patients."""
        fewest = min(parts, key=lambda support: support.patients)
        inverse = sum(1 / support.trials for support in parts)
        return replace(fewest, trials=len(parts) ** 2 / inverse)

    @classmethod
    def of_disjoint(cls, parts: Sequence["Support"]) -> "Support":
        """Return the support of the mean over metrics of different patients, as of folds."""
        patients = sum(support.patients for support in parts)
        return replace(cls.of_mean(parts), patients=patients)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """The weight of each group in the data (row 0) and in each resample."""

    counts: Float[np.ndarray, "rows groups"]
    member: Labels
    """The index of each item's group."""
    freedom: int = 0
    """Degrees of freedom of the groups: their number minus that of the strata."""

    @classmethod
    def patients(
        cls,
        strata: Sequence[Hashable] | Shaped[np.ndarray, " units"],
        *,
        groups: Groups | None,
        resamples: int,
        seed: int,
    ) -> "Draws":
        """Draw groups with replacement by strata, so that variances are unbiased.

        The stratum of a group is the set of the `strata` of its units. A stratum with a single
        group would never vary, so it is merged into the largest stratum. Fewer than two groups
        carry no information on the variation between groups: no resamples are drawn.

        Args:
            strata: the stratum of each unit, for example the class of each bag.
            groups: the group (patient) of each unit; None if each unit is its own group.
            resamples: number of resamples.
            seed: seed of the resamples.
        """
        member = np.arange(len(strata)) if groups is None else group_index(groups)
        of_units = strata.tolist() if isinstance(strata, np.ndarray) else strata
        merged = _merge_single_groups(_strata_of_groups(member, of_units))
        counts = _draw_groups(merged, resamples=resamples if member.any() else 0, seed=seed)
        return cls(counts=counts, member=member, freedom=counts.shape[1] - len(merged))

    @classmethod
    def of_data(cls, items: int) -> "Draws":
        """Return a single row, the data, in which each item is its own group and counts once."""
        return cls(counts=np.ones((1, items)), member=np.arange(items))

    def first(self, resamples: int) -> "Draws":
        """Return the same draws with at most this number of resamples."""
        return replace(self, counts=self.counts[: resamples + 1])

    def patients_with(self, flag: Flags) -> int:
        """Return the number of groups with an item for which the flag is set."""
        found = np.zeros(self.counts.shape[1], dtype=bool)
        found[self.member[flag]] = True
        return int(found.sum())

    def support(self, parts: Mapping[str | None, Flags] | None = None) -> "Support":
        """Return on how many groups a metric rests that contrasts parts of the items.

        parts: the items of each part, for example of each class, by its name (None without a
        name); None for a mean over all items.
        """
        if parts is None:
            parts = {None: np.ones(len(self.member), dtype=bool)}
        return Support.of({name: self.patients_with(flag) for name, flag in parts.items()})

    def weights(self) -> Float[np.ndarray, "rows items"]:
        """Return the weight of each item in each row."""
        return self.counts[:, self.member]

    def for_items(self, unit: Labels) -> "Draws":
        """Return the same draws for items that each belong to a unit, as instances to bags."""
        return replace(self, member=self.member[unit])

    def totals(self, columns: Shaped[np.ndarray, "items k"]) -> Float[np.ndarray, "rows k"]:
        """Sum each column over the items of each row."""
        by_group = np.zeros((self.counts.shape[1], columns.shape[1]))
        np.add.at(by_group, self.member, columns.astype(np.float64))
        return self.counts @ by_group

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
        counts = draws.counts[r : r + block]
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
    counts = draws.counts
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


def _merge_single_groups(strata: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strata with those of a single group merged into the largest one."""
    if not strata:
        return []
    *smaller, largest = sorted(strata, key=len)
    singles = [group for stratum in smaller if len(stratum) == 1 for group in stratum]
    several = [list(stratum) for stratum in smaller if len(stratum) > 1]
    return [*several, [*largest, *singles]]


def _draw_groups(
    strata: Sequence[Sequence[int]], *, resamples: int, seed: int | tuple[int, int]
) -> Float[np.ndarray, "rows groups"]:
    """Draw k - 1 of the k groups of each stratum, each of which counts k / (k - 1) times.

    With k draws, the variance would be too small by the factor 1 - 1 / k (Rao and Wu, JASA 1988).
    Row 0 is all ones. A stratum with a single group does not vary.
    """
    rng = np.random.default_rng(seed)
    counts = np.ones((resamples + 1, sum(map(len, strata))))
    for groups in strata:
        k = len(groups)
        if k > 1:
            drawn = rng.multinomial(k - 1, np.full(k, 1 / k), size=resamples)
            counts[1:, groups] = drawn * (k / (k - 1))
    return counts


def replicate_weights(
    count: int, *, resamples: int, seed: int, blocks: Groups | None = None
) -> Float[np.ndarray, "rows replicates"]:
    """Return the weight of each replicate in each row, with an unbiased variance.

    With `blocks`, for example the split if replicates are pairs of a split and a seed, whole blocks
    are drawn, and the replicates of a block share its weight.
    """
    block = np.arange(count) if blocks is None else group_index(blocks)
    size = np.bincount(block)
    weights = _draw_groups([range(len(size))], resamples=resamples, seed=(seed, len(size)))
    return weights[:, block] / size[block]
