"""Units dealt out to parts, and the integer programme, against enumeration of all divisions."""

from itertools import product

import numpy as np
import pytest

from probsa.datasets import balance
from probsa.datasets.balance import deal_out, divide, imbalance, least_imbalance


def cohort(seed: int, *, units: int, scale: float = 2.5) -> np.ndarray:
    """Bags of three classes at sites whose sizes and class shares differ as those of TCGA do."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(1, rng.lognormal(scale, 1.1, units).astype(int))
    shares = rng.dirichlet([3, 2, 1], units)
    counts = [rng.multinomial(n, p) for n, p in zip(sizes, shares, strict=True)]
    return np.array(counts, np.float64)


def equal(parts: int) -> np.ndarray:
    return np.full(parts, 1 / parts)


def enumerated_least(counts, shares):
    """The smallest imbalance of all divisions in which every part has a unit."""
    every = product(range(len(shares)), repeat=len(counts))
    full = (np.array(parts) for parts in every if len(set(parts)) == len(shares))
    return min(imbalance(counts, parts, shares) for parts in full)


def test_imbalance_is_the_share_of_bags_in_the_wrong_part_and_the_largest_want():
    counts = np.array([[6.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
    parts = np.array([0, 1, 1])
    # class 1: 6 and 2 of 8, where 4 and 4 are due; class 2: 0 and 4 of 4, where 2 and 2 are due
    expected = ((0.25 + 0.25) + (0.5 + 0.5)) / 2
    assert imbalance(counts, parts, equal(2)) == pytest.approx(expected)


@pytest.mark.parametrize("shares", [equal(3), np.array([0.4, 0.4, 0.2])], ids=["folds", "and test"])
@pytest.mark.parametrize("seed", range(4))
def test_the_programme_finds_the_best_of_all_divisions(seed, shares):
    counts = cohort(seed, units=8, scale=1.5)
    counts = counts[:, counts.any(0)]
    least = enumerated_least(counts, shares)
    division = divide(counts, shares, rng=np.random.default_rng(seed))
    assert division.imbalance == pytest.approx(imbalance(counts, division.parts, shares))
    assert division.imbalance == pytest.approx(least, abs=1e-9)
    assert division.bound <= least + 1e-9
    assert set(division.parts) == set(range(3))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly), 2])
def test_thirty_sites_are_divided_up_to_the_bound_and_far_better_than_at_random(seed):
    counts = cohort(seed, units=30)
    division = divide(counts, equal(5), rng=np.random.default_rng(0))
    rng = np.random.default_rng(seed)
    at_random = [imbalance(counts, rng.integers(0, 5, 30), equal(5)) for _ in range(200)]
    assert division.bound - 1e-9 <= division.imbalance <= division.bound + 2 * balance.GAP
    assert division.imbalance < min(at_random)
    assert division.imbalance < 0.25 * np.mean(at_random)
    dealt = deal_out(counts, equal(5), rng=np.random.default_rng(0))
    assert division.imbalance <= imbalance(counts, dealt, equal(5))


def test_parts_beside_a_unit_larger_than_a_part_are_equal():
    counts = np.array([[60.0]] + [[5.0]] * 8)
    division = divide(counts, equal(5), rng=np.random.default_rng(0))
    sizes = np.bincount(division.parts, weights=counts[:, 0])
    assert sorted(sizes) == [10, 10, 10, 10, 60]


@pytest.mark.parametrize("seed", range(5))
def test_single_bags_are_dealt_out_as_equally_as_whole_numbers_allow(seed):
    rng = np.random.default_rng(seed)
    counts = np.eye(3)[rng.integers(0, 3, 203)]
    parts = deal_out(counts, equal(5), rng=rng)
    classes_of_parts = np.array([counts[parts == part].sum(0) for part in range(5)])
    assert (np.ptp(classes_of_parts, axis=0) <= 1).all()
    assert imbalance(counts, parts, equal(5)) == pytest.approx(
        least_imbalance(counts.sum(0), equal(5))
    )


@pytest.mark.parametrize("units", [12, 600])
def test_the_same_seed_gives_the_same_division(units):
    counts = cohort(1, units=units)
    first = divide(counts, equal(5), rng=np.random.default_rng(0))
    again = divide(counts, equal(5), rng=np.random.default_rng(0))
    assert (first.parts == again.parts).all()


def test_another_seed_deals_out_otherwise():
    counts = cohort(1, units=600)
    first = deal_out(counts, equal(5), rng=np.random.default_rng(0))
    other = deal_out(counts, equal(5), rng=np.random.default_rng(1))
    assert (first != other).any()
