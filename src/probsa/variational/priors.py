"""Stage 6: the prior p(f | A) of the attention logits, given the bag's graph."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu
from torch import Tensor

from ..core import Bags, degrees, segment_sum
from ..errors import InputError
from .options import PriorOptions


def full_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64 (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


class Prior(ABC):
    """A Gaussian prior f ~ N(0, Q⁻¹), with the quantities that the KL needs."""

    @abstractmethod
    def energy(self, f: Float[Tensor, "n *classes"], bags: Bags) -> Float[Tensor, " bags"]:
        """Return ½ fᵀ Q f of each bag, summed over classes: log p(f | A) = −energy(f) + const."""

    @abstractmethod
    def diagonal(self, bags: Bags, *, dtype: torch.dtype | None = None) -> Float[Tensor, " n"]:
        """Return ½ Q_nn, the factor of the variance of instance n in the KL.

        Args:
            bags: The bags whose graphs define Q.
            dtype: Of the result; by default, that of the edge weights.
        """

    @abstractmethod
    def log_determinant(self, bags: Bags) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag; if Q has one null direction per bag, it is left out."""

    proper: bool
    """Whether Q is invertible."""


class Dirichlet(Prior):
    """p(f | A) ∝ exp(−κ fᵀ(L + εI) f): the paper's prior (κ = 1, ε = 0) with a ridge term.

    fᵀLf = Σ_edges A_ij (f_i − f_j)² is the Dirichlet energy, eq. (1) of docs/paper.md;
    Q = 2κ(L + εI).

    Args:
        kappa: The precision κ > 0; a tensor gives each bag of a batch its own.
        ridge: ε ≥ 0. With 0, the prior is improper along the constant vector of every connected
            component, and an instance without neighbours has no finite optimal variance.
        laplacian: `combinatorial`, L = D − A, or `normalized`, L = I − D^-½ A D^-½, where
            L_nn = 1 also for an isolated instance.
    """

    def __init__(
        self,
        *,
        kappa: float | Float[Tensor, " bags"] = PriorOptions.kappa,
        ridge: float = PriorOptions.ridge,
        laplacian: Literal["combinatorial", "normalized"] = PriorOptions.laplacian,
    ) -> None:
        one = PriorOptions.kappa if isinstance(kappa, Tensor) else kappa
        PriorOptions(kappa=one, ridge=ridge, laplacian=laplacian)  # checks the values
        self.kappa, self.ridge = kappa, ridge
        self.laplacian: Literal["combinatorial", "normalized"] = laplacian
        self.proper = ridge > 0

    def entries(
        self, bags: Bags, *, dtype: torch.dtype
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " e"]]:
        """Return the diagonal of L + εI, and its entry for each stored pair."""
        w = bags.weights.to(dtype)
        degree = degrees(bags.edges, w, len(bags.x))
        if self.laplacian == "combinatorial":
            return degree + self.ridge, -w
        scale = degree.clamp_min(torch.finfo(dtype).tiny).rsqrt() * (degree > 0)
        i, j = bags.edges
        return torch.ones_like(degree) + self.ridge, -w * scale[i] * scale[j]

    def energy(self, f: Float[Tensor, "n *classes"], bags: Bags) -> Float[Tensor, " bags"]:
        """Return κ fᵀ(L + εI) f of each bag: κ times eq. (1), with the ridge of eq. (5)."""
        i, j = bags.edges
        w = bags.weights.to(f.dtype)
        per_instance = self.ridge * f.square() if self.ridge else torch.zeros_like(f)
        if self.laplacian == "normalized":
            degree = degrees(bags.edges, w, len(f))
            scale = degree.clamp_min(torch.finfo(f.dtype).tiny).rsqrt() * (degree > 0)
            alone = (degree == 0).to(f.dtype)
            per_instance = per_instance + f.square() * _like(alone, f)
            f = f * _like(scale, f)
        # The gradient of index_select is a plain index_add; that of f[i] sorts the indices first.
        difference = f.index_select(0, i) - f.index_select(0, j)
        per_edge = _like(w, f) * difference.square()
        # The energy of an edge is added to its first end, so one sum per bag serves both terms.
        per_instance = per_instance.index_add(0, i, per_edge)
        if f.ndim == 2:
            per_instance = per_instance.sum(1)
        return self.kappa * segment_sum(per_instance, bags.sizes)

    def kappa_of(self, bags: Bags, *, dtype: torch.dtype) -> Float[Tensor, " bags"]:
        """Return κ of each bag."""
        if isinstance(self.kappa, Tensor):
            return self.kappa.to(dtype)
        return torch.full((len(bags),), self.kappa, dtype=dtype, device=bags.x.device)

    def diagonal(self, bags: Bags, *, dtype: torch.dtype | None = None) -> Float[Tensor, " n"]:
        w = bags.weights.to(dtype or bags.weights.dtype)
        kappa = self.kappa
        if isinstance(kappa, Tensor):
            kappa = kappa.to(w.dtype).repeat_interleave(bags.offsets.diff())
        if self.laplacian == "normalized":
            return w.new_ones(len(bags.x)) * (kappa * (1 + self.ridge))
        return kappa * (degrees(bags.edges, w, len(bags.x)) + self.ridge)

    def log_determinant(self, bags: Bags) -> Float[Tensor, " bags"]:
        """Return log |Q| of each bag, without gradients.

        Each bag is factorised by itself, sparse, in float64 on the CPU. With ε = 0, this is the
        log of the product of the non-zero eigenvalues, for bags of one connected component.

        Raises:
            InputError: If ε = 0 and a bag has several connected components, or the Laplacian is
                normalised (its null vector is not the constant that softmax ignores).
        """
        return torch.tensor(
            [self._log_determinant(bags, b) for b in range(len(bags))],
            dtype=torch.float64,
            device=bags.x.device,
        )

    def _log_determinant(self, bags: Bags, b: int) -> float:
        q = self.precision(bags, b)
        n = bags.sizes[b]
        if self.proper:
            return _log_det(q)
        if self.laplacian == "normalized":
            raise InputError("an exact KL with ridge = 0 needs the combinatorial Laplacian")
        parts = connected_components(q, directed=False)[0]
        if parts > 1:
            raise InputError(
                f"bag {bags.names[b]!r} has {parts} connected components and ridge is 0: the prior "
                "does not determine their relative level, so the KL is undefined; give ridge > 0"
            )
        # Matrix-tree theorem: the product of the non-zero eigenvalues is n times any cofactor.
        return float(np.log(n)) + (_log_det(q[1:, 1:]) if n > 1 else 0.0)

    def precision(self, bags: Bags, b: int) -> sp.csc_matrix:
        """Return Q = 2κ(L + εI) of bag b as a sparse float64 matrix."""
        start, stop = int(bags.offsets[b]), int(bags.offsets[b + 1])
        in_bag = (bags.edges[0] >= start) & (bags.edges[0] < stop)
        i, j = (bags.edges[:, in_bag] - start).cpu().numpy()
        w = bags.weights[in_bag].double().cpu().numpy()
        n = stop - start
        a = sp.coo_matrix((np.r_[w, w], (np.r_[i, j], np.r_[j, i])), shape=(n, n)).tocsc()
        degree = np.asarray(a.sum(1)).ravel()
        if self.laplacian == "normalized":
            inverse = np.divide(1, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
            lap = sp.eye(n) - sp.diags(inverse) @ a @ sp.diags(inverse)
        else:
            lap = sp.diags(degree) - a
        kappa = float(self.kappa_of(bags, dtype=torch.float64)[b])
        return sp.csc_matrix(2 * kappa * (lap + self.ridge * sp.eye(n)))


def _like(v: Float[Tensor, " m"], f: Tensor) -> Tensor:
    return v if f.ndim == 1 else v[:, None]


def _log_det(q: sp.csc_matrix) -> float:
    """Return log |Q| of a symmetric positive definite matrix, from the diagonal of U in Q = LU."""
    factor = splu(
        sp.csc_matrix(q),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return float(np.log(np.abs(factor.U.diagonal())).sum())
