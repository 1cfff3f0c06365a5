"""A model's explanation: removing an instance from the bag gives what the closed form says."""

from dataclasses import replace

import pytest
import torch
from support.random_bags import F64, random_bag

from probsa import Bag, models, pack
from probsa.models import Explanation

EXACT = [
    ("abmil", {}),
    ("abmil", {"n_classes": 3}),
    ("abmil", {"trunk": "gated", "embed": None}),
    ("abmil-probsa-dirac", {}),
    ("abmil-probsa-diag", {"predict_samples": 6}),
    ("abmil-probsa-diag", {"predict_samples": 6, "n_classes": 3}),
    ("clam-sb", {"n_classes": 2}),
    ("clam-mb", {"n_classes": 3}),
    ("clam-sb-probsa-diag", {"predict_samples": 5}),
    ("evidence-dirac", {}),
    ("evidence-diag", {"predict_samples": 6}),
    ("evidence-diag", {"predict_samples": 6, "n_classes": 3}),
]
NAMES = sorted({name for name, _ in EXACT})
AT_THE_POOLING = ["tabmil", "tabmil-probsa-diag", "smabmil", "patchgcn", "transmil-probsa-diag"]


def model_of(name, **arguments):
    torch.manual_seed(0)
    model = models.build(name, in_dim=5, **arguments).double().eval()
    for p in model.pooling_scalars():  # away from the start, where α = β = 1 and b = 0
        p.data += 0.3
    return model


def bias_of(model):
    return (model.pooling if model.score_kind == "evidence" else model.classifier).bias


def without(bag: Bag, row: int) -> Bag:
    keep = torch.arange(len(bag)) != row
    edges = torch.zeros(2, 0, dtype=torch.long)
    return replace(bag, x=bag.x[keep], edges=edges, weights=torch.zeros(0, dtype=F64))


@torch.no_grad()
@pytest.mark.parametrize("sharp", [1.0, 40.0], ids=["calm", "extreme attention"])
@pytest.mark.parametrize(("name", "arguments"), EXACT)
def test_leave_one_out_is_the_bag_without_the_instance(name, arguments, sharp):
    model = model_of(name, **arguments)
    model.attention.mean.weight.mul_(sharp)
    for n in (2, 8):
        bag = random_bag(n, seed=n)
        samples = arguments.get("predict_samples", 1)
        noise = torch.randn(n, samples, dtype=F64)
        out = model(pack([bag]), noise=noise)
        assert isinstance(out.explanation, Explanation)
        for row in range(n):
            others = torch.arange(n) != row
            rest = model(pack([without(bag, row)]), noise=noise[others])
            lost = (out.probability - rest.probability)[0]
            assert (out.explanation.leave_one_out[row] - lost).abs().max() < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("name", [*NAMES, *AT_THE_POOLING, "evidence-field"])
def test_contributions_sum_to_the_logit_without_its_bias(name):
    model = model_of(name)
    bags = pack([random_bag(n, seed=n) for n in (1, 4, 9)])
    out = model(bags)
    assert out.explanation is not None
    assert out.explanation.contributions.shape == out.explanation.scores.shape == (14, 1)
    sums = torch.stack([c.sum(0) for c in out.explanation.contributions.split([1, 4, 9])])
    assert (sums - (out.logits.mean(1) - bias_of(model))).abs().max() < 1e-9
    # the only instance of a bag leaves the empty bag, whose logit is the bias
    alone = out.probability[0] - bias_of(model).sigmoid()
    assert (out.explanation.leave_one_out[0] - alone).abs().max() < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("name", ["abmil", "abmil-probsa-diag", "smabmil"])
def test_it_is_computed_in_prediction_only(name):
    model = model_of(name)
    bags = pack([random_bag(6)])
    with torch.enable_grad():
        assert model(bags).explanation is None
    wanted = model(bags)
    model.explains = False
    plain = model(bags)
    assert plain.explanation is None
    assert torch.equal(plain.logits, wanted.logits)
    model.explains = True
    model.train()
    assert model(bags).explanation is None


@torch.no_grad()
def test_dsmil_explains_its_bag_stream():
    """Only the critical instance changes the attention of the others."""
    model = model_of("dsmil")
    bag = random_bag(9, seed=1)
    out = model(pack([bag]))
    sums = out.explanation.contributions.sum(0) + model.classifier.bias
    assert (sums - out.logits[0, 0]).abs().max() < 1e-10
    for row in set(range(9)) - set(out.extras["critical"].flatten().tolist()):
        lost = (out.probability - model(pack([without(bag, row)])).probability)[0]
        assert (out.explanation.leave_one_out[row] - lost).abs().max() < 1e-10
    for other in ({"bag_score": "mean_logit"}, {"n_classes": 3}):
        assert model_of("dsmil", **other)(pack([bag])).explanation is None


@torch.no_grad()
def test_a_classifier_with_a_hidden_layer_has_none():
    assert model_of("abmil", classifier_hidden=4)(pack([random_bag(6)])).explanation is None
