"""Stage 6: the prior p(f | A) of the attention logits, given the bag's graph."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ..core import Bags, degrees, segment_sum
from ..errors import InputError
from .gmrf import GMRF
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

        With ε = 0, this is the log of the product of the non-zero eigenvalues, for bags of one
        connected component.

        Raises:
            InputError: If ε = 0 and a bag has several connected components, or the Laplacian is
                normalised (its null vector is not the constant that softmax ignores).
        """
        full = full_dtype(bags.x.device)
        own, coupling = self.entries(bags, dtype=full)
        scale = (2 * self.kappa_of(bags, dtype=full)).repeat_interleave(bags.offsets.diff())
        diagonal, pairs = scale * own, scale[bags.edges[0]] * coupling
        if self.proper:
            return GMRF(diagonal, pairs, bags=bags).log_determinants()
        if self.laplacian == "normalized":
            raise InputError("an exact KL with ridge = 0 needs the combinatorial Laplacian")
        n, edges = len(bags.x), bags.edges.cpu().numpy()
        graph = coo_matrix((np.ones(edges.shape[1]), tuple(edges)), shape=(n, n))
        component = connected_components(graph, directed=False)[1]
        for name, rows in zip(
            bags.names, np.split(component, bags.offsets[1:-1].tolist()), strict=True
        ):
            if (parts := len(np.unique(rows))) > 1:
                raise InputError(
                    f"bag {name!r} has {parts} connected components and ridge is 0: the prior does "
                    "not determine their relative level, so the KL is undefined; give ridge > 0"
                )
        # Matrix-tree theorem: the product is n times any cofactor; |Q + s e₁e₁ᵀ| is s times one.
        first = bags.offsets[:-1]
        added = torch.where(diagonal[first] > 0, diagonal[first], 1)
        field = GMRF(diagonal.index_add(0, first, added), pairs, bags=bags)
        return field.log_determinants() + (bags.offsets.diff() / added).log()


def _like(v: Float[Tensor, " m"], f: Tensor) -> Tensor:
    return v if f.ndim == 1 else v[:, None]
