"""The permutation test of ranks equals enumeration and keeps its level on dependent columns."""

from itertools import permutations, product

import numpy as np
import pytest

from probsa.errors import InputError
from probsa.statistics import average_ranks, block_test
from probsa.statistics.ranking import friedman

SETS = ("a", "a", "b", "b", "c", "c")


def columns(*, methods, sets, dependence, seed, skill=0.0):
    """Return values of three columns per data set that share a part of their chance."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(methods, sets, 1)) * np.sqrt(dependence)
    values = shared + rng.normal(size=(methods, sets, 3)) * np.sqrt(1 - dependence)
    values[0] += skill
    ranks = average_ranks({f"m{i}": row for i, row in enumerate(values.reshape(methods, -1))})
    return ranks, np.repeat([f"set{i}" for i in range(sets)], 3).tolist()


def test_p_and_the_critical_difference_equal_those_of_all_arrangements():
    values = {"x": [9, 8, 7, 9, 3, 8], "y": [5, 6, 6, 5, 4, 4], "z": [1, 2, 8, 1, 2, 1]}
    ranks = average_ranks(values)
    sums = np.stack([ranks.ranks[:, i : i + 2].sum(1) for i in (0, 2, 4)])
    squares, gaps = [], []
    for orders in product(permutations(range(3)), repeat=3):
        mean = sum(sums[b][list(order)] for b, order in enumerate(orders)) / 6
        squares.append(((mean - 2) ** 2).sum())
        gaps.append(np.ptp(mean))
    observed = ((ranks.ranks.mean(1) - 2) ** 2).sum()
    p = np.mean(np.array(squares) >= observed - 1e-9)
    got = block_test(ranks, blocks=SETS)
    assert got.any_difference.statistic == pytest.approx(observed)
    assert got.any_difference.p == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / 9_999))
    gaps = np.array(gaps)
    assert np.mean(gaps > got.difference + 1e-9) <= 0.05 < np.mean(gaps >= got.difference - 1e-9)


def test_1000_null_tables_of_dependent_columns_keep_the_level():
    """Friedman's test, which takes the columns as independent, does not."""
    ours, pairs, theirs = [], [], []
    for seed in range(1000):
        ranks, blocks = columns(methods=8, sets=4, dependence=0.7, seed=seed)
        test = block_test(ranks, blocks=blocks, permutations=199)
        ours.append(test.any_difference.p <= 0.05)
        pairs.append(np.ptp(list(ranks.mean.values())) > test.difference)
        theirs.append(friedman(ranks).p <= 0.05)
    assert 0.03 <= np.mean(ours) <= 0.07
    assert 0.02 <= np.mean(pairs) <= 0.07
    assert np.mean(theirs) > 0.3


def test_a_better_method_is_found():
    ranks, blocks = columns(methods=8, sets=6, dependence=0.5, seed=0, skill=4.0)
    test = block_test(ranks, blocks=blocks)
    assert test.any_difference.p < 0.05
    order = sorted(ranks.mean.values())
    assert order[-1] - order[0] > test.difference


@pytest.mark.parametrize(
    ("values", "blocks", "reason"),
    [
        ({"x": [1.0, 2.0], "y": [2.0, 1.0]}, ["a", "a"], "one data set"),
        ({"x": [1.0, 2.0]}, ["a", "b"], "one method"),
    ],
)
def test_nothing_to_compare_has_a_reason(values, blocks, reason):
    test = block_test(average_ranks(values), blocks=blocks)
    assert test.any_difference.p is None and test.difference is None
    assert test.any_difference.reason.startswith(reason)


def test_each_column_needs_a_block():
    with pytest.raises(InputError, match="1 blocks of 2 columns"):
        block_test(average_ranks({"x": [1, 2], "y": [2, 1]}), blocks=["a"])
