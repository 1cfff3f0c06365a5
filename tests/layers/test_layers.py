"""Layers against dense formulas: attention within each bag, bounds of the variance, trunks."""

import pytest
import torch
from support.random_bags import F64, types_not_executed
from torch import nn

from probsa.errors import InputError
from probsa.layers import AttentionPosterior, Embed, Transformer
from probsa.layers.attention import AttentionTrunk
from probsa.layers.transformer import bag_attention
from probsa.variational import Diagonal, Dirac, PosteriorOptions

SIZES = (1, 5, 9)
N = sum(SIZES)


def values(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def dense_attention(q, k, v, sizes):
    """Return softmax(QKᵀ/√d + mask) V over the whole batch, (n, heads, d)."""
    bag = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    scores = torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(bag[:, None] != bag, -torch.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def seeded(layer, *arguments, **options):
    torch.manual_seed(0)
    return layer(*arguments, **options).double()


def test_bag_attention_is_dense_attention_with_a_block_mask():
    qkv = values(N, 3, 2, 4).requires_grad_()
    weights = values(N, 2, 4, seed=1)
    results = bag_attention(qkv, SIZES), dense_attention(*qkv.unbind(1), SIZES)
    close(*results)
    close(*(torch.autograd.grad((o * weights).sum(), qkv)[0] for o in results))


def dense_transformer(model, h, sizes):
    """Compute the equations of appendix B over the whole batch with a mask."""
    y = h
    for block in model.blocks:
        q, k, v = block.qkv(block.norm1(y)).unflatten(1, (3, block.heads, -1)).unbind(1)
        z = block.skip(y) + block.out(dense_attention(q, k, v, sizes).flatten(1))
        y = z
        if block.use_mlp:
            first, second = block.mlp[0], block.mlp[-1]
            hidden = nn.functional.gelu(block.norm2(z) @ first.weight.T + first.bias)
            y = z + hidden @ second.weight.T + second.bias
        y = y + h if model.add_self else y
    return model.norm(model.back(y))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"out_proj": False, "final_norm": False},
        {"add_self": True, "dropout": 0.5},
        {"use_mlp": False},
        {"width": 6},
        {"layers": 3, "heads": 4},
    ],
)
def test_the_transformer_is_the_equations_with_a_mask_whatever_the_order(options):
    model = seeded(Transformer, 8, **{"heads": 2, **options})
    h = values(N, 8)
    assert torch.equal(model(h, SIZES), model(h, SIZES)) == ("dropout" not in options)
    together = model.eval()(h, SIZES)
    close(together, dense_transformer(model, h, SIZES))
    for part, result in zip(h.split(list(SIZES)), together.split(list(SIZES)), strict=True):
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(3))
        close(model(part[order], (len(part),)), result[order])


@pytest.mark.parametrize("trunk", ["tanh", "gated", "mlp"])
@pytest.mark.parametrize("mean_bias", [None, True, False])
def test_the_mean_is_linear_in_the_trunk_which_is_its_formula(trunk, mean_bias):
    layer = seeded(AttentionPosterior, 6, 4, kind="dirac", trunk=trunk, mean_bias=mean_bias)
    network = layer.trunk
    h = values(N, 6)
    v = h @ network.first.weight.T + network.first.bias
    if trunk == "mlp":
        gelu = nn.functional.gelu
        t = gelu(gelu(v) @ network.second.weight.T + network.second.bias)
    elif trunk == "gated":
        gate = torch.sigmoid(h @ network.gate.weight.T + network.gate.bias)
        t = torch.tanh(v) * gate
    else:
        t = torch.tanh(v)
    assert t.shape[1] == network.out_dim == (8 if trunk == "mlp" else 4)
    has_bias = trunk == "mlp" if mean_bias is None else mean_bias
    assert (layer.mean.bias is not None) == has_bias
    q = layer(h)
    assert type(q) is Dirac
    mean = t @ layer.mean.weight[0]
    if has_bias:
        mean = mean + layer.mean.bias[0]
    close(q.mean, mean)


