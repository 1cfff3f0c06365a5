"""GTP: parity with the authors' code and torchmil's, sparse graph, pooling, training."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64, adjacency, graphs_of_all_kinds, random_bag
from torch import Tensor

from probsa import Bag, pack
from probsa.models import build
from probsa.models._graphcam import trace
from probsa.models.gtp import GTP, graph, mincut, ortho, pool_clusters

EACH = [0, 1, 2]
SMALL = {"in_dim": 6, "embed": 8, "clusters": 5, "heads": 2}


@pytest.fixture(scope="module")
def gtp(shared_golden) -> Golden:
    return Golden(shared_golden, "gtp")


@pytest.fixture(scope="module")
def torchmil(shared_golden) -> Golden:
    return Golden(shared_golden, "torchmil_gtp")


def traces(model: GTP, bags):
    """Return H, S, the pooled clusters and the trace of each block."""
    x = model.embed(bags.x)
    a = graph(bags, model.adjacency, dtype=x.dtype)
    h, s = model.nodes(x, a)
    pooled, _ = pool_clusters(s.softmax(1), h, bags.sizes)
    t, traces = model.tokens(pooled), []
    for block in model.blocks:
        traces.append(trace(block, t))
        t = traces[-1].out
    return h, s, pooled, traces


# the authors' code


@pytest.mark.parametrize("b", EACH)
@pytest.mark.parametrize("double", [False, True])
def test_a_prediction_is_the_originals(gtp, b, double):
    model = gtp.model()
    if double:
        model = model.double()
    bags = pack([gtp.bag(b, dtype=F64 if double else torch.float32)])
    out = model(bags)
    losses = model.losses(out, bags)
    for key in ("logits", "mincut", "ortho", "loss"):
        got = {"logits": out.logits[0], **losses, "loss": sum(losses.values())}[key]
        close(got, gtp.expected(f"bag{b}.{key}", double=double))
    close(losses["nll"], gtp.expected(f"bag{b}.ce"))
    close(out.probability, gtp.expected(f"bag{b}.graphcam.prob", double=double))
    assert torch.equal(out.logits[0].argmax(1), gtp.expected(f"bag{b}.pred"))
    assert not out.attention.mean.any() and out.attention.mean.shape == (len(bags.x), 3)


@pytest.mark.parametrize("b", EACH)
def test_every_step_is_the_originals(gtp, b):
    model = gtp.model()
    h, s, pooled, blocks = traces(model, pack([gtp.bag(b)]))
    close(h[None], gtp.expected(f"bag{b}.gcn"))
    close(s[None], gtp.expected(f"bag{b}.s"))
    close(pooled, gtp.expected(f"bag{b}.pool_x"))
    assert len(blocks) == 3
    for k, block in enumerate(blocks):
        close(block.attention[:, :, 0], gtp.expected(f"bag{b}.attn{k}"))


@pytest.mark.parametrize("b", EACH)
def test_gradients_are_the_originals(gtp, b):
    model = gtp.model()
    bag = gtp.bag(b)
    bags = pack([bag])
    total = sum(model.losses(model(bags), bags).values())
    assert set(gtp.names(model).values()) == {k for k, _ in model.named_parameters()}
    gtp.check_gradients(model, total, bag.x, b=b)


@pytest.mark.parametrize("b", EACH)
def test_training_is_the_originals(gtp, b):
    model = gtp.model().train()
    bag = gtp.bag(b)
    bags = pack([bag])
    out = model(bags)
    losses = model.losses(out, bags)
    total = sum(losses.values())
    close(out.logits[0], gtp.expected(f"bag{b}.train.logits"))
    close(losses["mincut"], gtp.expected(f"bag{b}.train.mincut"))
    close(losses["ortho"], gtp.expected(f"bag{b}.train.ortho"))
    close(total, gtp.expected(f"bag{b}.train.loss"))
    close(traces(model, bags)[0][None], gtp.expected(f"bag{b}.train.gcn"))
    gtp.check_gradients(model, total, bag.x, b=b, key="train.")


@pytest.mark.parametrize("training", [False, True])
def test_three_bags_at_once_without_padding(gtp, training):
    model = gtp.model().train(training)
    bags = pack([gtp.bag(b) for b in EACH])
    out = model(bags)
    losses = model.losses(out, bags)
    key = "train_" if training else ""
    close(out.logits[:, 0], gtp.expected(f"batch.{key}logits"))
    close(sum(losses.values()), gtp.expected(f"batch.{key}loss"))
    if not training:
        close(losses["mincut"], gtp.expected("batch.mincut"))
        close(losses["ortho"], gtp.expected("batch.ortho"))


# against the definition, dense


def dense_forward(model: GTP, bag: Bag, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute logits, mincut and ortho of one bag from an N × N matrix, in eval mode."""
    p = model.state_dict()
    x = bag.x @ p["embed.net.0.weight"].T + p["embed.net.0.bias"]
    y = (a @ x + x) @ p["gcn.weight"] + p["gcn.bias"]
    y = y / y.norm(dim=1, keepdim=True).clamp_min(1e-12)
    scale = (p["gcn.norm.running_var"] + 1e-5).sqrt()
    h = (y - p["gcn.norm.running_mean"]) / scale * p["gcn.norm.weight"] + p["gcn.norm.bias"]
    s = (h @ p["assign.weight"].T + p["assign.bias"]).softmax(1)
    t = torch.cat([p["class_token"][0], s.T @ h])
    for k in range(len(model.blocks)):
        start = f"blocks.{k}."
        block = {n.removeprefix(start): v for n, v in p.items() if n.startswith(start)}
        n = F.layer_norm(t, t.shape[1:], block["norm1.weight"], block["norm1.bias"], 1e-6)
        heads = []
        for q_kv in (
            (n @ block["qkv.weight"].T).view(len(t), 3, model.blocks[k].heads, -1).unbind(2)
        ):
            q, key, v = q_kv.unbind(1)
            heads.append((q @ key.T / q.shape[1] ** 0.5).softmax(1) @ v)
        t = t + torch.cat(heads, 1) @ block["out.weight"].T + block["out.bias"]
        n = F.layer_norm(t, t.shape[1:], block["norm2.weight"], block["norm2.bias"], 1e-6)
        m = F.gelu(n @ block["mlp.0.weight"].T + block["mlp.0.bias"])
        t = t + m @ block["mlp.3.weight"].T + block["mlp.3.bias"]
    t = F.layer_norm(t[0], t.shape[1:], p["norm.weight"], p["norm.bias"], 1e-5)
    possible = (s.T @ torch.diag(a.sum(1)) @ s).trace()
    cut = -(s.T @ a @ s).trace() / possible if possible > 0 else torch.zeros((), dtype=F64)
    gram = s.T @ s
    k = len(gram)
    far = (gram / gram.square().sum().sqrt() - torch.eye(k, dtype=F64) / k**0.5).square().sum()
    return t @ p["classifier.weight"].T + p["classifier.bias"], cut, far.sqrt()


