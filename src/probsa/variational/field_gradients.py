"""Derivatives of the moments and samples of N(m, Q⁻¹) by the diagonal τ of Q = P + diag τ.

Each backward pass takes solutions of systems with Q, never the derivative of a factorisation.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .field_solvers import Solver


class _Solution(torch.autograd.Function):
    """x = Q⁻¹b: with λ = Q⁻¹x̄, b̄ = λ and τ̄ = −Σ_r λ_r ⊙ x_r."""

    @staticmethod
    def forward(ctx: Any, tau: Tensor, b: Tensor, solver: Solver) -> Tensor:
        x = solver.solve(b)
        ctx.solver = solver
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (x,) = ctx.saved_tensors
        costate = ctx.solver.solve(grad)
        return -(costate * x).sum(2), costate, None


class _Marginals(torch.autograd.Function):
    """s = diag S with S = Q⁻¹: τ̄ = −diag(S diag(s̄) S)."""

    @staticmethod
    def forward(ctx: Any, tau: Tensor, solver: Solver) -> Tensor:
        ctx.solver = solver
        return solver.marginals()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        return -ctx.solver.marginals_along(grad), None


class _LogDeterminant(torch.autograd.Function):
    """log |Q|, whose derivative by τ is diag Q⁻¹."""

    @staticmethod
    def forward(ctx: Any, tau: Tensor, solver: Solver) -> Tensor:
        ctx.solver = solver
        return solver.log_determinant()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        return grad[:, None] * ctx.solver.marginals(), None


class _Deviations(torch.autograd.Function):
    """x ~ N(0, Q⁻¹), moved along as τ changes: dx = −½ Q⁻¹ (dτ ⊙ x).

    The motion turns samples of N(0, Q⁻¹) into samples of N(0, (Q + diag dτ)⁻¹), because it changes
    their covariance S by −S diag(dτ) S. So gradients of expectations are unbiased, whatever noise
    the samples were made from (an implicit reparameterisation), and cost one solution.
    """

    @staticmethod
    def forward(ctx: Any, tau: Tensor, noise: Tensor, solver: Solver) -> Tensor:
        x = solver.deviations(noise)
        ctx.solver, ctx.full = solver, tau.dtype
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (x,) = ctx.saved_tensors
        costate = ctx.solver.solve(grad.to(ctx.full))
        return -0.5 * (costate * x).sum(2), None, None


def solution(
    tau: Float[Tensor, "g n"], b: Float[Tensor, "g n r"], *, solver: Solver
) -> Float[Tensor, "g n r"]:
    """Return Q⁻¹ b; rows are in the solver's order here and below."""
    return _Solution.apply(tau, b, solver)  # pyright: ignore[reportReturnType]


def marginals(tau: Float[Tensor, "g n"], *, solver: Solver) -> Float[Tensor, "g n"]:
    """Return diag Q⁻¹."""
    return _Marginals.apply(tau, solver)  # pyright: ignore[reportReturnType]


def log_determinant(tau: Float[Tensor, "g n"], *, solver: Solver) -> Float[Tensor, " g"]:
    """Return log |Q|."""
    return _LogDeterminant.apply(tau, solver)  # pyright: ignore[reportReturnType]


def deviations(
    tau: Float[Tensor, "g n"], noise: Float[Tensor, "g m r"], *, solver: Solver
) -> Float[Tensor, "g n r"]:
    """Return samples of N(0, Q⁻¹) from standard normal noise, in the noise's precision."""
    return _Deviations.apply(tau, noise, solver)  # pyright: ignore[reportReturnType]
