"""ABMIL equals its originals where test_parity.py cannot compare: on survival, and without MLPs."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.golden import Golden, close
from torch import Tensor

from probsa import pack
from probsa.errors import CheckpointError
from probsa.layers.pooling import pool_vectors
from probsa.models import from_original

AMIL = "ckpt_patchgcn_repo_amil_blca0"


# the gated ABMIL of Patch-GCN's repository, on survival


@pytest.fixture(scope="module")
def amil(shared_golden) -> Golden:
    return Golden(shared_golden, AMIL)


def nll_surv(logits: Tensor, y: int, *, censored: int, alpha: float) -> Tensor:
    """Return −log of the hazard at bin y after surviving earlier bins, or of surviving bin y.

    The latter applies to a censored patient.
    """
    hazards = logits.sigmoid()
    survival = torch.cumprod(1 - hazards, 0)
    before = torch.cat([torch.ones(1, dtype=logits.dtype), survival]).clamp_min(1e-7)
    seen = -(1 - censored) * (before[y].log() + hazards[y].clamp_min(1e-7).log())
    return (1 - alpha) * (seen - censored * before[y + 1].log()) + alpha * seen


@pytest.mark.parametrize("b", [0, 1, 2])
def test_the_published_survival_model(amil, b):
    model, bags = amil.model(), pack([bag := amil.bag(b)])
    out = model(bags)
    close(out.attention.mean, amil.expected(f"bag{b}.att_raw"))
    close(out.attention.mean.softmax(0), amil.expected(f"bag{b}.att"))
    pooled = pool_vectors(out.attention.mean[:, None], model.instances(bags), bags.sizes)
    close(pooled[:, 0], amil.expected(f"bag{b}.pooled"))
    close(out.logits[:, 0], amil.expected(f"bag{b}.logits"))
    hazards = out.logits[:, 0].sigmoid()
    close(hazards, amil.expected(f"bag{b}.hazards"))
    close(torch.cumprod(1 - hazards, 1), amil.expected(f"bag{b}.S"))
    assert out.logits[0, 0].argmax() == amil.expected(f"bag{b}.y_hat").item()
    close(model.losses(out, bags)["nll"], amil.expected(f"bag{b}.ce"))

    censored = int(amil.expected(f"bag{b}.censor"))
    for alpha, name in ((0.0, "nll_surv_a0"), (0.4, "nll_surv_a04")):
        loss = nll_surv(out.logits[0, 0], bag.y, censored=censored, alpha=alpha)
        close(loss, amil.expected(f"bag{b}.{name}"))
    total = nll_surv(out.logits[0, 0], bag.y, censored=censored, alpha=0.0)
    close(total, amil.expected(f"bag{b}.total"))
    assert set(amil.names(model).values()) == set(dict(model.named_parameters()))
    amil.check_gradients(model, total, bag.x, b=b)


def test_torchmils_transformer_without_mlps(shared_golden):
    """The second norms exist but are unused; each layer ends with Z = Y + SA(LN(Y))."""
    golden = Golden(shared_golden, "torchmil_transformerabmil")
    state = {k: v.double() for k, v in golden.state.items() if ".mlp_module." not in k}
    model = from_original(golden.reference, state, **golden.constructor | {"transf_use_mlp": False})
    x = golden.bag(1).x.detach().double()
    h = y = x
    for k in range(2):
        w = {n: state[f"transformer_encoder.layers.{k}.{n}"]
             for n in ("norm1.weight", "norm1.bias", "att_module.qkv_nn.weight")}  # fmt: skip
        normed = F.layer_norm(y, (32,), w["norm1.weight"], w["norm1.bias"])
        qkv = F.linear(normed, w["att_module.qkv_nn.weight"]).view(-1, 3, 4, 8)
        a = torch.einsum("nhd,mhd->hnm", qkv[:, 0], qkv[:, 1]) / math.sqrt(8)
        y = y + torch.einsum("hnm,mhd->nhd", a.softmax(-1), qkv[:, 2]).flatten(1) + h
    norm = (state["transformer_encoder.norm.weight"], state["transformer_encoder.norm.bias"])
    want = F.layer_norm(y, (32,), *norm)
    torch.testing.assert_close(
        model.instances(pack([replace(golden.bag(1), x=x)])), want, rtol=1e-11, atol=1e-12
    )
    # its keys determine everything except the heads
    again = from_original(golden.reference, state, transf_n_heads=4)
    assert again.arguments["use_mlp"] is False and again.arguments["layers"] == 2
    with pytest.raises(CheckpointError, match=r"unknown are .*mlp_module"):
        golden.model(transf_use_mlp=False)
