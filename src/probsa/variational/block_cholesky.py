"""Cholesky factors of block tridiagonal matrices, with everything a Gaussian needs from them.

Solutions, samples, marginal variances and log-determinants cost O(n w²) time and O(n w) memory for
n instances in blocks of w. All operations work on a batch of g matrices, and none is recorded by
autograd: `field_gradients` has their derivatives.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

STEP = 1e-4
"""Relative step of the central differences in `marginals_along`; its error is about 10⁻⁸."""


class BlockCholesky:
    """The factor L of Q = LLᵀ, with L_ii on the diagonal and B_i = L_{i+1,i} below it.

    Args:
        diagonal: Diagonal blocks of Q, each (g, n_i, n_i).
        below: Blocks below them, each (g, n_{i+1}, n_i).
    """

    def __init__(self, diagonal: Sequence[Tensor], below: Sequence[Tensor]) -> None:
        self.given = diagonal, below
        self.inverses: list[Tensor] = []
        """L_ii⁻¹, lower triangular."""
        self.below: list[Tensor] = []
        self.sizes = [d.shape[1] for d in diagonal]
        self._logs: list[Tensor] = []
        previous: Tensor | None = None
        for k, block in enumerate(diagonal):
            own = block if previous is None else block - previous @ previous.mT
            factor, failed = torch.linalg.cholesky_ex(own)
            # no error: a diverged model gives NaN here, which the training loop reports
            factor = factor.masked_fill(failed[:, None, None] > 0, torch.nan)
            eye = torch.eye(self.sizes[k], dtype=own.dtype, device=own.device)
            inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
            self.inverses.append(inverse)
            self._logs.append(factor.diagonal(dim1=1, dim2=2).log().sum(1))
            if k < len(below):
                between = below[k] @ inverse.mT
                self.below.append(between)
                previous = between

    def one(self, g: int) -> "BlockCholesky":
        """Return the factor of matrix number g alone."""
        own = BlockCholesky([], [])
        own.given = tuple([v[g : g + 1] for v in values] for values in self.given)
        own.sizes = self.sizes
        own.inverses, own.below, own._logs = (
            [v[g : g + 1] for v in values] for values in (self.inverses, self.below, self._logs)
        )
        return own

    def to(self, dtype: torch.dtype) -> "BlockCholesky":
        """Return the factor in another precision, for `back` and `forth` only."""
        own = BlockCholesky([], [])
        own.sizes = self.sizes
        own.inverses = [v.to(dtype) for v in self.inverses]
        own.below = [v.to(dtype) for v in self.below]
        return own

    @property
    def log_determinant(self) -> Float[Tensor, " g"]:
        """log |Q|."""
        return 2 * torch.stack(self._logs).sum(0)

    def solve(self, b: Float[Tensor, "g n r"]) -> Float[Tensor, "g n r"]:
        """Return Q⁻¹ b."""
        return self.back(self.forth(b))

    def forth(self, b: Float[Tensor, "g n r"]) -> Float[Tensor, "g n r"]:
        """Return L⁻¹ b."""
        y: list[Tensor] = []
        for k, part in enumerate(b.split(self.sizes, 1)):
            rest = part if k == 0 else part - self.below[k - 1] @ y[-1]
            y.append(self.inverses[k] @ rest)
        return torch.cat(y, 1)

    def back(self, y: Float[Tensor, "g n r"]) -> Float[Tensor, "g n r"]:
        """Return L⁻ᵀ y, whose covariance is Q⁻¹ if y is standard normal."""
        x: list[Tensor] = []
        parts = y.split(self.sizes, 1)
        for k in reversed(range(len(parts))):
            rest = parts[k] if not x else parts[k] - self.below[k].mT @ x[-1]
            x.append(self.inverses[k].mT @ rest)
        return torch.cat(x[::-1], 1)

    def marginals(self) -> Float[Tensor, "g n"]:
        """Return diag Q⁻¹, by selected inversion (Takahashi's equations, block by block)."""
        diagonals: list[Tensor] = []
        covariance: Tensor | None = None
        for k in reversed(range(len(self.sizes))):
            inverse = self.inverses[k]
            if k == 0 and covariance is None:  # one block: its diagonal is enough
                return inverse.square().sum(1)
            own = inverse.mT @ inverse
            if covariance is not None:
                gain = self.below[k] @ inverse
                own = own + gain.mT @ (covariance @ gain)
            diagonals.append(own.diagonal(dim1=1, dim2=2))
            covariance = own
        return torch.cat(diagonals[::-1], 1)

    def marginals_along(self, d: Float[Tensor, "g n"]) -> Float[Tensor, "g n"]:
        """Return diag(Q⁻¹ diag(d) Q⁻¹), minus the change of `marginals` as Q changes by diag(d).

        Exact for one block. Otherwise a central difference of two factorisations, in float64.
        """
        if len(self.sizes) == 1:
            (inverse,) = self.inverses
            covariance = inverse.mT @ inverse
            return (covariance.square() @ d[:, :, None])[:, :, 0]
        diagonal, below = self.given
        scale = torch.stack([v.diagonal(dim1=1, dim2=2).amin(1) for v in diagonal]).amin(0)
        size = d.abs().amax(1)
        # where d is 0, so is the result; dividing by a tiny number instead could overflow
        unit = d / torch.where(size > 0, size, torch.ones_like(size))[:, None]
        step = STEP * scale
        shifts = [torch.diag_embed(part) for part in (step[:, None] * unit).split(self.sizes, 1)]
        both = [torch.cat([v - s, v + s]) for v, s in zip(diagonal, shifts, strict=True)]
        low, high = BlockCholesky(both, [v.repeat(2, 1, 1) for v in below]).marginals().chunk(2)
        return (low - high) * (size / (2 * step))[:, None]
