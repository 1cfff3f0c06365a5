"""GraphCAM: parity with the original, an independent computation of the rules, invariances."""

from types import SimpleNamespace

import pytest
import torch
from support.golden import Golden, close
from support.options import some_bags
from support.random_bags import F64, random_bag
from torch import Tensor

from probsa import Bag, pack
from probsa.evaluation import Predictor
from probsa.models import build
from probsa.models.gtp import GTP, graph, pool_clusters
from probsa.training import Standardizer

EACH = [0, 1, 2]
SMALL = {"in_dim": 6, "embed": 8, "clusters": 5, "heads": 2}


@pytest.fixture(scope="module")
def gtp(shared_golden) -> Golden:
    return Golden(shared_golden, "gtp")


@pytest.mark.parametrize("b", EACH)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_every_class_is_the_originals(gtp, b, dtype):
    """The original's values in double precision are matched, in single precision as well.

    The original's own values in single precision differ from those by up to a third.
    """
    model = gtp.model().to(dtype)
    bags = pack([gtp.bag(b, dtype=dtype)])

    def expected(key: str) -> Tensor:
        return gtp.expected(f"bag{b}.graphcam.{key}", double=True)

    assignment, cluster_relevance = model.relevance(bags)
    close(assignment, expected("s").softmax(1))
    assert torch.equal(assignment.argmax(1), expected("s_argmax"))
    out = model(bags)
    scores = model.instance_scores(bags, out).mean
    assert scores.dtype == dtype and scores.shape == (len(bags.x), 3)
    for c in range(3):
        close(cluster_relevance[0, c][None], expected(f"cam{c}"))
        node = scores[:, c].double()
        close(node, expected(f"node{c}"))
        # the original's picture: scores from 0 to 1, times the probability, which is at least 0.4
        scaled = (node - node.min()) / (node.max() - node.min())
        picture = (out.probability[0, c].clip(0.4, 1) * scaled).clip(0, 1)
        close(picture, expected(f"vis{c}"))


# The rules of relevance once more, written with automatic differentiation (`second_relevance`).


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """Return a / (b + 1e-9), and 0 where b is 0, in the terms of the original."""
    low = b.clamp(min=1e-9) + b.clamp(max=1e-9)
    return a / (low + (low == 0) * 1e-9) * (b != 0)


def shares(f, inputs: list[Tensor], r: Tensor) -> list[Tensor]:
    """Return the relevance of each input, x ⊙ ∂f/∂x applied to R ⊘ f(x), for R of the output."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        z = f(*leaves)
        grads = torch.autograd.grad(z, leaves, ratio(r, z))
    return [x.detach() * g for x, g in zip(leaves, grads, strict=True)]


def linear(r: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Return the relevance of x in x wᵀ: products of two positive or two negative numbers count."""
    positive_w = w.clamp(min=0).T
    negative_w = w.clamp(max=0).T

    def products(positive_x: Tensor, negative_x: Tensor) -> Tensor:
        return positive_x @ positive_w + negative_x @ negative_w

    return sum(shares(products, [x.clamp(min=0), x.clamp(max=0)], r))


