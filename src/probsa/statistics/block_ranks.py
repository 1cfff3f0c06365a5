"""Test average ranks whose columns depend on each other within a data set.

Friedman's test and Nemenyi's critical difference need independent columns. AUROC, NLL and AP of one
data set are not: a method that is lucky on its bags is lucky in all three. Here the methods are
permuted within each data set, all of its columns together, which keeps this dependence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import InputError
from .ranking import ALPHA, HypothesisTest, Ranks

PERMUTATIONS = 9_999
CHUNK = 512
"""Permutations that are in memory at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTest:
    """Whether methods differ in their average ranks over several data sets."""

    any_difference: HypothesisTest
    """The statistic is the sum over methods of (average rank − its expectation)²."""
    difference: float | None
    """Methods whose average ranks are further apart than this differ significantly: the gap between
    the first and the last of equally good methods exceeds it with a probability of at most 0.05."""


def block_test(
    ranks: Ranks, *, blocks: Sequence[str], permutations: int = PERMUTATIONS, seed: int = 0
) -> BlockTest:
    """Test the average ranks of methods by permuting the methods within each data set.

    If the methods are equally good, each data set might as well have named them in another order.
    The test is then exact, however strongly the columns of a data set depend on each other. The
    observed order counts as one of the permutations.

    Args:
        ranks: The ranks of `average_ranks`.
        blocks: The data set of each column.
        permutations: Number of random permutations.
        seed: Seed of the permutations.

    Raises:
        InputError: There is not one block per column.
    """
    methods, columns = ranks.ranks.shape
    if len(blocks) != columns:
        raise InputError(f"{len(blocks)} blocks of {columns} columns: expected one per column")
    names = list(dict.fromkeys(blocks))
    if methods < 2 or len(names) < 2:
        what = "one method" if methods < 2 else "one data set"
        none = HypothesisTest(statistic=None, p=None, reason=f"{what}: nothing can be compared")
        return BlockTest(any_difference=none, difference=None)
    index = np.array([names.index(b) for b in blocks])
    centred = ranks.ranks - (methods + 1) / 2
    sums = np.stack([centred[:, index == b].sum(1) for b in range(len(names))]) / columns
    observed, _ = _statistics(sums[None])
    drawn = [
        _statistics(_permuted(sums, count=min(CHUNK, permutations - start), seed=(seed, start)))
        for start in range(0, permutations, CHUNK)
    ]
    squares, gaps = (np.concatenate(values) for values in zip(*drawn, strict=True))
    # Rounded, so that arrangements that are equal but for the order of addition are ties.
    extreme = int((np.round(squares, 9) >= np.round(observed[0], 9)).sum())
    allowed = int(ALPHA * (permutations + 1)) - 1
    return BlockTest(
        any_difference=HypothesisTest(
            statistic=float(observed[0]), p=(extreme + 1) / (permutations + 1)
        ),
        difference=float(np.sort(gaps)[::-1][allowed]) if allowed >= 0 else None,
    )


def _permuted(
    sums: Float[np.ndarray, "blocks methods"], *, count: int, seed: tuple[int, int]
) -> Float[np.ndarray, "count blocks methods"]:
    rng = np.random.default_rng(seed)
    return rng.permuted(np.broadcast_to(sums, (count, *sums.shape)), axis=-1)


def _statistics(
    sums: Float[np.ndarray, "count blocks methods"],
) -> tuple[Float[np.ndarray, " count"], Float[np.ndarray, " count"]]:
    """Return the sums of squares of the average ranks, and the gaps from first to last."""
    mean = sums.sum(1)
    return (mean**2).sum(1), np.ptp(mean, axis=1)
