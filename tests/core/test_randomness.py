"""Random numbers that follow from seeds and places alone."""

import pytest
import torch
from scipy import stats

from probsa.core import Segments, counted_normal


def numbers(seeds, sizes, samples, *, first=0, dtype=torch.float64):
    like = torch.empty(0, dtype=dtype)
    return counted_normal(seeds, Segments.of(sizes), samples, first=first, like=like)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counted_numbers_are_standard_normal(dtype):
    """400,000 numbers: the distribution, tails, and correlations of rows, samples and bags."""
    z = numbers([5, 6], [500, 500], 400, dtype=dtype).double()
    assert bool(z.isfinite().all())
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 0.01
    n = z.numel()
    assert abs(float(z.mean())) < 4 / n**0.5
    assert abs(float(z.square().mean()) - 1) < 4 * (2 / n) ** 0.5
    assert abs(float(z.pow(4).mean()) - 3) < 4 * (96 / n) ** 0.5
    for one, other in [
        (z[1:], z[:-1]),
        (z[:, 1:], z[:, :-1]),
        (z[:, :500], z[:, 500:]),
        (z[1:, 1:], z[:-1, :-1]),
        (z[:, 1:].square() - 1, z[:, :-1].square() - 1),
    ]:
        scale = float(one.square().mean() * other.square().mean()) ** 0.5
        correlation = float((one * other).mean()) / scale
        assert abs(correlation) < 4 / one.numel() ** 0.5


def test_counted_numbers_do_not_depend_on_other_bags_or_on_blocks():
    both = numbers([7, 8], [3, 4], 6)
    assert torch.equal(both[:, 3:], numbers([8], [4], 6))
    assert torch.equal(both[:2], numbers([7, 8], [3, 4], 2))
    assert torch.equal(both[2:], numbers([7, 8], [3, 4], 4, first=2))
    assert len(both.flatten().unique()) == both.numel()
    assert not torch.equal(both[:, :3], numbers([9], [3], 6))


def test_counted_numbers_of_the_largest_seeds_are_finite():
    for seed in (0, 1, 2**62, 2**63 - 1):
        assert bool(numbers([seed], [1000], 100, dtype=torch.float32).isfinite().all())
