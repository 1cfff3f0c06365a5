"""DSMIL equals the reference outputs, the specification's values and a computation by hand."""

import pytest
import torch
import torch.nn.functional as F
from support.random_bags import random_bag
from torch import Tensor

from probsa import pack
from probsa.models import build


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("c", [1, 3])
@pytest.mark.parametrize("labels", ["exclusive", "independent"])
def test_both_streams_by_hand_and_the_score_is_a_mean_of_both(c, labels):
    def model(score: str):
        torch.manual_seed(0)
        return build(
            "dsmil",
            in_dim=6,
            embed=8,
            n_classes=c,
            labels=labels,
            bag_score=score,
            query="linear",
            query_dim=5,
            value="mlp",
            scaled=False,
        ).double()

    own = model("bag")
    bags = pack([random_bag(7, seed=1, features=6, y=1), random_bag(4, seed=2, features=6, y=0)])
    out = own(bags)
    bag = []
    top = []
    for x in bags.x.split([7, 4]):
        h = own.embed(x)
        instance = own.instance_classifier(h)
        a = (own.query(h) @ own.query(h)[instance.argmax(0)].T).softmax(0)
        bag.append(own.classifier((a.T @ own.value(h))[None])[0, :, 0])
        top.append(instance.amax(0))
    bag = torch.stack(bag)
    top = torch.stack(top)
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
    for module in (
        model.embed.net[0],
        model.query[0],
        model.query[2],
        model.instance_classifier,
        model.classifier,
    ):
        w = module.weight.flatten(1)
        w = w if w.shape[0] <= w.shape[1] else w.T
        torch.testing.assert_close(w @ w.T, torch.eye(len(w)), rtol=1e-5, atol=1e-5)
        assert not module.bias.any()
