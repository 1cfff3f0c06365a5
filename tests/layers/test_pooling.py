"""Fused pooling equals pooling D-vectors with plain autograd, sample by sample."""

import pytest
import torch
from support.as_on_a_gpu import as_on_a_gpu
from support.random_bags import F64

from probsa.layers import (
    SoftMaximum,
    WeightSums,
    cached_blocks,
    pool,
    pool_vectors,
    sampled_weights,
    weigh,
)

SIZES = (1, 6, 23)


def inputs(sizes, *, samples, classes, own=False, dim=7, dtype=F64, seed=0):
    """Return samples f (*classes, samples, n), H (n, dim) and a classifier (classes, dim)."""
    g = torch.Generator().manual_seed(seed)
    n = sum(sizes)

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=F64).to(dtype)

    f = random(classes, samples, n) if own else random(samples, n)
    h = random(n, dim)
    u = random(classes, dim)
    return 2 * f, h, u


def by_vectors(f, h, u, sizes):
    """Compute uᵀ Hᵀ softmax(f_s) one bag, sample and class at a time."""
    f = f.expand(len(u), *f.shape[-2:])
    logits = []
    for f_b, h_b in zip(f.split(list(sizes), -1), h.split(list(sizes)), strict=True):
        weights = f_b.softmax(-1)
        for s in range(weights.shape[1]):
            for c in range(len(u)):
                z = h_b.T @ weights[c, s]
                logits.append(u[c] @ z)
    return torch.stack(logits).view(len(sizes), f.shape[1], len(u))


def fused(f, h, u, sizes):
    return pool(f, u @ h.T, sizes)


def both_ways(tensors, sizes):
    """Return values and gradients of (f, H, u), fused and by vectors."""
    results = []
    for way in (fused, by_vectors):
        leaves = [t.clone().requires_grad_() for t in tensors]
        logits = way(*leaves, sizes)
        weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
        results.append((logits, torch.autograd.grad((logits * weights).sum(), leaves)))
    return results


def worst(actual, want):
    """Return the error relative to the largest entry, as entries are sums with both signs."""
    return ((actual - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("own", [False, True], ids=["shared attention", "attention per class"])
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("samples", [1, 16, 200])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-6)])
def test_samples_commute_with_a_linear_classifier(own, classes, samples, dtype, tolerance):
    tensors = inputs(SIZES, samples=samples, classes=classes, own=own, dtype=dtype)
    (actual, got_grads), (want, want_grads) = both_ways(tensors, SIZES)
    assert actual.shape == (3, samples, classes)
    assert worst(actual, want) < tolerance
    for a, b in zip(got_grads, want_grads, strict=True):
        assert worst(a, b) < 3 * tolerance
    f, h, u = tensors
    on_a_gpu = pool(as_on_a_gpu(f), as_on_a_gpu(u @ h.T), SIZES)
    assert worst(on_a_gpu.as_subclass(torch.Tensor), want) < tolerance
    if not own:
        assert worst(pool_vectors(f.T, h, SIZES) @ u.T, want) < tolerance


