"""DSMIL equals the reference outputs, the specification's values and a computation by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from models.test_parity import features, q
from support.golden import Golden, close
from support.options import some_bags
from support.random_bags import F64, random_bag
from torch import Tensor

from probsa import Bag, pack
from probsa.core.bags import Bags
from probsa.errors import CheckpointError, InputError, UnknownName
from probsa.models import Model, build, from_original
from probsa.variational.objectives import objective

AUTHORS = ["dsmil_c1", "dsmil_c2", "dsmil_c3_linear_v", "ckpt_dsmil_c16"]


@pytest.fixture(scope="module", params=AUTHORS)
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


def total(model: Model, out, bags: Bags) -> Tensor:
    return objective(model.losses(out, bags), weights=model.loss_weights, kl_weight=1.0)


def columns(v: Tensor) -> Tensor:
    return v[:, None] if v.ndim == 1 else v


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_value_of_the_original(golden, b):
    model, bags = golden.model(), pack([golden.bag(b)])
    out = model(bags)
    close(columns(out.attention.mean), golden.expected(f"bag{b}.inst_logits"))
    attention = columns(out.extras["attention"])
    close(attention * math.sqrt(128), golden.expected(f"bag{b}.att_raw"))
    close(columns(out.extras["weight_mean"]), golden.expected(f"bag{b}.att"))
    close(out.extras["bag_vectors"], golden.expected(f"bag{b}.B"))
    assert torch.equal(out.extras["critical"][0], golden.expected(f"bag{b}.critical"))
    close(out.extras["max_logits"], golden.expected(f"bag{b}.max_logits"))
    close(out.logits[:, 0], golden.expected(f"bag{b}.logits"))
    close(out.probability, golden.expected(f"bag{b}.prob"))
    # the original sums the probabilities of both streams
    average = golden.model(bag_score="mean_prob")(bags)
    close(2 * average.probability, golden.expected(f"bag{b}.prob_average"))


@pytest.mark.parametrize("b", [0, 1, 2])
def test_each_loss_and_every_gradient_of_the_original(golden, b):
    model, bags = golden.model(), pack([bag := golden.bag(b)])
    out = model(bags)
    losses = model.losses(out, bags)
    close(losses["nll"], golden.expected(f"bag{b}.bag_loss"))
    close(losses["instance"], golden.expected(f"bag{b}.max_loss"))
    assert set(losses) == {"nll", "instance"}
    loss = total(model, out, bags)
    close(loss, golden.expected(f"bag{b}.total"))
    assert set(golden.names(model).values()) == {k for k, _ in model.named_parameters()}
    golden.check_gradients(model, loss, bag.x, b=b)


# state dicts of the original, with made-up numbers

KEYS = {
    "i_classifier.fc.0.weight": ("C", "K"),
    "i_classifier.fc.0.bias": ("C",),
    "b_classifier.fcc.weight": ("C", "C", "K"),
    "b_classifier.fcc.bias": ("C",),
}
QUERIES = {
    "mlp": {
        "b_classifier.q.0.weight": (128, "K"),
        "b_classifier.q.0.bias": (128,),
        "b_classifier.q.2.weight": (128, 128),
        "b_classifier.q.2.bias": (128,),
    },
    "linear": {"b_classifier.q.weight": (128, "K"), "b_classifier.q.bias": (128,)},
}
LAYER = {"b_classifier.v.1.weight": ("K", "K"), "b_classifier.v.1.bias": ("K",)}


def original_state(
    c: int, query: str = "mlp", *more: dict[str, tuple], k: int = 512
) -> dict[str, Tensor]:
    shapes = {**KEYS, **QUERIES[query]}
    for part in more:
        shapes |= part
    sizes = {"C": c, "K": k}
    return {key: q(key, *(sizes.get(s, s) for s in shape)) for key, shape in shapes.items()}


def one_bag(x: Tensor, y: int | None = None) -> Bags:
    return pack([Bag(name="a", x=x, edges=torch.zeros(2, 0).long(), weights=torch.zeros(0), y=y)])


# layouts


def by_hand(state: dict[str, Tensor], x: Tensor, *, query: str, value: str):
    """Compute instance logits, attention logits and bag logits by the original's formulas."""
    c = F.linear(x, state["i_classifier.fc.0.weight"], state["i_classifier.fc.0.bias"])
    under = {k.removeprefix("b_classifier."): v for k, v in state.items()}

    def question(rows: Tensor) -> Tensor:
        if query == "linear":
            return F.linear(rows, under["q.weight"], under["q.bias"])
        first = F.linear(rows, under["q.0.weight"], under["q.0.bias"])
        return F.linear(first.relu(), under["q.2.weight"], under["q.2.bias"]).tanh()

    v = x if value == "identity" else F.linear(x, under["v.1.weight"], under["v.1.bias"])
    v = v.relu() if value == "mlp" else v
    critical = torch.sort(c, 0, descending=True).indices[0]
    a = question(x) @ question(x[critical]).T / math.sqrt(128)
    vectors = a.softmax(0).T @ v
    return c, a, F.conv1d(vectors[None], under["fcc.weight"], under["fcc.bias"])[0, :, 0]


