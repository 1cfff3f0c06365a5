"""Sm equals a dense solve in float64, in value and gradient, on graphs of all kinds."""

import pytest
import torch
from support.random_bags import F64, dense_laplacian, graphs_of_all_kinds, packed
from torch import Tensor

from probsa.layers import Sm, both_ways, normalised

BAGS = graphs_of_all_kinds()
TOGETHER = packed(BAGS)
ARCS = normalised(both_ways(TOGETHER))
L = torch.block_diag(*[dense_laplacian(b, "normalised") for b in BAGS])
N = len(L)
U = torch.randn(N, 3, dtype=F64, generator=torch.Generator().manual_seed(0))


def solved(u: Tensor, alpha: float) -> Tensor:
    return torch.linalg.solve(torch.eye(N, dtype=F64) + alpha / (1 - alpha) * L, u)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_exact_is_a_dense_solve(alpha):
    actual = Sm(alpha=alpha, trainable=False, mode="exact")(U, ARCS)
    torch.testing.assert_close(actual, solved(U, alpha), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8])
def test_approximate_is_its_recursion(alpha, steps):
    g = U
    for _ in range(steps):
        g = alpha * (g - L @ g) + (1 - alpha) * U
    actual = Sm(alpha=alpha, trainable=False, steps=steps)(U, ARCS)
    torch.testing.assert_close(actual, g, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8])
def test_approximate_goes_to_exact_with_the_same_alpha(alpha):
    """In the authors' library, the limit is the exact result for 1 − α."""
    errors = [
        (Sm(alpha=alpha, steps=steps)(U, ARCS) - solved(U, alpha)).abs().max().item()
        for steps in (5, 10, 200)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-7  # α follows from a float32 logit, as it is trained


@pytest.mark.parametrize("alpha", [0.5, 0.8])
@pytest.mark.parametrize(("mode", "steps"), [("exact", 1), ("approximate", 1), ("approximate", 6)])
def test_gradients_of_features_and_of_alpha(mode, steps, alpha):
    arcs = normalised(both_ways(packed([BAGS[2], BAGS[5]])))
    u = torch.randn(len(arcs), 2, dtype=F64, requires_grad=True)
    sm = Sm(alpha=alpha, mode=mode, steps=steps).double()
    assert torch.autograd.gradcheck(lambda u, _: sm(u, arcs), (u, sm.logit))
    fixed = Sm(alpha=alpha, trainable=False, mode=mode, steps=steps)
    assert torch.autograd.gradcheck(lambda u: fixed(u, arcs), (u,))


def test_single_precision_and_half():
    for mode in ("exact", "approximate"):
        sm = Sm(alpha=0.9, trainable=False, mode=mode)
        want = sm(U, ARCS)
        actual = sm(U.float(), ARCS)
        assert actual.dtype == torch.float32 == sm(U.bfloat16(), ARCS).dtype
        torch.testing.assert_close(actual.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["exact", "approximate"])
def test_alpha_starts_where_told_and_stays_below_one(mode):
    sm = Sm(alpha=0.8, mode=mode)
    assert sm.alpha(U).item() == pytest.approx(0.8, abs=1e-6)
    with torch.no_grad():
        sm.logit.fill_(200.0)
    assert sm.alpha(U).item() < 1
    u = U.clone().requires_grad_()
    g = sm(u, ARCS)
    gradients = torch.autograd.grad(g.sum(), (u, sm.logit))
    assert all(bool(v.isfinite().all()) for v in (g, *gradients))
