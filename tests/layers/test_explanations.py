"""The closed form equals pooling again without the instance, and contributions sum to the logit."""

import pytest
import torch
from support.random_bags import F64

from probsa.core.randomness import random_stream
from probsa.layers.explanations import BagExplainer, explain_samples, joined
from probsa.layers.pooling import pool_streamed
from probsa.variational import Diagonal, Independent, likelihood_of, sampling
from probsa.variational.sampling import draw_noise, instance_major

SIZES = (1, 2, 9)


def by_removal(f, v, bias, likelihood):
    """Pool a bag, and the bag without each instance; f and v are (n, samples, classes)."""

    def probability(keep):
        a = f[keep].softmax(0)
        return likelihood.probability((a * v[keep]).sum(0) + bias).mean(0)

    n = len(f)
    whole = probability(torch.ones(n, dtype=torch.bool))
    return torch.stack([whole - probability(torch.arange(n) != k) for k in range(n)])


def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


@pytest.mark.parametrize("extreme", [1.0, 30.0, 900.0], ids="spread{}".format)
@pytest.mark.parametrize("own", [False, True], ids=["shared attention", "attention per class"])
@pytest.mark.parametrize("classes", [1, 2, 4])
@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-6)])
def test_leaving_one_out_is_pooling_without_it(
    monkeypatch, dtype, tolerance, samples, classes, own, extreme
):
    monkeypatch.setattr("probsa.layers.explanations.BLOCK", 27)  # several blocks
    n, bias = sum(SIZES), drawn(classes, seed=1)
    f = extreme * drawn(n, samples, *([classes] if own else []), seed=2)
    g, likelihood = 2 * drawn(n, classes, seed=3), likelihood_of(classes)
    f, g, bias = (v.to(dtype) for v in (f, g, bias))
    got = explain_samples(f, g, SIZES, bias=bias, likelihood=likelihood)
    full = f.double() if own else f.double()[:, :, None].expand(-1, -1, classes)
    start = 0
    for size in SIZES:
        rows = slice(start, start + size)
        v = g[rows, None].double().expand(-1, samples, -1)
        want = by_removal(full[rows], v, bias.double(), likelihood)
        torch.testing.assert_close(
            got.leave_one_out[rows].double(), want, atol=tolerance, rtol=0, check_dtype=False
        )
        parts = (full[rows].softmax(0) * v).mean(1)
        assert (got.contributions[rows].double() - parts).abs().max() < 10 * tolerance
        start += size


def test_every_likelihood_has_its_probability():
    likelihood = Independent()
    f, g, bias = drawn(5, 4, seed=1), drawn(5, 3, seed=2), drawn(3, seed=3)
    got = explain_samples(f, g, [5], bias=bias, likelihood=likelihood)
    want = by_removal(f[:, :, None].expand(-1, -1, 3), g[:, None], bias, likelihood)
    assert (got.leave_one_out - want).abs().max() < 1e-12


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_leaving_one_out_knows_the_shift_of_the_classes(classes):
    likelihood = likelihood_of(classes)
    likelihood.prior_shift = torch.tensor([2.0, 0.0, -1.0])[:classes]
    f, g, bias = drawn(5, 4, seed=1), drawn(5, classes, seed=2), drawn(classes, seed=3)
    got = explain_samples(f, g, [5], bias=bias, likelihood=likelihood)
    want = by_removal(f[:, :, None].expand(-1, -1, classes), g[:, None], bias, likelihood)
    assert (got.leave_one_out - want).abs().max() < 1e-12


@pytest.mark.parametrize("classes", [1, 3])
def test_values_may_differ_between_samples(classes):
    """Evidence pooling averages the samples of the field itself, one field per class."""
    f, v, bias = drawn(classes, 6, 8, seed=1), drawn(classes, 6, 8, seed=2), drawn(classes, seed=3)
    likelihood = likelihood_of(classes)
    explainer = BagExplainer(8, bias=bias, likelihood=likelihood)
    for rows in (slice(0, 4), slice(4, 6)):
        block = f[:, rows]
        explainer.add(block, block.softmax(-1), v[:, rows])
    got = explainer.result()
    want = by_removal(f.permute(2, 1, 0), v.permute(2, 1, 0), bias, likelihood)
    assert (got.leave_one_out - want).abs().max() < 1e-12
    want_parts = (f.softmax(-1) * v).mean(1).T
    assert (got.contributions - want_parts).abs().max() < 1e-12


def test_contributions_sum_to_the_mean_logit():
    f, g = drawn(sum(SIZES), 5, seed=1), drawn(sum(SIZES), 2, seed=2)
    got = explain_samples(f, g, SIZES, bias=drawn(2), likelihood=likelihood_of(2))
    parts = zip(f.split(SIZES), g.split(SIZES), strict=True)
    want = torch.stack([(f_b.softmax(0).T @ g_b).mean(0) for f_b, g_b in parts])
    sums = torch.stack([c.sum(0) for c in got.contributions.split(SIZES)])
    assert (sums - want).abs().max() < 1e-12


def test_watching_the_stream_changes_no_number_and_equals_drawing_all_samples(monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", 20)
    n, samples = sum(SIZES), 11
    q, g, bias = Diagonal(2 * drawn(n), drawn(n, seed=1).exp()), drawn(n, 1, seed=2), drawn(1)
    likelihood = likelihood_of(1)

    def streams():
        return [random_stream(7, str(b)) for b in range(len(SIZES))]

    bags = [BagExplainer(size, bias=bias, likelihood=likelihood) for size in SIZES]
    values = [part.T.contiguous() for part in g.split(SIZES)]
    plain = pool_streamed(q, g, SIZES, samples=samples, generators=streams())
    watched = pool_streamed(
        q, g, SIZES, samples=samples, generators=streams(),
        watch=lambda bag, f, a: bags[bag].add(f, a, values[bag]),
    )  # fmt: skip
    assert all(
        torch.equal(getattr(plain, k), getattr(watched, k))
        for k in ("logits", "weight_mean", "weight_variance")
    )
    got = joined([bag.result() for bag in bags])
    noise = instance_major(draw_noise(SIZES, samples, like=g, generators=streams()), SIZES)
    f = q.rsample(samples, noise=noise)
    want = explain_samples(f, g, SIZES, bias=bias, likelihood=likelihood)
    assert (got.leave_one_out - want.leave_one_out).abs().max() < 1e-12
    assert (got.contributions - plain.weight_mean[:, None] * g).abs().max() < 1e-12


def test_many_samples_in_float32_keep_small_effects():
    """One of 3,000 instances changes the probability by 1e-4: float32 sums must not drown it."""
    n, samples = 3000, 400
    f, g = drawn(n, samples, seed=1, dtype=torch.float32), drawn(n, 1, seed=2, dtype=torch.float32)
    bias, likelihood = torch.zeros(1), likelihood_of(1)
    got = explain_samples(f, g, [n], bias=bias, likelihood=likelihood).leave_one_out
    want = explain_samples(
        f.double(), g.double(), [n], bias=bias.double(), likelihood=likelihood
    ).leave_one_out
    assert (got - want).abs().max() < 0.002 * want.abs().max()