LAYOUTS = [
    # the publication: linear q, v without ReLU, which only the arguments tell
    ({"query": "linear", "value": "linear"}, (LAYER,), {}),
    ({"query": "linear", "value": "mlp"}, (LAYER,), {"passing_v": True}),
    ({"query": "linear", "value": "mlp"}, (LAYER,), {"nonlinear": 0, "passing_v": 1}),
    ({"query": "linear", "value": "identity"}, (), {}),
    ({"query": "mlp", "value": "mlp"}, (LAYER,), {}),
]


@pytest.mark.parametrize(("form", "more", "constructor"), LAYOUTS, ids=str)
@pytest.mark.parametrize("c", [1, 2])
def test_every_layout_of_the_original(form, more, constructor, c):
    state, x = original_state(c, form["query"], *more, k=24), features(9, 24)
    want = by_hand(state, x, **form)
    out = from_original("dsmil", state, **constructor)(one_bag(x))
    got = columns(out.attention.mean), columns(out.extras["attention"]), out.logits[0, 0]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_wrapped_names_and_an_embedders_parts_are_read():
    state, bags = original_state(2, k=24), one_bag(features(9, 24))
    want = from_original("dsmil", state)(bags).logits
    wrapped = {f"module.{k}": v for k, v in state.items()}
    assert torch.equal(from_original("dsmil", wrapped)(bags).logits, want)
    # IClassifier: a network precedes the instance classifier, whose name has no number
    embedder = {k.replace("fc.0.", "fc."): v for k, v in state.items()}
    embedder["i_classifier.feature_extractor.conv1.weight"] = torch.zeros(4, 3, 7, 7)
    assert torch.equal(from_original("dsmil", embedder)(bags).logits, want)


def test_torchmils_other_layouts_are_read():
    state = {
        "q_nn.module.weight": q("q", 5, 12),
        "q_nn.module.bias": q("qb", 5),
        "inst_classifier.module.weight": q("i", 1, 12),
        "inst_classifier.module.bias": q("ib", 1),
        "bag_classifier.module.weight": q("b", 1, 12),
        "bag_classifier.module.bias": q("bb", 1),
    }
    model = from_original("torchmil_dsmil", state, in_shape="(12,)", att_dim="5")
    x = features(7, 12)
    out = model(one_bag(x))
    w = {k.replace(".module", ""): v for k, v in state.items()}
    c = F.linear(x, w["inst_classifier.weight"], w["inst_classifier.bias"])[:, 0]
    q_nd = F.linear(x, w["q_nn.weight"], w["q_nn.bias"])
    a = q_nd @ q_nd[c.argmax()] / math.sqrt(5)
    logit = F.linear(a.softmax(0) @ x, w["bag_classifier.weight"], w["bag_classifier.bias"])
    torch.testing.assert_close(out.logits[0, 0], logit, rtol=1e-12, atol=1e-13)
    assert model.loss_weights == {"nll": 1.0, "instance": 1.0}


@pytest.mark.parametrize(
    ("change", "constructor", "message"),
    [
        ({}, {"C": 3}, r"i_classifier.fc.0.weight has shape \(2, 24\).*\(3, 24\)"),
        ({}, {"K": 25}, r"i_classifier.fc.0.weight has shape \(2, 24\).*\(2, 25\)"),
        ({}, {"passing_v": True}, "nothing given for value.1.bias"),
        ({}, {"nonlinear": False}, "unknown are b_classifier.q.2"),
        ({"b_classifier.fcc.weight": None}, {}, "no 'b_classifier.fcc.weight'.*be that of dsmil"),
        ({"b_classifier.q.0.weight": None}, {}, "no 'b_classifier.q.0.weight'"),
        ({"i_classifier.fc.0.bias": None}, {}, "nothing given for instance_classifier.bias"),
        ({"b_classifier.extra": (3,)}, {}, "unknown are b_classifier.extra"),
        ({"b_classifier.lin.0.weight": (24, 24)}, {}, "unknown are b_classifier.lin"),
        ({"b_classifier.q.2.weight": (128, 64)}, {}, r"\(128, 64\) where dsmil.*\(128, 128\)"),
    ],
)
def test_another_state_dict_is_refused(change, constructor, message):
    state = original_state(2, k=24)
    for key, shape in change.items():
        if shape is None:
            del state[key]
        else:
            state[key] = torch.zeros(shape)
    with pytest.raises(CheckpointError, match=message):
        from_original("dsmil", state, **constructor)


def test_another_argument_of_the_original_is_refused():
    with pytest.raises(UnknownName, match=r"no argument of dsmil named 'passing'.*'passing_v'"):
        from_original("dsmil", original_state(1), passing=True)


