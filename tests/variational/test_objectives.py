"""The objective is Σ w_k L_k with λ multiplying the KL; with λ = 0 there is no KL."""

import pytest
import torch

from probsa.variational.objectives import objective


def terms(**values):
    return {k: torch.tensor(v, requires_grad=True) for k, v in values.items()}


def test_terms_are_weighed_and_only_the_kl_is_scheduled():
    t = terms(nll=2.0, kl=3.0, instance=5.0)
    total = objective(t, weights={"instance": 0.25, "kl": 2.0}, kl_weight=0.5)
    total.backward()
    assert total.item() == 2 + 0.5 * 2 * 3 + 0.25 * 5
    assert {k: v.grad.item() for k, v in t.items()} == {"nll": 1, "kl": 1, "instance": 0.25}


def test_a_method_without_a_kl_ignores_the_schedule():
    for weight in (0.0, 1.0):
        assert objective(terms(nll=2.0), weights={}, kl_weight=weight).item() == 2


@pytest.mark.parametrize("kl", [float("inf"), float("-inf"), float("nan"), 1e38])
def test_no_weight_means_no_term_however_large(kl):
    parameter = torch.tensor(0.5, requires_grad=True)
    total = objective({"nll": parameter.square(), "kl": parameter * kl}, weights={}, kl_weight=0.0)
    total.backward()
    assert total.item() == 0.25
    assert parameter.grad.item() == 1.0


def test_a_weight_of_nought_takes_any_term_out():
    t = {"nll": torch.tensor(1.0), "other": torch.tensor(float("inf"))}
    assert objective(t, weights={"other": 0.0}, kl_weight=1.0).item() == 1
