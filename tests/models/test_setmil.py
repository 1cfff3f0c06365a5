"""SETMIL equals the original, a dense computation, and torchmil's faulty variant where possible."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.dense_setmil import Dense, at_cells, bucket_matrices, cells_of
from support.golden import Golden, close
from support.options import made, options_of, results, some_bags
from support.random_bags import F64
from torch import Tensor

from probsa import Bag, pack
from probsa.errors import BagError
from probsa.layers import irpe
from probsa.models import Model, arguments, build, setmil
from probsa.models.setmil import cell_means, sinusoid

ORIGINALS = ["setmil_default_irpe", "setmil_cross_bias", "setmil_product_ctx"]
SMALL = {
    "in_dim": 6, "embed": 8, "reduced_dim": 4, "pyramid_dim": 3, "set_dim": 8, "heads": 2,
}  # fmt: skip


@pytest.fixture(params=ORIGINALS)
def reference(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_stage_is_the_originals(reference, b):
    model = reference.model()
    bags = pack([reference.bag(b)])

    def want(what: str) -> Tensor:
        return reference.expected(f"bag{b}.{what}")

    maps = model.lay_out(bags)
    (at,) = maps
    g = reference.tensors[f"bag{b}.map"]
    close(cell_means(bags.x, at.place, len(at.cells)).T.unflatten(1, g.shape[1:]), g)
    features = model.reduced(bags.x, maps)
    close(features.T.unflatten(1, (8, 8))[None], want("reduced"))
    fused = model.fuse(features, maps)
    close(fused[None], want("aspp"))
    z, places = model.sequence(fused, maps), [at.places(first=True)]
    close(z[None], want("tokens"))
    for i, block in enumerate(model.blocks):
        heads, (row,) = block.class_rows(z, places)
        close(row[None], want(f"attn{i}"))
        z = block(z, places)
        close(z[None], want(f"block{i}"))
        close(heads, want(f"block{i}")[:, 0])
    close(model.norm(z[:1]), want("z"))
    out = model(bags)
    close(out.logits[0], want("logits"))
    close(out.probability, want("prob"))
    close(model.losses(out, bags)["nll"], want("ce"))
    y = torch.tensor([reference.bag(b).y])
    close(F.cross_entropy(out.probability, y), want("ce_double_softmax"))


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_gradient_is_the_originals(reference, b):
    model, bag = reference.model(), reference.bag(b)
    bags = pack([bag])
    total = model.losses(model(bags), bags)["nll"]
    ours = reference.names(model)
    parameters = dict(model.named_parameters())
    assert set(ours.values()) == set(parameters)
    grad_x, *gradients = torch.autograd.grad(total, [bag.x, *parameters.values()])
    grads = dict(zip(parameters, gradients, strict=True))
    full = reference.under(f"expected.bag{b}.grad")
    assert len(full) >= 2
    for theirs, want in full.items():
        close(grads[ours[theirs]], want, relative=1e-4)
    norms = torch.stack([grads[ours[k]].norm() for k in reference.metadata["parameter_order"]])
    close(norms, reference.expected(f"bag{b}.grad_norms"), relative=1e-4)
    # each instance is alone in its cell, so the gradient of the map is that of the instances
    want = reference.expected(f"bag{b}.grad_map").flatten(1).T
    close(grad_x, want[model.lay_out(bags)[0].place], relative=1e-4)


def test_scores_are_bilinear_between_the_originals_tokens(reference):
    """Token (i, j) lies on cell (2i, 2j); maps are centred on 16 × 16."""
    model = reference.model()
    for b in range(3):
        bag = reference.bag(b)
        rows, cols, high, wide = cells_of(bag, stride=1.0)
        weight = reference.expected(f"bag{b}.attn1")[0, :, 1:].mean(0).unflatten(0, (8, 8))
        rows, cols = rows + (16 - high) // 2, cols + (16 - wide) // 2
        close(model(pack([bag])).attention.mean, at_cells(weight, rows, cols, stride=2))


# a dense computation


def filled(model: Model, *, seed: int = 3) -> Model:
    """Replace zero tables and biases and small weights by values that affect the result."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.double().parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=F64) * 0.4 + (p == 1))
    return model.eval()


