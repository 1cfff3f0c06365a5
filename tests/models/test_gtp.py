"""GTP: parity with the authors' code and torchmil's, sparse graph, pooling, training."""

from dataclasses import replace

import pytest
import torch
from support.golden import Golden, close
from support.options import some_bags
from support.random_bags import F64, adjacency, graphs_of_all_kinds, random_bag

from probsa import Bag, pack
from probsa.models import build
from probsa.models._graphcam import traced
from probsa.models.gtp import GTP, graph, mincut, ortho, pool_clusters

EACH = pytest.mark.parametrize("b", [0, 1, 2])


def small(**options) -> GTP:
    torch.manual_seed(0)
    model = build("gtp", **{"in_dim": 6, "embed": 8, "clusters": 5, "heads": 2, **options})
    assert isinstance(model, GTP)
    return model.double()


@pytest.fixture(scope="module")
def gtp(shared_golden) -> Golden:
    return Golden(shared_golden, "gtp")


@EACH
@pytest.mark.parametrize("double", [False, True])
def test_a_prediction_is_the_originals(gtp, b, double):
    model = gtp.model()
    if double:
        model = model.double()
    bags = pack([gtp.bag(b, dtype=F64 if double else torch.float32)])
    out = model(bags)
    losses = model.losses(out, bags)
    actual = {"logits": out.logits[0], **losses, "loss": sum(losses.values())}
    for key in ("logits", "mincut", "ortho", "loss"):
        close(actual[key], gtp.expected(f"bag{b}.{key}", double=double))
    close(losses["nll"], gtp.expected(f"bag{b}.ce"))
    close(out.probability, gtp.expected(f"bag{b}.graphcam.prob", double=double))
    assert torch.equal(out.logits[0].argmax(1), gtp.expected(f"bag{b}.pred"))
    assert not out.attention.mean.any() and out.attention.mean.shape == (len(bags.x), 3)


@EACH
@pytest.mark.parametrize("training", [False, True])
def test_every_step_and_gradient_is_the_originals(gtp, b, training):
    model = gtp.model().train(training)
    bag = gtp.bag(b)
    bags = pack([bag])
    out = model(bags)
    losses = model.losses(out, bags)
    total = sum(losses.values())
    h, s = model.nodes(model.embed(bags.x), graph(bags, weighted=False, dtype=torch.float32))
    assert set(gtp.names(model).values()) == {k for k, _ in model.named_parameters()}
    gtp.check_gradients(model, total, bag.x, b=b, key="train." if training else "")
    if training:
        actual = {**losses, "logits": out.logits[0], "loss": total, "gcn": h[None]}
        for key in ("logits", "mincut", "ortho", "loss", "gcn"):
            close(actual[key], gtp.expected(f"bag{b}.train.{key}"))
        return
    pooled, _ = pool_clusters(s.softmax(1), h, bags.sizes)
    for key, value in {"gcn": h[None], "s": s[None], "pool_x": pooled}.items():
        close(value, gtp.expected(f"bag{b}.{key}"))
    t = model.tokens(pooled)[0]
    for k, block in enumerate(model.blocks):
        t, attention, _ = traced(block, t)
        close(attention[None, :, 0], gtp.expected(f"bag{b}.attn{k}"))


@pytest.mark.parametrize("training", [False, True])
def test_three_bags_at_once_without_padding(gtp, training):
    model = gtp.model().train(training)
    bags = pack([gtp.bag(b) for b in range(3)])
    out = model(bags)
    losses = model.losses(out, bags)
    key = "train_" if training else ""
    close(out.logits[:, 0], gtp.expected(f"batch.{key}logits"))
    close(sum(losses.values()), gtp.expected(f"batch.{key}loss"))
    if not training:
        close(losses["mincut"], gtp.expected("batch.mincut"))
        close(losses["ortho"], gtp.expected("batch.ortho"))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_edge_list_is_the_matrix(weighted):
    """H, mincut and ortho of bags of all kinds from an N × N matrix."""
    model = small().eval()
    torch.nn.init.normal_(model.gcn.norm.running_mean)
    bags = [replace(b, x=torch.randn(len(b.x), 6, dtype=F64)) for b in graphs_of_all_kinds()]
    packed = pack(bags)
    arcs = graph(packed, weighted=weighted, dtype=F64)
    h, s = model.nodes(model.embed(packed.x), arcs)
    pooled, gram = pool_clusters(s.softmax(1), h, packed.sizes)
    cuts = mincut(s.softmax(1), arcs)
    fars = ortho(gram)
    start = 0
    for k, bag in enumerate(bags):
        a = adjacency(bag) if weighted else (adjacency(bag) > 0).double()
        own = slice(start, start := start + len(bag))
        x = model.embed(bag.x)
        y = (a @ x + x) @ model.gcn.weight + model.gcn.bias
        want = model.gcn.norm(y / y.norm(dim=1, keepdim=True).clamp_min(1e-12))
        soft = s[own].softmax(1)
        total = (soft.T @ torch.diag(a.sum(1)) @ soft).trace()
        cut = -(soft.T @ a @ soft).trace() / total if total > 0 else torch.zeros((), dtype=F64)
        inner = soft.T @ soft
        far = (inner / inner.norm() - torch.eye(5, dtype=F64) / 5**0.5).norm()
        for actual, wanted in (
            (h[own], want),
            (pooled[k], soft.T @ want),
            (cuts[k], cut),
            (fars[k], far),
        ):
            torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-11)


def test_one_instance_in_training_uses_the_running_statistics():
    model = small()
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
    inside = bags.edges[1] < 12
    alone = pack(
        [
            Bag(
                name="a",
                x=bags.x[:12],
                edges=bags.edges[:, inside],
                weights=bags.weights[inside],
                y=1,
            )
        ]
    )
    for code, meet in (("authors", True), ("torchmil", False)):
        model = small(code=code)
        assert model.couples_bags
        apart = (model(bags).logits[0] - model(alone).logits[0]).abs().max().item()
        assert (apart > 1e-3) == meet


def test_the_weights_start_as_the_originals():
    model = build("gtp", preset="original", in_dim=512, n_classes=3)
    assert not model.class_token.any() and not model.gcn.bias.any()
    bound = 5 * (2 / (512 + 64)) ** 0.5  # Xavier: five standard deviations
    assert model.gcn.weight.abs().max().item() < bound
