"""ABMIL equals its originals where test_parity.py cannot compare: on survival, and without MLPs."""

import pytest
import torch
from support.golden import Golden, close
from torch import Tensor

from probsa import pack
from probsa.layers.pooling import pool_vectors

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
