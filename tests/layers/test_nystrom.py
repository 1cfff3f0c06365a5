"""Nyström attention against its formulas with dense matrices, and its invariances."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.random_bags import F64, types_not_executed
from torch import Tensor

from probsa.errors import InputError
from probsa.layers.nystrom import (
    NystromAttention,
    attention_row,
    pseudo_inverse,
    update,
)

SIZES = (1, 3, 4, 5, 9, 17, 18, 19, 20, 33)
WIDTH, HEADS, LANDMARKS = 12, 3, 4


def attention(**more) -> NystromAttention:
    torch.manual_seed(0)
    return NystromAttention(WIDTH, **{"heads": HEADS, "landmarks": LANDMARKS, **more}).double()


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


def dense(layer: NystromAttention, x: Tensor, *, masked: bool) -> tuple[Tensor, Tensor]:
    """Return the result and F Z B of each head for one bag, with m windows and padding in front.

    If masked, padding rows, and windows of only such rows, get the most negative logit.
    """
    n, m = len(x), layer.landmarks
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
    if masked:  # the inverse leaves out windows without tokens
        valid = count > 0
        z = torch.zeros_like(a)
        z[:, valid[:, None] & valid] = inverse_by_the_formula(
            a[:, valid][:, :, valid], layer.iterations
        ).flatten(1)
    else:
        z = inverse_by_the_formula(a, layer.iterations)
    s = f @ z @ b
    o = s @ v
    kernel = layer.convolution.weight[:, 0, :, 0]
    around = F.pad(v, (0, 0, 16, 16))
    o = o + sum(kernel[:, i, None, None] * around[:, i : i + n + p] for i in range(33))
    o = o[:, p:].transpose(0, 1).flatten(1)
    return o @ layer.out.weight.T + layer.out.bias, s


@pytest.mark.parametrize("masked", [True, False])
def test_a_batch_is_the_formulas_bag_by_bag(masked):
    layer = attention(mask_padding=masked)
    x = tokens(sum(SIZES))
    groups = layer.look(x, SIZES)
    rows = {}
    for group in groups:
        rows |= zip(group.members, attention_row(group, 0), strict=True)
    got = layer(x, SIZES).split(SIZES)
    for b, own in enumerate(x.split(SIZES)):
        want, s = dense(layer, own, masked=masked)
        same(got[b], want)
        same(rows[b], s[:, -len(own), -len(own) :].T)
    if masked:
        assert len(groups) < len(SIZES)  # several bags are processed together


def test_nothing_is_padded_where_the_landmarks_divide_the_tokens():
    x = tokens(12)
    same(*(attention(mask_padding=masked)(x, (12,)) for masked in (True, False)))


@pytest.mark.parametrize(
    ("iterations", "low", "high"), [(6, 0.01, 0.03), (10, 1e-3, 2e-3), (20, 0.0, 1e-6)]
)
def test_with_every_token_a_landmark_it_becomes_softmax_attention(iterations, low, high):
    torch.manual_seed(0)
    options = {"landmarks": 32, "convolution": False, "out_proj": False}
    layer = NystromAttention(128, heads=8, iterations=iterations, **options).double()
    x = torch.randn(32, 128, dtype=F64)
    q, k, v = layer.qkv(x).view(32, 3, 8, 16).permute(1, 2, 0, 3)
    want = ((q @ k.mT / 4).softmax(-1) @ v).transpose(0, 1).flatten(1)
    error = ((layer(x, (32,)) - want).norm() / want.norm()).item()
    assert low <= error <= high


def test_fewer_tokens_than_landmarks_are_their_own():
    x = tokens(7)
    same(attention(landmarks=7)(x, (7,)), attention(landmarks=200)(x, (7,)))


def test_a_query_reaches_its_own_row_alone():
    (group,) = attention(mask_padding=False).look(tokens(9), (9,))
    q = group.q.clone()
    q[:, :, -9 + 5] += 1
    moved = (update(replace(group, q=q)) - update(group)).abs().amax((0, 1, 3))
    assert moved.nonzero().flatten().tolist() == [12 - 9 + 5]


def test_the_inverse_is_one_and_of_each_bag_alone():
    g = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, 5, 5, generator=g, dtype=F64).mul(3).softmax(-1)
    z = pseudo_inverse(a, iterations=25)
    same(a @ z, torch.eye(5, dtype=F64).expand_as(a))
    alone = torch.cat([pseudo_inverse(part[None], iterations=6) for part in a])
    same(pseudo_inverse(a, iterations=6), alone)
    wide = pseudo_inverse(F.pad(a, (2, 0, 2, 0)), iterations=6)
    same(wide[:, :, 2:, 2:], alone)
    assert not wide[:, :, :2].any() and not wide[:, :, :, :2].any()


def test_autocast_leaves_everything_between_the_linear_maps_in_single_precision():
    torch.manual_seed(0)
    layer = NystromAttention(32, heads=4, landmarks=8)
    x = torch.randn(50, 32)
    with torch.autocast("cpu", torch.bfloat16):
        (group,) = layer.look(x, (50,))
        rough, (row,) = layer(x, (50,)), attention_row(group, 0)
    assert {group.q.dtype, group.inverse.dtype, update(group).dtype} == {torch.float32}
    assert torch.equal(row, attention_row(group, 0)[0])
    assert (rough - layer(x, (50,))).abs().max() < 0.02


def test_fifty_thousand_tokens_beside_one():
    torch.manual_seed(0)
    layer = NystromAttention(16, heads=2, landmarks=64)
    x = torch.randn(50_001, 16, requires_grad=True)
    out = layer(x, (1, 50_000))
    out.square().mean().backward()
    assert bool(x.grad.isfinite().all())
    torch.testing.assert_close(out[:1], layer(x[:1], (1,)), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        rows = attention_row(layer.look(x[1:], (50_000,))[0], 0)
    assert rows[0].shape == (50_000, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads is 5: give a divisor of the attention's width, 12"),
        ({"heads": 0}, "heads is 0"),
        ({"landmarks": 0}, "landmarks is 0; expected at least 1"),
        ({"iterations": 0}, "iterations is 0; expected at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; expected at least 0 and less than 1"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        attention(**options)
