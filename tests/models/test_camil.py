"""CAMIL equals torchmil's code and the paper's equations; its neighbourhoods, the authors' code."""

from dataclasses import replace

import pytest
import torch
from models.test_contract import make, same
from support.golden import Golden, close
from support.originals_of import from_original
from support.random_bags import F64, adjacency, random_bag, types_not_executed
from torch import Tensor

from probsa import Bag, pack
from probsa.errors import GraphError, InputError
from probsa.models import build, nearest_arcs


@pytest.fixture(scope="module", params=["camil_tf_binary", "camil_tf_subtyping"])
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_scores_of_the_originals_neighbourhoods(golden, b):
    bag = golden.bag(b)
    arcs, weights = nearest_arcs(golden.tensors[f"bag{b}.coords"], bag.x.detach())
    order = (arcs[0] * len(bag.x) + arcs[1]).argsort()
    assert torch.equal(arcs[:, order], golden.expected(f"bag{b}.adj_index"))
    close(weights[order], golden.expected(f"bag{b}.adj_value"))
    # the scores over these arcs, from the instance vectors of the original's encoder
    wq, wk = (golden.state[f"encoder.custom_att.{k}_weight_params"] for k in ("wq", "wk"))
    model = build("camil", in_dim=len(wq), embed=None, heads=4, query_dim=wq.shape[1])
    model.queries.weight.data = wq.T
    model.keys.weight.data = wk.T
    bags = pack([replace(bag, arcs=arcs, arc_weights=weights)])
    t = golden.expected(f"bag{b}.encoder_output")
    close(
        model.queries(t) @ model.keys(t).T / wq.shape[1] ** 0.5,
        golden.expected(f"bag{b}.att_matrix"),
    )
    close(model.neighbour_scores(t, bags), golden.expected(f"bag{b}.alpha_raw"))


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_gradients_of_torchmil(shared_golden, b):
    """Its queries and keys are the rows of one weight."""
    golden = Golden(shared_golden, "torchmil_camil")
    model = golden.model()
    bag = golden.bag(b, weights=golden.tensors[f"bag{b}.edge_weight"])
    bags = pack([bag])
    loss = model.losses(model(bags), bags)["nll"]
    pair = [model.queries.weight, model.keys.weight]
    both = torch.cat(torch.autograd.grad(loss, pair, retain_graph=True))
    key = "camil_self_attention.qk_nn.weight"
    names = golden.names(model)
    assert {*names.values(), "queries.weight", "keys.weight"} == dict(
        model.named_parameters()
    ).keys()
    names[key] = "queries.weight"
    golden.check_gradients(model, loss, bag.x, b=b, ours=names, adjust={key: lambda _: both})


