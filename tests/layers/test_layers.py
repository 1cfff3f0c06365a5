"""Layers against dense formulas: attention within each bag, bounds of the variance, trunks."""

import pytest
import torch
from support.random_bags import F64, types_not_executed
from torch import nn

from probsa.errors import InputError
from probsa.layers.attention import AttentionPosterior, AttentionTrunk
from probsa.layers.embed import Embed
from probsa.layers.transformer import Transformer, bag_attention
from probsa.variational.posteriors import Diagonal, Dirac

SIZES = (1, 5, 9)
N = sum(SIZES)


def values(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def block_mask(sizes):
    """Return a mask that is True where two instances share a bag."""
    bag = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return bag[:, None] == bag[None, :]


def dense_attention(q, k, v, sizes):
    """Return softmax(QKᵀ/√d + mask) V over the whole batch, (n, heads, d)."""
    scores = torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~block_mask(sizes), -torch.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def seeded(build):
    torch.manual_seed(0)
    return build().double()


def test_bag_attention_is_dense_attention_with_a_block_mask():
    qkv = values(N, 3, 2, 4).requires_grad_()
    weights = values(N, 2, 4, seed=1)
    got = bag_attention(qkv, SIZES)
    want = dense_attention(*qkv.unbind(1), SIZES)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    grads = [torch.autograd.grad((o * weights).sum(), qkv)[0] for o in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-12)


def dense_transformer(model, h, sizes):
    """Compute the equations of appendix B over the whole batch with a mask."""
    y = h
    for block in model.blocks:
        q, k, v = block.qkv(block.norm1(y)).unflatten(1, (3, block.heads, -1)).unbind(1)
        z = block.skip(y) + block.out(dense_attention(q, k, v, sizes).flatten(1))
        first, second = block.mlp[0], block.mlp[-1]
        hidden = nn.functional.gelu(block.norm2(z) @ first.weight.T + first.bias)
        y = z + hidden @ second.weight.T + second.bias
        y = y + h if model.add_self else y
    return model.norm(model.back(y))


OPTIONS = [
    {},
    {"out_proj": False, "final_norm": False},
    {"add_self": True},
    {"width": 6},
    {"layers": 1, "heads": 1},
    {"layers": 3, "heads": 4},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_transformer_is_the_equations_with_a_mask(options):
    model = seeded(lambda: Transformer(8, **{"heads": 2, **options}))
    h = values(N, 8)
    torch.testing.assert_close(
        model(h, SIZES), dense_transformer(model, h, SIZES), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("options", OPTIONS)
def test_the_transformer_is_equivariant_and_keeps_bags_apart(options):
    model = seeded(lambda: Transformer(8, **{"heads": 2, **options}))
    h = values(N, 8)
    together = model(h, SIZES).split(list(SIZES))
    for part, own in zip(h.split(list(SIZES)), together, strict=True):
        torch.testing.assert_close(model(part, (len(part),)), own, rtol=1e-11, atol=1e-12)
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(3))
        turned = model(part[order], (len(part),))
        torch.testing.assert_close(turned, own[order], rtol=1e-11, atol=1e-12)


def test_dropout_acts_in_training_only():
    model = seeded(lambda: Transformer(8, heads=2, dropout=0.5))
    h = values(N, 8)
    assert (model(h, SIZES) - model(h, SIZES)).abs().max().item() > 1e-3
    model.eval()
    assert torch.equal(model(h, SIZES), model(h, SIZES))
    torch.testing.assert_close(
        model(h, SIZES), dense_transformer(model, h, SIZES), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["tanh", "gated", "mlp"])
def test_a_trunk_is_its_formula(kind):
    trunk = seeded(lambda: AttentionTrunk(6, 4, trunk=kind))
    h = values(N, 6)
    v = h @ trunk.first.weight.T + trunk.first.bias
    if kind == "tanh":
        want = torch.tanh(v)
    elif kind == "gated":
        want = torch.tanh(v) * torch.sigmoid(h @ trunk.gate.weight.T + trunk.gate.bias)
    else:
        gelu = nn.functional.gelu
        want = gelu(gelu(v) @ trunk.second.weight.T + trunk.second.bias)
    assert want.shape[1] == trunk.out_dim == (8 if kind == "mlp" else 4)
    torch.testing.assert_close(trunk(h), want, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("trunk", ["tanh", "gated", "mlp"])
@pytest.mark.parametrize("mean_bias", [None, True, False])
def test_the_mean_is_linear_in_the_trunk(trunk, mean_bias):
    layer = seeded(lambda: AttentionPosterior(6, 4, kind="dirac", trunk=trunk, mean_bias=mean_bias))
    has_bias = trunk == "mlp" if mean_bias is None else mean_bias
    assert (layer.mean.bias is not None) == has_bias
    h = values(N, 6)
    want = layer.trunk(h) @ layer.mean.weight[0] + (layer.mean.bias[0] if has_bias else 0)
    q = layer(h)
    assert type(q) is Dirac
    torch.testing.assert_close(q.mean, want, rtol=1e-13, atol=1e-14)


def diagonal_layer(**options):
    return seeded(lambda: AttentionPosterior(6, 4, kind="diag", **options))


@pytest.mark.parametrize("bounds", [(-10.0, 4.0), (-3.0, 1.0), None])
@pytest.mark.parametrize("initial", [-2.0, 0.5])
def test_the_first_variance_is_the_one_asked_for(bounds, initial):
    layer = diagonal_layer(log_variance_bounds=bounds, initial_log_variance=initial)
    q = layer(values(N, 6))
    assert type(q) is Diagonal
    want = torch.full((N,), initial, dtype=F64)
    # The bias is initialised in float32.
    torch.testing.assert_close(q.variance.log(), want, rtol=1e-6, atol=0)


def test_the_default_first_log_variance_is_minus_two_within_minus_ten_and_four():
    layer = diagonal_layer()
    assert layer.bounds == (-10.0, 4.0)
    log_variance = layer(values(N, 6)).variance.log()
    torch.testing.assert_close(log_variance, torch.full((N,), -2.0, dtype=F64), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("shift", "edge"), [(1e6, 4.0), (-1e6, -10.0)])
def test_log_variance_stays_in_its_bounds_however_far_it_is_pushed(shift, edge):
    layer = diagonal_layer()
    nn.init.constant_(layer.log_variance.bias, shift)
    log_variance = layer(values(N, 6)).variance.log()
    torch.testing.assert_close(log_variance, torch.full((N,), edge, dtype=F64), rtol=1e-9, atol=0)
    free = diagonal_layer(log_variance_bounds=None)
    nn.init.constant_(free.log_variance.bias, shift / 1e5)
    want = torch.full((N,), shift / 1e5, dtype=F64)
    torch.testing.assert_close(free(values(N, 6)).variance.log(), want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("ell", [-12.0, -9.0, -3.0, 0.0, 3.0, 6.0])
def test_the_bound_is_smooth_and_never_flat(ell):
    layer = diagonal_layer()
    nn.init.constant_(layer.log_variance.bias, ell)
    h = values(N, 6)
    log_variance = layer(h).variance.log()
    want = -3 + 7 * torch.tanh(torch.tensor((ell + 3) / 7, dtype=F64))
    torch.testing.assert_close(log_variance, want.expand(N), rtol=1e-7, atol=1e-9)
    log_variance.sum().backward()
    slope = 1 - torch.tanh(torch.tensor((ell + 3) / 7, dtype=F64)) ** 2
    grad = layer.log_variance.bias.grad
    torch.testing.assert_close(grad, N * slope[None], rtol=1e-7, atol=0)
    assert grad.item() > 0.1
    assert layer.log_variance.weight.grad.abs().min().item() > 0


def test_half_precision_ends_at_the_attention():
    layer = AttentionPosterior(6, 4, kind="diag")
    with torch.autocast("cpu", torch.bfloat16):
        q = layer(torch.randn(N, 6, generator=torch.Generator().manual_seed(0)))
    assert q.mean.dtype == torch.float32 and q.variance.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: AttentionPosterior(6, 4, kind="full"),
            "posterior is 'full'; expected 'dirac', 'diag' or 'field'",
        ),
        (lambda: Transformer(8, heads=3), "heads is 3: give a divisor of the .* width, 8"),
        (lambda: Transformer(8, heads=2, width=5), "heads is 2: give a divisor of the .* width, 5"),
        (lambda: Transformer(8, heads=0), "heads is 0"),
        (
            lambda: AttentionTrunk(6, 4, trunk="relu"),
            "trunk is 'relu'; expected 'tanh', 'gated' or 'mlp'",
        ),
        (
            lambda: diagonal_layer(initial_log_variance=5.0),
            "5.0 lies outside the bounds -10.0, 4.0",
        ),
    ],
)
def test_what_does_not_exist_is_refused(make, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("widths", [None, 4, (4, 3)])
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_first_layers_are_linear_maps_with_or_without_relu(widths, activation):
    embed = seeded(lambda: Embed(6, widths, activation=activation))
    h = x = values(N, 6)
    for linear in (m for m in embed.net if isinstance(m, nn.Linear)):
        h = h @ linear.weight.T + linear.bias
        h = h.clamp_min(0) if activation == "relu" else h
    torch.testing.assert_close(embed(x), h, rtol=1e-13, atol=1e-14)
    assert embed.out_dim == h.shape[1] == {None: 6, 4: 4, (4, 3): 3}[widths]


def test_dropout_of_the_first_layers_acts_in_training_only():
    embed = seeded(lambda: Embed(6, 400, dropout=0.5, activation="identity"))
    x = values(N, 6)
    dropped = (embed(x) == 0).double().mean().item()
    assert 0.45 < dropped < 0.55
    embed.eval()
    assert (embed(x) == 0).sum().item() == 0


def test_heads_compute_in_full_precision_under_autocast():
    """In bfloat16, maps of the variance would show steps that are not real."""
    torch.manual_seed(0)
    layer = AttentionPosterior(32, 16, kind="diag")
    torch.nn.init.normal_(layer.log_variance.weight, std=0.05)
    h = torch.randn(500, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = layer(h)
    assert q.variance.dtype == torch.float32
    assert len(q.variance.unique()) > 450  # in bfloat16 there would be about 50 levels
