"""PatchGCN equals its original and torchmil's formula, and every option changes the result."""

import re

import pytest
import torch
from models.test_parity import features, q
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64
from torch import Tensor, nn

from probsa import Bag, pack
from probsa.layers.pooling import pool_vectors
from probsa.models import from_original
from probsa.models.patchgcn import GENConv


@pytest.fixture(params=["patchgcn", "patchgcn_biasmlp"])
def authors(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.fixture
def torchmil(shared_golden) -> Golden:
    return Golden(shared_golden, "torchmil_patchgcn")


# the original


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_layer(authors, b):
    model = authors.model()
    bags = pack([authors.bag(b)])
    h0, *rest = x = model.graph(bags)
    close(h0, authors.expected(f"bag{b}.h0"))
    close(rest[0], authors.expected(f"bag{b}.conv0"))
    for k in (1, 2):
        close(rest[k], authors.expected(f"bag{b}.layer{k}"))
        # the convolution alone, before the norm
        seen = []
        hook = model.layers[k].conv.register_forward_hook(lambda *a, seen=seen: seen.append(a[2]))
        model.graph(bags)
        hook.remove()
        close(seen[0], authors.expected(f"bag{b}.conv{k}"))
    close(torch.cat(x, 1), authors.expected(f"bag{b}.cat"))


def survival(logits: Tensor, *, y: int, censored: Tensor, alpha: float) -> Tensor:
    """The authors' loss over time bins, which is not part of the package."""
    hazards = logits.sigmoid()
    s = torch.cat([torch.ones(1), (1 - hazards).cumprod(0)]).clamp_min(1e-7).log()
    event = -(1 - censored) * (s[y] + hazards[y].clamp_min(1e-7).log())
    return (1 - alpha) * (event - censored * s[y + 1]) + alpha * event


@pytest.mark.parametrize("b", [0, 1, 2])
def test_attention_logits_losses_and_gradients(authors, b):
    model = authors.model()
    bag = authors.bag(b)
    bags = pack([bag])
    out = model(bags)
    f = out.attention.mean
    close(f[None], authors.expected(f"bag{b}.att_raw"))
    close(f.softmax(0)[None], authors.expected(f"bag{b}.att"))
    z = pool_vectors(f[:, None], model.instances(bags), bags.sizes)
    close(z[0], authors.expected(f"bag{b}.pooled"))
    logits = out.logits[0]
    close(logits, authors.expected(f"bag{b}.logits"))
    close(logits.sigmoid(), authors.expected(f"bag{b}.hazards"))
    close((1 - logits.sigmoid()).cumprod(1), authors.expected(f"bag{b}.S"))
    assert logits.argmax().item() == authors.expected(f"bag{b}.y_hat").item()
    losses = model.losses(out, bags)
    assert set(losses) == {"nll"}
    close(losses["nll"], authors.expected(f"bag{b}.ce"))

    censored = authors.expected(f"bag{b}.censor")
    nll = {a: survival(logits[0], y=bag.y, censored=censored, alpha=a) for a in (0.0, 0.4)}
    close(nll[0.0], authors.expected(f"bag{b}.nll_surv_a0"))
    close(nll[0.4], authors.expected(f"bag{b}.nll_surv_a04"))
    total = losses["nll"] + nll[0.0]
    close(total, authors.expected(f"bag{b}.total"))
    assert set(authors.names(model).values()) == {k for k, _ in model.named_parameters()}
    authors.check_gradients(model, total, bag.x, b=b)


def test_the_three_bags_at_once_are_the_bags_alone(authors):
    model = authors.model()
    out = model(pack([authors.bag(b) for b in range(3)]))
    for b in range(3):
        close(out.logits[b], authors.expected(f"bag{b}.logits"))


def test_arcs_go_before_edges(authors):
    """Edges given as arcs are the same graph; half of the arcs are another graph."""
    model = authors.model()
    source, target = authors.tensors["bag1.edge_index"]
    arcs = torch.stack([target, source])
    same = model(pack([authors.bag(1, arcs=arcs)])).logits
    close(same[0], authors.expected("bag1.logits"))
    half = model(pack([authors.bag(1, arcs=arcs[:, target < source])])).logits
    assert (half - same).abs().max().item() > 1e-3


def test_the_originals_dropout_is_taken_over(authors):
    model = authors.model()
    assert model.arguments["dropout"] == model.arguments["attention_dropout"] == 0.25
    torch.manual_seed(0)
    bags = pack([authors.bag(1)])
    assert (model.train()(bags).logits - model.eval()(bags).logits).abs().max().item() > 1e-3


# the specification's own numbers: the local baselines, 10.6


def spec_state(p: int, d: int, classes: int) -> dict[str, Tensor]:
    shapes = {"fc.0.weight": (d, p), "fc.0.bias": (d,)}
    for i in range(3):
        shapes |= {
            f"layers.{i}.conv.t": (1,),
            f"layers.{i}.conv.mlp.0.weight": (2 * d, d), f"layers.{i}.conv.mlp.0.bias": (2 * d,),
            f"layers.{i}.conv.mlp.1.weight": (2 * d,), f"layers.{i}.conv.mlp.1.bias": (2 * d,),
            f"layers.{i}.conv.mlp.4.weight": (d, 2 * d), f"layers.{i}.conv.mlp.4.bias": (d,),
            f"layers.{i}.norm.weight": (d,), f"layers.{i}.norm.bias": (d,),
        }  # fmt: skip
    for k in ("path_phi.0", "path_attention_head.attention_a.0",
              "path_attention_head.attention_b.0", "path_rho.0"):  # fmt: skip
        shapes |= {f"{k}.weight": (4 * d, 4 * d), f"{k}.bias": (4 * d,)}
    shapes |= {
        "path_attention_head.attention_c.weight": (1, 4 * d),
        "path_attention_head.attention_c.bias": (1,),
        "classifier.weight": (classes, 4 * d), "classifier.bias": (classes,),
    }  # fmt: skip
    state = {k: q(k, *shape) for k, shape in shapes.items()}
    for k in state:
        if re.search(r"(norm|mlp\.1)\.weight$", k):
            state[k] = 1 + state[k]
        if k.endswith(".t"):
            state[k] = torch.tensor([1.1], dtype=F64)
    return state


def spec_graph(name: str) -> dict[str, Tensor]:
    """Return G1, a 4 × 5 grid and an isolated node, and G2, a directed ring (i − 1, i − 2 to i)."""
    nowhere = torch.zeros(2, 0, dtype=torch.long)
    if name == "G2":
        i = torch.arange(21).repeat(2)
        j = (i - torch.tensor([1, 2]).repeat_interleave(21)) % 21
        return {"edges": nowhere, "weights": torch.zeros(0, dtype=F64), "arcs": torch.stack([i, j])}
    a, b = torch.triu_indices(20, 20, 1)
    near = ((a // 5 - b // 5).abs() <= 1) & ((a % 5 - b % 5).abs() <= 1)
    edges = torch.stack([a[near], b[near]])
    assert edges.shape[1] == 55
    return {"edges": edges, "weights": torch.ones(55, dtype=F64)}


@pytest.mark.parametrize(
    ("p", "d", "graph", "logits", "f"),
    [
        (16, 8, "G1", [-0.21669455, 0.40616636],
         {0: 0.14476661, 1: 0.45258141, 20: 0.11796165}),
        (16, 8, "G2", [-0.13229213, 0.32775824], {0: 0.16276419, 1: 0.38265349, 2: 0.29275954}),
        (1024, 128, "G1", [0.53797599, -0.04878536, 0.18185669, -0.23770438],
         {0: 0.45574501, 1: 0.44305616, 20: 0.83194416}),
        (1024, 128, "G2", [0.41895415, -0.065577816, 0.17842664, -0.27217504],
         {0: 0.53297805, 1: 0.56617132, 2: 0.37479419}),
    ],
)  # fmt: skip
def test_the_specifications_numbers(p, d, graph, logits, f):
    model = from_original("patchgcn", spec_state(p, d, len(logits)))
    assert next(model.parameters()).dtype == F64
    bags = pack([Bag(name="a", x=features(21, p), **spec_graph(graph))])
    out = model(bags)
    assert out.logits.flatten().tolist() == pytest.approx(logits, abs=1e-6)
    assert {i: out.attention.mean[i].item() for i in f} == pytest.approx(f, abs=1e-6)
    if (p, graph) == (16, "G1"):
        x = model.graph(bags)
        assert x[1][0, :2].tolist() == pytest.approx([1.2554737, -0.64310788], abs=1e-6)
        assert x[2][7, :2].tolist() == pytest.approx([0.77022914, 0.68411094], abs=1e-6)
        assert x[3][20, :2].tolist() == pytest.approx([1.6709167, 2.5198595], abs=1e-6)


# torchmil, which has another graph convolution, and our model with its options


def test_deeper_torchmil_models_are_read(torchmil):
    state = torchmil.state
    state |= {
        "mlp.1.0.module.weight": torch.eye(16),
        "mlp.1.0.module.bias": torch.zeros(16),
    }
    for dropout in (0.0, 0.5):
        constructor = {**torchmil.constructor, "mlp_depth": 2, "dropout": dropout}
        model = from_original("torchmil_patchgcn", state, **constructor)
        out = model(pack([torchmil.bag(1)]))
        # a second layer that changes nothing: ReLU leaves the output of a ReLU unchanged
        close(out.logits[0, 0, 0], torchmil.expected("bag1.logit"))
        assert model.arguments["layer_dropout"] == dropout


# an independent dense computation in double precision, instance by instance


@pytest.mark.parametrize("mlp_bias", [True, False])
def test_genconv_by_its_definition(mlp_bias):
    torch.manual_seed(0)
    conv = GENConv(4, bias=mlp_bias).double()
    nn.init.constant_(conv.t, 1.7)
    nn.init.normal_(conv.mlp[1].weight)
    n = 7
    x = torch.randn(n, 4, dtype=F64)
    arcs = torch.tensor([[0, 0, 1, 3, 3, 3, 5], [1, 2, 1, 0, 5, 6, 4]])
    bag = Bag(name="a", x=x, edges=arcs[:, :0], weights=torch.zeros(0, dtype=F64), arcs=arcs)
    from probsa.layers.graph import neighbourhoods

    s = torch.zeros(n, 4, dtype=F64)
    for i in range(n):
        for c in range(4):
            m = [max(x[j, c].item(), 0) + 1e-7 for i_, j in arcs.T.tolist() if i_ == i]
            e = torch.tensor([1.7 * v for v in m], dtype=F64).softmax(0)
            s[i, c] = sum(a * v for a, v in zip(e.tolist(), m, strict=True))
    bias = conv.mlp[0].bias if mlp_bias else 0
    y = (x + s) @ conv.mlp[0].weight.T + bias
    y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    y = (y * conv.mlp[1].weight + conv.mlp[1].bias).relu() @ conv.mlp[3].weight.T
    want = y + conv.mlp[3].bias if mlp_bias else y
    got = conv(x, neighbourhoods(pack([bag])))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


# counts


# options


BASE = {"embed": 6, "hidden": 7, "attention_dim": 4}


def test_a_bias_on_the_score_shifts_the_score_and_nothing_else():
    plain = made("patchgcn", **BASE, score_bias=False).double().eval()
    biased = made("patchgcn", **BASE).double().eval()
    biased.load_state_dict(plain.state_dict(), strict=False)
    nn.init.constant_(biased.attention.mean.bias, 3.0)
    a, b = plain(some_bags()), biased(some_bags())
    torch.testing.assert_close(a.attention.mean + 3, b.attention.mean)
    torch.testing.assert_close(a.logits, b.logits)


def test_weights_of_edges_reach_the_gcn_only():
    bags = some_bags()
    other = type(bags)(
        **{k: getattr(bags, k) for k in ("x", "offsets", "edges", "y", "names")},
        weights=bags.weights.flip(0),
    )
    for conv, matters in (("gen", False), ("gcn", True)):
        model = made("patchgcn", **BASE, conv=conv).double().eval()
        assert torch.equal(model(bags).logits, model(other).logits) != matters
