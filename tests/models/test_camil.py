"""CAMIL equals torchmil's code and the paper's equations; its neighbourhoods, the authors' code."""

from dataclasses import replace

import pytest
import torch
from models.test_contract import make, same
from support.golden import Golden, close
from support.random_bags import F64, adjacency, random_bag
from torch import Tensor

from probsa import Bag, pack
from probsa.errors import CheckpointError
from probsa.models import build, from_original

ORIGINALS = ["camil_tf_binary", "camil_tf_subtyping"]


@pytest.fixture(scope="module", params=ORIGINALS)
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


def neighbourhoods(coords: Tensor, x: Tensor) -> Tensor:
    """Return the authors' similarities: each instance has its 7 nearest and itself as neighbours.

    s_ik = exp(−d_ik / ‖d_i‖); an instance's similarity to itself is the largest of these.
    """
    n = len(x)
    a = torch.zeros(n, n, dtype=x.dtype)
    for i in range(n):
        far = (coords.double() - coords[i].double()).square().sum(1).tolist()
        near = sorted((j for j in range(n) if j != i), key=lambda j: (far[j], j))[:7]
        d = (x[near] - x[i]).norm(dim=1)
        a[i, near] = (-d / d.norm()).exp()
        a[i, i] = a[i].max()
    return a


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_scores_of_the_originals_neighbourhoods(golden, b):
    bag = golden.bag(b)
    a = neighbourhoods(golden.tensors[f"bag{b}.coords"], bag.x.detach())
    arcs = a.nonzero().T
    assert torch.equal(arcs, golden.expected(f"bag{b}.adj_index"))
    close(a[arcs[0], arcs[1]], golden.expected(f"bag{b}.adj_value"))
    # the scores over these arcs, from the instance vectors of the original's encoder
    wq, wk = (golden.state[f"encoder.custom_att.{k}_weight_params"] for k in ("wq", "wk"))
    model = build("camil", in_dim=len(wq), embed=None, heads=4, query_dim=wq.shape[1])
    model.queries.weight.data, model.keys.weight.data = wq.T, wk.T
    bags = pack([replace(bag, arcs=arcs, arc_weights=a[arcs[0], arcs[1]])])
    t = golden.expected(f"bag{b}.encoder_output")
    close(model.queries(t) @ model.keys(t).T / wq.shape[1] ** 0.5,
          golden.expected(f"bag{b}.att_matrix"))  # fmt: skip
    close(model.neighbour_scores(t, bags), golden.expected(f"bag{b}.alpha_raw"))


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_gradients_of_torchmil(shared_golden, b):
    """Its queries and keys are the rows of one weight."""
    golden = Golden(shared_golden, "torchmil_camil")
    model, bag = golden.model(), golden.bag(b, weights=golden.tensors[f"bag{b}.edge_weight"])
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


# the equations, with dense matrices


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


def test_edges_count_both_ways_with_their_weights():
    model = make("camil").double()
    bags = [random_bag(11, features=6), random_bag(6, seed=1, features=6),
            random_bag(5, seed=2, features=6, density=0.0)]  # fmt: skip
    out = model(pack(bags))
    start = 0
    for b, bag in enumerate(bags):
        logit, f, e = by_the_equations(model, bag, adjacency(bag))
        rows = slice(start, start := start + len(bag))
        same(out.logits[b, 0], logit)
        same(out.attention.mean[rows], f)
        same(out.extras["neighbour_score"][rows], e.detach())


def test_arcs_go_before_edges_and_have_a_direction():
    model = make("camil").double()
    bag = random_bag(9, features=6)
    g = torch.Generator().manual_seed(0)
    a = torch.rand(9, 9, generator=g, dtype=F64) * (torch.rand(9, 9, generator=g) < 0.4)
    arcs = a.nonzero().T
    assert bool((arcs[0] == arcs[1]).any())  # an instance may be its own neighbour
    directed = replace(bag, arcs=arcs, arc_weights=a[arcs[0], arcs[1]])
    out = model(pack([directed]))
    logit, _, e = by_the_equations(model, bag, a)
    same(out.logits[0, 0], logit)
    same(out.extras["neighbour_score"], e.detach())
    turned = replace(directed, arcs=arcs.flip(0))
    assert (model(pack([turned])).extras["neighbour_score"] - e).abs().max() > 1e-3


# weights in other layouts


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
    with pytest.raises(CheckpointError, match="use_mlp"):
        golden.model(use_mlp=True)