def scattered(n: int = 9, *, seed: int = 0, wide: int = 7, high: int = 6) -> Bag:
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(wide * high, generator=generator)[:n]
    return Bag(
        name=f"bag{seed}", x=torch.randn(n, 6, generator=generator, dtype=F64).requires_grad_(),
        edges=torch.zeros(2, 0).long(), weights=torch.zeros(0, dtype=F64), y=seed % 2,
        coords=torch.stack([cells % wide, cells // wide], 1) * 10 + 70, stride=10.0,
    )  # fmt: skip


CASES = [
    {},
    {"relative": "none"},
    {"windows": ()},
    {"windows": (1, 5), "layers": 1},
    {"reduction": 3},
    {"reduction": 5},
    {"reduction": 7},
    {"set_dim": None, "heads": 3, "qkv_bias": True, "mlp_ratio": 2.0},
    {"relative": "quant", "relative_shared": True},
    {"relative": "product", "relative_on": "q"},
    {"relative": "product", "relative_on": "qk"},
    {"relative": "cross", "relative_on": "k"},
    {"relative": "cross", "relative_mode": "contextual", "relative_on": "qkv"},
    {"relative": "product", "relative_mode": "contextual", "relative_on": "qv"},
    {"relative_mode": "contextual", "relative_on": "kv", "relative_shared": True},
    {"pyramid_relative": "product", "pyramid_relative_on": "qk"},
    {"pyramid_relative": "cross", "pyramid_relative_mode": "contextual",
     "pyramid_relative_on": "qkv", "reduction": 5},
]  # fmt: skip


@pytest.mark.parametrize("empty", ["masked", "tokens"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_it_is_its_maths(options, empty):
    """Several sparse bags in blocks equal a computation on a dense map with t × t tables."""
    options = {**options, "empty": empty}
    model = filled(build("setmil", **{**SMALL, **options}))
    dense = Dense(model, **{"heads": 2, **options})
    separate = [scattered(9), scattered(1, seed=1), scattered(14, seed=2)]
    out = model(pack(separate))
    wants, scores = [], []
    for bag in separate:
        rows, cols, high, wide = cells_of(bag)
        logits, weight = dense(bag.x, rows, cols, high=high, wide=wide)
        wants.append(logits)
        stride = max(1, (options.get("reduction", 1) - 1) // 2)
        scores.append(at_cells(weight, rows, cols, stride=stride))
    want = torch.stack(wants)
    torch.testing.assert_close(out.logits[:, 0], want, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(out.attention.mean, torch.cat(scores), rtol=1e-9, atol=1e-10)
    leaves = [bag.x for bag in separate] + list(model.parameters())
    ours = torch.autograd.grad(out.logits.square().sum(), leaves, materialize_grads=True)
    theirs = torch.autograd.grad(want.square().sum(), leaves, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("options", CASES[-3:] + CASES[:1], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_blocks_change_nothing(monkeypatch, options, dropout):
    """Recomputing attention and windows in blocks gives the same values and gradients."""
    rates = {"attention_dropout": dropout, "pyramid_attention_dropout": dropout}
    model = filled(build("setmil", **{**SMALL, **options, **rates})).train()
    bag = scattered(14, seed=2)

    def run() -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        logits = model(pack([bag])).logits
        return logits, *torch.autograd.grad(logits.sum(), [bag.x, *model.parameters()])

    if not dropout:
        whole = run()
        with torch.no_grad():
            quick = model(pack([bag])).logits
        torch.testing.assert_close(quick, whole[0], rtol=1e-10, atol=1e-11)
    monkeypatch.setattr(irpe, "BLOCK", {"cpu": 60})
    monkeypatch.setattr(setmil, "GATHERED", 500)
    stored = run()  # in blocks, without recomputation
    monkeypatch.setattr(irpe, "KEEP", 50)
    again = run()
    for a, b in zip(stored, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    if not dropout:
        for a, b in zip(again, whole, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "dead"),
    [
        ({"relative_on": "qk"}, {"q", "k"}),
        ({"relative_on": "qkv", "relative_mode": "contextual"}, {"k"}),
        ({"relative_on": "qv", "relative_mode": "contextual"}, set()),
    ],
)
def test_gradients_reach_the_tables_but_what_softmax_drops(options, dead):
    model = filled(build("setmil", **SMALL, **options))
    model(pack([scattered(14)])).logits.sum().backward()
    named = dict(model.named_parameters())
    tables = {k for k in named if ".tables." in k}
    none = {k for k in tables if named[k].grad.abs().max() < 1e-12}
    assert none == {f"blocks.1.relative.tables.{on}.0" for on in dead} == model.without_effect
    assert len(tables) == 2 * len(options["relative_on"])


# positions of instances


def test_places_matter_and_nothing_else_of_coordinates():
    model = filled(build("setmil", **SMALL))
    bag = scattered()
    before = model(pack([bag]))

    def moved(coords: Tensor, *, stride: float | None = 10.0):
        return model(pack([Bag(name="a", x=bag.x, edges=bag.edges, weights=bag.weights,
                               coords=coords, stride=stride)]))  # fmt: skip

    for other in (
        moved(bag.coords + 12345),
        moved(bag.coords.double() * 0.5, stride=5.0),
        moved(bag.coords + torch.arange(9)[:, None] % 3, stride=10.0),
        moved(bag.coords, stride=None),
    ):
        assert torch.equal(other.logits, before.logits)
        assert torch.equal(other.attention.mean, before.attention.mean)
    swapped = bag.coords[torch.tensor([1, 0, *range(2, 9)])]
    assert (moved(swapped).logits - before.logits).abs().item() > 1e-3


def test_instances_in_one_cell_are_averaged_and_share_its_score():
    model = filled(build("setmil", **SMALL))
    bag = scattered()
    x, coords = bag.x.detach(), bag.coords
    twice = Bag(name="a", x=torch.cat([x, x[:1] + 2.0, x[:1] - 2.0]), edges=bag.edges,
                weights=bag.weights, coords=torch.cat([coords, coords[:1], coords[:1] + 3]),
                stride=10.0)  # fmt: skip
    a, b = model(pack([bag])), model(pack([twice]))
    torch.testing.assert_close(b.logits, a.logits, rtol=1e-10, atol=1e-11)
    want = torch.cat([a.attention.mean, a.attention.mean[:1].expand(2)])
    torch.testing.assert_close(b.attention.mean, want, rtol=1e-10, atol=1e-11)


def test_pieces_far_apart_cost_what_they_hold():
    """A dense map of these instances would have 10¹² cells."""
    model = build("setmil", **SMALL, reduction=5).double()
    bag = scattered()
    coords = bag.coords.clone()
    coords[-1] += 10_000_000
    far = replace(bag, coords=coords)
    out = model(pack([far, bag]))
    assert bool(out.logits.isfinite().all())
    torch.testing.assert_close(out.logits[1], model(pack([bag])).logits[0], rtol=1e-10, atol=0)


# valid and invalid options

CHANGES = {
    "embed": ((8, 6), {}),
    "reduction": (5, {}),
    "reduced_dim": (5, {}),
    "windows": ((3, 5), {}),
    "pyramid_dim": (5, {}),
    "pyramid_dropout": (0.5, {}),
    "pyramid_attention_dropout": (0.5, {}),
    "set_dim": (16, {}),
    "layers": (1, {}),
    "heads": (4, {}),
    "mlp_ratio": (2.0, {}),
    "qkv_bias": (True, {}),
    "dropout": (0.5, {}),
    "attention_dropout": (0.5, {}),
    "relative": ("product", {}),
    "relative_mode": ("contextual", {}),
    "relative_on": ("k", {"relative": "product"}),
    "relative_shared": (True, {}),
    "pyramid_relative": ("euc", {}),
    "pyramid_relative_mode": ("contextual", {"pyramid_relative": "euc"}),
    "pyramid_relative_on": ("k", {"pyramid_relative": "product"}),
    "empty": ("tokens", {}),
}


@pytest.mark.parametrize("key", options_of("setmil"))
def test_an_option_changes_the_result(key):
    value, base = CHANGES[key]
    start = {**{k: v for k, v in SMALL.items() if k != "in_dim"}, **base}
    plain, other = (filled(made("setmil", **{**start, **more})) for more in ({}, {key: value}))
    assert value != start.get(key, arguments("setmil")[key].default)
    a, b = results(plain, some_bags()), results(other, some_bags())
    assert (a - b).abs().max().item() > 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coords": None}, "setmil lays instances out by their coordinates, but bag 'bag0'"),
        ({"stride": 0.0}, "bag 'bag0': its stride is 0.0, not a distance above 0"),
        ({"stride": math.nan}, "its stride is nan"),
        ({"coords": torch.zeros(9, 3)}, "not 3 numbers per instance"),
        ({"coords": torch.full((9, 2), math.nan)}, "NaN or inf"),
    ],
)
def test_bags_without_places_are_refused(change, message):
    bag = scattered()
    fields = {k: getattr(bag, k) for k in ("name", "x", "edges", "weights", "coords", "stride")}
    with pytest.raises(BagError, match=message):
        build("setmil", **SMALL).double()(pack([Bag(**{**fields, **change})]))


# torchmil


def torchmil(
    golden: Golden, x: Tensor, cells: Tensor, *, scrambled: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return torchmil's logit, tokens and class row of the last layer from the stored weights.

    If `scrambled`, the map is reshaped to tokens without a transposition (only without a pyramid),
    and heads result from a reshape of (t, d) to (h, t, d / h), which mixes tokens and heads.
    """
    s = {k: v.to(x.dtype) for k, v in golden.state.items()}
    heads, d = 4, 24

    def linear(v: Tensor, key: str) -> Tensor:
        return F.linear(v, s[f"{key}.weight"], s.get(f"{key}.bias"))

    def norm(v: Tensor, key: str) -> Tensor:
        return F.layer_norm(v, v.shape[-1:], s[f"{key}.weight"], s[f"{key}.bias"])

    def rest(v: Tensor, key: str) -> Tensor:
        hidden = F.gelu(linear(norm(v, f"{key}.norm2"), f"{key}.mlp_module.0"))
        return v + linear(hidden, f"{key}.mlp_module.3")

    h = linear(x, "proj")
    side = int(cells.max()) + 1
    grid = h.new_zeros(d, side, side).index_put((torch.arange(d)[:, None], *cells.T), h.T)
    if "pmf.out_proj.weight" in s:
        parts = []
        for i, size in enumerate((3, 5, 7)):
            key = f"pmf.layers.{i}.transf_layer"
            u = F.unfold(grid[None], size, padding=size // 2)[0].T
            qkv = linear(norm(u, f"{key}.norm1"), f"{key}.att_module.qkv_nn")
            q, k, v = (p.unflatten(1, (heads, -1)).transpose(0, 1) for p in qkv.chunk(3, 1))
            a = (q @ k.transpose(1, 2) * q.shape[2] ** -0.5).softmax(2) @ v
            parts.append(rest(linear(u, f"{key}.att_proj") + a.transpose(0, 1).flatten(1), key))
        tokens = linear(torch.cat(parts, 1), "pmf.out_proj")
    else:
        tokens = grid.reshape(-1, d) if scrambled else grid.flatten(1).T
    z = torch.cat([s["cls_token"][0], tokens])
    z = start = z + sinusoid(torch.arange(len(z)), d).to(z.dtype)
    at = torch.arange(side**2)
    ids = bucket_matrices("product", (at // side).tolist(), (at % side).tolist(), first=True)[0]
    a = None
    for i in range(sum(k.endswith("qkv_nn.weight") for k in s if k.startswith("se_transf"))):
        key = f"se_transf.layers.{i}"
        qkv = linear(norm(z, f"{key}.norm1"), f"{key}.att_module.qkv_nn").chunk(3, 1)
        if scrambled:
            q, k, v = (p.reshape(heads, len(z), -1) for p in qkv)
        else:
            q, k, v = (p.unflatten(1, (heads, -1)).transpose(0, 1) for p in qkv)
        q = q * q.shape[2] ** -0.5
        table = s[f"{key}.att_module.rpe_k.lookup_table_weight"][0]
        a = (q @ k.transpose(1, 2) + torch.einsum("hid,dij->hij", q, table[:, ids])).softmax(2)
        z = rest(z + (a @ v).transpose(0, 1).flatten(1), key)
    logit = linear(norm(z[0], "se_transf.norm"), "classifier")
    return logit[0], start, a[:, 0]


@pytest.mark.parametrize("name", ["torchmil_setmil_nopmf", "torchmil_setmil_pmf"])
@pytest.mark.parametrize("b", [0, 1, 2])
def test_torchmils_numbers_are_those_of_its_formula(shared_golden, name, b):
    golden = Golden(shared_golden, name)
    x, cells = golden.bag(b).x, golden.tensors[f"bag{b}.coords"]
    logit, _, row = torchmil(golden, x, cells, scrambled=True)
    close(logit, golden.expected(f"bag{b}.logit"))
    loss = F.binary_cross_entropy_with_logits(logit, golden.tensors[f"bag{b}.y"].float())
    close(loss, golden.expected(f"bag{b}.loss.BCEWithLogitsLoss"))
    close(torch.autograd.grad(loss, x)[0], golden.expected(f"bag{b}.grad_x"), relative=1e-4)
    side = int(cells.max()) + 1
    if name.endswith("nopmf"):
        score = row[:, 1:].mean(0)[cells[:, 0] * side + cells[:, 1]]
        close(score, golden.expected(f"bag{b}.att_raw"))
    right, _, _ = torchmil(golden, x, cells, scrambled=False)
    assert (right - logit).abs().item() > 1e-3
