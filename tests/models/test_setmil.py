"""SETMIL equals the original, a dense computation, and torchmil's faulty variant where possible."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.dense_setmil import Dense, at_cells, bucket_matrix, cells_of
from support.golden import Golden, close
from support.random_bags import F64
from torch import Tensor

from probsa import Bag, pack
from probsa.errors import BagError
from probsa.layers import irpe
from probsa.models import build, setmil
from probsa.models.setmil import cell_means, sinusoid

ORIGINALS = ["setmil_default_irpe", "setmil_cross_bias", "setmil_product_ctx"]
SMALL = {"embed": 8, "reduced_dim": 4, "pyramid_dim": 3, "set_dim": 8, "heads": 2}
BAGS = pytest.mark.parametrize("b", [0, 1, 2])


@pytest.fixture(params=ORIGINALS)
def reference(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@BAGS
def test_every_stage_is_the_originals(reference, b):
    model = reference.model()
    bags = pack([reference.bag(b)])

    def want(what: str) -> Tensor:
        return reference.expected(f"bag{b}.{what}")

    (at,) = maps = model.lay_out(bags)
    g = reference.tensors[f"bag{b}.map"]
    close(cell_means(bags.x, at.place, len(at.cells)).T.unflatten(1, g.shape[1:]), g)
    features = model.reduced(bags.x, maps)
    close(features.T.unflatten(1, (8, 8))[None], want("reduced"))
    fused = model.fuse(features, maps)
    close(fused[None], want("aspp"))
    z = model.sequence(fused, maps)
    places = [at.places(first=True)]
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
    close(F.cross_entropy(out.probability, bags.y), want("ce_double_softmax"))
    # scores are bilinear between the tokens: (i, j) lies on cell (2i, 2j) of a map of 16 × 16
    bag = reference.bag(b)
    rows, cols, high, wide = cells_of(bag, stride=1.0)
    weight = want("attn1")[0, :, 1:].mean(0).unflatten(0, (8, 8))
    rows = rows + (16 - high) // 2
    cols = cols + (16 - wide) // 2
    close(out.attention.mean, at_cells(weight, rows, cols, stride=2))


@BAGS
def test_every_gradient_is_the_originals(reference, b):
    model = reference.model()
    bag = reference.bag(b)
    bags = pack([bag])
    total = model.losses(model(bags), bags)["nll"]
    assert set(reference.names(model).values()) == {k for k, _ in model.named_parameters()}
    reference.check_gradients(model, total, bag.x, b=b)
    # each instance is alone in its cell, so the gradient of the map is that of the instances
    (grad_x,) = torch.autograd.grad(total, bag.x)
    want = reference.expected(f"bag{b}.grad_map").flatten(1).T
    close(grad_x, want[model.lay_out(bags)[0].place], relative=1e-4)


def filled(**options):
    """Build a small model with random tables and biases, and weights that affect the result."""
    model = build("setmil", in_dim=6, **{**SMALL, **options})
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.double().parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=F64) * 0.4 + (p == 1))
    return model.eval()


def scattered(n: int = 9, *, seed: int = 0, wide: int = 7, high: int = 6) -> Bag:
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(wide * high, generator=generator)[:n]
    return Bag(
        name=f"bag{seed}",
        x=torch.randn(n, 6, generator=generator, dtype=F64).requires_grad_(),
        edges=torch.zeros(2, 0).long(),
        weights=torch.zeros(0, dtype=F64),
        y=seed % 2,
        coords=torch.stack([cells % wide, cells // wide], 1) * 10 + 70,
        stride=10.0,
    )


CASES = [
    {},
    {"reduction": 3},
    {"set_dim": None, "heads": 3},
    {"layers": 1},
    {"reduction": 5},
]


@pytest.mark.parametrize("empty", ["masked", "tokens"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_it_is_its_maths(options, empty):
    """Several sparse bags in blocks equal a computation on a dense map with t × t tables."""
    model = filled(**options, empty=empty)
    dense = Dense(model, **{"heads": 2, **options, "empty": empty})
    separate = [scattered(9), scattered(1, seed=1), scattered(14, seed=2)]
    out = model(pack(separate))
    wants = []
    scores = []
    for bag in separate:
        rows, cols, high, wide = cells_of(bag)
        logits, weight = dense(bag.x, rows, cols, high=high, wide=wide)
        wants.append(logits)
        scores.append(at_cells(weight, rows, cols, stride=model.stride))
    want = torch.stack(wants)
    torch.testing.assert_close(out.logits[:, 0], want, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(out.attention.mean, torch.cat(scores), rtol=1e-9, atol=1e-10)
    leaves = [bag.x for bag in separate] + list(model.parameters())
    ours = torch.autograd.grad(out.logits.square().sum(), leaves, materialize_grads=True)
    theirs = torch.autograd.grad(want.square().sum(), leaves, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("options", CASES[-1:] + CASES[:1], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_blocks_change_nothing(monkeypatch, options, dropout):
    """Recomputing attention and windows in blocks gives the same values and gradients."""
    model = filled(**options, dropout=dropout).train()
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


def test_places_matter_and_nothing_else_of_coordinates():
    model = filled()
    bag = scattered()
    before = model(pack([bag]))

    def moved(coords: Tensor, *, stride: float | None = 10.0):
        return model(pack([replace(bag, coords=coords, stride=stride)]))

    for other in (
        moved(bag.coords + 12345),
        moved(bag.coords.double() * 0.5, stride=5.0),
        moved(bag.coords + torch.arange(9)[:, None] % 3),
        moved(bag.coords, stride=None),
    ):
        assert torch.equal(other.logits, before.logits)
        assert torch.equal(other.attention.mean, before.attention.mean)
    swapped = bag.coords[torch.tensor([1, 0, *range(2, 9)])]
    assert (moved(swapped).logits - before.logits).abs().item() > 1e-3


def test_instances_in_one_cell_are_averaged_and_share_its_score():
    model = filled()
    bag = scattered()
    x = bag.x.detach()
    coords = bag.coords
    with_two_more = replace(
        bag,
        x=torch.cat([x, x[:1] + 2.0, x[:1] - 2.0]),
        coords=torch.cat([coords, coords[:1], coords[:1] + 3]),
    )
    out = model(pack([bag]))
    out_more = model(pack([with_two_more]))
    torch.testing.assert_close(out_more.logits, out.logits, rtol=1e-10, atol=1e-11)
    scores = torch.cat([out.attention.mean, out.attention.mean[:1].expand(2)])
    torch.testing.assert_close(out_more.attention.mean, scores, rtol=1e-10, atol=1e-11)


def test_pieces_far_apart_cost_what_they_hold():
    """A dense map of these instances would have 10¹² cells."""
    model = filled(reduction=5)
    bag = scattered()
    coords = bag.coords.clone()
    coords[-1] += 10_000_000
    out = model(pack([replace(bag, coords=coords), bag]))
    assert bool(out.logits.isfinite().all())
    torch.testing.assert_close(out.logits[1], model(pack([bag])).logits[0], rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"coords": None}, "coordinates"),
        ({"stride": 0.0}, "stride"),
        ({"stride": math.nan}, "stride"),
        ({"coords": torch.zeros(9, 3)}, "coordinates"),
        ({"coords": torch.full((9, 2), math.nan)}, "coordinates"),
    ],
)
def test_bags_without_places_are_refused(change, fact):
    with pytest.raises(BagError, match=fact):
        filled()(pack([replace(scattered(), **change)]))


def torchmil(golden: Golden, x: Tensor, cells: Tensor, *, scrambled: bool) -> tuple[Tensor, Tensor]:
    """Return torchmil's logit and the class row of its last layer from the stored weights.

    If `scrambled`, the map is reshaped to tokens without a transposition (only without a pyramid),
    and heads result from a reshape of (t, d) to (h, t, d / h), which mixes tokens and heads.
    """
    s = {k: v.to(x.dtype) for k, v in golden.state.items()}
    heads = 4
    d = 24

    def linear(v: Tensor, key: str) -> Tensor:
        return F.linear(v, s[f"{key}.weight"], s.get(f"{key}.bias"))

    def norm(v: Tensor, key: str) -> Tensor:
        return F.layer_norm(v, v.shape[-1:], s[f"{key}.weight"], s[f"{key}.bias"])

    def split(v: Tensor, key: str, *, scrambled: bool = False) -> list[Tensor]:
        qkv = linear(norm(v, f"{key}.norm1"), f"{key}.att_module.qkv_nn").chunk(3, 1)
        if scrambled:
            return [p.reshape(heads, len(v), -1) for p in qkv]
        return [p.unflatten(1, (heads, -1)).transpose(0, 1) for p in qkv]

    def rest(v: Tensor, mixed: Tensor, key: str) -> Tensor:
        v = v + mixed.transpose(0, 1).flatten(1)
        hidden = F.gelu(linear(norm(v, f"{key}.norm2"), f"{key}.mlp_module.0"))
        return v + linear(hidden, f"{key}.mlp_module.3")

    h = linear(x, "proj")
    side = int(cells.max()) + 1
    grid = h.new_zeros(d, side, side).index_put((torch.arange(d)[:, None], *cells.T), h.T)
    tokens = grid.reshape(-1, d) if scrambled else grid.flatten(1).T
    if "pmf.out_proj.weight" in s:
        parts = []
        for i, size in enumerate((3, 5, 7)):
            key = f"pmf.layers.{i}.transf_layer"
            u = F.unfold(grid[None], size, padding=size // 2)[0].T
            q, k, v = split(u, key)
            a = (q @ k.mT * q.shape[2] ** -0.5).softmax(2)
            parts.append(rest(linear(u, f"{key}.att_proj"), a @ v, key))
        tokens = linear(torch.cat(parts, 1), "pmf.out_proj")
    z = torch.cat([s["cls_token"][0], tokens])
    z = z + sinusoid(torch.arange(len(z)), d).to(z.dtype)
    at = torch.arange(side**2)
    ids = bucket_matrix("product", (at // side).tolist(), (at % side).tolist(), first=True)
    a = None
    for i in range(sum(k.endswith("qkv_nn.weight") for k in s if k.startswith("se_transf"))):
        key = f"se_transf.layers.{i}"
        q, k, v = split(z, key, scrambled=scrambled)
        q = q * q.shape[2] ** -0.5
        table = s[f"{key}.att_module.rpe_k.lookup_table_weight"][0]
        a = (q @ k.mT + torch.einsum("hid,dij->hij", q, table[:, ids])).softmax(2)
        z = rest(z, a @ v, key)
    return linear(norm(z[0], "se_transf.norm"), "classifier")[0], a[:, 0]


@pytest.mark.parametrize("name", ["torchmil_setmil_nopmf", "torchmil_setmil_pmf"])
@BAGS
def test_torchmils_numbers_are_those_of_its_formula(shared_golden, name, b):
    golden = Golden(shared_golden, name)
    x = golden.bag(b).x
    cells = golden.tensors[f"bag{b}.coords"]
    logit, row = torchmil(golden, x, cells, scrambled=True)
    close(logit, golden.expected(f"bag{b}.logit"))
    loss = F.binary_cross_entropy_with_logits(logit, golden.tensors[f"bag{b}.y"].float())
    close(loss, golden.expected(f"bag{b}.loss.BCEWithLogitsLoss"))
    close(torch.autograd.grad(loss, x)[0], golden.expected(f"bag{b}.grad_x"), relative=1e-4)
    if name.endswith("nopmf"):
        score = row[:, 1:].mean(0)[cells[:, 0] * (int(cells.max()) + 1) + cells[:, 1]]
        close(score, golden.expected(f"bag{b}.att_raw"))
    right, _ = torchmil(golden, x, cells, scrambled=False)
    assert (right - logit).abs().item() > 1e-3
