"""Fused pooling equals pooling D-vectors with plain autograd, sample by sample."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.as_on_a_gpu import as_on_a_gpu
from support.random_bags import F64

from probsa.core.randomness import random_stream
from probsa.errors import InputError
from probsa.layers.pooling import pool_linear, pool_streamed, pool_vectors
from probsa.variational import sampling
from probsa.variational.posteriors import Diagonal, Dirac
from probsa.variational.sampling import draw_noise, sample_instances, sample_major

SIZES = (1, 6, 23)


def inputs(sizes, *, samples, classes, dim=7, dtype=F64, seed=0):
    """Return μ, σ², ε (n, samples), H (n, dim) and a classifier (classes, dim)."""
    g = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    shapes = [(n,), (n,), (n, samples), (n, dim), (classes, dim)]
    mean, variance, noise, h, u = (
        torch.randn(*s, generator=g, dtype=F64).to(dtype) for s in shapes
    )
    return 2 * mean, variance.exp(), noise, h, u


def by_vectors(mean, variance, noise, h, u, sizes):
    """Compute ψ(Hᵀ softmax(f_s)) one bag and one sample at a time."""
    rows, start = [], 0
    for size in sizes:
        bag = slice(start, start + size)
        f = mean[bag, None] + (0 if noise is None else variance[bag, None].sqrt() * noise[bag])
        z = [h[bag].T @ f[:, s].softmax(0) for s in range(f.shape[1])]
        rows.append(torch.stack([u @ z_s for z_s in z]))
        start += size
    return torch.stack(rows)


def fused(mean, variance, noise, h, u, sizes):
    if noise is None:
        return pool_linear(Dirac(mean), h @ u.T, sizes)
    return pool_linear(Diagonal(mean, variance), h @ u.T, sizes, eps=sample_major(noise, sizes))


def both_ways(tensors, sizes, *, dirac=False):
    """Return values and gradients of (μ, σ², H, u), fused and by vectors."""
    results = []
    for way in (fused, by_vectors):
        mean, variance, noise, h, u = (t.clone() for t in tensors)
        leaves = [t.requires_grad_() for t in ((mean, h, u) if dirac else (mean, variance, h, u))]
        logits = way(mean, variance, None if dirac else noise, h, u, sizes)
        weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
        results.append((logits, torch.autograd.grad((logits * weights).sum(), leaves)))
    return results


def worst(got, want):
    """Return the error relative to the largest entry, as entries are sums with both signs."""
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("samples", [1, 16, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-6)])
def test_samples_commute_with_a_linear_classifier(classes, samples, dtype, tolerance):
    tensors = inputs(SIZES, samples=samples, classes=classes, dtype=dtype)
    (got, got_grads), (want, want_grads) = both_ways(tensors, SIZES)
    assert got.shape == (3, samples, classes)
    assert worst(got, want) < tolerance
    for a, b in zip(got_grads, want_grads, strict=True):
        assert worst(a, b) < 3 * tolerance


@pytest.mark.parametrize("classes", [1, 3])
def test_a_dirac_is_one_sample(classes):
    tensors = inputs(SIZES, samples=4, classes=classes)
    (got, got_grads), (want, want_grads) = both_ways(tensors, SIZES, dirac=True)
    assert got.shape == (3, 1, classes)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    for a, b in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    samples=st.integers(1, 9),
    classes=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_for_bags_of_any_size(sizes, samples, classes, seed):
    tensors = inputs(sizes, samples=samples, classes=classes, seed=seed)
    (got, got_grads), (want, want_grads) = both_ways(tensors, sizes)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    for a, b in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_gradients_agree_with_finite_differences():
    sizes = (1, 5, 3)
    mean, variance, noise, h, u = inputs(sizes, samples=3, classes=2)
    leaves = [t.requires_grad_() for t in (mean, variance.sqrt(), h @ u.T)]
    eps = sample_major(noise, sizes)

    def pooled(m, sd, g):
        return pool_linear(Diagonal(m, sd.square()), g, sizes, eps=eps)

    assert torch.autograd.gradcheck(pooled, leaves)
    dirac = (leaves[0], leaves[2])
    assert torch.autograd.gradcheck(lambda m, g: pool_linear(Dirac(m), g, sizes), dirac)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_scores_of_ten_thousand_are_pooled_and_differentiated_as_small_ones(size):
    mean, variance, noise, h, u = inputs(SIZES, samples=4, classes=1, dtype=torch.float32)
    # Adding 10⁴ to eighths is exact, so any difference comes from the pooling.
    mean, noise = (mean * 8).round() / 8, (noise * 8).round() / 8
    variance = torch.ones_like(variance)
    small = both_ways((mean, variance, noise, h, u), SIZES)[0]
    large = both_ways((mean + size, variance, noise, h, u), SIZES)[0]
    torch.testing.assert_close(large[0], small[0], rtol=1e-6, atol=1e-6)
    for a, b in zip(large[1], small[1], strict=True):
        assert worst(a, b) < 2e-6


def test_scores_far_apart_leave_one_instance():
    mean = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    g = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    logits = pool_linear(Dirac(mean), g, (3,))
    logits.sum().backward()
    assert logits.item() == 1
    assert g.grad.flatten().tolist() == [1, 0, 0]
    assert mean.grad.tolist() == [0, 0, 0]


def test_noise_given_is_the_noise_used():
    mean, variance, noise, _, _ = inputs(SIZES, samples=5, classes=1)
    f = sample_instances(Diagonal(mean, variance), sample_major(noise, SIZES), SIZES)
    torch.testing.assert_close(f, mean[:, None] + variance.sqrt()[:, None] * noise, rtol=0, atol=0)


def test_a_stochastic_posterior_is_not_pooled_without_noise():
    mean, variance, _, h, u = inputs(SIZES, samples=1, classes=2)
    with pytest.raises(InputError, match="needs noise"):
        pool_linear(Diagonal(mean, variance), h @ u.T, SIZES)


def test_vectors_are_pooled_as_by_the_loop():
    mean, variance, noise, h, u = inputs(SIZES, samples=5, classes=3)
    f = mean[:, None] + variance.sqrt()[:, None] * noise
    z = pool_vectors(f, h, SIZES)
    want = by_vectors(mean, variance, noise, h, u, SIZES)
    torch.testing.assert_close(z @ u.T, want, rtol=1e-12, atol=1e-13)


def generators():
    return [random_stream(0, f"bag{b}") for b in range(len(SIZES))]


@pytest.mark.parametrize("block", [sampling.BLOCK, 50])
@pytest.mark.parametrize("classes", [1, 3])
def test_streaming_draws_what_drawing_draws(monkeypatch, block, classes):
    monkeypatch.setattr(sampling, "BLOCK", block)
    mean, variance, _, h, u = inputs(SIZES, samples=1, classes=classes)
    q, g, samples = Diagonal(mean, variance), h @ u.T, 37
    pooled = pool_streamed(q, g, SIZES, samples=samples, generators=generators())
    eps = draw_noise(SIZES, samples, like=mean, generators=generators())
    want = pool_linear(q, g, SIZES, eps=eps)
    torch.testing.assert_close(pooled.logits, want, rtol=1e-12, atol=1e-13)

    f = sample_instances(q, eps, SIZES)
    a = torch.cat([part.softmax(0) for part in f.split(list(SIZES))])
    torch.testing.assert_close(pooled.weight_mean, a.mean(1), rtol=1e-12, atol=1e-15)
    variance_of_weight = a.var(1, correction=0)
    torch.testing.assert_close(pooled.weight_variance, variance_of_weight, rtol=1e-9, atol=1e-16)
    assert pooled.weight_mean[0] == 1 and pooled.weight_variance[0] == 0


def test_small_variances_survive_single_precision():
    n = 20_000
    mean = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=F64)
    q64 = Diagonal(mean, torch.full_like(mean, 1e-4))
    q32 = Diagonal(mean.float(), torch.full((n,), 1e-4))
    g = torch.ones(n, 1, dtype=F64)
    noise = torch.randn(n, 200, generator=torch.Generator().manual_seed(1), dtype=F64)
    a = (mean[:, None] + 0.01 * noise).softmax(0)
    want = a.var(1, correction=0)

    got = pool_streamed(q32, g.float(), (n,), samples=200, generators=[random_stream(0, "a")])
    ours = pool_streamed(q64, g, (n,), samples=200, generators=[random_stream(0, "a")])
    # weights near 10⁻⁵ with variances near 10⁻¹⁴: E[a²] − E[a]² in float32 would be noise
    assert float((got.weight_variance.mean() / want.mean()).log().abs()) < 0.05
    assert float((ours.weight_variance.mean() / want.mean()).log().abs()) < 0.05
    torch.testing.assert_close(got.weight_mean.double(), a.mean(1), rtol=0.01, atol=0)


def test_the_noise_of_a_bag_is_its_own():
    like = torch.zeros(1)
    together = draw_noise(SIZES, 3, like=like, generators=generators())
    start = 0
    for size, generator in zip(SIZES, generators(), strict=True):
        alone = draw_noise((size,), 3, like=like, generators=[generator])
        assert torch.equal(together[start : start + 3 * size], alone)
        start += 3 * size
    assert abs(float(together.mean())) < 0.5 and 0.5 < float(together.std()) < 1.5


def test_the_noise_does_not_know_how_many_threads_draw_it(monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", 50)
    like = torch.zeros(1)
    one = draw_noise(SIZES, 100, like=like, generators=generators())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(draw_noise(SIZES, 100, like=like, generators=generators()), one)


@pytest.mark.parametrize("ahead", [1, 2, 1000])
def test_streaming_does_not_know_how_far_ahead_it_draws(monkeypatch, ahead):
    monkeypatch.setattr(sampling, "BLOCK", 50)
    mean, variance, _, h, u = inputs(SIZES, samples=1, classes=2)
    q, g = Diagonal(mean, variance), h @ u.T
    usual = pool_streamed(q, g, SIZES, samples=37, generators=generators())
    monkeypatch.setattr(sampling, "AHEAD", ahead)
    other = pool_streamed(q, g, SIZES, samples=37, generators=generators())
    assert torch.equal(other.logits, usual.logits)
    assert torch.equal(other.weight_variance, usual.weight_variance)


@pytest.mark.parametrize("kind", ["linear", "streamed", "vectors"])
def test_autocast_does_not_reach_the_normaliser(kind):
    mean, variance, noise, h, u = inputs((300,), samples=4, classes=1, dtype=torch.float32)
    q, g = Diagonal(mean, variance), h @ u.T

    def pooled():
        if kind == "linear":
            return pool_linear(q, g, (300,), eps=sample_major(noise, (300,)))
        if kind == "streamed":
            one = [random_stream(0, "a")]
            return pool_streamed(q, g, (300,), samples=4, generators=one).logits
        return pool_vectors(mean[:, None] + variance.sqrt()[:, None] * noise, h, (300,))

    with torch.autocast("cpu", torch.bfloat16):
        half = pooled()
    assert torch.equal(half, pooled())


def test_one_instance_beside_fifty_thousand():
    sizes = (1, 50_000)
    tensors = inputs(sizes, samples=3, classes=1, dim=2)
    (got, got_grads), (want, want_grads) = both_ways(tensors, sizes)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    for a, b in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("classes", [1, 3])
def test_the_code_for_gpus_pools_within_bags_too(classes):
    mean, variance, noise, h, u = inputs(SIZES, samples=5, classes=classes)
    want = by_vectors(mean, variance, noise, h, u, SIZES)
    q = Diagonal(as_on_a_gpu(mean), as_on_a_gpu(variance))
    got = pool_linear(q, as_on_a_gpu(h @ u.T), SIZES, eps=sample_major(noise, SIZES))
    torch.testing.assert_close(got.as_subclass(torch.Tensor), want, rtol=1e-12, atol=1e-14)
