"""The schedules of λ and the objective that λ weighs; those of the rate are in test_optimizers."""

import pytest
import torch

from probsa.variational import kl_weight, objective


@pytest.mark.parametrize(
    ("schedule", "total", "want"),
    [
        (0.3, 2, [0.3, 0.3]),
        ("linear", 8, [0, 0.25, 0.5, 0.75, 1, 1, 1, 1]),
        ("linear", 5, [0, 0.5, 1, 1, 1]),
        ("linear", 1, [1]),
        ("cyclical", 4, [1.0] * 4),  # fewer steps than cycles
        ("cyclical", 9, [1.0] * 9),  # K = 1, R = 0
        ("cyclical", 10, [0.0, 1.0] * 5),  # K = 2, R = 1
        ("cyclical", 29, [0.0, 0.25, 0.5, 0.75, 1.0] * 5 + [1.0] * 4),  # K = 5, R = 4, 4 left over
        ("cyclical", 50, [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0] * 5),
    ],
)
def test_lambda(schedule, total, want):
    assert [kl_weight(schedule, t, total) for t in range(total)] == want


@pytest.mark.parametrize("length", [5, 385, 10**6, 7 * 10**11])
def test_the_ramp_is_four_fifths_exactly(length):
    ramp = 4 * length // 5
    total = 5 * length
    places = (ramp, ramp - 1, length, length - 1)
    want = [1.0, (ramp - 1) / ramp, 0.0, 1.0]
    assert [kl_weight("cyclical", t, total) for t in places] == want


def test_terms_are_weighed_and_only_the_kl_is_scheduled():
    terms = {k: torch.tensor(v, requires_grad=True) for k, v in [("nll", 2.0), ("kl", 3.0)]}
    terms["instance"] = torch.tensor(5.0, requires_grad=True)
    total = objective(terms, weights={"instance": 0.25, "kl": 2.0}, kl_weight=0.5)
    total.backward()
    assert total.item() == 2 + 0.5 * 2 * 3 + 0.25 * 5
    assert [v.grad.item() for v in terms.values()] == [1, 1, 0.25]


@pytest.mark.parametrize("kl", [float("inf"), float("nan"), 1e38])
@pytest.mark.parametrize(("weights", "kl_weight"), [({}, 0.0), ({"kl": 0.0}, 1.0)])
def test_no_weight_means_no_term_however_large(kl, weights, kl_weight):
    parameter = torch.tensor(0.5, requires_grad=True)
    terms = {"nll": parameter.square(), "kl": parameter * kl}
    total = objective(terms, weights=weights, kl_weight=kl_weight)
    total.backward()
    assert (total.item(), parameter.grad.item()) == (0.25, 1.0)
