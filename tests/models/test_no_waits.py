"""No step and no prediction of any model asks its device a question, and operations stay few."""

import math

import pytest
import torch
from support.operations import CountedOperations

from probsa import Bag, models, pack

FEATURES = 32
STEPS = {
    "abmil": 55,
    "abmil-probsa-diag": 164,
    "abmil-probsa-dirac": 91,
    "abmil-probsa-field": 405,
    "camil": 2287,
    "clam-mb": 139,
    "clam-sb": 140,
    "clam-sb-probsa-diag": 249,
    "clam-sb-probsa-field": 491,
    "dsmil": 127,
    "dtfdmil": 226,
    "evidence-diag": 173,
    "evidence-dirac": 101,
    "evidence-field": 413,
    "gtp": 276,
    "iibmil": 509,
    "instance-lr": 38,
    "mean-pool": 32,
    "patchgcn": 323,
    "setmil": 1735,
    "smabmil": 235,
    "tabmil": 145,
    "tabmil-probsa-diag": 254,
    "tabmil-probsa-dirac": 181,
    "tabmil-probsa-field": 494,
    "transmil": 2392,
    "transmil-probsa-diag": 2374,
    "transmil-probsa-field": 2614,
    "vmil": 38,
}
"""Operations of a training step of four bags of 300 patches: forward, losses and backward."""
TOLERANCE = 1.03
"""Other versions of PyTorch take some operations apart."""
PER_BAG = (
    "camil",
    "iibmil",
    "setmil",
    "transmil",
    "tabmil",
    "gtp",
    "dsmil",
    "dtfdmil",
    "smabmil",
    "clam",
)
"""Beginnings of names of models that compute bag by bag."""


def slides(count: int, *, size: int = 300):
    bags = []
    for b in range(count):
        row = torch.arange(size)
        coords = 512 * torch.stack([row % 20, row // 20], 1)
        x = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(b))
        bags.append(Bag.from_arrays(x, coords, label=b % 2, name=f"b{b}"))
    return pack(bags)


def step(name: str, bags) -> CountedOperations:
    """Take a step on a device without values; return its operations."""
    torch.manual_seed(0)
    model = models.build(name, in_dim=FEATURES).to("meta").train()
    model.start_epoch(0, 10)
    with CountedOperations() as operations:
        out = model(bags, generator=torch.Generator().manual_seed(1))
        sum(model.losses(out, bags).values()).backward()
        with torch.no_grad():
            statistics = model.batch_statistics(out, bags)
            if statistics is not None:
                model.update_statistics(statistics)
    return operations


def test_every_model_is_here():
    assert STEPS.keys() == set(models.names())


@pytest.mark.parametrize("name", models.names())
def test_a_step_asks_the_device_nothing(name):
    assert step(name, slides(4).to("meta")).total <= math.ceil(STEPS[name] * TOLERANCE)


@pytest.mark.parametrize("name", models.names())
def test_a_prediction_asks_the_device_nothing(name):
    model = models.build(name, in_dim=FEATURES).to("meta").eval()
    with torch.no_grad():
        out = model(slides(2).to("meta"))
        model.explains = False
        validated = model(slides(2).to("meta"))
    assert out.logits.device.type == validated.logits.device.type == "meta"


@pytest.mark.parametrize("name", [n for n in models.names() if not n.startswith(PER_BAG)])
def test_the_number_of_operations_does_not_grow_with_the_number_of_bags(name):
    few = step(name, slides(2).to("meta"))
    many = step(name, slides(6).to("meta"))
    assert (many.counts - few.counts) == {}


def test_a_question_to_that_device_fails():
    v = torch.ones(3, device="meta")
    for question in (
        lambda: v.sum().item(),
        lambda: bool(v.any()),
        lambda: v[v > 0],
        lambda: v.nonzero(),
        lambda: v.tolist(),
        lambda: v.cpu(),
        lambda: torch.equal(v, v),
        lambda: v.repeat_interleave(v.long()),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            question()
