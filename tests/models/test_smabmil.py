"""SmABMIL equals dense algebra in double precision, and reads the weights of torchmil."""

import math

import pytest
import torch
from models.test_contract import batch, make_bag, turned
from support.options import made, some_bags
from support.originals_of import from_original
from support.random_bags import F64, dense_laplacian
from torch import Tensor

from probsa import pack
from probsa.layers import both_ways, normalised

BASE = {"embed": 8, "attention_dim": 4, "heads": 2}


@pytest.mark.parametrize("mode", ["approximate", "exact"])
@pytest.mark.parametrize("where", ["early", "mid", "late"])
def test_alpha_of_a_built_model_is_the_papers(mode, where):
    """Sm on h, on V h and on f equals dense algebra in double precision."""
    options = {**BASE, "where": where, "alpha": 0.8, "steps": 200, "train_alpha": False}
    model = made("smabmil", **options, mode=mode, spectral_norm=False).double()
    bag = make_bag("a", 17)
    bags = pack([bag])
    # I + γ L with γ = α / (1 − α)
    system = torch.eye(17, dtype=F64) + 4 * dense_laplacian(bag, "normalised")

    def sm(u: Tensor, here: str) -> Tensor:
        return torch.linalg.solve(system, u) if where == here else u

    h = sm(model.embed(bags.x), "early")
    v = sm(model.attention.first(h), "mid")
    f = sm(model.attention.last(v.tanh()), "late")[:, 0]
    out = model(bags)
    torch.testing.assert_close(out.attention.mean, f, rtol=1e-9, atol=1e-10)
    logit = model.classifier(f.softmax(0) @ h)
    torch.testing.assert_close(out.logits[0, 0], logit, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("where", "is_normed"),
    [("early", [True, True]), ("mid", [False, True]), ("late", [False, False])],
)
def test_spectral_norm_is_on_what_comes_after_sm(where, is_normed):
    model = made("smabmil", embed=9, attention_dim=4, where=where)
    for _ in range(30):  # one step of the power iteration per forward in training
        model(some_bags(dtype=torch.float32))
    layers = (model.attention.first, model.attention.last)
    norms = [torch.linalg.matrix_norm(layer.weight.detach(), 2).item() for layer in layers]
    assert [abs(n - 1) < 1e-4 for n in norms] == is_normed


@pytest.mark.parametrize("mode", ["approximate", "exact"])
def test_a_transformer_knows_neither_batch_mates_nor_order(mode):
    model = made("smabmil", **BASE, encoder="transformer", mode=mode).double().eval()
    bags = batch(model)
    together = model(pack(bags))
    scores = together.attention.mean.split([len(b) for b in bags])
    for logits, score, bag in zip(together.logits, scores, bags, strict=True):
        order = torch.randperm(len(bag))
        alone = model(pack([turned(bag, order)]))
        torch.testing.assert_close(alone.logits[0], logits, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(alone.attention.mean, score[order], rtol=1e-10, atol=1e-11)


def test_a_transformers_layers_smooth_their_attention():
    """Z = Y + Sm(SA(LN Y)), computed from the parts of the layer."""
    model = made("smabmil", **BASE, encoder="transformer", add_self=True, final_norm=False)
    model.double().eval()
    bags = pack([make_bag("a", 9)])
    seen = []
    model.encoder.register_forward_hook(lambda *a: seen.append(a[2]))
    model(bags)
    arcs = normalised(both_ways(bags))
    y = h = model.embed(bags.x)
    for block, sm in zip(model.encoder.blocks, model.smooths, strict=True):
        q, k, v = block.qkv(block.norm1(y)).unflatten(1, (3, 2, -1)).permute(1, 2, 0, 3)
        heads = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        z = y + sm(block.out(heads.transpose(0, 1).flatten(1)), arcs)
        y = z + block.mlp(block.norm2(z)) + h
    torch.testing.assert_close(seen[0], y, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("trained", [True, False])
def test_alpha_is_trained_or_not(trained):
    model = made("smabmil", **BASE, train_alpha=trained).double()
    bags = some_bags()
    parameters = [k for k, _ in model.named_parameters() if k.endswith("sm.logit")]
    model.losses(model(bags), bags)["nll"].backward()
    before = model.attention.sm.alpha(bags.x).item()
    torch.optim.SGD(model.parameters(), lr=10.0).step()
    after = model.attention.sm.alpha(bags.x).item()
    assert bool(parameters) == trained
    assert (after != before) == trained


def state() -> dict[str, Tensor]:
    """Return weights as torchmil names them."""
    return {
        "pool.proj1.weight": torch.randn(4, 6),
        "pool.proj1.bias": torch.randn(4),
        "pool.proj2.weight": torch.randn(1, 4),
        "pool.sm.sm.coef": torch.tensor(2.0),
        "last_layer.weight": torch.randn(1, 6),
        "last_layer.bias": torch.randn(1),
    }


@pytest.mark.parametrize("mode", ["approx", "exact"])
@pytest.mark.parametrize("alpha", ["0.25", 0.25, "trainable"])
def test_alpha_is_read_as_it_acts(mode, alpha):
    weights = state()
    if alpha != "trainable":
        del weights["pool.sm.sm.coef"]
    model = from_original("torchmil_smabmil", weights, sm_mode=mode, sm_alpha=alpha)
    # a trainable α is stored as a coefficient c = 2, with α = c / (1 + c)
    their_alpha = 2 / 3 if alpha == "trainable" else 0.25
    # torchmil's approximate mode weighs the two terms the other way round
    expected = their_alpha if mode == "exact" else 1 - their_alpha
    assert model.attention.sm.alpha(torch.zeros(1)).item() == pytest.approx(expected, abs=1e-6)
