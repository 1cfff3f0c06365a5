"""Sm: smoothing over a bag's graph (Castro-Macías et al., NeurIPS 2024), arXiv:2410.03276.

    Sm(U) = argmin_G α tr(GᵀLG) + (1 − α)‖G − U‖² = (I + γL)⁻¹U,   γ = α/(1 − α),   L = I − Â

The authors' library takes 1 − α for α in its approximate mode; here both modes are one operator.
Gradients are found by smoothing once more (Â is symmetric), so only one (n, d) tensor is kept.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .graph import Arcs, propagate

SmMode = Literal["approximate", "exact"]
MOST = 0.9999
"""The largest α, γ = 10⁴: at 1 nothing of U is left, and `exact` takes 1 / √(1 − α) steps."""


class Sm(nn.Module):
    """Sm(U) on each bag; an instance without neighbours keeps (1 − α) of itself.

    Args:
        alpha: 0 leaves U as it is, towards 1 each connected part becomes flat.
        trainable: α = σ(a) is trained, from `alpha` on: it stays between 0 and 1.
        mode: `approximate`: `steps` of G ← αÂG + (1 − α)U from G = U; `exact`: to the last digit.
        steps: of the approximate mode.
    """

    def __init__(
        self,
        *,
        alpha: float = 0.5,
        trainable: bool = True,
        mode: SmMode = "approximate",
        steps: int = 10,
    ) -> None:
        super().__init__()
        if mode not in ("approximate", "exact"):
            raise InputError(f"mode of Sm is {mode!r}: 'approximate' or 'exact'")
        if not (0 < alpha <= MOST if trainable else 0 <= alpha <= MOST):
            raise InputError(
                f"alpha of Sm is {alpha}: at most {MOST}, and above 0 (or 0, if it is not trained)"
            )
        if steps < 1:
            raise InputError(f"steps of Sm are {steps}: at least 1")
        self.mode, self.steps, self.fixed = mode, steps, alpha
        self.logit: nn.Parameter | None = None
        if trainable:
            self.logit = nn.Parameter(torch.tensor(math.log(alpha / (1 - alpha))))

    def alpha(self, like: Tensor) -> Float[Tensor, ""]:
        """α, in the type of a tensor."""
        if self.logit is None:
            return like.new_tensor(self.fixed)
        return self.logit.to(like.dtype).sigmoid().clamp_max(MOST)

    def forward(self, u: Float[Tensor, "n d"], arcs: Arcs) -> Float[Tensor, "n d"]:
        """`arcs` are those of Â: edges both ways, normalised. Half precision ends here."""
        u = u.float() if u.dtype in (torch.float16, torch.bfloat16) else u
        with torch.no_grad():
            arcs = arcs.with_weights(arcs.weights.to(u.dtype))
        alpha = self.alpha(u)
        if self.mode == "exact":
            return _Exact.apply(u, alpha, arcs)  # pyright: ignore[reportReturnType]
        return _Approximate.apply(u, alpha, arcs, self.steps)  # pyright: ignore[reportReturnType]


class _Approximate(torch.autograd.Function):
    """G_T = p(Â)U, with p(Â) = Σ_{k<T} (1 − α)αᵏÂᵏ + αᵀÂᵀ."""

    @staticmethod
    def forward(  # noqa: PLR0917 - apply() takes no names
        ctx: Any, u: Tensor, alpha: Tensor, arcs: Arcs, steps: int
    ) -> Tensor:
        ctx.save_for_backward(u, alpha)
        ctx.arcs, ctx.steps = arcs, steps
        pull = arcs.with_weights(alpha * arcs.weights)
        rest, g = (1 - alpha) * u, u
        for _ in range(steps):
            g = propagate(pull, g).add_(rest)
        return g

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        u, alpha = ctx.saved_tensors
        a, last = float(alpha), ctx.steps
        d_u = (1 - a) * grad
        slope = -grad  # p'(Â) of the gradient, p' the derivative by α
        v = grad
        for k in range(1, last + 1):
            v = propagate(ctx.arcs, v)
            d_u.add_(v, alpha=a**k * (1 if k == last else 1 - a))
            change = k * a ** (k - 1) * (1 if k == last else 1 - a) - (0 if k == last else a**k)
            slope.add_(v, alpha=change)
        return d_u, (slope * u).sum().reshape(alpha.shape), None, None


class _Exact(torch.autograd.Function):
    """G = (1 − α)(I − αÂ)⁻¹U, which is (I + γL)⁻¹U."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, alpha: Tensor, arcs: Arcs) -> Tensor:
        g = _solve(u, alpha, arcs)
        ctx.save_for_backward(g, alpha)
        ctx.arcs = arcs
        return g

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        g, alpha = ctx.saved_tensors
        d_u = _solve(grad, alpha, ctx.arcs)
        d_alpha = None
        if ctx.needs_input_grad[1]:
            d_alpha = ((d_u * propagate(ctx.arcs, g)).sum() - (grad * g).sum()) / (1 - alpha)
        return d_u, d_alpha, None


def _solve(b: Tensor, alpha: Tensor, arcs: Arcs) -> Tensor:
    """(1 − α)(I − αÂ)⁻¹ b, by Chebyshev's iteration.

    All eigenvalues of αÂ lie in [−α, α], so after k steps the error in norm is at most
    1 / cosh(k arcosh(1/α)) of the start's: the steps are known beforehand, there are no inner
    products, and every bag and channel takes the same ones whatever it is batched with.
    """
    a = float(alpha)
    b = (1 - a) * b
    if a == 0:
        return b
    pull = arcs.with_weights(a * arcs.weights)
    precision = torch.finfo(b.dtype).eps / 4
    steps = math.ceil(math.acosh(1 / precision) / math.acosh(1 / a))
    before, x, omega = torch.zeros_like(b), b, 2.0
    for _ in range(steps - 1):
        omega = 1 / (1 - a * a * omega / 4)
        before, x = x, propagate(pull, x).add_(b).sub_(before).mul_(omega).add_(before)
    return x
