"""Models that pool without samples: their predictions are those of many samples."""

from dataclasses import replace

import pytest
import torch

from probsa import Bag, pack
from probsa.core import chain
from probsa.models import build

NAMES = ("abmil-probsa-diag", "tabmil-probsa-diag", "evidence-diag")


def bag(n, k):
    source = torch.Generator().manual_seed(k)
    x = torch.randn(n, 16, generator=source)
    edges = chain(n)
    return Bag(name=f"b{k}", x=x, edges=edges, weights=torch.ones(edges.shape[1]), y=float(k % 2))


BAGS = [bag(n, k) for k, n in enumerate((5, 40, 300, 1))]


def model(name, *, pooling, n_classes=1, **arguments):
    torch.manual_seed(1)
    built = build(
        name,
        in_dim=16,
        n_classes=n_classes,
        pooling=pooling,
        initial_log_variance=-0.5,
        **arguments,
    )
    if name.startswith("evidence"):
        with torch.no_grad():
            built.pooling.log_alpha += 0.7
            built.pooling.log_beta += 0.3
            built.pooling.bias += 0.2
    return built


@pytest.mark.parametrize(
    ("name", "n_classes"), [*zip(NAMES, (3, 1, 3), strict=True), (NAMES[0], 1)]
)
def test_predictions_are_those_of_many_samples(name, n_classes):
    bags = pack(BAGS)
    with torch.no_grad():
        closed = [
            model(name, pooling="closed_form", n_classes=n_classes, seed=s).eval()(bags)
            for s in range(8)
        ]
        many = [
            model(name, pooling="sampled", n_classes=n_classes, predict_samples=1000, seed=s)
            for s in range(12)
        ]
        sampled = [m.eval()(bags) for m in many]
    every = {
        "p": lambda out: out.probability,
        "std": lambda out: out.std,
        "weight_mean": lambda out: out.extras["weight_mean"],
        "weight_variance": lambda out: out.extras["weight_variance"],
        "contributions": lambda out: out.explanation.contributions,
        "leave_one_out": lambda out: out.explanation.leave_one_out,
    }
    for what, read in every.items():
        values = torch.stack([read(out) for out in sampled])
        truth = values.mean(0)
        error = (values - truth).square().mean(0).sum().sqrt()
        apart = torch.stack([read(out) for out in closed]) - truth
        assert apart.square().mean(0).sum().sqrt() < error, what
    closed_p, p = (out.explanation.probability for out in (closed[0], sampled[0]))
    assert (closed_p is None) == (p is None)
    if p is not None:
        torch.testing.assert_close(closed_p, p)


@pytest.mark.parametrize("name", NAMES)
def test_a_bag_does_not_see_its_batch_and_training_reaches_all_parameters(name):
    built = model(name, pooling="closed_form", n_classes=2).eval()
    with torch.no_grad():
        together = built(pack(BAGS))
        for b, own in enumerate(BAGS):
            torch.testing.assert_close(together.logits[b], built(pack([own])).logits[0])
    labelled = replace(pack(BAGS), y=torch.tensor([0, 1, 1, 0]))
    out = built.train()(labelled, generator=torch.Generator().manual_seed(0))
    sum(built.losses(out, labelled).values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in built.parameters())


def test_bfloat16_changes_little():
    built = model("abmil-probsa-diag", pooling="closed_form").eval()
    with torch.no_grad():
        full = built(pack(BAGS))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = built(pack(BAGS))
    assert half.logits.dtype == torch.float32
    torch.testing.assert_close(half.probability, full.probability, atol=0.01, rtol=0)


def test_the_share_of_bags_that_are_sampled_all_the_same_is_counted_and_predicted():
    model = build("abmil-probsa-diag", in_dim=16, pooling="closed_form")
    bags = pack([bag(5, 0), bag(300, 1), bag(9, 2)])
    assert model.monitored() == {}
    model(bags)
    assert model.monitored() == {"sampled_share": 0.0}
    torch.nn.init.constant_(model.attention.log_variance.bias, 30.0)  # σ = 7, too wide for moments
    model.start_epoch(1, 2)
    model(bags)
    assert model.monitored() == {"sampled_share": pytest.approx(1 / 3)}
    with torch.no_grad():
        assert model.eval()(bags).extras["sampled"].tolist() == [False, True, False]
