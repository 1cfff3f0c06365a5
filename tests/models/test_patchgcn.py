"""PatchGCN equals its original and torchmil's formula, and every option changes the result."""

import pytest
import torch
from support.golden import Golden, close
from support.options import made, some_bags
from support.random_bags import F64
from torch import Tensor, nn

from probsa import Bag, pack
from probsa.layers.pooling import pool_vectors
from probsa.models import from_original
from probsa.models.patchgcn import GENConv


@pytest.fixture(params=["patchgcn", "patchgcn_biasmlp"])
def authors(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.fixture
def torchmil(shared_golden) -> Golden:
    return Golden(shared_golden, "torchmil_patchgcn")


# the original


@pytest.mark.parametrize("b", [0, 1, 2])
def test_every_layer(authors, b):
    model = authors.model()
    bags = pack([authors.bag(b)])
    h0, *rest = x = model.graph(bags)
    close(h0, authors.expected(f"bag{b}.h0"))
    close(rest[0], authors.expected(f"bag{b}.conv0"))
    for k in (1, 2):
        close(rest[k], authors.expected(f"bag{b}.layer{k}"))
        # the convolution alone, before the norm
        seen = []
        hook = model.layers[k].conv.register_forward_hook(lambda *a, seen=seen: seen.append(a[2]))
        model.graph(bags)
        hook.remove()
        close(seen[0], authors.expected(f"bag{b}.conv{k}"))
    close(torch.cat(x, 1), authors.expected(f"bag{b}.cat"))


def survival(logits: Tensor, *, y: int, censored: Tensor, alpha: float) -> Tensor:
    """The authors' loss over time bins, which is not part of the package."""
    hazards = logits.sigmoid()
    s = torch.cat([torch.ones(1), (1 - hazards).cumprod(0)]).clamp_min(1e-7).log()
    event = -(1 - censored) * (s[y] + hazards[y].clamp_min(1e-7).log())
    return (1 - alpha) * (event - censored * s[y + 1]) + alpha * event


@pytest.mark.parametrize("b", [0, 1, 2])
def test_attention_logits_losses_and_gradients(authors, b):
    model = authors.model()
    bag = authors.bag(b)
    bags = pack([bag])
    out = model(bags)
    f = out.attention.mean
    close(f[None], authors.expected(f"bag{b}.att_raw"))
    close(f.softmax(0)[None], authors.expected(f"bag{b}.att"))
    z = pool_vectors(f[:, None], model.instances(bags), bags.sizes)
    close(z[0], authors.expected(f"bag{b}.pooled"))
    logits = out.logits[0]
    close(logits, authors.expected(f"bag{b}.logits"))
    close(logits.sigmoid(), authors.expected(f"bag{b}.hazards"))
    close((1 - logits.sigmoid()).cumprod(1), authors.expected(f"bag{b}.S"))
    assert logits.argmax().item() == authors.expected(f"bag{b}.y_hat").item()
    losses = model.losses(out, bags)
    assert set(losses) == {"nll"}
    close(losses["nll"], authors.expected(f"bag{b}.ce"))

    censored = authors.expected(f"bag{b}.censor")
    nll = {a: survival(logits[0], y=bag.y, censored=censored, alpha=a) for a in (0.0, 0.4)}
    close(nll[0.0], authors.expected(f"bag{b}.nll_surv_a0"))
    close(nll[0.4], authors.expected(f"bag{b}.nll_surv_a04"))
    total = losses["nll"] + nll[0.0]
    close(total, authors.expected(f"bag{b}.total"))
    assert set(authors.names(model).values()) == {k for k, _ in model.named_parameters()}
    authors.check_gradients(model, total, bag.x, b=b)


def test_arcs_go_before_edges(authors):
    """Edges given as arcs are the same graph; half of the arcs are another graph."""
    model = authors.model()
    source, target = authors.tensors["bag1.edge_index"]
    arcs = torch.stack([target, source])
    same = model(pack([authors.bag(1, arcs=arcs)])).logits
    close(same[0], authors.expected("bag1.logits"))
    half = model(pack([authors.bag(1, arcs=arcs[:, target < source])])).logits
    assert (half - same).abs().max().item() > 1e-3


def test_the_originals_dropout_is_taken_over(authors):
    model = authors.model()
    assert model.arguments["dropout"] == model.arguments["attention_dropout"] == 0.25
    torch.manual_seed(0)
    bags = pack([authors.bag(1)])
    assert (model.train()(bags).logits - model.eval()(bags).logits).abs().max().item() > 1e-3


# torchmil, which has another graph convolution, and our model with its options


def test_deeper_torchmil_models_are_read(torchmil):
    state = torchmil.state
    state |= {
        "mlp.1.0.module.weight": torch.eye(16),
        "mlp.1.0.module.bias": torch.zeros(16),
    }
    for dropout in (0.0, 0.5):
        constructor = {**torchmil.constructor, "mlp_depth": 2, "dropout": dropout}
        model = from_original("torchmil_patchgcn", state, **constructor)
        out = model(pack([torchmil.bag(1)]))
        # a second layer that changes nothing: ReLU leaves the output of a ReLU unchanged
        close(out.logits[0, 0, 0], torchmil.expected("bag1.logit"))
        assert model.arguments["layer_dropout"] == dropout


# an independent dense computation in double precision, instance by instance


@pytest.mark.parametrize("mlp_bias", [True, False])
def test_genconv_by_its_definition(mlp_bias):
    torch.manual_seed(0)
    conv = GENConv(4, bias=mlp_bias).double()
    nn.init.constant_(conv.t, 1.7)
    nn.init.normal_(conv.mlp[1].weight)
    n = 7
    x = torch.randn(n, 4, dtype=F64)
    arcs = torch.tensor([[0, 0, 1, 3, 3, 3, 5], [1, 2, 1, 0, 5, 6, 4]])
    bag = Bag(name="a", x=x, edges=arcs[:, :0], weights=torch.zeros(0, dtype=F64), arcs=arcs)
    from probsa.layers.graph import neighbourhoods

    s = torch.zeros(n, 4, dtype=F64)
    for i in range(n):
        for c in range(4):
            m = [max(x[j, c].item(), 0) + 1e-7 for i_, j in arcs.T.tolist() if i_ == i]
            e = torch.tensor([1.7 * v for v in m], dtype=F64).softmax(0)
            s[i, c] = sum(a * v for a, v in zip(e.tolist(), m, strict=True))
    bias = conv.mlp[0].bias if mlp_bias else 0
    y = (x + s) @ conv.mlp[0].weight.T + bias
    y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    y = (y * conv.mlp[1].weight + conv.mlp[1].bias).relu() @ conv.mlp[3].weight.T
    want = y + conv.mlp[3].bias if mlp_bias else y
    got = conv(x, neighbourhoods(pack([bag])))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


# options


BASE = {"embed": 6, "hidden": 7, "attention_dim": 4}


def test_a_bias_on_the_score_shifts_the_score_and_nothing_else():
    plain = made("patchgcn", **BASE, score_bias=False).double().eval()
    biased = made("patchgcn", **BASE).double().eval()
    biased.load_state_dict(plain.state_dict(), strict=False)
    nn.init.constant_(biased.attention.mean.bias, 3.0)
    a, b = plain(some_bags()), biased(some_bags())
    torch.testing.assert_close(a.attention.mean + 3, b.attention.mean)
    torch.testing.assert_close(a.logits, b.logits)


def test_weights_of_edges_reach_the_gcn_only():
    bags = some_bags()
    other = type(bags)(
        **{k: getattr(bags, k) for k in ("x", "offsets", "edges", "y", "names")},
        weights=bags.weights.flip(0),
    )
    for conv, matters in (("gen", False), ("gcn", True)):
        model = made("patchgcn", **BASE, conv=conv).double().eval()
        assert torch.equal(model(bags).logits, model(other).logits) != matters
