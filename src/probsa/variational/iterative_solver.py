"""Conjugate gradients for bags whose blocks would not fit in memory: O(n + edges), on any device.

Solutions and samples are exact to the tolerance. Marginal variances, their derivative and the
log-determinant are estimated with fixed probes, so they are deterministic but carry the errors that
the methods state.
"""

import warnings
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError

TOLERANCE = 1e-8
"""Largest norm of a residual, relative to that of the right-hand side (float32: 10⁻⁵)."""
STEPS = 5000
SAMPLES = 64
"""Number of samples from which marginal variances are estimated."""
PROBES = 16
"""Number of probes of the log-determinant and of the derivative of the marginal variances."""
LANCZOS = 50
"""Number of Lanczos steps for the log-determinant."""


def has_sparse(device: torch.device) -> bool:
    """Return whether a device multiplies sparse matrices; MPS does not."""
    return device.type != "mps"


class IterativeSolver:
    """Solves one bag's system; see `field_solvers.Solver`.

    A sample takes one number per instance and one per edge (perturb and solve): with the weighted
    incidence matrix B, BᵀB = 2κL, the vector Bᵀε₁ + √(2κε + τ) ⊙ ε₂ has the covariance Q.

    Args:
        tau: The diagonal that is added to P.
        diagonal: The diagonal of P.
        pairs: The entry of P for each edge.
        edges: The edges, as rows of the bag.
        bag: The bag's position in the batch.
        start: Its first row in the packed tensors.

    Raises:
        InputError: P is not 2κ(D − A + εI).
    """

    def __init__(
        self,
        tau: Float[Tensor, " n"],
        diagonal: Float[Tensor, " n"],
        pairs: Float[Tensor, " e"],
        *,
        edges: Int[Tensor, "2 e"],
        bag: int,
        start: int,
    ) -> None:
        n = len(tau)
        self.bags: Sequence[int] = [bag]
        self.edges, self.noise_size = edges, n + len(pairs)
        self.rows = torch.arange(start, start + n, device=tau.device)[None]
        self.root = (-pairs).sqrt()
        degree = torch.zeros_like(diagonal).index_add(0, edges[0], pairs)
        degree.index_add_(0, edges[1], pairs)
        ridge = diagonal + degree  # `pairs` are negative
        if bool((ridge < -1e-6 * diagonal).any()):
            raise InputError(
                f"a bag of {n:,} instances needs conjugate gradients, which know the combinatorial "
                "Laplacian only: give --laplacian combinatorial"
            )
        self.rest = (ridge.clamp_min(0) + tau).sqrt()
        self.diagonal = diagonal + tau
        self.pairs = pairs
        self.matrix = self._sparse() if has_sparse(tau.device) else None
        self._marginals: Tensor | None = None

    def _sparse(self) -> Tensor:
        (i, j), n = self.edges, len(self.diagonal)
        every = torch.arange(n, device=i.device)
        places = torch.stack([torch.cat([every, i, j]), torch.cat([every, j, i])])
        values = torch.cat([self.diagonal, self.pairs, self.pairs])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # PyTorch calls sparse CSR a beta
            entries = torch.sparse_coo_tensor(places, values, (n, n), check_invariants=False)
            return entries.coalesce().to_sparse_csr()

    def _product(self, v: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """Return Qv."""
        if self.matrix is not None:
            return self.matrix @ v
        i, j = self.edges
        out, weights = self.diagonal[:, None] * v, self.pairs[:, None]
        out.index_add_(0, i, weights * v.index_select(0, j))
        return out.index_add_(0, j, weights * v.index_select(0, i))

    def solve(self, b: Float[Tensor, "1 n r"]) -> Float[Tensor, "1 n r"]:
        return self._solve(b[0])[None]

    def _solve(self, b: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """Return Q⁻¹b by conjugate gradients, preconditioned with the diagonal."""
        inverse = self.diagonal.reciprocal()[:, None]
        x, r = torch.zeros_like(b), b.clone()
        z = inverse * r
        p, rz = z.clone(), (r * z).sum(0)
        limit = (TOLERANCE if b.dtype == torch.float64 else 1e-5) * b.norm(dim=0)
        for _ in range(STEPS):
            residual = r.norm(dim=0)
            # a diverged model gives NaN, which the training loop reports
            if not bool((residual > limit).any()) or not bool(residual.isfinite().all()):
                return x
            q = self._product(p)
            # a column that is solved exactly would divide by 0
            alpha = rz / (p * q).sum(0).clamp_min(torch.finfo(b.dtype).tiny)
            x.addcmul_(p, alpha)
            r.addcmul_(q, alpha, value=-1)
            torch.mul(inverse, r, out=z)
            before, rz = rz, (r * z).sum(0)
            p.mul_(rz / before.clamp_min(torch.finfo(b.dtype).tiny)).add_(z)
        raise InputError(
            f"conjugate gradients did not converge in {STEPS} steps for a bag of {len(b):,} "
            "instances: the precisions of its instances differ too much. Give a larger ridge, or "
            "narrower log_variance_bounds"
        )

    def marginals(self) -> Float[Tensor, "1 n"]:
        """Return S_nn = 1/Q_nn + Var[Σ_m Q_nm x_m] / Q_nn², estimated from `SAMPLES` samples.

        Rao–Blackwellised (Sidén et al. 2018): only the part that comes from the neighbours is
        estimated, with a relative standard error of √(2/64) = 0.18 of that part.
        """
        if self._marginals is None:
            own = self.diagonal.reciprocal()
            total = torch.zeros_like(own)
            for first in range(0, SAMPLES, PROBES):
                noise = self._normal((self.noise_size, PROBES), first)
                x = self._sample(noise)
                total += (self._product(x) - self.diagonal[:, None] * x).square().sum(1)
            self._marginals = (own + own.square() * total / SAMPLES)[None]
        return self._marginals

    def marginals_along(self, d: Float[Tensor, "1 n"]) -> Float[Tensor, "1 n"]:
        """Return diag(S diag(d) S) = E[Sz ⊙ S(d ⊙ z)] over random signs z, from `PROBES` of them.

        Unbiased over the signs. These are fixed, so an unchanged Q gives the same error again.
        """
        z = self._normal((len(self.diagonal), PROBES), 1 << 20).sign()
        both = self._solve(torch.cat([z, d[0][:, None] * z], 1))
        return (both[:, :PROBES] * both[:, PROBES:]).mean(1)[None]

    def log_determinant(self) -> Float[Tensor, " 1"]:
        """Return log |Q| by stochastic Lanczos quadrature of Q scaled to a unit diagonal."""
        scale = self.diagonal.rsqrt()[:, None]

        def product(v: Tensor) -> Tensor:
            return scale * self._product(scale * v)

        signs = self._normal((len(self.diagonal), PROBES), 2 << 20).sign()
        value = quadratic_log(product, signs, steps=LANCZOS).mean()
        return (value + self.diagonal.log().sum())[None]

    def deviations(self, noise: Float[Tensor, "1 m r"]) -> Float[Tensor, "1 n r"]:
        return self._sample(noise[0].to(self.diagonal.dtype))[None].to(noise.dtype)

    def _sample(self, noise: Float[Tensor, "m r"]) -> Float[Tensor, "n r"]:
        n = len(self.diagonal)
        b = self.rest[:, None] * noise[:n]
        across = self.root[:, None] * noise[n:]
        b.index_add_(0, self.edges[0], across).index_add_(0, self.edges[1], across, alpha=-1)
        return self._solve(b)

    def one(self, g: int) -> "IterativeSolver":
        del g
        return self

    def _normal(self, shape: tuple[int, int], seed: int) -> Tensor:
        """Return fixed standard normal numbers."""
        device = self.diagonal.device
        source = torch.Generator(device=device).manual_seed(seed)
        return torch.randn(shape, generator=source, dtype=self.diagonal.dtype, device=device)


def quadratic_log(
    product: Callable[[Tensor], Tensor], start: Float[Tensor, "n r"], *, steps: int
) -> Float[Tensor, " r"]:
    """Return vᵀ log(A) v for each column v of `start`, by Gauss quadrature from Lanczos steps.

    Args:
        product: Returns A times a matrix (n, r), with A symmetric and positive definite.
        start: The vectors v.
        steps: Largest number of Lanczos steps.
    """
    norm = start.norm(dim=0)
    v, before = start / norm, torch.zeros_like(start)
    beta = torch.zeros_like(norm)
    alphas, betas = [], []
    for _ in range(min(steps, len(start))):
        w = product(v) - beta * before
        alpha = (v * w).sum(0)
        w = w - alpha * v
        beta = w.norm(dim=0)
        alphas.append(alpha)
        betas.append(beta)
        before, v = v, w / beta.clamp_min(torch.finfo(w.dtype).eps)
    matrix = torch.diag_embed(torch.stack(alphas, 1))
    off = torch.diag_embed(torch.stack(betas, 1)[:, :-1], offset=1)
    # on the CPU, because not every device has eigenvalues; the matrices are small
    values, vectors = (v.to(norm.device) for v in torch.linalg.eigh((matrix + off + off.mT).cpu()))
    tiny = torch.finfo(values.dtype).tiny
    return norm.square() * (vectors[:, 0].square() * values.clamp_min(tiny).log()).sum(1)