def diagonal_layer(**options):
    return seeded(AttentionPosterior, 6, 4, kind="diag", sampling=PosteriorOptions(**options))


@pytest.mark.parametrize(
    "bounds", [{}, {"log_variance_bounds": (-3.0, 1.0)}, {"log_variance_bounds": None}]
)
@pytest.mark.parametrize("initial", [{}, {"initial_log_variance": 0.5}])
def test_the_first_variance_is_the_one_asked_for(bounds, initial):
    layer = diagonal_layer(**bounds, **initial)
    assert layer.bounds == bounds.get("log_variance_bounds", (-10.0, 4.0))
    q = layer(values(N, 6))
    assert type(q) is Diagonal
    want = torch.full((N,), initial.get("initial_log_variance", -2.0), dtype=F64)
    # The bias is initialised in float32.
    torch.testing.assert_close(q.variance.log(), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("ell", [-1e6, -12.0, -9.0, -3.0, 0.0, 3.0, 6.0, 1e6])
def test_the_bound_of_the_log_variance_is_smooth_and_not_flat_near_it(ell):
    layer = diagonal_layer()
    free = diagonal_layer(log_variance_bounds=None)
    for bounded in (layer, free):
        nn.init.constant_(bounded.log_variance.bias, ell)
    log_variance = layer(values(N, 6)).variance.log()
    tanh = torch.tanh(torch.tensor((ell + 3) / 7, dtype=F64))
    torch.testing.assert_close(log_variance, (-3 + 7 * tanh).expand(N), rtol=1e-7, atol=1e-9)
    if abs(ell) > 100:
        return
    close(free(values(N, 6)).variance.log(), torch.full((N,), ell, dtype=F64))
    log_variance.sum().backward()
    grad = layer.log_variance.bias.grad
    torch.testing.assert_close(grad, N * (1 - tanh**2)[None], rtol=1e-7, atol=0)
    assert grad.item() > 0.1
    assert layer.log_variance.weight.grad.abs().min().item() > 0


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: AttentionPosterior(6, 4, kind="full"), "posterior"),
        (lambda: Transformer(8, heads=3), "heads"),
        (lambda: Transformer(8, heads=2, width=5), "heads"),
        (lambda: AttentionTrunk(6, 4, trunk="relu"), "trunk"),
        (lambda: diagonal_layer(initial_log_variance=5.0), "initial_log_variance"),
    ],
)
def test_what_does_not_exist_is_refused(make, option):
    with types_not_executed(), pytest.raises(InputError, match=option):
        make()


@pytest.mark.parametrize("widths", [None, 4, (4, 3)])
@pytest.mark.parametrize("activation", ["relu", "identity"])
def test_first_layers_are_linear_maps_with_or_without_relu(widths, activation):
    embed = seeded(Embed, 6, widths, activation=activation)
    h = x = values(N, 6)
    for linear in (m for m in embed.net if isinstance(m, nn.Linear)):
        h = h @ linear.weight.T + linear.bias
        h = h.clamp_min(0) if activation == "relu" else h
    close(embed(x), h)
    assert embed.out_dim == h.shape[1] == {None: 6, 4: 4, (4, 3): 3}[widths]


def test_dropout_of_the_first_layers_acts_in_training_only():
    embed = seeded(Embed, 6, 400, dropout=0.5, activation="identity")
    x = values(N, 6)
    assert 0.45 < (embed(x) == 0).double().mean().item() < 0.55
    assert (embed.eval()(x) == 0).sum().item() == 0


def test_heads_compute_in_full_precision_under_autocast():
    """In bfloat16, maps of the variance would show steps that are not real."""
    torch.manual_seed(0)
    layer = AttentionPosterior(32, 16, kind="diag")
    torch.nn.init.normal_(layer.log_variance.weight, std=0.05)
    h = torch.randn(500, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = layer(h)
    assert q.mean.dtype == q.variance.dtype == torch.float32
    assert len(q.variance.unique()) > 450  # in bfloat16 there would be about 50 levels
