"""DSMIL equals a computation by hand, and starts with orthogonal weights."""

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

    dsmil = model("bag")
    bags = pack([random_bag(7, seed=1, features=6, y=1), random_bag(4, seed=2, features=6, y=0)])
    out = dsmil(bags)
    bag_rows = []
    instance_rows = []
    for x in bags.x.split([7, 4]):
        h = dsmil.embed(x)
        # first stream: per class, the largest logit of an instance, which is then the critical one
        instance_logits = dsmil.instance_classifier(h)
        instance_rows.append(instance_logits.amax(0))
        critical = instance_logits.argmax(0)
        # second stream: attention by the products of all queries with that of the critical instance
        queries = dsmil.query(h)
        attention = (queries @ queries[critical].T).softmax(0)
        pooled = attention.T @ dsmil.value(h)
        bag_rows.append(dsmil.classifier(pooled[None])[0, :, 0])
    bag_stream = torch.stack(bag_rows)
    instance_stream = torch.stack(instance_rows)
    same(out.logits[:, 0], bag_stream)
    one_hot = bags.y[:, None].double() if c == 1 else F.one_hot(bags.y, c).double()
    is_softmax = labels == "exclusive" and c > 1
    loss = F.cross_entropy if is_softmax else F.binary_cross_entropy_with_logits
    losses = dsmil.losses(out, bags)
    same(losses["nll"], loss(bag_stream, one_hot))
    same(losses["instance"], loss(instance_stream, one_hot))
    same(model("mean_logit")(bags).logits[:, 0], (bag_stream + instance_stream) / 2)
    probability = dsmil.likelihood.probability
    mean = (probability(bag_stream) + probability(instance_stream)) / 2
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