@pytest.mark.parametrize("own", [False, True], ids=["shared attention", "attention per class"])
@pytest.mark.parametrize("per_sample", [False, True], ids=["fixed values", "values per sample"])
def test_the_code_for_gpus_has_the_same_gradients(own, per_sample):
    g = torch.Generator().manual_seed(1)
    n = sum(SIZES)
    scores = torch.randn((3, 5, n) if own or per_sample else (5, n), generator=g, dtype=F64)
    values = torch.randn((3, 5, n) if per_sample else (3, n), generator=g, dtype=F64)
    weights = torch.randn(len(SIZES), 5, 3, generator=g, dtype=F64)
    results = []
    for moved in (lambda v: v, as_on_a_gpu):
        leaves = [v.clone().requires_grad_() for v in (scores, values)]
        pooled = pool(*map(moved, leaves), SIZES)
        grads = torch.autograd.grad((pooled * weights).sum(), leaves)
        results.append([pooled.as_subclass(torch.Tensor), *grads])
    for actual, want in zip(*results, strict=True):
        torch.testing.assert_close(actual, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_ten_thousand_are_pooled_and_differentiated_as_small_ones(size):
    f, h, u = inputs(SIZES, samples=4, classes=1, dtype=torch.float32)
    f = (f * 8).round() / 8  # adding 10⁴ to eighths is exact, so a difference is of the pooling
    small, large = (both_ways((scores, h, u), SIZES)[0] for scores in (f, f + size))
    torch.testing.assert_close(large[0], small[0], rtol=1e-6, atol=1e-6)
    for a, b in zip(large[1], small[1], strict=True):
        assert worst(a, b) < 2e-6


def test_scores_far_apart_leave_one_instance():
    f = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    g = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    logits = pool(f, g, (3,))
    logits.sum().backward()
    assert logits.item() == 1
    assert g.grad.tolist() == [[1, 0, 0]] and f.grad.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("classes", [1, 2])
def test_the_soft_maximum_and_its_gradients_are_those_of_its_equation(classes):
    pooling = SoftMaximum(classes).double()
    with torch.no_grad():
        for p in pooling.parameters():
            p.normal_(generator=torch.Generator().manual_seed(0))
    f = inputs(SIZES, samples=3, classes=classes, own=classes > 1)[0].requires_grad_()
    leaves = [f, *pooling.parameters()]
    readout = pooling(f)
    actual = pool(*readout(f), SIZES) + readout.bias
    alpha = pooling.log_alpha.exp()[:, None, None]
    beta = pooling.log_beta.exp()[:, None, None]
    parts = []
    for f_bag in f.expand(classes, *f.shape[-2:]).split(list(SIZES), -1):
        parts.append((alpha * (beta * f_bag).softmax(-1) * f_bag).sum(-1).T)
    want = torch.stack(parts) + pooling.bias
    torch.testing.assert_close(actual, want)
    weights = torch.randn(want.shape, dtype=F64, generator=torch.Generator().manual_seed(2))
    for a, b in zip(
        torch.autograd.grad((weights * actual).sum(), leaves),
        torch.autograd.grad((weights * want).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("own", [False, True])
def test_blocks_are_the_samples_and_moments_those_of_all_weights(monkeypatch, own):
    monkeypatch.setattr("probsa.variational.posteriors.BLOCK", 70)
    f, h, u = inputs((23,), samples=8, classes=2, own=own)
    blocks = list(cached_blocks(f, u @ h.T))
    assert [b[0].shape[-2] for b in blocks] == [3, 3, 2]
    logits = torch.cat([weigh(scores.softmax(-1), values) for scores, values in blocks])
    torch.testing.assert_close(logits, pool(f, u @ h.T, (23,))[0])
    sums = WeightSums(blocks[0][0].softmax(-1))
    for scores, _ in blocks:
        sums.add(scores.softmax(-1))
    want = sampled_weights(f.movedim(-1, 0).movedim(-1, 1), (23,))
    for actual, expected in zip(sums.result(), want, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-16)


@pytest.mark.parametrize("own", [False, True])
def test_the_share_above_the_uniform_weight_is_counted_sample_by_sample(own):
    f, _, _ = inputs(SIZES, samples=50, classes=2, own=own)
    f = f.movedim(-1, 0).movedim(-1, 1)  # (n, samples, *classes)
    want = [(part.softmax(0) > 1 / len(part)).double().mean(1) for part in f.split(list(SIZES))]
    share = sampled_weights(f, SIZES).above_uniform
    assert torch.equal(share, torch.cat(want))
    assert 0.1 < float(share.mean()) < 0.9


def test_small_variances_survive_single_precision():
    n = 20_000
    g = torch.Generator().manual_seed(0)
    mean = torch.randn(n, generator=g, dtype=F64)
    noise = torch.randn(200, n, generator=g, dtype=F64)
    a = (mean + 0.01 * noise).softmax(-1)
    sums = WeightSums(a.float())
    sums.add(a.float())
    moments = sums.result()
    # weights near 10⁻⁵ with variances near 10⁻¹⁴: E[a²] − E[a]² in float32 would be noise
    ratio = moments.variance.mean() / a.var(0, correction=0).mean()
    assert float(ratio.log().abs()) < 0.01
    torch.testing.assert_close(moments.mean.double(), a.mean(0), rtol=1e-5, atol=0)


def test_autocast_does_not_reach_the_normaliser():
    f, h, u = inputs((300,), samples=4, classes=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        half = pool(f, (u.double() @ h.double().T).float(), (300,)), pool_vectors(f.T, h, (300,))
    whole = pool(f, (u.double() @ h.double().T).float(), (300,)), pool_vectors(f.T, h, (300,))
    assert all(torch.equal(a, b) for a, b in zip(half, whole, strict=True))
