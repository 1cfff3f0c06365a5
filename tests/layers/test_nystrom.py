"""Nyström attention against its formulas with dense matrices, and its invariances."""

import pytest
import torch
import torch.nn.functional as F
from support.random_bags import F64
from torch import Tensor

from probsa.layers import NystromLayer, NystromOptions
from probsa.layers.nystrom import pseudo_inverse

SIZES = (1, 3, 4, 5, 9, 17, 18, 19, 20, 33)
WIDTH = 12
HEADS = 3
LANDMARKS = 4


def layer_of(width: int = WIDTH, **more) -> NystromLayer:
    torch.manual_seed(0)
    options = NystromOptions(**{"heads": HEADS, "landmarks": LANDMARKS, **more})
    return NystromLayer(width, options).double()


def tokens(n: int, *, seed: int = 0) -> Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=F64)


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def inverse_by_the_formula(a: Tensor, steps: int) -> Tensor:
    z = a.mT / (a.abs().sum(-1).max() * a.abs().sum(-2).max())
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(steps):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z


def dense(layer: NystromLayer, x: Tensor, *, masked: bool) -> tuple[Tensor, Tensor]:
    """Return the result and F Z B of each head for one bag, with m windows and padding in front.

    If masked, padding rows, and windows of only such rows, get the most negative logit.
    """
    n = len(x)
    m = layer.options.landmarks
    x = layer.norm(x)
    q, k, v = (x @ layer.qkv.weight.T).view(n, 3, HEADS, -1).permute(1, 2, 0, 3)
    p = -n % m
    q, k, v = (F.pad(t, (0, 0, p, 0)) for t in (q * q.shape[2] ** -0.5, k, v))
    real = torch.ones(n + p, dtype=x.dtype)
    if masked:
        real[:p] = 0
    count = real.view(m, -1).sum(1)
    means = [t.unflatten(1, (m, -1)).sum(2) / count.clamp_min(1)[:, None] for t in (q, k)]
    low = torch.finfo(x.dtype).min

    def softmax(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        out = (rows[:, None] == 0) | (columns[None] == 0)
        return (a @ b.mT).masked_fill(out, low).softmax(-1)

    f = softmax(q, means[1], real, count)
    a = softmax(*means, count, count)
    b = softmax(means[0], k, count, real)
    valid = count > 0  # the inverse leaves out windows without tokens
    z = torch.zeros_like(a)
    used = a[:, valid][:, :, valid]
    inverse = inverse_by_the_formula(used, layer.options.pinv_iterations)
    z[:, valid[:, None] & valid] = inverse.flatten(1)
    s = f @ z @ b
    o = s @ v
    kernel = layer.convolution.weight[:, 0, :, 0]
    around = F.pad(v, (0, 0, 16, 16))
    o = o + sum(kernel[:, i, None, None] * around[:, i : i + n + p] for i in range(33))
    o = o[:, p:].transpose(0, 1).flatten(1)
    return o @ layer.out.weight.T + layer.out.bias, s


@pytest.mark.parametrize("masked", [True, False])
def test_a_batch_is_the_formulas_bag_by_bag(masked):
    layer = layer_of(mask_padding=masked)
    x = tokens(sum(SIZES))
    actual = (layer(x, SIZES) - x).split(SIZES)
    for b, (own, bag) in enumerate(zip(x.split(SIZES), layer.look(x, SIZES), strict=True)):
        n = len(own)
        want, s = dense(layer, own, masked=masked)
        same(actual[b], want)
        same(bag.row(-n)[-n:], s[:, -n, -n:].T)


def test_tokens_that_need_no_padding_and_fewer_tokens_than_landmarks():
    x = tokens(12)
    same(*(layer_of(mask_padding=masked)(x, (12,)) for masked in (True, False)))
    same(layer_of(landmarks=12)(x, (12,)), layer_of(landmarks=200)(x, (12,)))


@pytest.mark.parametrize(
    ("iterations", "low", "high"), [(6, 0.01, 0.03), (10, 1e-3, 2e-3), (20, 0.0, 1e-6)]
)
def test_with_every_token_a_landmark_it_becomes_softmax_attention(iterations, low, high):
    torch.manual_seed(0)
    options = {"landmarks": 32, "convolution": False, "out_proj": False}
    layer = layer_of(128, heads=8, pinv_iterations=iterations, **options)
    x = torch.randn(32, 128, dtype=F64)
    layer.norm = torch.nn.Identity()
    q, k, v = layer.qkv(x).view(32, 3, 8, 16).permute(1, 2, 0, 3)
    want = ((q @ k.mT / 4).softmax(-1) @ v).transpose(0, 1).flatten(1)
    error = ((layer(x, (32,)) - x - want).norm() / want.norm()).item()
    assert low <= error <= high


def test_the_inverse_is_one():
    g = torch.Generator().manual_seed(0)
    a = torch.randn(3, 5, 5, generator=g, dtype=F64).mul(3).softmax(-1)
    same(a @ pseudo_inverse(a, iterations=25), torch.eye(5, dtype=F64).expand_as(a))


def test_autocast_leaves_everything_between_the_linear_maps_in_single_precision():
    layer = layer_of(32, heads=4, landmarks=8).float()
    x = torch.randn(50, 32)
    with torch.autocast("cpu", torch.bfloat16):
        (bag,) = layer.look(x, (50,))
        rough = layer(x, (50,))
        row = bag.row(0)
    assert {bag.q.dtype, bag.inverse.dtype, bag.result().dtype} == {torch.float32}
    assert torch.equal(row, bag.row(0))
    assert (rough - layer(x, (50,))).abs().max() < 0.02


def test_fifty_thousand_tokens_beside_one():
    layer = layer_of(16, heads=2, landmarks=64).float()
    x = torch.randn(50_001, 16, requires_grad=True)
    out = layer(x, (1, 50_000))
    out.square().mean().backward()
    assert bool(x.grad.isfinite().all())
    torch.testing.assert_close(out[:1], layer(x[:1], (1,)), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert layer.look(x[1:], (50_000,))[0].row(0).shape == (50_000, 2)
