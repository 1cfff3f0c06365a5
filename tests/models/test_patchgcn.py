"""PatchGCN equals its original and torchmil's formula, and every option changes the result."""

import re

import pytest
import torch
import torch.nn.functional as F
from models.test_parity import features, q
from support.golden import Golden, close
from support.options import changes, made, options_of, some_bags
from support.random_bags import F64, types_not_executed
from torch import Tensor, nn

from probsa import Bag, pack
from probsa.errors import InputError
from probsa.layers.pooling import pool_vectors
from probsa.models import build, from_original
from probsa.models.patchgcn import GENConv

RULES = [
    (r"fc\.0\.", "embed.net.0."),
    (r"layers\.(\d)\.conv\.aggr_module\.t", r"layers.\1.conv.t"),
    (r"layers\.(\d)\.conv\.mlp\.4\.", r"layers.\1.conv.mlp.3."),
    (r"path_phi\.0\.", "phi.net.0."),
    (r"path_attention_head\.attention_a\.0\.", "attention.trunk.first."),
    (r"path_attention_head\.attention_b\.0\.", "attention.trunk.gate."),
    (r"path_attention_head\.attention_c\.", "attention.mean."),
    (r"path_rho\.0\.", "classifier.0."),
    (r"classifier\.", "classifier.2."),
    (r"gcn_layers\.(\d)\.conv\.fc\.module\.", r"layers.\1.conv.linear."),
    (r"gcn_layers\.", "layers."),
    (r"mlp\.0\.0\.module\.", "phi.net.0."),
    (r"pool\.fc1\.module\.", "attention.trunk.first."),
    (r"pool\.fc2\.", "attention.mean."),
]


def ours(theirs: str) -> str:
    if theirs.startswith("classifier.module."):
        return theirs.replace("module.", "")
    for pattern, name in RULES:
        if re.match(pattern, theirs):
            return re.sub(pattern, name, theirs, count=1)
    return theirs


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
    names = {k: ours(k) for k in authors.state if not k.startswith("layers.0.norm.")}
    assert set(names.values()) == {k for k, _ in model.named_parameters()}
    authors.check_gradients(model, total, bag.x, b=b, ours=names)


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


@pytest.mark.parametrize("b", [0, 1, 2])
def test_torchmils_model_by_its_own_formula(torchmil, b):
    """It has ReLU(LN(W (Âx + x) + b)) instead of GENConv, no residuals, and plain attention."""
    p = torchmil.state
    x = torchmil.tensors[f"bag{b}.x"]
    i, j = torchmil.tensors[f"bag{b}.edge_index"]
    a = torch.zeros(len(x), len(x))
    a[i, j] = torchmil.tensors[f"bag{b}.edge_weight"]
    parts = [x]
    for k in range(3):
        conv, norm = f"gcn_layers.{k}.conv.fc.module", f"gcn_layers.{k}.norm"
        y = F.linear(a @ parts[-1] + parts[-1], p[f"{conv}.weight"], p[f"{conv}.bias"])
        y = F.layer_norm(y, y.shape[1:], p[f"{norm}.weight"], p[f"{norm}.bias"])
        parts.append(y.relu())
    h = F.linear(torch.cat(parts, 1), p["mlp.0.0.module.weight"], p["mlp.0.0.module.bias"]).relu()
    t = F.linear(h, p["pool.fc1.module.weight"], p["pool.fc1.module.bias"]).tanh()
    f = t @ p["pool.fc2.weight"][0]
    logit = F.linear(f.softmax(0) @ h, p["classifier.module.weight"], p["classifier.module.bias"])[
        0
    ]
    close(f, torchmil.expected(f"bag{b}.att_raw"))
    close(logit, torchmil.expected(f"bag{b}.logit"))

    model = torchmil.model()
    bag = torchmil.bag(b)
    bags = pack([bag])
    out = model(bags)
    for got, want in zip(model.graph(bags), parts, strict=True):
        close(got, want)
    close(out.attention.mean, torchmil.expected(f"bag{b}.att_raw"))
    close(out.attention.mean.softmax(0), torchmil.expected(f"bag{b}.att"))
    close(out.logits[0, 0, 0], torchmil.expected(f"bag{b}.logit"))
    close(out.probability[0, 0], torchmil.expected(f"bag{b}.prob"))
    losses = model.losses(out, bags)
    close(losses["nll"], torchmil.expected(f"bag{b}.loss.BCEWithLogitsLoss"))
    names = {k: ours(k) for k in p}
    assert set(names.values()) == {k for k, _ in model.named_parameters()}
    torchmil.check_gradients(model, losses["nll"], bag.x, b=b, ours=names)