def added(r: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    """Return the relevance of a and of b in a + b; together they have the sum of r."""
    parts = shares(torch.add, [a, b], r)
    total = sum(part.sum().abs() for part in parts)
    scaled = []
    for part in parts:
        share = ratio(part.sum().abs(), total)
        scaled.append(part * ratio(share * r.sum(), part.sum()))
    return scaled


def steps(block, x: Tensor) -> SimpleNamespace:
    """Return the intermediate results of a block for tokens (bags, t, d)."""
    trace = SimpleNamespace(x=x, normed=block.norm1(x))
    qkv = block.qkv(trace.normed).unflatten(2, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
    trace.q, trace.k, trace.v = qkv
    trace.attention = (trace.q @ trace.k.mT / trace.q.shape[-1] ** 0.5).softmax(-1)
    trace.mixed = (trace.attention @ trace.v).transpose(1, 2).flatten(2)
    trace.attended = block.out(trace.mixed)
    trace.z = x + trace.attended
    trace.normed_z = block.norm2(trace.z)
    trace.active = block.mlp[:2](trace.normed_z)
    trace.mlp = block.mlp[2:](trace.active)
    trace.out = trace.z + trace.mlp
    return trace


def second_relevance(model: GTP, t: Tensor, *, start: float | None) -> Tensor:
    """Return each cluster's relevance for the one class, from tokens (1, t, d), the class first.

    The relevance of the logit is `start`, or the logit itself.
    """
    traces = []
    x = t
    for block in model.blocks:
        traces.append(steps(block, x))
        x = traces[-1].out
    last = model.norm(x)[:, 0]
    logit = model.classifier(last)
    gradients = torch.autograd.grad(logit.sum(), [trace.attention for trace in traces])
    logit_relevance = logit if start is None else torch.full_like(logit, start)
    # from the logit to the class token; the norm passes relevance on unchanged
    class_relevance = linear(logit_relevance, last, model.classifier.weight)
    r = torch.zeros_like(t)
    r[:, 0] = shares(lambda v: v, [last], class_relevance)[0]
    eye = torch.eye(t.shape[1], dtype=t.dtype)
    rollout = eye
    for block, trace, gradient in reversed(list(zip(model.blocks, traces, gradients, strict=True))):
        # the second half of the block: out = z + mlp(norm(z))
        skip, mlp = added(r, trace.z, trace.mlp)
        mlp = linear(mlp, trace.active, block.mlp[3].weight)
        mlp = linear(mlp, trace.normed_z, block.mlp[0].weight)
        r = trace.z * (ratio(skip, trace.z) + ratio(mlp, trace.z))
        # the first half: z = x + out(attention @ v)
        skip, mixed = added(r, trace.x, trace.attended)
        if isinstance(block.out, torch.nn.Linear):
            mixed = linear(mixed, trace.mixed, block.out.weight)
        mixed = mixed.unflatten(2, (block.heads, -1)).transpose(1, 2)
        # a product's relevance goes to each of its two factors in halves
        attention_share, v_share = shares(torch.matmul, [trace.attention, trace.v], mixed)
        r_attention = attention_share / 2
        q_share, k_share = shares(
            lambda q, k: q @ k.transpose(2, 3), [trace.q, trace.k], r_attention
        )
        r_qkv = torch.stack([q_share / 2, k_share / 2, v_share / 2])
        r_qkv = r_qkv.permute(1, 3, 0, 2, 4).flatten(2)
        attended = linear(r_qkv, trace.normed, block.qkv.weight)
        r = trace.x * (ratio(skip, trace.x) + ratio(attended, trace.x))
        # the start multiplies the gradient as well
        factor = logit_relevance[:, :, None, None] if start is None else start
        weights = (gradient * factor * r_attention).clamp(min=0).mean(1)
        rollout = rollout @ (weights + eye)
    return rollout[:, 0, 1:].detach()


def small(*, seed: int = 0, **options) -> GTP:
    """Return a float64 model in eval() with a random class token and a batch's statistics."""
    torch.manual_seed(seed)
    model = build("gtp", **{**SMALL, **options}).double()
    assert isinstance(model, GTP)
    torch.nn.init.normal_(model.class_token)
    model(some_bags())
    return model.eval()


def tokens_of(model: GTP, bags) -> tuple[Tensor, Tensor]:
    """Return the logits of the assignment (n, clusters), and the tokens (bags, 1 + clusters, d)."""
    edges = graph(bags, weighted=model.weighted, dtype=bags.x.dtype)
    h, s = model.nodes(model.embed(bags.x), edges)
    pooled = pool_clusters(s.softmax(1), h, bags.sizes)[0]
    return s.detach(), model.tokens(pooled)


@pytest.mark.parametrize("unit", [False, True])
def test_the_relevance_of_one_logit_is_that_of_the_second_computation(unit):
    model = small(unit_init=unit)
    bags = some_bags()
    s, t = tokens_of(model, bags)
    scores = model.instance_scores(bags, model(bags)).mean
    start = 1.0 if unit else None
    expected = []
    for b, bag_s in enumerate(s.split(list(bags.sizes))):
        cluster_relevance = second_relevance(model, t[[b]], start=start)[0]
        expected.append(bag_s.softmax(1) @ cluster_relevance)
    torch.testing.assert_close(scores, torch.cat(expected), rtol=1e-8, atol=1e-12)
    assert scores.min().item() >= 0 and scores.max().item() > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_map_knows_neither_batch_mates_nor_order(dtype):
    model = small().to(dtype)
    bags = [random_bag(n, seed=n, features=6, dtype=dtype, density=0.3) for n in (9, 1, 4, 30, 17)]
    whole = pack(bags)
    together = model.instance_scores(whole, model(whole)).mean
    for bag, scores in zip(bags, together.split(list(whole.sizes)), strict=True):
        order = torch.randperm(len(bag), generator=torch.Generator().manual_seed(1))
        new_index = order.argsort()
        permuted = Bag(name="t", x=bag.x[order], edges=new_index[bag.edges], weights=bag.weights)
        for single, expected in ((bag, scores), (permuted, scores[order])):
            alone = pack([single])
            actual = model.instance_scores(alone, model(alone)).mean
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


def test_a_map_is_the_same_wherever_it_is_asked_for():
    """The map is the same without gradients, in inference mode, under autocast and in training."""
    model = small().float()
    bags = some_bags(dtype=torch.float32)
    out = model(bags)
    want = model.instance_scores(bags, out).mean
    assert want.any() and not want.requires_grad
    state = {k: v.clone() for k, v in model.state_dict().items()}
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            assert torch.equal(model.instance_scores(bags, out).mean, want)
    model.train()
    assert torch.equal(model.instance_scores(bags, out).mean, want)
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_prediction_shows_graphcam():
    model = small().float()
    bag = random_bag(9, seed=1, features=6, dtype=torch.float32, y=1)
    plain = Standardizer(torch.zeros(6), torch.ones(6))
    [p] = Predictor(model, plain).predict([bag])
    want = model.instance_scores(pack([bag]), model(pack([bag]))).mean
    assert p.score_kind == "relevance" and p.attention_mean.shape == (9,)
    torch.testing.assert_close(torch.from_numpy(p.attention_mean), want, rtol=1e-5, atol=1e-7)
    assert p.weight_mean.sum() == pytest.approx(1, abs=1e-5) and not p.attention_variance.any()
