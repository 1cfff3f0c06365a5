"""Optimisers and schedules of the learning rate, against computations by hand."""

import math

import pytest
import torch

from probsa.models import build
from probsa.training import TrainingConfig, clip_gradients, make_optimizer
from probsa.training.optimizers import set_learning_rate
from probsa.variational import rate_factor


def small(name="abmil", **more):
    torch.manual_seed(0)
    return build(name, in_dim=3, **{"embed": 4, "attention_dim": 2, **more})


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("adam", torch.optim.Adam, {"betas": (0.9, 0.999)}),
        ("adamw", torch.optim.AdamW, {"betas": (0.9, 0.999)}),
        ("radam", torch.optim.RAdam, {"decoupled_weight_decay": True}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_the_optimizers_are_torchs(name, kind, more):
    settings = TrainingConfig(optimizer=name, learning_rate=0.02, weight_decay=0.3)
    optimizer = make_optimizer(small(), settings)
    assert type(optimizer) is kind
    for group in optimizer.param_groups:
        for key, value in {"lr": 0.02, "weight_decay": 0.3, **more}.items():
            assert group[key] == value


def test_vectors_may_go_without_decay():
    settings = TrainingConfig(weight_decay=0.5, decay_vectors=False)
    groups = make_optimizer(small(), settings).param_groups
    for group in groups:
        for p in group["params"]:
            assert group["weight_decay"] == (0.5 if p.ndim > 1 else 0.0)


def test_a_group_with_its_own_norm_is_clipped_by_itself():
    a, b, c = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = torch.optim.SGD(
        [{"params": [a], "clip_norm": 5.0}, {"params": [b]}, {"params": [c]}], lr=1.0
    )
    for p, value in ((a, 30.0), (b, 6.0), (c, 8.0)):
        p.grad = torch.tensor([value, 0.0])
    clip_gradients(optimizer, None)
    assert [p.grad[0].item() for p in (a, b, c)] == pytest.approx([5, 6, 8], rel=1e-5)
    clip_gradients(optimizer, 1.0)
    assert [p.grad[0].item() for p in (a, b, c)] == pytest.approx([5, 0.6, 0.8], rel=1e-5)


def test_a_group_that_was_split_is_clipped_as_one():
    """DTFD-MIL clips each part separately: its matrices and vectors together."""
    whole = small("dtfdmil")
    split = small("dtfdmil")
    whole_groups = make_optimizer(whole, TrainingConfig(decay_vectors=True))
    split_groups = make_optimizer(split, TrainingConfig(decay_vectors=False))
    assert len(split_groups.param_groups) > len(whole_groups.param_groups)
    for model, optimizer in ((whole, whole_groups), (split, split_groups)):
        for p in model.parameters():
            p.grad = torch.full_like(p, 30.0)
        clip_gradients(optimizer, 1.0)
    for p, q in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    for group in whole_groups.param_groups:
        square = sum(p.grad.square().sum() for p in group["params"])
        assert float(square) == pytest.approx(25, rel=1e-4)


def test_cosine_and_step_are_their_formulas():
    for e in range(21):
        expected = 0.05 + 0.95 * (1 + math.cos(math.pi * e / 20)) / 2
        factor = rate_factor("cosine", epoch=e, epochs=20, share=0.05)
        assert factor == pytest.approx(expected, rel=1e-12)
    steps = [rate_factor("step", epoch=e, epochs=9, share=0.5, every=3) for e in range(9)]
    assert steps == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("every", [1, 2, 5])
def test_plateaus_are_torchs(every):
    """PyTorch's patience is one less, since it waits for more than that many epochs."""
    generator = torch.Generator().manual_seed(every)
    losses = (0.5 + 0.2 * torch.rand(60, generator=generator) * torch.linspace(1, 0, 60)).tolist()
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        sgd, factor=0.5, patience=every - 1, threshold=1e-4, threshold_mode="abs", eps=0
    )
    drops = set()
    for e in range(60):
        ours = rate_factor("plateau", epoch=e, epochs=60, losses=losses[:e], share=0.5, every=every)
        assert ours == pytest.approx(sgd.param_groups[0]["lr"], rel=1e-12)
        drops.add(ours)
        theirs.step(losses[e])
    assert len(drops) > 3


def test_the_schedule_multiplies_the_warm_up_and_each_groups_own_rate():
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b], "initial_lr": 0.5}], lr=0.1)
    settings = TrainingConfig(
        learning_rate=0.1, warmup_epochs=4, schedule="step", schedule_epochs=2, schedule_factor=0.5
    )
    rates = [set_learning_rate(optimizer, settings, epoch=e) for e in range(6)]
    assert rates == pytest.approx([0.01, 0.0325, 0.0275, 0.03875, 0.025, 0.025])
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.025, 0.125])


ORDINAL = {"task": "ordinal", "n_classes": 4, "kind": "cumulative", "starts": (-1.0, 0.0, 1.0)}


def rates(model, **settings):
    """Return the learning rate of every parameter in the fifth epoch, by name."""
    settings = TrainingConfig(learning_rate=1e-3, warmup_epochs=10, **settings)
    optimizer = make_optimizer(model, settings)
    set_learning_rate(optimizer, settings, epoch=5)
    names = {id(p): name for name, p in model.named_parameters()}
    rate_of = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert names[id(p)] not in rate_of  # each parameter once
            rate_of[names[id(p)]] = group["lr"]
    assert len(rate_of) == len(names)
    return rate_of


@pytest.mark.parametrize(
    ("settings", "factor"), [({}, 10.0), ({"scalar_rate": 3.0}, 3.0), ({"scalar_rate": 1.0}, 1.0)]
)
def test_single_numbers_of_a_target_learn_faster(settings, factor):
    model = small("evidence-field", likelihood={**ORDINAL, "one_logit": True})
    single = [f"likelihood.{n}" for n, _ in model.likelihood.named_parameters()]
    single += [f"pooling.{n}" for n, _ in model.pooling.named_parameters()]
    assert len(single) == 5
    for name, rate in rates(model, **settings).items():
        expected = factor if name in single else 1.0
        assert rate == pytest.approx(0.55e-3 * expected), name


@pytest.mark.parametrize("name", ["evidence-field", "abmil-probsa-diag", "dtfdmil"])
def test_models_of_two_classes_keep_one_rate(name):
    """The results of the paper's models, and of earlier versions, stay as they were."""
    assert list(rates(small(name)).values()) == pytest.approx(
        [0.55e-3] * len(list(small(name).parameters()))
    )
    with_groups = make_optimizer(small(name), TrainingConfig())
    assert len(with_groups.param_groups) == len(list(small(name).parameter_groups()))
