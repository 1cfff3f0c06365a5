"""Pooling without samples: against quadrature, many draws and finite differences."""

import itertools

import numpy as np
import pytest
import torch

from probsa.variational import PREDICT_POINTS, ClosedForm, Streams

F64 = torch.float64


def streams(count, *, seed=0):
    return [torch.Generator().manual_seed(100 * seed + k) for k in range(count)]


def pool(mean, variance, sizes=None, *, g=None, points=PREDICT_POINTS, seed=0, generators=None):
    sizes = [len(mean)] if sizes is None else sizes
    own = generators or streams(len(sizes), seed=seed)
    return ClosedForm(mean, variance, Streams(sizes, own), g=g, points=points)


def case(n, sd, *, lesion, columns, seed=0):
    """Means, variances and values of a bag; `columns` 0 is for scores that are pooled."""
    source = torch.Generator().manual_seed(seed)
    mean = 0.5 * torch.randn(n, generator=source, dtype=F64)
    positive = torch.arange(n) < (max(1, n // 50) if lesion else 0)
    mean = mean + 3.0 * positive
    variance = (sd * (0.7 + 0.6 * torch.rand(n, generator=source, dtype=F64))) ** 2
    if columns == 0:
        return mean, variance, None
    g = torch.randn(n, columns, generator=source, dtype=F64) + 3.0 * positive[:, None]
    return mean, variance, g


def by_sample(mean, variance, g, noise):
    """Return y and the weights of each sample."""
    f = mean + variance.sqrt() * noise
    a = f.softmax(1)
    return (a * f).sum(1, keepdim=True) if g is None else a @ g, a


def draws(mean, variance, g, *, count, seed=1):
    """Yield, for each thousand draws, y and the mean and the variance of the weights."""
    source = torch.Generator().manual_seed(seed)
    for _ in range(count):
        noise = torch.randn(1000, len(mean), generator=source, dtype=F64)
        y, a = by_sample(mean, variance, g, noise)
        yield y, a.mean(0), a.var(0, correction=0)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("columns", [0, 1, 2])
def test_small_bags_match_quadrature(n, columns):
    mean, variance, g = case(n, 1.0, lesion=False, columns=columns, seed=n)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = torch.tensor(list(itertools.product(nodes, repeat=n)))
    w = torch.tensor(list(itertools.product(weights / weights.sum(), repeat=n))).prod(1)
    y, a = by_sample(mean, variance, g, grid)
    pooled = pool(mean, variance, g=g)
    torch.testing.assert_close(pooled.y[0].sigmoid().mean(0), w @ y.sigmoid(), atol=2e-3, rtol=0)
    torch.testing.assert_close(pooled.y[0].square().mean(0), w @ y.square(), atol=0.02, rtol=0.01)
    found, spread = pooled.weights()
    torch.testing.assert_close(found, w @ a, atol=2e-3, rtol=0)
    torch.testing.assert_close(spread, w @ a.square() - (w @ a).square(), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("n", "sd", "lesion", "columns"),
    [(33, 0.5, True, 0), (33, 0.5, True, 3), (50, 1.2, True, 1), (400, 0.6, False, 3),
     (400, 1.0, True, 0), (400, 1.0, True, 1), (1000, 0.9, False, 0), (1000, 0.9, False, 1)],
)  # fmt: skip
def test_the_error_is_below_that_of_1000_draws(n, sd, lesion, columns):
    mean, variance, g = case(n, sd, lesion=lesion, columns=columns)
    thousands = list(draws(mean, variance, g, count=40))
    y = torch.stack([t[0] for t in thousands])
    centre = y.mean((0, 1))
    found = [pool(mean, variance, g=g, seed=seed) for seed in range(8)]
    assert not any(pooled.sampled.any() for pooled in found)
    weights = [pooled.weights() for pooled in found]
    # p, and the mean and the variance of all weights, of which the large ones decide
    ours = (
        [(pooled.y[0] - centre).sigmoid().mean(0) for pooled in found],
        *zip(*weights, strict=True),
    )
    theirs = ((y - centre).sigmoid().mean(1), *zip(*(t[1:] for t in thousands), strict=True))
    for got, sampled in zip(ours, theirs, strict=True):
        sampled = torch.stack(tuple(sampled))
        truth = sampled.mean(0)
        error = (torch.stack(tuple(got)) - truth).square().mean(0).sum().sqrt()
        assert error < (sampled - truth).square().mean(0).sum().sqrt()
    assert all(first.sum() == pytest.approx(1, abs=1e-3) for first, _ in weights)


def test_gradients_are_those_of_finite_differences():
    mean, variance, g = case(40, 0.7, lesion=True, columns=2)
    inputs = [v.clone().requires_grad_() for v in (mean, variance, g)]

    def pooled(mean, variance, g=None):
        return pool(mean, variance, [3, 37], g=g, points=16).y

    assert torch.autograd.gradcheck(pooled, inputs, atol=1e-6)
    assert torch.autograd.gradcheck(pooled, inputs[:2], atol=1e-6)


@pytest.mark.parametrize("columns", [0, 1])
def test_gradients_vary_less_than_those_of_1000_draws(columns):
    mean, variance, g = case(120, 1.0, lesion=True, columns=columns)

    def gradient(y_of, seed):
        own = mean.clone().requires_grad_()
        y_of(own, seed).sigmoid().mean().backward()
        return own.grad

    def closed(own, seed):
        return pool(own, variance, g=g, points=128, seed=seed).y

    def sampled(own, seed):
        noise = torch.randn(1000, len(mean), generator=streams(1, seed=seed)[0], dtype=F64)
        return by_sample(own, variance, g, noise)[0]

    ours, theirs = (torch.stack([gradient(of, s) for s in range(30)]) for of in (closed, sampled))
    assert ours.var(0).sum() < theirs.var(0).sum()
    error = theirs.std(0).norm() / 30**0.5
    assert (ours.mean(0) - theirs.mean(0)).norm() < 3 * error


@pytest.mark.parametrize("columns", [0, 2])
def test_a_bag_depends_on_itself_alone(columns):
    cases = [case(n, 0.8, lesion=True, columns=columns, seed=n) for n in (1, 32, 33, 300, 4)]
    wild = case(400, 3.0, lesion=False, columns=columns)
    mean, variance, g = (
        None if columns == 0 and k == 2 else torch.cat([c[k] for c in (*cases, wild)])
        for k in range(3)
    )
    sizes = [len(c[0]) for c in (*cases, wild)]
    together = pool(mean, variance, sizes, g=g)
    assert together.sampled.tolist() == [[False] * 5 + [True]]
    weights = [v.split(sizes) for v in together.weights()]
    for b, own in enumerate((*cases, wild)):
        alone = pool(own[0], own[1], g=own[2], generators=[streams(6)[b]])
        torch.testing.assert_close(together.y[b], alone.y[0], rtol=1e-10, atol=1e-10)
        for v, expected in zip(weights, alone.weights(), strict=True):
            torch.testing.assert_close(v[b], expected, rtol=1e-10, atol=1e-12)
    order = torch.randperm(300, generator=streams(1)[0])
    one = cases[3]
    turned = pool(one[0][order], one[1][order], g=None if columns == 0 else one[2][order])
    torch.testing.assert_close(turned.y, pool(one[0], one[1], g=one[2]).y)


def test_a_bag_whose_moments_fail_is_sampled_with_finite_gradients():
    mean, variance, g = case(400, 0.5, lesion=True, columns=1)
    variance = torch.full_like(variance, 54.0).float().requires_grad_()
    mean, g = mean.float().requires_grad_(), g.float()
    pooled = pool(mean, variance, g=g, points=2000)
    assert pooled.sampled.all()
    pooled.y.sum().backward()
    assert mean.grad.isfinite().all() and variance.grad.isfinite().all()
    with torch.no_grad():
        y = torch.cat([t[0] for t in draws(mean.double(), variance.double(), g.double(), count=20)])
    error = y.std().item() / 2000**0.5
    assert pooled.y.mean().item() == pytest.approx(y.mean().item(), abs=4 * error)


def test_there_may_be_more_values_than_spare_dimensions():
    mean, variance, g = case(128, 2.0, lesion=False, columns=40)
    pooled = pool(mean, variance, g=g)
    assert not pooled.sampled.any() and pooled._scores.shape[2] == 128
    y = torch.cat([t[0] for t in draws(mean, variance, g, count=10)])
    error = y.std(0).norm() / len(y) ** 0.5
    assert (pooled.y[0].mean(0) - y.mean(0)).norm() < 4 * error


def test_one_instance_with_everything_and_equal_weights():
    mean = torch.zeros(300, dtype=F64)
    mean[7] = 60.0
    g = torch.arange(300, dtype=F64)[:, None]
    pooled = pool(mean, torch.full_like(mean, 0.5), g=g)
    torch.testing.assert_close(pooled.y[0], torch.full((PREDICT_POINTS, 1), 7.0, dtype=F64))
    flat = pool(torch.zeros(300, dtype=F64), torch.zeros(300, dtype=F64), g=g)
    torch.testing.assert_close(flat.y[0], torch.full((PREDICT_POINTS, 1), 149.5, dtype=F64))
    torch.testing.assert_close(flat.weights()[0], torch.full((300,), 1 / 300, dtype=F64))


def test_the_mean_is_right_to_second_order():
    """With many light instances, the mean of a ratio is not the ratio of the means."""
    source = torch.Generator().manual_seed(1)
    mean = 0.3 * torch.randn(100, generator=source, dtype=F64)
    variance, g = torch.full_like(mean, 0.81), mean[:, None]
    g = g + torch.randn(100, 1, generator=source, dtype=F64)
    pooled = pool(mean, variance, g=g, points=4096)
    assert not pooled.sampled.any()
    # the standard error of the mean of all draws is 1.8e-4
    drawn = torch.stack([y.mean() for y, _, _ in draws(mean, variance, g, count=400)]).mean()
    assert pooled.y.mean().item() == pytest.approx(drawn.item(), abs=7e-4)
