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
    """Ours holds in single precision, where theirs differs from its own double by a third."""
    model = gtp.model().to(dtype)
    bags = pack([gtp.bag(b, dtype=dtype)])

    def want(key: str) -> Tensor:
        return gtp.expected(f"bag{b}.graphcam.{key}", double=True)

    soft, u = model.relevance(bags)
    close(soft, want("s").softmax(1))
    assert torch.equal(soft.argmax(1), want("s_argmax"))
    out = model(bags)
    scores = model.instance_scores(bags, out).mean
    assert scores.dtype == dtype and scores.shape == (len(bags.x), 3)
    for c in range(3):
        close(u[0, c][None], want(f"cam{c}"))
        close(scores[:, c].double(), want(f"node{c}"))
        node = scores[:, c].double()
        span = (node - node.min()) / (node.max() - node.min())
        shown = (out.probability[0, c].clip(0.4, 1) * span).clip(0, 1)
        close(shown, want(f"vis{c}"))


def ratio(a: Tensor, b: Tensor) -> Tensor:
    low = b.clamp(min=1e-9) + b.clamp(max=1e-9)
    return a / (low + (low == 0) * 1e-9) * (b != 0)


def shares(f, inputs: list[Tensor], r: Tensor) -> list[Tensor]:
    """Return x ⊙ ∂f/∂x applied to R ⊘ f(x)."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        z = f(*leaves)
        grads = torch.autograd.grad(z, leaves, ratio(r, z))
    return [x.detach() * g for x, g in zip(leaves, grads, strict=True)]


def linear(r: Tensor, x: Tensor, w: Tensor) -> Tensor:
    up, down = w.clamp(min=0).T, w.clamp(max=0).T
    parts = [x.clamp(min=0), x.clamp(max=0)]
    return sum(shares(lambda p, n: p @ up + n @ down, parts, r))


def added(r: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    parts = shares(torch.add, [a, b], r)
    sums = [v.sum() for v in parts]
    size = sum(v.abs() for v in sums)
    return [v * ratio(ratio(s.abs(), size) * r.sum(), s) for v, s in zip(parts, sums, strict=True)]


def steps(block, x: Tensor) -> SimpleNamespace:
    """Return the intermediate results of a block for tokens (bags, t, d)."""
    one = SimpleNamespace(x=x, normed=block.norm1(x))
    qkv = block.qkv(one.normed).unflatten(2, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
    one.q, one.k, one.v = qkv
    one.attention = (one.q @ one.k.mT / one.q.shape[-1] ** 0.5).softmax(-1)
    one.mixed = (one.attention @ one.v).transpose(1, 2).flatten(2)
    one.attended = block.out(one.mixed)
    one.z = x + one.attended
    one.normed_z = block.norm2(one.z)
    one.active = block.mlp[:2](one.normed_z)
    one.mlp = block.mlp[2:](one.active)
    one.out = one.z + one.mlp
    return one


def second_time(model: GTP, t: Tensor, *, start: float | None) -> Tensor:
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
    gradients = torch.autograd.grad(logit.sum(), [one.attention for one in traces])
    begin = logit if start is None else torch.full_like(logit, start)
    r = torch.zeros_like(t)
    r[:, 0] = shares(lambda v: v, [last], linear(begin, last, model.classifier.weight))[0]
    j = eye = torch.eye(t.shape[1], dtype=t.dtype)
    for block, one, g in reversed(list(zip(model.blocks, traces, gradients, strict=True))):
        skip, mlp = added(r, one.z, one.mlp)
        mlp = linear(mlp, one.active, block.mlp[3].weight)
        mlp = linear(mlp, one.normed_z, block.mlp[0].weight)
        r = one.z * (ratio(skip, one.z) + ratio(mlp, one.z))
        skip, mixed = added(r, one.x, one.attended)
        if isinstance(block.out, torch.nn.Linear):
            mixed = linear(mixed, one.mixed, block.out.weight)
        mixed = mixed.unflatten(2, (block.heads, -1)).transpose(1, 2)
        r_a, r_v = (v / 2 for v in shares(torch.matmul, [one.attention, one.v], mixed))
        pair = shares(lambda q, k: q @ k.transpose(2, 3), [one.q, one.k], r_a)
        qkv = torch.stack([*(v / 2 for v in pair), r_v]).permute(1, 3, 0, 2, 4).flatten(2)
        other = linear(qkv, one.normed, block.qkv.weight)
        r = one.x * (ratio(skip, one.x) + ratio(other, one.x))
        factor = begin[:, :, None, None] if start is None else start
        j = j @ ((g * factor * r_a).clamp(min=0).mean(1) + eye)
    return j[:, 0, 1:].detach()


def tokens_of(model: GTP, bags) -> tuple[Tensor, Tensor]:
    """Return assignment logits and tokens."""
    h, s = model.nodes(
        model.embed(bags.x), graph(bags, weighted=model.weighted, dtype=bags.x.dtype)
    )
    return s.detach(), model.tokens(pool_clusters(s.softmax(1), h, bags.sizes)[0])


@pytest.mark.parametrize("unit", [False, True])
def test_one_logit_of_a_vit_by_the_rules_a_second_time(unit):
    model = small(unit_init=unit)
    bags = some_bags()
    s, t = tokens_of(model, bags)
    scores = model.instance_scores(bags, model(bags)).mean
    want = [
        s[rows].softmax(1) @ second_time(model, t[[b]], start=1.0 if unit else None)[0]
        for b, rows in enumerate((slice(0, 12), slice(12, 19)))
    ]
    torch.testing.assert_close(scores, torch.cat(want), rtol=1e-8, atol=1e-12)
    assert scores.min().item() >= 0 and scores.max().item() > 1e-6


def small(*, seed: int = 0, **options) -> GTP:
    """Return a float64 model in eval() with a random class token and a batch's statistics."""
    torch.manual_seed(seed)
    model = build("gtp", **{**SMALL, **options}).double()
    assert isinstance(model, GTP)
    torch.nn.init.normal_(model.class_token)
    model(some_bags())
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_map_knows_neither_batch_mates_nor_order(dtype):
    model = small().to(dtype)
    bags = [random_bag(n, seed=n, features=6, dtype=dtype, density=0.3) for n in (9, 1, 4, 30, 17)]
    whole = pack(bags)
    together = model.instance_scores(whole, model(whole)).mean
    for bag, rows in zip(bags, together.split([len(b) for b in bags]), strict=True):
        order = torch.randperm(len(bag), generator=torch.Generator().manual_seed(1))
        place = order.argsort()
        turned = Bag(name="t", x=bag.x[order], edges=place[bag.edges], weights=bag.weights)
        for single, want in ((bag, rows), (turned, rows[order])):
            alone = pack([single])
            actual = model.instance_scores(alone, model(alone)).mean
            torch.testing.assert_close(actual, want, rtol=1e-6, atol=1e-9)


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
