"""The focal loss: its values against plain arithmetic, its limits and its gradients."""

import math

import pytest
import torch
from support.random_bags import F64, types_not_executed

from probsa.errors import InputError
from probsa.layers.focal import Focal, bag_loss, focal_loss
from probsa.variational.likelihoods import Bernoulli, Categorical


def counted(scores: list[float], y: int, *, alpha: float, gamma: float) -> float:
    """Return the loss of one bag, with plain arithmetic."""
    p = math.exp(scores[y]) / sum(math.exp(s) for s in scores)
    return (alpha if y == 0 else 1 - alpha) * (1 - p) ** gamma * -math.log(p)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (0.6, 0.5), (1.0, 3.0)])
def test_it_is_the_formula(classes, alpha, gamma):
    generator = torch.Generator().manual_seed(classes)
    logits = 2 * torch.randn(6, 4, classes, dtype=F64, generator=generator)
    y = torch.arange(6) % max(classes, 2)
    weights = (0.5, 3.0, 1.5)[: max(classes, 2)]
    loss = Focal(classes, alpha=alpha, gamma=gamma, class_weights=weights)
    want = [
        sum(counted([0.0] * (classes == 1) + s, c, alpha=alpha, gamma=gamma) for s in bag) / 4
        for bag, c in zip(logits.tolist(), y.tolist(), strict=True)
    ]
    want = [w * weights[c] for w, c in zip(want, y.tolist(), strict=True)]
    assert loss.nll(logits, y).tolist() == pytest.approx(want, rel=1e-6)  # weights are float32
    plain = Bernoulli() if classes == 1 else Categorical()
    assert torch.equal(loss.probability(logits), plain.probability(logits))


def test_without_its_power_it_is_half_the_likelihood():
    logits, y = torch.randn(5, 2, 3, dtype=F64), torch.tensor([0, 1, 2, 1, 0])
    half = Focal(3, alpha=0.5, gamma=0.0).nll(logits, y)
    torch.testing.assert_close(half, Categorical().nll(logits, y) / 2)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_gradients(gamma):
    scores = torch.tensor([[0.3, -1.2], [2.0, 1.0], [-0.5, 0.1]], dtype=F64, requires_grad=True)
    y = torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda s: focal_loss(s, y, alpha=0.25, gamma=gamma), (scores,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_it_is_finite_at_both_ends(dtype, gamma):
    logits = torch.tensor([[[1e4]], [[-1e4]], [[1e4]], [[-1e4]]], dtype=dtype, requires_grad=True)
    loss = Focal(1, alpha=0.25, gamma=gamma).nll(logits, torch.tensor([1, 1, 0, 0]))
    loss.sum().backward()
    at = float(logits.detach().max())  # 1e4 as bfloat16 has it
    assert loss.tolist() == pytest.approx([0, 0.75 * at, 0.25 * at, 0])
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == pytest.approx([0, -0.75, 0.25, 0], abs=1e-2)


def test_what_is_none_is_refused():
    given = {"focal": (0.25, 2.0), "class_weights": None}
    assert isinstance(bag_loss("ce", 1, **given), Bernoulli)
    assert isinstance(bag_loss("focal", 3, **given), Focal)
    with (
        types_not_executed(),
        pytest.raises(InputError, match="loss is 'hinge'; expected 'ce' or 'focal'"),
    ):
        bag_loss("hinge", 1, **given)
    for wrong in ((-0.1, 2.0), (1.1, 2.0), (0.5, -1.0), (0.5, math.inf), (math.nan, 1.0)):
        with pytest.raises(
            InputError, match=r"focal is \(.*\); expected a weight from 0 to 1, and a power"
        ):
            bag_loss("focal", 1, focal=wrong)