@pytest.mark.parametrize("kind", ["binary", "weighted", "normalized"])
def test_the_edge_list_is_the_matrix(kind):
    torch.manual_seed(0)
    model = build("gtp", **SMALL, adjacency=kind).double()
    torch.nn.init.normal_(model.gcn.norm.running_mean)
    torch.nn.init.normal_(model.class_token)
    model.eval()
    bags = [replace(b, x=torch.randn(len(b.x), 6, dtype=F64)) for b in graphs_of_all_kinds()]
    out = model(pack(bags))
    for k, bag in enumerate(bags):
        a = adjacency(bag)
        if kind == "binary":
            a = (a > 0).double()
        if kind == "normalized":
            r = a.sum(1).clamp_min(1e-300).rsqrt() * (a.sum(1) > 0)
            a = r[:, None] * a * r
        logits, cut, far = dense_forward(model, bag, a)
        torch.testing.assert_close(out.logits[k, 0], logits, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(out.extras["mincut"][k], cut, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out.extras["ortho"][k], far, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 4, 100])
def test_even_clusters_cut_nothing_and_are_no_clusters(k):
    bags = pack([random_bag(9, seed=1, density=0.5), random_bag(5, seed=2, density=0.9)])
    soft = torch.full((14, k), 1 / k, dtype=F64)
    _, gram = pool_clusters(soft, soft, bags.sizes)
    cut = mincut(soft, graph(bags, "binary", dtype=F64))
    assert cut.tolist() == pytest.approx([-1.0, -1.0], abs=1e-14)
    want = max(2 - 2 / k**0.5, 0) ** 0.5
    assert ortho(gram).tolist() == pytest.approx([want, want], abs=1e-12)
    if k == 100:
        assert want == pytest.approx(1.341641, abs=1e-6)


# training


def test_one_instance_in_training_uses_the_running_statistics():
    torch.manual_seed(0)
    model = build("gtp", **SMALL).double()
    model(some_bags())  # changes the running statistics
    before = {k: v.clone() for k, v in model.gcn.norm.named_buffers()}
    bags = pack([random_bag(1, seed=3, features=6, y=1)])
    out = model.train()(bags)
    assert torch.equal(out.logits, model.eval()(bags).logits)
    for k, v in model.gcn.norm.named_buffers():
        assert torch.equal(v, before[k])
    sum(model.losses(out, bags).values()).backward()
    assert bool(model.gcn.weight.grad.isfinite().all()) and model.gcn.norm.bias.grad.any()


def test_bags_meet_in_training_and_only_in_batch_normalisation():
    bags = some_bags()
    alone = pack([Bag(name="a", x=bags.x[:12], edges=bags.edges[:, bags.edges[1] < 12],
                      weights=bags.weights[bags.edges[1] < 12], y=1)])  # fmt: skip
    for kind, meet in (("normalized", True), ("relu", False)):
        model = made("gtp", **{k: v for k, v in SMALL.items() if k != "in_dim"}, gcn=kind).double()
        assert model.couples_bags
        apart = (model(bags).logits[0] - model(alone).logits[0]).abs().max().item()
        assert (apart > 1e-3) == meet
        model.eval()
        assert (model(bags).logits[0] - model(alone).logits[0]).abs().max().item() < 1e-12


def test_the_originals_size_is_a_preset():
    model = build("gtp", preset="original", in_dim=512, n_classes=3)
    assert sum(p.numel() for p in model.parameters()) == 139_687
    assert len(model.blocks) == 3 and model.blocks[0].heads == 8 and not model.unit_init
    assert not model.class_token.any() and not model.gcn.bias.any()
    bound = 5 * (2 / (512 + 64)) ** 0.5  # Xavier: five standard deviations
    assert model.gcn.weight.abs().max().item() < bound
