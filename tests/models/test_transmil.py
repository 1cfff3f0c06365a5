"""TransMIL equals its original, torchmil's where correct, and a computation of its parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.test_contract import make, same
from support.golden import Golden, close
from support.random_bags import F64, random_bag

from probsa import Bag, pack
from probsa.errors import CheckpointError, InputError, UnknownName
from probsa.models import from_original
from probsa.models.transmil import PPEG

ORIGINALS = ["transmil_nystrom014"]


@pytest.fixture(scope="module", params=ORIGINALS)
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_logits_and_every_intermediate(golden, b):
    model, bag = golden.model(), golden.bag(b)
    encoder, sizes = model.encoder, [len(bag)]

    def expect(got, what):
        close(got[None], golden.expected(f"bag{b}.{what}"))

    (x,) = encoder.tokens(model.embed(bag.x), sizes)
    counts = [len(x)]
    expect(x, "seq1")
    for k, block in enumerate(encoder.blocks, 1):
        (attention,) = block.look(x, counts)
        x = block(x, counts)
        expect(x, f"after_layer{k}")
        rows = golden.tensors.get(f"expected.bag{b}.attn_layer{k}_cls")
        assert rows is not None  # theirs cover the padded sequence, ours only the tokens
        close(attention.row(-counts[0])[-counts[0] :].T, rows[:, -counts[0] :])
        if k == 1:
            x = encoder.ppeg(x, counts)
            expect(x, "after_ppeg")
    expect(encoder.norm(x[0]), "cls_norm")
    out = model(pack([bag]))
    expect(out.logits[0, 0], "logits")
    expect(out.probability[0], "prob")
    assert int(out.logits.argmax()) == int(golden.expected(f"bag{b}.y_hat"))
    rows = golden.expected(f"bag{b}.attn_layer2_cls")[:, -counts[0] :]
    close(out.attention.mean, rows.mean(0)[1 : len(bag) + 1])


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_loss_and_every_gradient(golden, b):
    model, bag = golden.model(), golden.bag(b)
    bags = pack([bag])
    (loss,) = model.losses(model(bags), bags).values()
    close(loss, golden.expected(f"bag{b}.loss"))
    assert set(golden.names(model).values()) == {k for k, _ in model.named_parameters()}
    golden.check_gradients(model, loss, bag.x, b=b)


# computations of the parts


def test_the_square_is_filled_with_the_first_instances_again():
    encoder = make("transmil").double().encoder
    h = torch.arange(6.0, dtype=F64)[:, None].repeat(1, 12)
    x, last = encoder.tokens(h, (5, 1))
    assert (len(x), len(last)) == (10, 2)
    same(x[0], encoder.cls_token[0, 0])
    assert x[1:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert last[1, 0] == 5
    for n in (1, 2, 4, 5, 9, 10, 16, 17):
        assert len(encoder.tokens(h[:1].repeat(n, 1), (n,))[0]) == 1 + int(np.ceil(n**0.5)) ** 2


def test_ppeg_is_three_convolutions_and_the_identity():
    torch.manual_seed(0)
    ppeg = PPEG(6).double()
    x = torch.randn(17 + 5, 6, dtype=F64)
    parts = []
    for tokens, side in ((x[:17], 4), (x[17:], 2)):
        g = tokens[1:].T.reshape(1, 6, side, side)
        g = g + ppeg.wide(g) + ppeg.middle(g) + ppeg.narrow(g)
        parts += [tokens[:1], g[0].flatten(1).T]
    same(ppeg(x, (17, 5)), torch.cat(parts))
    for p in ppeg.parameters():
        torch.nn.init.zeros_(p)
    assert torch.equal(ppeg(x, (17, 5)), x)


def test_the_convolutions_come_after_the_first_layer_alone():
    encoder = make("transmil", layers=3).double().encoder
    h = torch.randn(7, 12, dtype=F64)
    parts = encoder.tokens(h, (5, 2))
    x, counts = torch.cat(parts), [len(part) for part in parts]
    x = encoder.ppeg(encoder.blocks[0](x, counts), counts)
    for block in encoder.blocks[1:]:
        x = block(x, counts)
    same(torch.cat(encoder.encode(h, (5, 2))[0]), x)


def test_the_order_of_storage_matters():
    model = make("transmil").double().eval()
    bag = random_bag(12, features=6)
    turned = replace(bag, x=bag.x.flip(0))
    assert (model(pack([bag])).logits - model(pack([turned])).logits).abs().max() > 1e-6


def test_probsa_pools_the_instances_of_the_last_layer():
    model = make("transmil-probsa-diag").double()
    bags = pack([random_bag(5, features=6, y=1), random_bag(4, seed=1, features=6, y=0)])
    noise = torch.randn(9, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    out = model(bags, noise=noise)
    parts, _ = model.encoder.encode(model.embed(bags.x), bags.sizes)
    tokens = model.encoder.norm(torch.cat(parts))
    h = torch.cat([tokens[1:6], tokens[11:15]])  # 1 + 9 tokens, then 1 + 4
    q = model.attention(h)
    same(out.attention.mean, q.mean)
    same(out.attention.variance, q.variance)
    f = q.mean[:, None] + q.variance.sqrt()[:, None] * noise
    for b, rows in enumerate((slice(0, 5), slice(5, 9))):
        same(out.logits[b], model.classifier(f[rows].softmax(0).T @ h[rows]))
    losses = model.losses(out, bags)
    kl = q.kl(model.prior, bags) / torch.tensor([5.0, 4.0], dtype=F64)
    same(losses["kl"], kl.mean())


# weights in other layouts


@pytest.mark.parametrize("prefix", ["model.", "module.", "state_dict.model."])
def test_wrappers_prefixes_are_read_past(shared_golden, prefix):
    golden = Golden(shared_golden, "transmil_nystrom014")
    wrapped = {f"{prefix}{k}": v for k, v in golden.state.items()}
    model = from_original("transmil_nystrom014", wrapped, n_classes="3")
    close(model(pack([golden.bag(1)])).logits[0], golden.expected("bag1.logits"))


@pytest.mark.parametrize(
    ("reference", "arguments"),
    [("transmil", {}), ("transmil_nystrom009", {}), ("transmil", {"nystrom_attention": "0.0.9"})],
)
def test_weights_of_old_versions_of_the_attention_package_are_refused(
    shared_golden, reference, arguments
):
    """They would give other numbers: 0.0.9 keeps the wrong rows of a padded bag."""
    state = Golden(shared_golden, "transmil_nystrom014").state
    with pytest.raises(InputError, match=r"keep the wrong rows.* give nystrom_attention=0\.0\.14"):
        from_original(reference, state, **arguments)
    assert from_original("transmil", state, nystrom_attention="0.0.14").name == "transmil"


def test_another_layout_is_refused(shared_golden):
    state = Golden(shared_golden, "transmil_nystrom014").state
    with pytest.raises(CheckpointError, match=r"no '_fc1.0.weight' in this state dict"):
        from_original("transmil_nystrom014", {k: v for k, v in state.items() if "_fc1" not in k})
    shape = r"_fc2\.(weight|bias) has shape \(3,.* where .* has \(2,"
    with pytest.raises(CheckpointError, match=shape):
        from_original("transmil_nystrom014", state, n_classes=2)
    short = {**state, "layer2.attn.to_qkv.weight": torch.zeros(96, 31)}
    with pytest.raises(CheckpointError, match=r"layer2.attn.to_qkv.weight has shape \(96, 31\)"):
        from_original("transmil_nystrom014", short)
    with pytest.raises(CheckpointError, match=r"unknown are layer3\.norm\.weight"):
        from_original("transmil_nystrom014", {**state, "layer3.norm.weight": torch.zeros(32)})
    with pytest.raises(UnknownName, match="no argument of transmil_nystrom014 named 'n_class'"):
        from_original("transmil_nystrom014", state, n_class=3)


def test_torchmils_other_layouts(shared_golden):
    golden = Golden(shared_golden, "torchmil_transmil")
    first = {"fc1.weight": torch.randn(32, 48), "fc1.bias": torch.randn(32)}
    model = from_original(golden.name, {**golden.state, **first}, n_heads=4, n_landmarks=16)
    x = torch.randn(9, 48)
    bag = Bag(name="a", x=x, edges=torch.zeros(2, 0).long(), weights=torch.zeros(0))
    plain = golden.model()(pack([replace(bag, x=x @ first["fc1.weight"].T + first["fc1.bias"])]))
    torch.testing.assert_close(model(pack([bag])).logits, plain.logits)
    with pytest.raises(CheckpointError, match="use_mlp"):
        golden.model(use_mlp=True)
    assert golden.model(n_landmarks=None).encoder.blocks[0].options.landmarks == 16