# properties of the method


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("labels", ["exclusive", "independent"])
def test_both_streams_by_hand(c, labels):
    model = build(
        "dsmil", in_dim=6, embed=8, n_classes=c, labels=labels,
        query="linear", query_dim=5, value="mlp", scaled=False, init="uniform",
    ).double()  # fmt: skip
    bags = pack([random_bag(7, seed=1, features=6, y=1), random_bag(4, seed=2, features=6, y=0)])
    out = model(bags)
    streams = [], []
    for x in bags.x.split([7, 4]):
        h = model.embed(x)
        instance = model.instance_classifier(h)
        row = []
        for k in range(c):
            a = (model.query(h) @ model.query(h)[instance[:, k].argmax()]).softmax(0)
            row.append(a @ model.value(h))
        weight, bias = model.classifier.weight, model.classifier.bias
        row = torch.stack(row)
        seen = [(weight[k] * row).sum() + bias[k] for k in range(c)]
        streams[0].append(torch.stack(seen))
        streams[1].append(instance.max(0).values)
    terms = model.losses(out, bags)
    for stream, name in zip(streams, ("nll", "instance"), strict=True):
        logits = torch.stack(stream)
        if c == 1:
            want = F.binary_cross_entropy_with_logits(logits[:, 0], bags.y.double())
        elif labels == "exclusive":
            want = F.cross_entropy(logits, bags.y)
        else:
            one_hot = F.one_hot(bags.y, c).double()
            want = F.binary_cross_entropy_with_logits(logits, one_hot)
        torch.testing.assert_close(terms[name], want, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(out.logits[:, 0], torch.stack(streams[0]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("c", "labels"), [(1, "exclusive"), (3, "exclusive"), (3, "independent")])
def test_the_score_is_a_mean_of_both_streams(c, labels):
    models = {}
    for score in ("bag", "mean_prob", "mean_logit"):
        torch.manual_seed(0)
        model = build("dsmil", in_dim=6, embed=8, n_classes=c, labels=labels, bag_score=score)
        models[score] = model.double()
    bags = some_bags()
    outs = {k: m(bags) for k, m in models.items()}
    bag, top = outs["bag"].logits[:, 0], outs["bag"].extras["max_logits"]
    torch.testing.assert_close(outs["mean_logit"].logits[:, 0], (bag + top) / 2)
    probability = models["bag"].likelihood.probability
    mean = (probability(bag) + probability(top)) / 2
    torch.testing.assert_close(outs["mean_prob"].probability, mean, rtol=1e-12, atol=1e-13)


def test_the_gradient_reaches_both_queries():
    """It flows through every instance and the critical one; detaching the latter changes it."""
    model = build("dsmil", in_dim=6, embed=None, query="linear", query_dim=4).double()
    x = torch.randn(5, 6, dtype=F64, requires_grad=True)
    model(one_bag(x)).logits.sum().backward()
    query, critical = model.query, model.instance_classifier(x)[:, 0].argmax()

    def grad(*, cut: bool) -> Tensor:
        rows = x.detach().clone().requires_grad_()
        m = query(rows)[critical]
        a = query(rows) @ (m.detach() if cut else m) / 2
        z = a.softmax(0) @ rows
        F.linear(z, model.classifier.weight[0], model.classifier.bias).sum().backward()
        return rows.grad

    torch.testing.assert_close(x.grad, grad(cut=False), rtol=1e-12, atol=1e-13)
    assert (x.grad - grad(cut=True)).abs().max().item() > 1e-3


@pytest.mark.parametrize("c", [2, 3])
def test_independent_classes_have_bags_of_none(c):
    """The original's negatives have an all-zero label vector."""
    model = build("dsmil", in_dim=6, preset="original", n_classes=c).double()
    bags = one_bag(torch.randn(5, 6, dtype=F64), y=c)
    out = model(bags)
    want = F.softplus(out.logits[0, 0]).mean()
    torch.testing.assert_close(model.losses(out, bags)["nll"], want, rtol=1e-13, atol=0)
    assert out.probability.sum().item() != pytest.approx(1.0, abs=1e-3)
    beyond = one_bag(torch.randn(5, 6, dtype=F64), y=c + 1)
    with pytest.raises(InputError, match=f"n_classes={c} means 0 to {c}"):
        model.losses(model(beyond), beyond)


def test_it_starts_orthogonal():
    model = build("dsmil", in_dim=20, n_classes=3, embed=16)
    for module in (model.embed.net[0], model.query[0], model.query[2],
                   model.instance_classifier, model.classifier):  # fmt: skip
        w = module.weight.flatten(1)
        w = w if w.shape[0] <= w.shape[1] else w.T
        torch.testing.assert_close(w @ w.T, torch.eye(len(w)), rtol=1e-5, atol=1e-5)
        assert not module.bias.any()
