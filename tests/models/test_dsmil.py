"""DSMIL equals the reference outputs, the specification's values and a computation by hand."""

import pytest
import torch
import torch.nn.functional as F
from models.test_parity import features, q
from support.random_bags import random_bag
from torch import Tensor

from probsa import Bag, pack
from probsa.core.bags import Bags
from probsa.errors import CheckpointError, UnknownName
from probsa.models import build, from_original


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def original_state(c: int, query: str = "mlp", *, layer: bool = False, k: int = 24) -> dict:
    mlp = {"b_classifier.q.0.weight": (128, k), "b_classifier.q.0.bias": (128,),
           "b_classifier.q.2.weight": (128, 128), "b_classifier.q.2.bias": (128,)}  # fmt: skip
    linear = {"b_classifier.q.weight": (128, k), "b_classifier.q.bias": (128,)}
    value = {"b_classifier.v.1.weight": (k, k), "b_classifier.v.1.bias": (k,)}
    shapes = {
        "i_classifier.fc.0.weight": (c, k),
        "i_classifier.fc.0.bias": (c,),
        "b_classifier.fcc.weight": (c, c, k),
        "b_classifier.fcc.bias": (c,),
        **(mlp if query == "mlp" else linear),
        **(value if layer else {}),
    }
    return {key: q(key, *shape) for key, shape in shapes.items()}


def one_bag(x: Tensor, y: int | None = None) -> Bags:
    return pack([Bag(name="a", x=x, edges=torch.zeros(2, 0).long(), weights=torch.zeros(0), y=y)])


def test_every_form_of_the_original_and_of_torchmil_is_read():
    """The reference outputs, and both streams by hand, show what each form computes."""
    for query, layer, constructor in (
        ("linear", True, {"nonlinear": 0, "passing_v": 1}),
        ("linear", False, {}),
        ("mlp", True, {"passing_v": True}),
    ):
        read = from_original("dsmil", original_state(2, query, layer=layer), **constructor)
        assert read.arguments["query"] == query
        assert (read.arguments["value"] == "identity") != layer
    shapes = {"q_nn.module.weight": (5, 12), "q_nn.module.bias": (5,)}
    for key in ("inst_classifier", "bag_classifier"):
        shapes |= {f"{key}.module.weight": (1, 12), f"{key}.module.bias": (1,)}
    state = {k: q(k, *shape) for k, shape in shapes.items()}
    theirs = from_original("torchmil_dsmil", dict(state), in_shape="(12,)", att_dim="5")
    assert [theirs.arguments[k] for k in ("query", "query_dim", "value")] == [
        "linear", 5, "identity"
    ]  # fmt: skip
    assert torch.equal(theirs.query[0].weight, state["q_nn.module.weight"])


def test_wrapped_names_and_an_embedders_parts_are_read():
    state, bags = original_state(2), one_bag(features(9, 24))
    want = from_original("dsmil", state)(bags).logits
    wrapped = {f"module.{k}": v for k, v in state.items()}
    assert torch.equal(from_original("dsmil", wrapped)(bags).logits, want)
    # IClassifier: a network precedes the instance classifier, whose name has no number
    embedder = {k.replace("fc.0.", "fc."): v for k, v in state.items()}
    embedder["i_classifier.feature_extractor.conv1.weight"] = torch.zeros(4, 3, 7, 7)
    assert torch.equal(from_original("dsmil", embedder)(bags).logits, want)


@pytest.mark.parametrize(
    ("change", "constructor", "message"),
    [
        ({}, {"C": 3}, r"i_classifier.fc.0.weight has shape \(2, 24\).*\(3, 24\)"),
        ({}, {"K": 25}, r"i_classifier.fc.0.weight has shape \(2, 24\).*\(2, 25\)"),
        ({}, {"passing_v": True}, "nothing given for value.1.bias"),
        ({}, {"nonlinear": False}, "unknown are b_classifier.q.2"),
        ({"b_classifier.fcc.weight": None}, {}, "no 'b_classifier.fcc.weight'.*be that of dsmil"),
        ({"b_classifier.q.0.weight": None}, {}, "no 'b_classifier.q.0.weight'"),
        ({"b_classifier.extra": (3,)}, {}, "unknown are b_classifier.extra"),
    ],
)
def test_another_state_dict_is_refused(change, constructor, message):
    state = original_state(2) | {k: torch.zeros(v) for k, v in change.items() if v}
    state = {k: v for k, v in state.items() if change.get(k, ()) is not None}
    with pytest.raises(CheckpointError, match=message):
        from_original("dsmil", state, **constructor)


def test_weights_that_may_be_the_publications_are_refused():
    with pytest.raises(CheckpointError, match="give nonlinear=False"):
        from_original("dsmil", original_state(1, "linear", layer=True))


def test_another_argument_of_the_original_is_refused():
    with pytest.raises(UnknownName, match=r"no argument of dsmil named 'passing'.*'passing_v'"):
        from_original("dsmil", original_state(1), passing=True)


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("labels", ["exclusive", "independent"])
def test_both_streams_by_hand_and_the_score_is_a_mean_of_both(c, labels):
    def model(score: str):
        torch.manual_seed(0)
        return build(
            "dsmil", in_dim=6, embed=8, n_classes=c, labels=labels, bag_score=score,
            query="linear", query_dim=5, value="mlp", scaled=False,
        ).double()  # fmt: skip

    own = model("bag")
    bags = pack([random_bag(7, seed=1, features=6, y=1), random_bag(4, seed=2, features=6, y=0)])
    out = own(bags)
    bag, top = [], []
    for x in bags.x.split([7, 4]):
        h = own.embed(x)
        instance = own.instance_classifier(h)
        a = (own.query(h) @ own.query(h)[instance.argmax(0)].T).softmax(0)
        bag.append(own.classifier((a.T @ own.value(h))[None])[0, :, 0])
        top.append(instance.amax(0))
    bag, top = torch.stack(bag), torch.stack(top)
    same(out.logits[:, 0], bag)
    for logits, name in ((bag, "nll"), (top, "instance")):
        one_hot = bags.y[:, None].double() if c == 1 else F.one_hot(bags.y, c).double()
        exclusive = labels == "exclusive" and c > 1
        want = F.cross_entropy if exclusive else F.binary_cross_entropy_with_logits
        same(own.losses(out, bags)[name], want(logits, one_hot))
    same(model("mean_logit")(bags).logits[:, 0], (bag + top) / 2)
    probability = own.likelihood.probability
    mean = (probability(bag) + probability(top)) / 2
    same(model("mean_prob")(bags).probability, mean)


def test_it_starts_orthogonal():
    model = build("dsmil", in_dim=20, n_classes=3, embed=16)
    for module in (model.embed.net[0], model.query[0], model.query[2],
                   model.instance_classifier, model.classifier):  # fmt: skip
        w = module.weight.flatten(1)
        w = w if w.shape[0] <= w.shape[1] else w.T
        torch.testing.assert_close(w @ w.T, torch.eye(len(w)), rtol=1e-5, atol=1e-5)
        assert not module.bias.any()