def test_torchmils_padded_batch(torchmil):
    model = torchmil.model()
    bags = pack([torchmil.bag(b) for b in range(3)])
    out = model(bags)
    close(out.logits[:, 0, 0], torchmil.expected("batch.logit"))
    nll = model.losses(out, bags)["nll"]
    close(nll, torchmil.expected("batch.loss.BCEWithLogitsLoss"))
    padded = torchmil.expected("batch.att_raw")
    scores = zip(out.attention.mean.split(list(bags.sizes)), padded, strict=True)
    for got, want in scores:
        close(got, want[: len(got)])


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


@pytest.mark.parametrize(
    ("options", "parameters", "width"),
    [
        # the specification's count, without the layer norm that the original never calls
        ({}, 5_389_701, 512),
        ({"preset": "original"}, 1_513_989, 128),
        ({"preset": "original", "attention_dim": 128, "rho": None}, None, 128),
        ({"preset": "original", "in_dim": 1024}, 1_382_917, 128),
        ({"preset": "original", "in_dim": 1024, "n_classes": 4}, 1_384_456, 128),
    ],
)
def test_parameters(options, parameters, width):
    model = build("patchgcn", **{"in_dim": 2048, **options})
    count = sum(p.numel() for p in model.parameters())
    if parameters is None:  # by hand: first layer, convolutions, norms, phi, attention, classifier
        gen = 2 * 128 * 256 + 256 + 128 + 2 * 256 + 1
        parameters = 2049 * 128 + 3 * gen + 3 * 256 + 513 * 512 + 2 * 513 * 128 + 129 + 513
    assert count == parameters - 2 * width


def test_parameters_of_torchmils_model():
    model = build(
        "patchgcn", in_dim=2048, conv="gcn", layers=4, block="plain", trunk="tanh", score_bias=False
    )
    assert sum(p.numel() for p in model.parameters()) == 3_481_345


# options


BASE = {"embed": 6, "hidden": 7, "attention_dim": 4}
CHANGES = {
    "embed": (8, 5),
    "layers": 2,
    "conv": "gcn",
    "width": 9,
    "mlp_bias": False,
    "block": "plain",
    "hidden": (7, 6),
    "rho": 5,
    "attention_dim": 5,
    "trunk": "tanh",
    "dropout": 0.5,
    "layer_dropout": 0.5,
    "attention_dropout": 0.5,
}


@pytest.mark.parametrize("key", options_of("patchgcn", without=["score_bias"]))
def test_an_option_changes_the_result(key):
    base = {**BASE, "conv": "gcn"} if key == "width" else BASE
    assert changes("patchgcn", key, CHANGES[key], **base) > 1e-6


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv": "gat"}, "conv is 'gat'; expected 'gen' or 'gcn'"),
        ({"block": "dense"}, "block is 'dense'; expected 'residual' or 'plain'"),
        ({"layers": 0}, "layers is 0; expected at least 1"),
        ({"rho": 0}, "rho is 0; expected at least 1"),
        ({"width": 64}, "width is 64, but GENConv keeps the 512 channels .* conv='gcn'"),
        ({"hidden": 0}, "expected widths of at least 1"),
        ({"dropout": 1.0}, r"dropout is 1.0; expected at least 0 and less than 1"),
        ({"layer_dropout": -0.1}, "layer_dropout is -0.1; expected at least 0 and less than 1"),
        ({"attention_dropout": 2.0}, r"dropout in the attention is 2.0"),
        ({"attention_dim": 0}, "attention_dim is 0"),
    ],
)
def test_what_is_no_option_is_refused(options, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        build("patchgcn", in_dim=6, **options)
