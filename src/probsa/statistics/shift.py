"""A test of whether new groups (patients) are exchangeable with earlier ones.

A permutation test of the largest Kolmogorov-Smirnov distance over several columns. Whole groups are
permuted and each counts once, so its false-alarm rate is at most the level for groups of any size.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .bootstrap import CELLS
from .group_risk import ROUNDING, group_shares


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftTest:
    """The distances between the distributions of old and new items, and the p-value."""

    distances: tuple[float, ...]
    """Kolmogorov-Smirnov distance of each column, in which each group counts once."""
    p_value: float
    permutations: int


def shift_test(
    values: Float[np.ndarray, "items columns"],
    *,
    new: Bool[np.ndarray, " items"],
    groups: Sequence[Hashable],
    permutations: int = 999,
    seed: int = 0,
) -> ShiftTest:
    """Test whether new groups have the same distribution as the others.

    p = (1 + number of permutations with at least the observed distance) / (1 + permutations) obeys
    P(p ≤ α) ≤ α if all groups are exchangeable.

    Args:
        values: one or more scores of each item; only their order matters.
        new: whether each item is new; a group must be new as a whole or not at all.
        groups: the group of each item.
        permutations: number of random permutations.
        seed: seed of the permutations.
    """
    share, member = group_shares(groups)
    is_new = np.zeros(member.max() + 1, dtype=bool)
    is_new[member[new]] = True
    rng = np.random.default_rng(seed)
    observed = _distances(values, is_new[None], share=share, member=member)[0]
    rows = max(1, CELLS // len(values))
    as_far = 0
    for first in range(0, permutations, rows):
        count = min(rows, permutations - first)
        drawn = rng.permuted(np.repeat(is_new[None], count, axis=0), axis=1)
        distance = _distances(values, drawn, share=share, member=member).max(1)
        as_far += int((distance >= observed.max() - ROUNDING).sum())
    return ShiftTest(
        distances=tuple(observed.tolist()),
        p_value=(1 + as_far) / (1 + permutations),
        permutations=permutations,
    )


def _distances(
    values: Float[np.ndarray, "items columns"],
    is_new: Bool[np.ndarray, "rows groups"],
    *,
    share: np.ndarray,
    member: np.ndarray,
) -> Float[np.ndarray, "rows columns"]:
    """Return max |F_new - F_old| of each column for each assignment of the groups."""
    count = is_new.sum(1, keepdims=True)
    sign = np.where(is_new, 1 / count, -1 / (is_new.shape[1] - count))
    weight = sign[:, member] * share
    distances = np.empty((len(is_new), values.shape[1]))
    for c, column in enumerate(values.T):
        order = np.argsort(column, kind="stable")
        ascending = column[order]
        last = np.append(ascending[1:] != ascending[:-1], True)
        distances[:, c] = np.abs(np.cumsum(weight[:, order], axis=1)[:, last]).max(1)
    return distances
