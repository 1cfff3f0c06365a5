"""TransMIL equals its original, torchmil's where correct, and a computation of its parts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.test_contract import make, same
from support.golden import Golden, close
from support.options import changes, options_of
from support.random_bags import F64, random_bag, types_not_executed

from probsa import Bag, pack
from probsa.errors import CheckpointError, InputError, UnknownName
from probsa.layers.nystrom import attention_row
from probsa.layers.square import PPEG
from probsa.models import build, from_original

ORIGINALS = ["transmil_nystrom014"]
NAMES = {
    "cls_token": "encoder.cls_token",
    "_fc1.0": "embed.net.0",
    "_fc2": "classifier",
    "norm": "encoder.norm",
    "classifier": "classifier",
    "pos_layer.proj": "encoder.ppeg.wide",
    "pos_layer.proj1": "encoder.ppeg.middle",
    "pos_layer.proj2": "encoder.ppeg.narrow",
    **{
        f"layer{k + 1}.{theirs}": f"encoder.blocks.{k}.{ours}"
        for k in (0, 1)
        for theirs, ours in (
            ("norm", "norm"),
            ("attn.to_qkv", "attention.qkv"),
            ("attn.to_out.0", "attention.out"),
            ("attn.res_conv", "attention.convolution"),
        )
    },
    **{
        f"layers.{k}.{theirs}": f"encoder.blocks.{k}.{ours}"
        for k in (0, 1)
        for theirs, ours in (("norm1", "norm"), ("att_module.qkv_nn", "attention.qkv"))
    },
}


def ours(order) -> dict[str, str]:
    """Map the original's parameter names to ours; torchmil's norm2 belongs to an absent MLP."""
    renamed = {}
    for key in order:
        stem, dot, kind = key.rpartition(".") if key != "cls_token" else ("cls_token", "", "")
        if "norm2" not in key:
            renamed[key] = f"{NAMES[stem]}{dot}{kind}"
    return renamed


@pytest.fixture(scope="module", params=ORIGINALS)
def golden(request, shared_golden) -> Golden:
    return Golden(shared_golden, request.param)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_logits_and_every_intermediate(golden, b):
    model, bag = golden.model(), golden.bag(b)
    encoder, sizes = model.encoder, [len(bag)]

    def expect(got, what):
        close(got[None], golden.expected(f"bag{b}.{what}"))

    x, counts = encoder.tokens(model.embed(bag.x), sizes)
    expect(x, "seq1")
    for k, block in enumerate(encoder.blocks, 1):
        (group,) = block.look(x, counts)
        x = block(x, counts)
        expect(x, f"after_layer{k}")
        rows = golden.tensors.get(f"expected.bag{b}.attn_layer{k}_cls")
        assert rows is not None  # theirs cover the padded sequence, ours only the tokens
        close(attention_row(group, 0)[0].T, rows[:, -counts[0] :])
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
    names = ours(golden.metadata["parameter_order"])
    assert set(names.values()) == {k for k, _ in model.named_parameters()}
    golden.check_gradients(model, loss, bag.x, b=b, ours=names)


@pytest.mark.parametrize("b", [0, 1, 2])
def test_torchmil(shared_golden, b):
    golden = Golden(shared_golden, "torchmil_transmil")
    model, bag = golden.model(), golden.bag(b)
    bags = pack([bag])
    out = model(bags)
    close(out.logits[0, 0, 0], golden.expected(f"bag{b}.logit"))
    close(out.probability[0, 0], golden.expected(f"bag{b}.prob"))
    close(out.attention.mean, golden.expected(f"bag{b}.att_raw"))
    close(out.attention.mean.softmax(0), golden.expected(f"bag{b}.att"))
    loss = model.losses(out, bags)["nll"]
    close(loss, golden.expected(f"bag{b}.loss.BCEWithLogitsLoss"))
    names = ours(golden.metadata["parameter_order"])
    assert set(names.values()) == {k for k, _ in model.named_parameters()}
    golden.check_gradients(model, loss, bag.x, b=b, ours=names)


def test_a_batch_of_the_references_is_each_alone(golden):
    model = golden.model()
    out = model(pack([golden.bag(b) for b in range(3)]))
    for b in range(3):
        close(out.logits[b], golden.expected(f"bag{b}.logits"))


# computations of the parts

SMALL = {"embed": 12, "heads": 2, "landmarks": 4}


def test_the_square_is_filled_with_the_first_instances_again():
    encoder = make("transmil").double().encoder
    h = torch.arange(6.0, dtype=F64)[:, None].repeat(1, 12)
    x, counts = encoder.tokens(h, (5, 1))
    assert counts == [10, 2]
    same(x[0], encoder.cls_token[0, 0])
    assert x[1:10, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert x[11, 0] == 5
    for n in (1, 2, 4, 5, 9, 10, 16, 17):
        assert encoder.tokens(h[:1].repeat(n, 1), (n,))[1] == [1 + int(np.ceil(n**0.5)) ** 2]


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
    x, counts = encoder.tokens(h, (5, 2))
    x = encoder.ppeg(encoder.blocks[0](x, counts), counts)
    for block in encoder.blocks[1:]:
        x = block(x, counts)
    same(encoder.encode(h, (5, 2)).x, x)


def test_the_order_of_storage_matters():
    model = make("transmil").double().eval()
    bag = random_bag(12, features=6)
    turned = replace(bag, x=bag.x.flip(0))
    assert (model(pack([bag])).logits - model(pack([turned])).logits).abs().max() > 1e-6


def test_scores_of_duplicates_are_dropped_or_added():
    bags = pack([random_bag(5, features=6), random_bag(4, seed=1, features=6)])
    dropped = make("transmil").double()(bags).attention.mean
    added = make("transmil", score_duplicates="add").double()(bags).attention.mean
    model = make("transmil").double()
    encoded = model.encoder.encode(model.embed(bags.x), bags.sizes)
    rows = {}
    for group in encoded.groups:
        rows |= zip(group.members, attention_row(group, 0), strict=True)
    first = rows[0].mean(1)[1:]
    same(dropped[:5], first[:5])
    same(added[:5], first[:5] + torch.cat([first[5:], first.new_zeros(1)]))
    same(added[5:], dropped[5:])  # four instances fill a square
    spread = make("transmil", score_heads="range").double()(bags).attention.mean
    same(spread[:5], rows[0][1:6].amax(1) - rows[0][1:6].amin(1))


def test_scores_are_weights_and_of_probsa_logits():
    assert build("transmil", in_dim=6, **SMALL).score_kind == "weight"
    assert build("transmil-probsa-diag", in_dim=6, **SMALL).score_kind == "logit"


def test_probsa_pools_the_instances_of_the_last_layer():
    model = make("transmil-probsa-diag").double()
    bags = pack([random_bag(5, features=6, y=1), random_bag(4, seed=1, features=6, y=0)])
    noise = torch.randn(9, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    out = model(bags, noise=noise)
    encoded = model.encoder.encode(model.embed(bags.x), bags.sizes)
    tokens = model.encoder.norm(encoded.x)
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


@pytest.mark.parametrize("name", ["transmil", "transmil-probsa-diag"])
def test_fifty_thousand_patches_beside_one(name):
    many = 50_000
    model = make(name, landmarks=64, **({"samples": 2} if "probsa" in name else {}))
    i = torch.arange(many - 1)
    large = Bag(name="large", x=torch.randn(many, 6), edges=torch.stack([i, i + 1]),
                weights=torch.ones(many - 1), y=1)  # fmt: skip
    small = Bag(name="small", x=torch.randn(1, 6), edges=i[:0].repeat(2, 1),
                weights=torch.ones(0), y=0)  # fmt: skip
    bags = pack([small, large])
    noise = torch.randn(many + 1, 2)
    out = model(bags, noise=noise)
    sum(model.losses(out, bags).values()).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
    alone = model(pack([small]), noise=noise[:1])
    torch.testing.assert_close(out.logits[0], alone.logits[0], rtol=1e-5, atol=1e-6)


# valid and invalid options

UNMASKED = {"mask_padding": False}
CHANGES = {
    "pooling": "closed_form",
    "embed": (12, 10),
    "activation": "relu",
    "layers": 1,
    "heads": 4,
    "landmarks": 3,
    "pinv_iterations": 4,
    "convolution": False,
    "out_proj": False,
    "mask_padding": False,
    "dropout": 0.5,
    "score_heads": "range",
    "score_duplicates": "add",
    "attention_dim": 5,
    "trunk": "gated",
    "samples": 4,
    "predict_samples": 5,
    "initial_log_variance": -1.0,
    "kappa": 2.0,
    "ridge": 0.5,
    "laplacian": "normalized",
    "kl_reduction": "sum",
}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (name, key)
        for name in ("transmil", "transmil-probsa-diag")
        for key in options_of(name, without={"log_variance_bounds"})
    ],
)
def test_an_option_changes_the_result(name, key):
    base = dict(SMALL)
    if name == "transmil-probsa-diag":
        base |= {"samples": 3, "predict_samples": 7}
    assert changes(name, key, CHANGES[key], **base) > 1e-6


def test_the_bounds_of_the_variance_hold():
    """The head starts at 0, where bounds have no effect, so set its weights."""
    bags = pack([random_bag(7, features=6)])
    for bounds in ((-10.0, 4.0), (-3.0, -1.0)):
        model = make("transmil-probsa-diag", log_variance_bounds=bounds).double()
        torch.nn.init.constant_(model.attention.log_variance.weight, 50)
        log_variance = model(bags).attention.variance.log()
        assert bounds[0] <= log_variance.min() < log_variance.max() <= bounds[1]
        assert log_variance.max() - log_variance.min() > 0.8 * (bounds[1] - bounds[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads is 5: give a divisor of the attention's width, 12"),
        ({"layers": 0}, "layers is 0; expected at least 1"),
        ({"landmarks": 0}, "landmarks is 0"),
        ({"score_heads": "max"}, "score_heads is 'max'; expected 'mean' or 'range'"),
        ({"score_duplicates": "mean"}, "score_duplicates is 'mean'; expected 'drop' or 'add'"),
        ({"embed": 0}, "expected widths of at least 1"),
    ],
)
def test_what_is_no_option_is_refused(options, message):
    with types_not_executed(), pytest.raises(InputError, match=message):
        build("transmil", in_dim=6, **{**SMALL, **options})


def test_parameters_as_the_specification_counts_them():
    def count(**options):
        return sum(p.numel() for p in build("transmil", **options).parameters())

    assert count(in_dim=1024, n_classes=2, preset="original") == 2_672_146
    assert count(in_dim=2048) == 3_195_921
    # torchmil's has two more layer norms, of absent MLPs
    torchmil = count(in_dim=2048, convolution=False, out_proj=False)
    assert torchmil + 2 * 2 * 512 == 2_672_129


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
    assert golden.model(n_landmarks=None).encoder.blocks[0].attention.landmarks == 16
