"""TransMIL equals its original, torchmil's where that is right, and its own parts written out."""

import re

import pytest
import torch
from golden import Golden, close
from options import changes, options_of
from random_bags import F64, random_bag, types_not_executed
from test_contract import make, same

from probsa import pack
from probsa.errors import CheckpointError, InputError, UnknownName
from probsa.layers.nystrom import attention_row
from probsa.layers.square import PPEG
from probsa.models import build, from_original

ORIGINALS = ["transmil_nystrom009", "transmil_nystrom014"]
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
    """The original's parameter names → ours; torchmil's norm2 belongs to an MLP it has not got."""
    found = {}
    for key in order:
        stem, dot, kind = key.rpartition(".") if key != "cls_token" else ("cls_token", "", "")
        if "norm2" not in key:
            found[key] = f"{NAMES[stem]}{dot}{kind}"
    return found


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
        assert rows is not None  # of the padded sequence: ours are of the tokens alone
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
    names = ours(golden.about["parameter_order"])
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
    names = ours(golden.about["parameter_order"])
    assert set(names.values()) == {k for k, _ in model.named_parameters()}
    golden.check_gradients(model, loss, bag.x, b=b, ours=names)