def by_the_equations(model, bag: Bag, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (logit, f, e) of the paper's equations with a dense A."""
    t = model.embed(bag.x)
    for layer in model.layers:
        t = layer(t, (len(bag),))
    q, k, v = model.queries(t), model.keys(t), model.values(t)
    e = (a * (q @ k.T)).sum(1) / q.shape[1] ** 0.5
    ell = e.softmax(0)[:, None] * v
    m = ell.sigmoid() * ell + (1 - ell.sigmoid()) * t
    trunk = model.attention.trunk
    f = model.attention.mean(trunk.first(t).tanh() * trunk.gate(t).sigmoid())[:, 0]
    return model.classifier(f.softmax(0) @ m), f, e


def test_edges_count_both_ways_and_arcs_go_before_them():
    """The fourth bag has arcs, which have a direction; an instance may be its own neighbour."""
    model = make("camil").double()
    sizes = (11, 6, 5, 9)
    densities = (0.4, 0.4, 0.0, 0.4)
    bags = [
        random_bag(n, seed=n, features=6, density=d) for n, d in zip(sizes, densities, strict=True)
    ]
    matrices = [adjacency(bag) for bag in bags[:3]]
    g = torch.Generator().manual_seed(0)
    a = torch.rand(9, 9, generator=g, dtype=F64) * (torch.rand(9, 9, generator=g) < 0.4)
    arcs = a.nonzero().T
    assert bool((arcs[0] == arcs[1]).any()) and not torch.equal(a, a.T)
    bags[3] = replace(bags[3], arcs=arcs, arc_weights=a[arcs[0], arcs[1]])
    for batch, wanted in ((bags[:3], matrices), (bags[3:], [a])):
        out = model(pack(batch))
        start = 0
        for b, (bag, matrix) in enumerate(zip(batch, wanted, strict=True)):
            logit, f, e = by_the_equations(model, bag, matrix)
            rows = slice(start, start := start + len(bag))
            same(out.logits[b, 0], logit)
            same(out.attention.mean[rows], f)
            same(out.extras["neighbour_score"][rows], e.detach())


def test_torchmils_other_layouts(shared_golden):
    golden = Golden(shared_golden, "torchmil_camil")
    first = {"fc1.weight": torch.randn(32, 48), "fc1.bias": torch.randn(32)}
    model = from_original(golden.name, {**golden.state, **first}, n_heads=4, n_landmarks=16)
    x = torch.randn(9, 48)
    bag = Bag(name="a", x=x, edges=torch.tensor([[0, 1], [1, 2]]), weights=torch.ones(2))
    plain = golden.model()(pack([replace(bag, x=x @ first["fc1.weight"].T + first["fc1.bias"])]))
    torch.testing.assert_close(model(pack([bag])).logits, plain.logits)
    ungated = {k: v for k, v in golden.state.items() if "fc_gated" not in k}
    assert from_original(golden.name, ungated).attention.trunk.gate is None


def by_brute_force(coords: Tensor, x: Tensor, *, nearest: int, compared: int, kind: str) -> Tensor:
    """Compute the matrix of similarities instance by instance."""
    n = len(x)
    a = torch.zeros(n, n, dtype=x.dtype)
    for i in range(n):
        far = (coords.double() - coords[i].double()).square().sum(1).tolist()
        others = sorted((j for j in range(n) if j != i), key=lambda j: (far[j], j))[:compared]
        if kind == "cosine":
            unit = x / x.norm(dim=1, keepdim=True)
            d = 1 - unit[others] @ unit[i]
        else:
            d = (x[others] - x[i]).norm(dim=1)
        s = (-d / d.norm()).exp()
        a[i, i] = s.max()
        a[i, others[:nearest]] = s[:nearest]
    return a


@pytest.mark.parametrize("kind", ["euclidean", "cosine"])
@pytest.mark.parametrize(("nearest", "compared"), [(7, 7), (7, 15), (3, 4), (7, 60)])
def test_nearest_arcs_are_those_of_a_search(kind, nearest, compared):
    g = torch.Generator().manual_seed(0)
    cells = torch.randperm(100, generator=g)[:40]
    coords = torch.stack([cells % 10, cells // 10], 1) * 256
    x = torch.randn(40, 5, generator=g, dtype=F64)
    arcs, weights = nearest_arcs(coords, x, nearest=nearest, compared=compared, distance=kind)
    a = torch.zeros(40, 40, dtype=F64)
    a[arcs[0], arcs[1]] = weights
    assert arcs.shape[1] == 40 * (nearest + 1)
    same(a, by_brute_force(coords, x, nearest=nearest, compared=compared, kind=kind))


def test_nearest_arcs_of_few_of_equal_and_of_crowded_instances():
    arcs, weights = nearest_arcs(torch.zeros(1, 2), torch.randn(1, 3))
    assert arcs.tolist() == [[0], [0]] and weights.tolist() == [1.0]
    arcs, weights = nearest_arcs(torch.tensor([[0, 0], [0, 1]]), torch.randn(2, 3))
    assert arcs.tolist() == [[0, 0, 1, 1], [0, 1, 1, 0]]
    same(weights, torch.full((4,), -1.0).exp())  # a single distance is its own norm
    arcs, weights = nearest_arcs(torch.arange(10)[:, None], torch.ones(10, 3))
    assert bool((weights == 1).all())  # equal features have the largest similarity
    assert arcs[1, :8].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    one_place = torch.zeros(12, 2)
    x = torch.randn(12, 3)
    arcs, _ = nearest_arcs(one_place, x)  # the instance itself, then the first ones
    for i, near in enumerate(arcs[1].view(12, 8).tolist()):
        assert near == [i, *[j for j in range(12) if j != i][:7]]
    with pytest.raises(GraphError, match="coordinates"):
        nearest_arcs(torch.zeros(300, 2), torch.randn(300, 3))
    for options in ({"nearest": 8}, {"nearest": 0}, {"distance": "l1"}):
        (key,) = options
        with types_not_executed(), pytest.raises(InputError, match=key):
            nearest_arcs(one_place, x, **options)
