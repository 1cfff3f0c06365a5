"""Sm: smoothing over a bag's graph (Castro-Macías et al., NeurIPS 2024), arXiv:2410.03276.

    Sm(U) = argmin_G α tr(GᵀLG) + (1 − α)‖G − U‖² = (I + γL)⁻¹U,   γ = α/(1 − α),   L = I − Â

The authors' library uses 1 − α for α in its approximate mode; here α means the same in both modes.
Gradients of the exact mode are computed by smoothing again, as Â is symmetric.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError
from .attention import full_precision
from .graph import Arcs, propagate

SmMode = Literal["approximate", "exact"]
MOST = 0.9999
"""The largest α (γ = 10⁴); with α = 1 the result is 0, and `exact` needs 1 / √(1 − α) steps."""


class Sm(nn.Module):
    """Sm(U) of each bag; an instance without neighbours is multiplied by 1 − α.

    Args:
        alpha: Strength α of the smoothing: 0 leaves U unchanged; near 1, each connected component
            becomes constant.
        trainable: Whether α is trained, as σ(a), starting from `alpha`.
        mode: `approximate` takes `steps` steps G ← αÂG + (1 − α)U from G = U; `exact` solves the
            system to machine precision.
        steps: Number of steps of the approximate mode.
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
        fits = 0 <= alpha <= MOST and not (trainable and alpha == 0)
        if not fits:
            raise InputError(
                f"alpha of Sm is {alpha}; expected at most {MOST}, and above 0 (0 if not trained)"
            )
        self.mode = mode
        self.steps = steps
        self.fixed = alpha
        self.logit: nn.Parameter | None = None
        if trainable:
            self.logit = nn.Parameter(torch.tensor(math.log(alpha / (1 - alpha))))

    def alpha(self, like: Tensor) -> Float[Tensor, ""]:
        """Return α, with the dtype of the given tensor."""
        if self.logit is None:
            return like.new_tensor(self.fixed)
        return self.logit.to(like.dtype).sigmoid().clamp_max(MOST)

    def forward(self, u: Float[Tensor, "n d"], arcs: Arcs) -> Float[Tensor, "n d"]:
        """Return Sm(U), in float32 or better; `arcs` are the normalised arcs of Â."""
        u = full_precision(u)
        alpha = self.alpha(u)
        if self.mode == "exact":
            return _Exact.apply(u, alpha, arcs)  # pyright: ignore[reportReturnType]
        g = u
        for _ in range(self.steps):
            g = torch.lerp(u, propagate(arcs, g), alpha)
        return g


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
        d_alpha = ((d_u * propagate(ctx.arcs, g)).sum() - (grad * g).sum()) / (1 - alpha)
        return d_u, d_alpha, None


def _solve(b: Tensor, alpha: Tensor, arcs: Arcs) -> Tensor:
    """Return (1 − α)(I − αÂ)⁻¹ b, by Chebyshev's iteration.

    All eigenvalues of αÂ lie in [−α, α], so k steps reduce the norm of the error at least by the
    factor 1 / cosh(k arcosh(1/α)). The number of steps is therefore known beforehand, without
    inner products, and does not depend on the other bags of the batch.
    """
    a = float(alpha)
    b = (1 - a) * b
    if a == 0:
        return b
    pull = arcs.with_weights(a * arcs.weights)
    precision = torch.finfo(b.dtype).eps / 4
    steps = math.ceil(math.acosh(1 / precision) / math.acosh(1 / a))
    x = b
    before = torch.zeros_like(b)
    omega = 2.0
    for _ in range(steps - 1):
        # x_{k+1} = ω (αÂ x_k + b − x_{k−1}) + x_{k−1}
        omega = 1 / (1 - a * a * omega / 4)
        after = propagate(pull, x).add_(b).sub_(before).mul_(omega).add_(before)
        before = x
        x = after
    return x
