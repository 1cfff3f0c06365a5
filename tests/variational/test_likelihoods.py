"""Losses against those of torch, class weights, and the order of averaging."""

import pytest
import torch
import torch.nn.functional as F
from support.random_bags import F64

from probsa.errors import InputError
from probsa.models import Output
from probsa.variational.likelihoods import (
    Bernoulli,
    Categorical,
    Independent,
    balanced_weights,
    likelihood_of,
)
from probsa.variational.posteriors import Dirac


def logits(bags, samples, classes, *, scale=3.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(bags, samples, classes, generator=g, dtype=F64)


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("label", [torch.int64, torch.float32])
def test_bernoulli_is_the_mean_of_binary_cross_entropies(samples, label):
    ell, y = logits(4, samples, 1), torch.tensor([0, 1, 1, 0]).to(label)
    want = F.binary_cross_entropy_with_logits(
        ell[..., 0], y.double()[:, None].expand(4, samples), reduction="none"
    )
    torch.testing.assert_close(Bernoulli().nll(ell, y), want.mean(1), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("classes", [2, 4])
def test_categorical_is_the_mean_of_cross_entropies(classes):
    ell, y = logits(5, 3, classes), torch.tensor([0, 1, 1, classes - 1, 0])
    want = [[F.cross_entropy(ell[b, s], y[b]) for s in range(3)] for b in range(5)]
    want = torch.tensor(want, dtype=F64).mean(1)
    torch.testing.assert_close(Categorical().nll(ell, y), want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("classes", [2, 3])
def test_independent_classes_are_binary_cross_entropies_on_one_hot_labels(classes):
    ell, y = logits(classes + 1, 4, classes), torch.arange(classes + 1)
    # The last row is the label for no class.
    there = torch.cat([torch.eye(classes), torch.zeros(1, classes)]).double()
    each = F.binary_cross_entropy_with_logits(
        ell, there[:, None].expand_as(ell), reduction="none"
    ).mean((1, 2))
    torch.testing.assert_close(Independent().nll(ell, y), each, rtol=1e-13, atol=1e-15)
    weights = (0.5, 2.0, 3.0)[:classes]
    weighed = Independent(class_weights=weights).nll(ell, y)
    torch.testing.assert_close(weighed, each * torch.tensor([*weights, 1.0]), rtol=1e-7, atol=0)
    assert torch.equal(Independent().probability(ell), ell.sigmoid())


@pytest.mark.parametrize(("classes", "y"), [(1, [0, 1, 1]), (3, [2, 0, 1])])
def test_class_weights_multiply_the_loss_of_their_class(classes, y):
    ell, y = logits(3, 2, classes), torch.tensor(y)
    weights = (0.5, 2.0, 3.0)[: max(classes, 2)]
    plain = likelihood_of(classes).nll(ell, y)
    weighed = likelihood_of(classes, class_weights=weights).nll(ell, y)
    torch.testing.assert_close(weighed, plain * torch.tensor(weights)[y], rtol=1e-7, atol=0)


def test_it_is_the_mean_of_losses_not_the_loss_of_the_mean():
    ell = torch.tensor([[[-4.0], [4.0]]])
    y = torch.tensor([1])
    mean_of_losses = Bernoulli().nll(ell, y)
    assert float(mean_of_losses) == pytest.approx((4.01815 + 0.01815) / 2, abs=1e-5)
    loss_of_mean = Bernoulli().nll(ell.mean(1, keepdim=True), y)
    assert float(loss_of_mean) == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize(("classes", "squash"), [(1, torch.sigmoid), (3, lambda t: t.softmax(-1))])
def test_a_probability_is_the_mean_of_probabilities(classes, squash):
    ell = logits(2, 50, classes, scale=5.0)
    out = Output(logits=ell, attention=Dirac(torch.zeros(2)), likelihood=likelihood_of(classes))
    each = torch.stack([squash(ell[:, s]) for s in range(50)], 1)
    torch.testing.assert_close(out.probability, each.mean(1), rtol=1e-13, atol=0)
    spread = (each - each.mean(1, keepdim=True)).square().mean(1).sqrt()
    torch.testing.assert_close(out.std, spread, rtol=1e-12, atol=0)
    assert float((out.probability - squash(ell.mean(1))).abs().max()) > 0.05


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_logits_cost_their_size_and_have_finite_gradients(likelihood, size):
    classes = 1 if isinstance(likelihood, Bernoulli) else 2
    ell = torch.zeros(1, 1, classes)
    ell[..., -1] = size
    ell.requires_grad_()
    loss = likelihood.nll(ell, torch.tensor([0 if size > 0 else 1]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(1e4)
    assert bool(ell.grad.isfinite().all())
    assert float(ell.grad[..., -1]) == pytest.approx(1 if size > 0 else -1)
    right = likelihood.nll(ell.detach(), torch.tensor([1 if size > 0 else 0]))
    assert float(right) == 0


def test_half_precision_logits_do_not_make_half_precision_losses():
    ell = torch.tensor([[[3.0]], [[0.125]]], dtype=torch.bfloat16)
    y = torch.tensor([0, 1])
    torch.testing.assert_close(
        Bernoulli().nll(ell, y), Bernoulli().nll(ell.float(), y), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("y", "classes", "want"),
    [
        ([0, 0, 0, 1], 1, (4 / 6, 2.0)),
        ([0, 1], 1, (1.0, 1.0)),
        ([0, 1, 1, 2, 2, 2], 3, (2.0, 1.0, 2 / 3)),
    ],
)
def test_balanced_weights_are_n_over_c_n_c(y, classes, want):
    got = balanced_weights(torch.tensor(y), classes)
    assert got == pytest.approx(want)
    mean = sum(got[label] for label in y) / len(y)
    assert mean == pytest.approx(1)


def test_balanced_weights_need_every_class():
    with pytest.raises(InputError, match=r"none of class \[1\]"):
        balanced_weights(torch.tensor([0, 2, 2]), 3)
    with pytest.raises(InputError, match=r"none of class \[0\]"):
        balanced_weights(torch.tensor([1, 1]), 1)


def test_one_logit_is_bernoulli_and_more_are_categorical():
    assert type(likelihood_of(1)) is Bernoulli
    assert type(likelihood_of(2)) is Categorical
    with pytest.raises(InputError, match="n_classes is 0"):
        likelihood_of(0)
