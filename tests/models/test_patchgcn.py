"""PatchGCN equals its original and torchmil's formula, and every option changes the result."""

from dataclasses import replace

import pytest
import torch
from support.golden import Golden, close
from support.options import made, some_bags
from support.originals_of import from_original
from support.random_bags import F64
from torch import nn

from probsa import Bag, pack
from probsa.layers import neighbourhoods
from probsa.models.patchgcn import GENConv


@pytest.fixture(params=["patchgcn", "patchgcn_biasmlp"])
def authors(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


def test_arcs_go_before_edges(authors):
    """Edges given as arcs are the same graph; half of the arcs are another graph."""
    model = authors.model()
    source, target = authors.tensors["bag1.edge_index"]
    arcs = torch.stack([target, source])
    same = model(pack([authors.bag(1, arcs=arcs)])).logits
    close(same[0], authors.expected("bag1.logits"))
    half = model(pack([authors.bag(1, arcs=arcs[:, target < source])])).logits
    assert (half - same).abs().max().item() > 1e-3


def test_deeper_torchmil_models_are_read(shared_golden):
    torchmil = Golden(shared_golden, "torchmil_patchgcn")
    more = {"mlp.1.0.module.weight": torch.eye(16), "mlp.1.0.module.bias": torch.zeros(16)}
    for dropout in (0.0, 0.5):
        constructor = {**torchmil.constructor, "mlp_depth": 2, "dropout": dropout}
        model = from_original("torchmil_patchgcn", {**torchmil.state, **more}, **constructor)
        out = model(pack([torchmil.bag(1)]))
        # a second layer that changes nothing: ReLU leaves the output of a ReLU unchanged
        close(out.logits[0, 0, 0], torchmil.expected("bag1.logit"))
        assert model.arguments["layer_dropout"] == dropout


@pytest.mark.parametrize("mlp_bias", [True, False])
def test_genconv_by_its_definition(mlp_bias):
    """An independent dense computation in double precision, instance by instance."""
    torch.manual_seed(0)
    conv = GENConv(4, bias=mlp_bias).double()
    nn.init.constant_(conv.t, 1.7)
    nn.init.normal_(conv.mlp[1].weight)
    x = torch.randn(7, 4, dtype=F64)
    arcs = torch.tensor([[0, 0, 1, 3, 3, 3, 5], [1, 2, 1, 0, 5, 6, 4]])
    bag = Bag(name="a", x=x, edges=arcs[:, :0], weights=torch.zeros(0, dtype=F64), arcs=arcs)
    s = torch.zeros(7, 4, dtype=F64)
    for i in set(arcs[0].tolist()):
        m = x[arcs[1][arcs[0] == i]].relu() + 1e-7
        s[i] = (m * (1.7 * m).softmax(0)).sum(0)
    bias = conv.mlp[0].bias if mlp_bias else 0
    y = (x + s) @ conv.mlp[0].weight.T + bias
    y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    y = (y * conv.mlp[1].weight + conv.mlp[1].bias).relu() @ conv.mlp[3].weight.T
    want = y + conv.mlp[3].bias if mlp_bias else y
    actual = conv(x, neighbourhoods(pack([bag])))
    torch.testing.assert_close(actual, want, rtol=1e-12, atol=1e-13)


BASE = {"embed": 6, "hidden": 7, "attention_dim": 4}


def test_weights_of_edges_reach_the_gcn_only():
    bags = some_bags()
    other = replace(bags, weights=bags.weights.flip(0))
    for conv, matters in (("gen", False), ("gcn", True)):
        model = made("patchgcn", **BASE, conv=conv).double().eval()
        assert torch.equal(model(bags).logits, model(other).logits) != matters
